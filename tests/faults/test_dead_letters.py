"""Dead letters are stored once, whatever is killed in between: the worker at any point, the server too."""

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

import jetlake.blocking
from tests.faults.killable import KillableServer

WORKER = Path(__file__).parent / "dead_letter_worker.py"
JOBS = 60


def fill(js):
    js.create_stream("JOBS", subjects=["jobs"], retention="workqueue")
    js.create_stream("DEAD", subjects=["dead"])
    js.create_consumer("JOBS", "w", ack_wait=0.3)
    for number in range(JOBS):
        js.publish("jobs", b"%d" % number)


def worker(server, *words):
    return subprocess.Popen([sys.executable, str(WORKER), server.url, *words], stderr=subprocess.DEVNULL)


def wait_until_empty(js, process, messages=0):
    while js.stream("JOBS").info().state.messages > messages:
        assert process.poll() is None
    return [js.stream("DEAD").get(number) for number in range(1, js.stream("DEAD").info().state.last_seq + 1)]


@pytest.mark.parametrize("kind", ["jetlake", "nats-server always"])
def test_a_worker_killed_between_letter_and_termination_leaves_one_letter(kind):
    with KillableServer(kind) as server, jetlake.blocking.connect(server.url) as nc:
        js = nc.jetstream()
        fill(js)
        for _ in range(2):
            assert worker(server, "die").wait(60) == 9
        dead = js.stream("DEAD").info().state.messages
        assert dead > 0 and js.stream("JOBS").info().state.messages > JOBS // 2 - dead
        process = worker(server)
        try:
            letters = wait_until_empty(js, process)
        finally:
            process.kill()
            process.wait()
    assert sorted(int(letter.payload) for letter in letters) == list(range(1, JOBS, 2))


def test_kills_of_worker_and_server_lose_no_letter_and_store_none_twice():
    random = Random()
    with KillableServer("jetlake") as server:
        with jetlake.blocking.connect(server.url) as nc:
            fill(nc.jetstream())
        for round_ in range(3):
            process = worker(server)
            with jetlake.blocking.connect(server.url) as nc:
                left = nc.jetstream().stream("JOBS").info().state.messages
                wait_until_empty(nc.jetstream(), process, max(0, left - random.randrange(1, 15)))
            if round_ == 1:
                server.kill()
            process.kill()
            process.wait()
            if round_ == 1:
                server.start()
        process = worker(server)
        try:
            with jetlake.blocking.connect(server.url) as nc:
                letters = wait_until_empty(nc.jetstream(), process)
        finally:
            process.kill()
            process.wait()
    assert sorted(int(letter.payload) for letter in letters) == list(range(1, JOBS, 2))
