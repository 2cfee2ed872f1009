"""Remote control, events and broadcast tasks of real Celery workers, on both servers, over a restart of the server."""

import asyncio
import importlib
import os
import subprocess
import sys
import threading
import time

import pytest

import jetlake
from jetlake.integrations.celery.backend import close_connections
from tests.support.clients import TIMEOUT_S
from tests.support.servers import make_server

PROGRAM = """
import os
import jetlake.integrations.celery
from celery import Celery
from kombu import Queue
from kombu.common import Broadcast

app = Celery("control", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
app.conf.update(
    task_queues=[Queue("celery"), Broadcast("all")],
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    worker_send_task_events=True,
    task_send_sent_event=True,
)


@app.task(bind=True, shared=False)
def where(self):
    with open("ran", "a") as file:
        file.write(f"{self.request.hostname}\\n")
"""
NAMES = ("one@here", "two@here")
ANSWERS = {"ok": "pong"}


@pytest.fixture(params=["embedded", "nats-server"])
async def server(request):
    server = make_server(request.param, process=True)
    await server.start()
    yield server
    await server.discard()


@pytest.fixture
def program(server, tmp_path, monkeypatch):
    """The application in this process, and two workers in their own."""
    (tmp_path / "control_shop.py").write_text(PROGRAM)
    monkeypatch.setenv("BROKER", f"jetstream://{server.url.removeprefix('nats://')}/shop")
    monkeypatch.syspath_prepend(tmp_path)
    start = [sys.executable, "-m", "celery", "-A", "control_shop", "worker", "-P", "threads", "-c", "2", "-n"]
    with (tmp_path / "workers.log").open("wb") as log:
        workers = [
            subprocess.Popen([*start, name], cwd=tmp_path, env=dict(os.environ), stdout=log, stderr=log)
            for name in NAMES
        ]
    try:
        yield importlib.import_module("control_shop")
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()
        sys.modules.pop("control_shop").app.pool.force_close_all()
        close_connections()


def answers(app):
    """Ping until both workers answer; a request that comes before a worker has subscribed is missed."""
    give_up_at = time.monotonic() + 2 * TIMEOUT_S
    while time.monotonic() < give_up_at:
        found = app.control.inspect(timeout=5, limit=2).ping() or {}
        if len(found) == 2:
            return found
    raise AssertionError("the workers do not answer")


def control(program, folder):
    app, where = program.app, program.where
    assert answers(app) == dict.fromkeys(NAMES, ANSWERS)
    one = app.control.inspect([NAMES[0]], timeout=TIMEOUT_S, limit=1)
    assert "celery" in [queue["name"] for queue in one.active_queues()[NAMES[0]]]
    waits = where.apply_async(countdown=3600)
    app.control.revoke(waits.id, reply=True, timeout=TIMEOUT_S, limit=2)
    assert waits.id in one.revoked()[NAMES[0]]
    where.delay().get(timeout=TIMEOUT_S)
    (folder / "ran").unlink()
    where.apply_async(queue="all", ignore_result=True)
    give_up_at = time.monotonic() + TIMEOUT_S
    while not (folder / "ran").exists() or len((folder / "ran").read_text().split()) < 2:
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
    assert sorted((folder / "ran").read_text().split()) == list(NAMES)


def watch(app, seen, ready):
    """Note the events of workers and tasks until a task has succeeded."""

    class Receiver(app.events.Receiver):
        def on_consume_ready(self, *_, **__):
            ready.set()

    def note(event):
        seen.append(event["type"])
        receiver.should_stop = event["type"] == "task-succeeded"

    with app.connection_for_read() as connection:
        receiver = Receiver(connection, handlers={"*": note}, app=app)
        receiver.capture(timeout=TIMEOUT_S, wakeup=False)


async def test_every_worker_hears_and_answers_also_after_a_restart_of_the_server(server, program, tmp_path):
    seen, ready = [], threading.Event()
    watcher = asyncio.create_task(asyncio.to_thread(watch, program.app, seen, ready))
    await asyncio.to_thread(ready.wait, TIMEOUT_S)
    await asyncio.to_thread(control, program, tmp_path)
    await watcher
    assert {"task-sent", "task-received", "task-started", "task-succeeded"} <= set(seen)
    await server.kill()
    await server.start()
    await asyncio.to_thread(control, program, tmp_path)
    # None of it is stored.
    async with jetlake.connect(server.url) as client:
        assert await client.jetstream().stream_names() == ["KV_shop-results", "shop_celery"]
