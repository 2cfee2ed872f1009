"""The faults that are planted fit the sources."""

from pathlib import Path

import pytest

import jetlake
from tests.world.run_mutations import MUTATIONS

SOURCES = Path(jetlake.__file__).parent


@pytest.mark.parametrize(("path", "piece", "instead", "what"), MUTATIONS)
def test_a_planted_fault_changes_the_sources(path, piece, instead, what):
    changed = (SOURCES / path).read_text().replace(piece, instead, 1)
    assert changed != (SOURCES / path).read_text(), what
    compile(changed, path, "exec")
