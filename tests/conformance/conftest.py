"""One suite for two servers: every test here runs against the embedded server and against nats-server."""

from contextlib import AsyncExitStack

import pytest
from client_support import Clients
from servers import make_server
from wire import Wire


@pytest.fixture(params=["embedded", "nats-server"])
def kind(request):
    """Which server the test runs against."""
    return request.param


@pytest.fixture
async def start(kind):
    """A function that starts a server: `await start(config="…", flags=[…], process=True)`.

    JetStream is on, with a folder of its own, unless the configuration has a `jetstream` key (which may name the
    folder as STORE_DIR) or the flags contain `no_jetstream`. With `process` ours runs in a process of its own too, and
    can be killed.
    """
    async with AsyncExitStack() as stack:

        async def start(config="", flags=(), process=False):
            server = make_server(kind, config, flags, process)
            stack.push_async_callback(server.discard)
            await server.start()
            return server

        yield start


@pytest.fixture
async def server(start):
    """A server with JetStream and no other configuration."""
    return await start()


@pytest.fixture
async def core(start):
    """A server without JetStream: quicker to start, and enough for core NATS."""
    return await start(flags=["no_jetstream"])


@pytest.fixture
async def connect():
    """A function that opens a raw connection to a server: `await connect(server)`; INFO has been read."""
    async with AsyncExitStack() as stack:

        async def connect(server, **options):
            wire = await Wire.open(server.host, server.port, **options)
            stack.push_async_callback(wire.close)
            return wire

        yield connect


@pytest.fixture
async def core_wire(core, connect):
    """A raw connection to the server without JetStream."""
    return await (await connect(core)).hello()


@pytest.fixture
async def wire(server, connect):
    """A raw connection that has said hello as a current client does."""
    return await (await connect(server)).hello()


@pytest.fixture
async def clients():
    """Opens clients of ours: `await clients(server, **options)`; they are closed with the test."""
    clients = Clients()
    yield clients
    await clients.close()


@pytest.fixture
async def js(server, clients):
    """JetStream on the server, by our client."""
    return (await clients(server)).jetstream()
