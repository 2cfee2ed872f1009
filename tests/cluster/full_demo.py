"""The demonstration with a cluster in a small size, as a person runs it: `make test-cluster` does."""

import os
import subprocess
import sys
from pathlib import Path

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "examples")}


def test_the_demonstration_proves_its_counts(tmp_path):
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "demo", "--cluster", "--orders", "600", "--folder", str(folder)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout.count("equal") == 7
    assert "WRONG" not in done.stdout
    running = subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, text=True, check=False)
    assert running.stdout == ""
