"""A bounded run of the client fuzz: both clients on both servers, one seed. `make fuzz-client` runs longer."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("server", ["embedded", "nats-server"])
def test_random_histories_of_both_clients_keep_their_promises(server):
    command = [sys.executable, "-m", "tests.fuzz.run_client", "--seconds", "0", "--server", server]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "interrupted" in run.stdout
    assert "cancelled" in run.stdout
