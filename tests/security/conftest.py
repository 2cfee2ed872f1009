"""A server of ours and raw connections to it; the helpers are those of the conformance suite."""

from contextlib import AsyncExitStack

import pytest

from tests.support.servers import make_server
from tests.support.wire import Wire


@pytest.fixture
async def start():
    """`await start(config)`: a server in this process."""
    async with AsyncExitStack() as stack:

        async def start(config="", flags=()):
            server = make_server("embedded", config, flags)
            stack.push_async_callback(server.discard)
            await server.start()
            return server

        yield start


@pytest.fixture
async def connect():
    """`await connect(server, user="a", **{"pass": "b"})`: a raw connection that has said hello."""
    async with AsyncExitStack() as stack:

        async def connect(server, **options):
            wire = await Wire.open(server.host, server.port)
            stack.push_async_callback(wire.close)
            return await wire.hello(**options) if options or not server.server.settings.authenticator.required else wire

        yield connect
