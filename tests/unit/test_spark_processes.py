"""A server that is measured on a core of its own shares it with no thread of those who read from it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import _spark_processes
from _spark_processes import Processes

WITH_A_CHILD = """
import subprocess, sys, threading
from subprocess import PIPE
program = "import sys; print(flush=True); sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", program], stdin=PIPE, stdout=PIPE)
child.stdout.readline()
threading.Thread(target=sys.stdin.read).start()
print(child.pid, flush=True)
"""


@pytest.fixture
def process():
    """A process with two threads and a child, in the place of a server or of a JVM with a worker."""
    with subprocess.Popen(
        [sys.executable, "-c", WITH_A_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        child = int(started.stdout.readline())
        yield started.pid, child
        started.stdin.close()
        started.kill()


def cores_of(*pids):
    tasks = [int(task.name) for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]
    return [os.sched_getaffinity(task) for task in tasks]


def test_a_server_on_a_core_of_its_own(process):
    jvm, worker = process
    everywhere = os.sched_getaffinity(0)
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as server:
        with Processes(jvm).apart_from(server.pid):
            (own,) = cores_of(server.pid)
            others = cores_of(jvm, worker, os.getpid())
        assert len(own) == 1
        assert len(others) >= 4
        assert all(cores == (everywhere - own or everywhere) for cores in others)
        assert all(cores == everywhere for cores in cores_of(server.pid, jvm, worker, os.getpid()))
        server.kill()


def test_costs_are_those_of_counted_rounds(process, monkeypatch):
    jvm, _ = process
    costs = iter([(9.0, 9.0, 9.0), None, (2.0, 4.0, 6.0)])
    monkeypatch.setattr(_spark_processes.Processes, "_cpu_s", lambda *_: next(costs))
    _, found = Processes(jvm).measure({"case": (lambda: None, 2_000_000)}, 2, jvm)
    assert found == {"case": {"server CPU us": 1.0, "Python CPU us": 2.0, "JVM CPU us": 3.0}}
