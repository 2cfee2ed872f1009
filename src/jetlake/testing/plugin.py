"""A pytest plugin: a JetStream server in the test's own loop, a client connected to it, and a clock moved by hand.

It is there as soon as jetlake is installed, and needs pytest-asyncio. A test that asks for `jetlake_clock` gets a
server whose time stands still until the test moves it; every other test gets one that runs by the real time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from jetlake.client import Client, JetStream
    from jetlake.server import Server
    from jetlake.testing.clock import ManualClock


def async_fixture(function: Any) -> Any:
    """A fixture that pytest-asyncio runs; where that is missing, one that says so when it is used."""
    try:
        from pytest_asyncio import fixture
    except ImportError:

        @pytest.fixture(name=function.__name__)
        def missing() -> None:
            pytest.fail(f"the fixture {function.__name__} needs pytest-asyncio: pip install pytest-asyncio")

        return missing
    return fixture(function)


@pytest.fixture
def jetlake_clock() -> ManualClock:
    """The time of the server: `jetlake_clock.advance(30)` makes redeliveries, expiries and heartbeats due."""
    from jetlake.testing.clock import ManualClock

    return ManualClock()


@async_fixture
async def jetlake_server(request: pytest.FixtureRequest, tmp_path: Any) -> AsyncIterator[Server]:
    """A server of the test's own, on a free port, with an empty store that goes with the test."""
    from jetlake.server import Server

    clock = request.getfixturevalue("jetlake_clock") if "jetlake_clock" in request.fixturenames else None
    async with Server(store_dir=str(tmp_path / "jetlake"), clock=clock) as server:
        if clock is not None:
            clock.on_move(server.clock_moved)
        yield server


@async_fixture
async def jetlake_client(jetlake_server: Server) -> AsyncIterator[Client]:
    """A client connected to `jetlake_server`."""
    import jetlake

    async with await jetlake.connect(jetlake_server.url, connect_timeout=20) as client:
        yield client


@pytest.fixture
def jetlake_js(jetlake_client: Client) -> JetStream:
    """JetStream through `jetlake_client`."""
    return jetlake_client.jetstream()
