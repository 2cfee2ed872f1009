"""A few worlds: `make world` runs as many as there is time for."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run_world.py")


def _run(*arguments):
    command = [sys.executable, RUN, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.parametrize("seed", [1, 13])
def test_worlds_keep_their_promises(seed):
    run = _run("--seed", seed, "--seeds", 12)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " stored" in run.stdout
    assert "fault" in run.stdout


def test_a_seed_is_the_same_history_byte_for_byte():
    # The first has nearly every part: an edge, a stream that moves, a group, threads, Spark, readers that live on.
    first = _run("--seed", 146, "--seeds", 2, "--digests")
    again = _run("--seed", 146, "--seeds", 2, "--digests", "--shift", 1777)
    digests = [[line for line in run.stdout.splitlines() if "digest" in line] for run in (first, again)]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 2


def test_the_page_lists_the_rare_states_that_are_marked():
    root = RUN.parents[2]
    marked = {
        mark
        for path in (root / "src" / "jetlake").rglob("*.py")
        for mark in re.findall(r"^ +# sometimes: (.+)$", path.read_text(), re.MULTILINE)
    }
    page = (root / "docs" / "reliability.md").read_text()
    listed = page.partition("it has reached:\n\n")[2].partition("\n\n")[0]
    assert {line.removeprefix("- ") for line in listed.splitlines()} == marked


_SHRINK = """
from tests.world import run_world

steps, faults = [f"c0.0.{number}" for number in range(40)], [f"fault.{number}" for number in range(5)]

def run(seed, skip=frozenset()):
    is_broken = not {"c0.0.7", "fault.3"} & skip
    return {"seed": seed, "failure": f"{len(skip)} are gone" if is_broken else None, "steps": steps, "faults": faults}

run_world.run_forked = run
left_out, left = run_world.shorten(run(1))
print(left, *sorted({*steps, *faults} - left_out))
"""


def test_a_failing_history_is_shortened_to_what_matters():
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(RUN.parents[2])}
    command = [sys.executable, "-c", _SHRINK]
    run = subprocess.run(command, capture_output=True, text=True, timeout=170, check=True, env=environment)
    assert run.stdout.split() == ["2", "c0.0.7", "fault.3"]
