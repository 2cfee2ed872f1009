"""Every decision names files that exist, and is listed on the page that opens the folder."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "decisions"
PAGES = sorted(DECISIONS.glob("[0-9]*.md"))


def homes(page: Path) -> list[str]:
    return re.findall(r"`([^`]+)`", page.read_text().split("## In the code")[1])


def test_the_list_is_complete():
    listed = re.findall(r"^(\d+)\. \[(.+)\]\((.+)\)$", (DECISIONS / "README.md").read_text(), re.MULTILINE)
    titles = [(int(page.name[:2]), page.read_text().splitlines()[0], page.name) for page in PAGES]
    assert [(int(number), f"# {number}. {title}", name) for number, title, name in listed] == titles


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_its_files_exist(page):
    assert homes(page)
    assert [home for home in homes(page) if not (ROOT / home).exists()] == []
