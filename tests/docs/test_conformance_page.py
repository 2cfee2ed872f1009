"""Every row of the conformance page names a module and a test that are there."""

from __future__ import annotations

import re

import pytest

from tests.docs.blocks import ROOT

_ROW = re.compile(r"^\| (?P<behaviour>.+) \| `(?P<module>[^`]+)` \| `(?P<test>[^`]+)` \| .+ \|$", re.MULTILINE)
PAGE = (ROOT / "docs" / "conformance.md").read_text()
ROWS = [match.groupdict() for match in _ROW.finditer(PAGE)]


def test_every_row_is_read():
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| behaviour")]
    assert len(lines) == len(ROWS) > 70


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["behaviour"][:60])
def test_module_and_test_are_there(row):
    module = row["module"].replace("engine/", "server/engine/")
    assert (ROOT / "src" / "jetlake" / module).exists(), module
    path, _, name = row["test"].partition("::")
    assert (ROOT / path).exists(), path
    if name:
        assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), row["test"]
