"""Finds code blocks in Markdown."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"^(?:<!-- file: (?P<file>[\w.]+) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    """One fenced block; `file` is the name under which a reader saves it."""

    file: str
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
        Block(found["file"] or "", found["language"], found["code"], text.count("\n", 0, found.start("code")))
        for found in _BLOCK.finditer(text)
    ]


def requirements(path: Path) -> set[str]:
    """What the page's install lines install: `jetlake[all]`, `pytest`. A comment in a program is no install line."""
    text = path.read_text()
    for block in blocks(path):
        text = text.replace(block.code, "") if block.file else text
    lines = re.findall(r"pip install ([^`\n#]+)", text)
    words = {word for line in lines for word in shlex.split(line) if not word.startswith("-")}
    # `.[all]` is the same in a clone.
    return {re.sub(r"^\.(?=\[)", "jetlake", word) for word in words}


def save_and_run(path: Path, folder: Path, environment: dict[str, str] | None = None) -> None:
    """Save the page's files into the folder and run its commands (`$ python publish.py`), both as they stand.

    A command's output is the lines below it; `...` stands for anything. Without an environment, `python` and the other
    commands are those beside this interpreter.
    """
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for block in blocks(path):
        if block.file:
            (folder / block.file).write_text(block.code)
        for step in re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:] if block.language == "console" else ():
            command, _, shown = step.partition("\n")
            done = subprocess.run(
                command,
                shell=True,
                cwd=folder,
                env=environment or {**os.environ, "PATH": beside},
                capture_output=True,
                text=True,
                timeout=560,
            )
            assert done.returncode == 0, f"{name(path)}: {command}\n{done.stdout}{done.stderr}"
            pattern = "(?s:.*)".join(re.escape(part) for part in shown.rstrip("\n").split("..."))
            assert re.fullmatch(pattern, done.stdout.rstrip("\n")), f"{name(path)}: {command} printed\n{done.stdout}"


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))
