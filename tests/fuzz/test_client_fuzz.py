"""A bounded run of the client fuzz: both clients on both servers, one seed. `make fuzz-client` runs longer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("server", ["embedded", "nats-server"])
def test_random_histories_of_both_clients_keep_their_promises(server):
    command = [sys.executable, Path(__file__).with_name("run_client.py"), "--seconds", "0", "--server", server]
    helpers = Path(__file__).parents[1] / "conformance" / "support"
    environment = {**os.environ, "PYTHONPATH": str(helpers)}
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "interrupted" in run.stdout
    assert "cancelled" in run.stdout
