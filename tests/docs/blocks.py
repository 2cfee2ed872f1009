"""Finds code blocks in Markdown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[a-z-]+) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    """One fenced block."""

    mark: str
    language: str
    code: str
    line: int


def pages() -> list[Path]:
    """Every Markdown page of the project that a reader may open."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    return sorted(path for path in found if ".venv" not in path.parts)


def blocks(path: Path) -> list[Block]:
    """The page's fenced blocks in their order."""
    text = path.read_text()
    return [
        Block(found["mark"] or "", found["language"], found["code"], text.count("\n", 0, found.start("code")))
        for found in _BLOCK.finditer(text)
    ]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))
