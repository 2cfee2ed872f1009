"""Fixtures of the client's unit tests: a server that is a script, and a clock that tests move by hand."""

import asyncio

import pytest

from tests.support.fake_server import FakeServer


class ManualClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still until it is moved; what waits for a time-out waits for the suite's."""

    def __init__(self):
        self._manual_s = 1000.0
        super().__init__()

    def time(self):
        return self._manual_s

    async def advance(self, seconds):
        """Move the clock and run what is due, and what that causes."""
        self._manual_s += seconds
        await self.settle()

    async def settle(self):
        """Let everything that is ready run."""
        for _ in range(20):
            await asyncio.sleep(0)


def pytest_asyncio_loop_factories(config, item):
    return {"manual": ManualClockLoop}


@pytest.fixture
async def clock():
    """The loop, for `await clock.advance(30)`."""
    return asyncio.get_running_loop()


@pytest.fixture
async def fake(monkeypatch):
    """A server that answers what the test says."""
    server = FakeServer()
    monkeypatch.setattr("jetlake.client.connection.server_link.open_wire", server.open_wire)
    yield server
    await server.close()
