"""A few worlds: `make world` runs as many as there is time for."""

import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).with_name("run_world.py")


def _run(*arguments):
    command = [sys.executable, RUN, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)


def test_worlds_keep_their_promises():
    run = _run("--seed", 1, "--seeds", 12)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " stored" in run.stdout
    assert "fault" in run.stdout


def test_a_seed_is_the_same_history_byte_for_byte():
    first = _run("--seed", 11, "--seeds", 2, "--digests")
    again = _run("--seed", 11, "--seeds", 2, "--digests", "--shift", 1777)
    digests = [[line for line in run.stdout.splitlines() if "digest" in line] for run in (first, again)]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 2
