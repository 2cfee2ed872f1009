"""The embedded server in a thread of its own."""

from __future__ import annotations

import asyncio
import threading

import pytest

import jetlake
from jetlake import blocking
from jetlake.errors import ConfigError


def test_what_is_acknowledged_is_there_after_a_restart(tmp_path):
    with blocking.Server(tmp_path) as server, blocking.connect(server.url) as client:
        client.jetstream().create_stream("S", subjects=["s.>"])
        assert client.jetstream().publish("s.a", b"1").seq == 1
    with blocking.Server(tmp_path) as server, blocking.connect(server.url) as client:
        assert client.jetstream().stream("S").get(1).payload == b"1"


def test_asyncio_clients_reach_the_server_from_their_own_loops():
    async def publish(url):
        async with await jetlake.connect(url) as client:
            return await client.rtt()

    with blocking.Server(jetstream=False) as server:
        assert asyncio.run(publish(server.url)) > 0
        assert asyncio.run(publish(server.url)) > 0


def test_the_end_leaves_no_thread_and_may_be_said_twice():
    before = set(threading.enumerate())
    server = blocking.Server(jetstream=False)
    server.start()
    server.stop()
    server.stop()
    server.clock_moved()
    assert set(threading.enumerate()) <= before
    with pytest.raises(ConfigError, match="already started"):
        server.start()


def test_a_port_that_is_taken_leaves_no_thread():
    before = set(threading.enumerate())
    with blocking.Server(jetstream=False) as server, pytest.raises(ConfigError, match=str(server.port)):
        blocking.Server(port=server.port, jetstream=False).start()
    assert set(threading.enumerate()) <= before
