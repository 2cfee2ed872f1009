"""A Django project's workers in a process of their own: messages are handled, a stop drains, a kill loses nothing."""

import subprocess
import sys

import pytest

import jetlake.blocking
from jetlake.errors import InvalidOptionError

PROJECT = """
import sys, time
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["jetlake.integrations.django"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    JETLAKE={"server" if sys.argv[1] == "wrong" else "servers": sys.argv[2]},
)
django.setup()

from django.core.management import call_command
from jetlake.integrations.django import worker

if sys.argv[1] != "nothing":
    @worker("JOBS", "workers", max_messages=2, retries=2, backoff=0.01)
    def work(message):
        print("begun", message.payload.decode(), message.metadata.delivered, flush=True)
        if message.payload == b"fail" and message.metadata.delivered < 3:
            raise ValueError("not yet")
        if message.payload.startswith(b"wait"):
            sys.stdin.readline()
        print("done", message.payload.decode(), flush=True)

call_command("jetlake_worker")
"""


@pytest.fixture
def server():
    with jetlake.blocking.Server() as server:
        yield server


@pytest.fixture
def jobs(server):
    with jetlake.blocking.connect(server.url) as client:
        js = client.jetstream()
        stream = js.create_stream("JOBS", subjects=["jobs"])
        stream.create_consumer("workers", ack_wait=600, redeliver_lost=True)
        yield js


@pytest.fixture
def start(server, tmp_path):
    (tmp_path / "project.py").write_text(PROJECT)
    started = []

    def start(what="work"):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen([sys.executable, "project.py", what, server.url], cwd=tmp_path, **pipes)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_messages_are_handled_and_a_stop_lets_the_worker_finish(jobs, start):
    worker = start()
    assert worker.stdout.readline() == "reading JOBS/workers\n"
    jobs.publish("jobs", b"fail")
    assert [worker.stdout.readline() for _ in range(4)] == [*(f"begun fail {n}\n" for n in (1, 2, 3)), "done fail\n"]
    jobs.publish("jobs", b"wait")
    assert worker.stdout.readline() == "begun wait 1\n"
    jobs.publish("jobs", b"next")
    worker.terminate()
    # What was fetched ahead is there for others while the function still runs.
    (other,) = jobs.consumer("JOBS", "workers").fetch(1, expires=60)
    assert other.payload == b"next"
    other.ack_sync()
    out, _ = worker.communicate("go on\n")
    assert out == "done wait\nstopped\n" and worker.returncode == 0
    info = jobs.consumer("JOBS", "workers").info()
    assert (info.num_pending, info.num_ack_pending) == (0, 0)


def test_the_message_of_a_worker_that_was_killed_comes_again(jobs, start):
    worker = start()
    assert worker.stdout.readline() == "reading JOBS/workers\n"
    jobs.publish("jobs", b"wait")
    assert worker.stdout.readline() == "begun wait 1\n"
    worker.kill()
    (again,) = jobs.consumer("JOBS", "workers").fetch(1, expires=60)
    assert again.payload == b"wait" and again.metadata.delivered == 2


def test_what_cannot_work_is_said(server, start):
    for what, complaint in [
        ("work", "there is no consumer 'workers' of stream 'JOBS': create it first"),
        ("nothing", "no function is marked with @worker"),
        (
            "wrong",
            "the setting JETLAKE has options of jetlake.connect: server must be a server in this process",
        ),
    ]:
        worker = start(what)
        _, errors = worker.communicate()
        assert worker.returncode and complaint in errors


def test_what_no_worker_can_be_is_refused():
    from jetlake.integrations.django.workers import worker as marked

    with pytest.raises(InvalidOptionError, match=r"def bill\(message\), with async_to_sync inside"):

        @marked("JOBS", "workers")
        async def bill(message):
            """Nobody would await it, and its message would be acknowledged."""

    with pytest.raises(InvalidOptionError, match="no option 'retry'"):
        marked("JOBS", "workers", retry=3)
