"""The README's commands and examples are true."""

from __future__ import annotations

import subprocess
import sys

import pytest
from blocks import ROOT, blocks

pytest_plugins = ["pytester"]
README = ROOT / "README.md"


def python_blocks():
    return [block.code for block in blocks(README) if block.language == "python"]


def test_its_commands_are_targets_of_make():
    (console,) = [block.code for block in blocks(README) if block.language == "console"]
    commands = [line.partition("#")[0].split() for line in console.splitlines()]
    assert commands == [["make", "demo"], ["make", "test"]]
    for command in commands:
        subprocess.run([command[0], "-n", *command[1:]], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def test_the_first_example_runs():
    program = python_blocks()[0]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "1 orders.new b'{\"id\": 42}'\n"


def test_the_test_example_passes(pytester):
    (example,) = [code for code in python_blocks() if "def test_" in code]
    pytester.makeini("[pytest]\nasyncio_mode = auto\n")
    pytester.makepyfile(example)
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=1)


def test_it_fits_two_screens():
    assert len(README.read_text().splitlines()) <= 120


@pytest.mark.parametrize("extra", ["all"])
def test_its_extras_exist(extra):
    assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text()
