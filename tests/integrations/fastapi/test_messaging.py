"""A FastAPI application with workers: its lifespan, its dependencies, its shutdown."""

import asyncio
import logging
import subprocess
import sys
from typing import Annotated

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient

import jetlake
import jetlake.blocking
from jetlake.client import JetStream
from jetlake.errors import ConnectionClosedError, InvalidOptionError
from jetlake.integrations.fastapi import Messaging
from tests.support.clients import TIMEOUT_S, until


@pytest.fixture
async def server():
    async with jetlake.Server() as server:
        yield server


async def prepare(js):
    jobs = await js.create_stream("JOBS", subjects=["jobs"])
    await jobs.create_consumer("workers", ack_wait=600)


async def pending(server):
    async with jetlake.connect(server.url) as client:
        info = await (await client.jetstream().consumer("JOBS", "workers")).info()
        return info.num_pending, info.num_ack_pending


def test_requests_publish_through_the_dependency():
    with jetlake.blocking.Server() as server:
        messaging = Messaging(server.url)
        messaging.setup(prepare)
        app = FastAPI(lifespan=messaging.lifespan)

        @app.post("/jobs")
        async def job(js: Annotated[JetStream, Depends(messaging.jetstream)]) -> int:
            return (await js.publish("jobs", b"1")).seq

        with TestClient(app) as client:
            assert [client.post("/jobs").json() for _ in range(2)] == [1, 2]


async def test_a_shutdown_waits_for_handlers_and_returns_the_rest(server):
    messaging = Messaging(server.url)
    messaging.setup(prepare)
    begun, may_end, done = asyncio.Event(), asyncio.Event(), []

    @messaging.worker("JOBS", "workers", max_messages=3)
    async def work(message):
        begun.set()
        await may_end.wait()
        done.append(message.payload)

    life = messaging.lifespan(None)
    await life.__aenter__()
    js = await messaging.jetstream()
    for number in range(3):
        await js.publish("jobs", b"%d" % number)
    await asyncio.wait_for(begun.wait(), TIMEOUT_S)
    leaving = asyncio.create_task(life.__aexit__(None, None, None))
    async with jetlake.connect(server.url) as client:
        # Those that were fetched ahead are there for others at once.
        other = await (await client.jetstream().consumer("JOBS", "workers")).fetch(2, expires=TIMEOUT_S)
        assert [message.payload for message in other] == [b"1", b"2"]
        for message in other:
            await message.ack_sync()
    assert not done and not leaving.done()
    may_end.set()
    await leaving
    assert done == [b"0"]
    assert await pending(server) == (0, 0)


async def test_handlers_that_take_too_long_are_cut_off(server, caplog):
    messaging = Messaging(server.url, drain_timeout=0.1)
    messaging.setup(prepare)
    begun = asyncio.Event()

    @messaging.worker("JOBS", "workers")
    async def work(message):
        begun.set()
        await asyncio.Event().wait()

    async with messaging.lifespan(None):
        await (await messaging.jetstream()).publish("jobs", b"1")
        await asyncio.wait_for(begun.wait(), TIMEOUT_S)
    assert "did not finish within" in caplog.text
    assert await pending(server) == (0, 1)


async def test_a_failing_handler_is_logged_and_its_message_tried_again(server, caplog):
    messaging = Messaging(server.url)
    messaging.setup(prepare)
    tries = []

    @messaging.worker("JOBS", "workers", retries=3, backoff=0.01)
    async def work(message):
        tries.append(message.metadata.delivered)
        if len(tries) < 3:
            raise ValueError("not yet")

    async with messaging.lifespan(None):
        await (await messaging.jetstream()).publish("jobs", b"1")
        await until(lambda: len(tries) == 3)
    assert tries == [1, 2, 3]
    assert await pending(server) == (0, 0)


async def test_a_worker_starts_again_when_its_consumer_was_deleted(server, caplog):
    caplog.set_level(logging.ERROR, "jetlake.fastapi")
    messaging = Messaging(server.url)
    messaging.setup(prepare)
    done = []

    @messaging.worker("JOBS", "workers")
    async def work(message):
        done.append(message.payload)

    async with messaging.lifespan(None):
        js = await messaging.jetstream()
        await js.publish("jobs", b"1")
        await until(lambda: done == [b"1"])
        await js.delete_consumer("JOBS", "workers")
        await until(lambda: "starts again" in caplog.text)
        await js.publish("jobs", b"2")
        await (await js.stream("JOBS")).create_consumer("workers", deliver_policy="by_start_sequence", opt_start_seq=2)
        await until(lambda: done == [b"1", b"2"])


async def test_what_cannot_work_is_refused():
    messaging = Messaging()
    with pytest.raises(InvalidOptionError, match="async def handle"):

        @messaging.worker("JOBS", "workers")
        def handle(message):
            """No coroutine function."""

    with pytest.raises(InvalidOptionError, match="async def prepare_all"):

        @messaging.setup
        def prepare_all(js):
            """No coroutine function."""

    with pytest.raises(ConnectionClosedError, match="lifespan"):
        await messaging.jetstream()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"retry": 3}, "a worker has no option 'retry'; it takes backoff, "),
        ({"on_error": print}, "a worker has no option 'on_error'"),
        ({"concurrency": 0}, "concurrency must be 1 or more, not 0"),
        ({"retries": -1}, "retries must be a whole number"),
        ({"expires": 1}, "expires must be 4 to 600 seconds"),
    ],
)
def test_options_that_no_consumer_takes_are_refused_where_they_are_given(options, complaint):
    with pytest.raises(InvalidOptionError, match=complaint):
        Messaging().worker("JOBS", "workers", **options)


async def test_a_worker_may_be_limited_by_bytes(server):
    messaging = Messaging(server.url)
    messaging.setup(prepare)
    done = asyncio.Event()

    @messaging.worker("JOBS", "workers", max_bytes=4096)
    async def work(message):
        done.set()

    async with messaging.lifespan(None):
        await (await messaging.jetstream()).publish("jobs", b"1")
        await asyncio.wait_for(done.wait(), TIMEOUT_S)


async def test_one_messaging_runs_in_one_application_at_a_time(server):
    messaging = Messaging(server.url)
    for _ in range(2):
        async with messaging.lifespan(None):
            with pytest.raises(InvalidOptionError, match="is running"):
                async with messaging.lifespan(None):
                    pass
            await messaging.jetstream()


async def test_a_worker_survives_an_error_that_nobody_expects(server, caplog, monkeypatch):
    messaging = Messaging(server.url)
    messaging.setup(prepare)
    done = asyncio.Event()

    @messaging.worker("JOBS", "workers")
    async def work(message):
        done.set()

    find, calls = JetStream.consumer, []

    async def fail_once(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise OSError("as nobody expects")
        return await find(*arguments)

    monkeypatch.setattr(JetStream, "consumer", fail_once)
    async with messaging.lifespan(None):
        await (await messaging.jetstream()).publish("jobs", b"1")
        await asyncio.wait_for(done.wait(), TIMEOUT_S)
    assert "as nobody expects" in caplog.text


APPLICATION = """
import asyncio, sys
from fastapi import FastAPI
from jetlake.integrations.fastapi import Messaging

messaging = Messaging(sys.argv[1])
app = FastAPI(lifespan=messaging.lifespan)


@messaging.worker("JOBS", "workers")
async def work(message):
    print("begun", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print("done", flush=True)


import uvicorn
uvicorn.run(app, port=0, log_level="error")
"""


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_process_that_ends_loses_no_message(tmp_path, is_killed):
    (tmp_path / "application.py").write_text(APPLICATION)
    with jetlake.blocking.Server() as server, jetlake.blocking.connect(server.url) as client:
        js = client.jetstream()
        stream = js.create_stream("JOBS", subjects=["jobs"])
        consumer = stream.create_consumer("workers", ack_wait=600, redeliver_lost=True)
        js.publish("jobs", b"1")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen([sys.executable, "application.py", server.url], cwd=tmp_path, **pipes)
        try:
            assert process.stdout.readline() == "begun\n"
            if is_killed:
                process.kill()
                (again,) = consumer.fetch(1, expires=60)
                assert again.metadata.delivered == 2
            else:
                process.terminate()
                out, _ = process.communicate("go on\n")
                assert out == "done\n"
                info = consumer.info()
                assert (info.num_pending, info.num_ack_pending) == (0, 0)
        finally:
            process.kill()
            process.communicate()
