"""The demonstration with a cluster in a small size, as a person runs it: `make test-cluster` does."""

import subprocess
import sys


def test_the_demonstration_proves_its_counts(tmp_path):
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "jetlake", "demo", "--cluster", "--orders", "600", "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout.count("equal") == 7
    assert "WRONG" not in done.stdout
    running = subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, text=True, check=False)
    assert running.stdout == ""
