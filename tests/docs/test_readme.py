"""The README's commands are true; its programs are run with those of the other pages."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.docs.blocks import ROOT, blocks

README = ROOT / "README.md"


def test_its_commands_are_targets_of_make():
    consoles = [block.code for block in blocks(README) if block.language == "console"]
    (console,) = (code for code in consoles if code.startswith("make"))
    commands = [line.partition("#")[0].split() for line in console.splitlines()]
    assert commands == [["make", "demo"], ["make", "test"]]
    for command in commands:
        subprocess.run([command[0], "-n", *command[1:]], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def test_its_words_are_few():
    text = re.sub(r"<!-- benchmark.*?/benchmark -->|```.*?```", "", README.read_text(), flags=re.DOTALL)
    assert len(text.split()) <= 900


@pytest.mark.parametrize("extra", ["all"])
def test_its_extras_exist(extra):
    assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text()
