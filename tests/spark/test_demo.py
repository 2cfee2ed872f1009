"""The demonstration in a small size, as a person runs it, and what it says at its end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as dataset
import pytest

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "examples")}
pytestmark = [pytest.mark.spark, pytest.mark.own_process]


def _processes_of(folder: Path) -> list[str]:
    """Command lines that name the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found


def test_the_demonstration_proves_its_counts_and_leaves_nothing_running(tmp_path):
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "demo", "--orders", "2000", "--folder", str(folder)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    counts = dict(
        re.findall(
            r"^\s*(published|deduplicated|stored|handled|archived once|archived|aggregated|unsettled)\s+([\d,]+)",
            done.stdout,
            re.MULTILINE,
        )
    )
    assert counts == {
        "published": "2,200",
        "deduplicated": "200",
        "stored": "2,000",
        "handled": "2,000",
        "unsettled": "0",
        "archived": "2,000",
        "archived once": "2,000",
        "aggregated": "2,000",
    }
    assert done.stdout.count(" equal ") == 9
    assert "WRONG" not in done.stdout
    assert "the archive is killed" in done.stdout
    assert "the server is killed" in done.stdout
    # The results lie where it says, and are read as it says.
    assert dataset.dataset(folder / "lake", partitioning="hive").count_rows() == 2000
    revenue = dataset.dataset(folder / "revenue", partitioning="hive").to_table()
    assert sum(revenue["orders"].to_pylist()) == 2000
    # What it says to type works as it stands.
    (read,) = re.findall(r"^  the revenue    (.+)$", done.stdout, re.MULTILINE)
    shown = subprocess.run(read, shell=True, capture_output=True, text=True, timeout=60, check=True)
    assert "country" in shown.stdout
    assert "Try next:" in done.stdout
    assert _processes_of(folder) == []
