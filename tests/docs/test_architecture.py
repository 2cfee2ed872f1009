"""Every file and every name that the architecture page mentions exists."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
SOURCE = ROOT / "src" / "jetlake"
FLOWS = re.findall(r"^\| .+ \| `([\w/]+)\.py` \| `([\w.]+)` \|$", PAGE, re.MULTILINE)


def test_the_flows_are_read():
    assert len(FLOWS) == len(re.findall(r"^\| [^|]+ \| [^|]+ \| [^|]+ \|$", PAGE, re.MULTILINE)) - 3 > 20


@pytest.mark.parametrize(("module", "name"), FLOWS)
def test_a_step_of_a_flow_exists(module, name):
    found = importlib.import_module("jetlake." + module.replace("/", "."))
    for part in name.split("."):
        found = getattr(found, part)


def test_the_files_exist():
    files = set(re.findall(r"`([\w/]+\.py)`", PAGE))
    assert {name for name in files if not (SOURCE / name).exists()} == set()


def test_the_folders_of_the_tree_exist():
    tree = PAGE.split("```")[1]
    folders = re.findall(r"^  (\w+)/", tree, re.MULTILINE)
    assert {name for name in folders if not (SOURCE / name).is_dir()} == set()
    listed = set(folders) | {"completion", "errors", "errors_table", "platform", "version", "__init__", "__main__"}
    assert {path.stem for path in SOURCE.iterdir() if path.name != "py.typed" and path.stem != "__pycache__"} == listed
