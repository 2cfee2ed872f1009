"""The pure modules of the pages, run by Node."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import jetlake.dashboard

HERE = Path(__file__).parent
STATIC = Path(jetlake.dashboard.__file__).parent / "static"


def test_the_arithmetic_of_charts_and_the_forms_of_payloads(tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node, "this test needs Node; `make test` installs it"
    shutil.copytree(STATIC / "js", tmp_path / "js")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copy(HERE / "dashboard_modules.mjs", tmp_path)
    done = subprocess.run([node, tmp_path / "dashboard_modules.mjs"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ok\n"


def test_no_module_writes_markup_or_loads_anything_from_elsewhere() -> None:
    for file in STATIC.rglob("*.js"):
        text = file.read_text()
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "https://",
            'setAttribute("style',
        ):
            assert forbidden not in text, f"{file.name}: {forbidden}"
