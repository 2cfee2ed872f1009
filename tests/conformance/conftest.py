"""One suite for two servers: every test here runs against the embedded server and against nats-server.

The tests of the client that need nothing but a server with JetStream run against a nats-server cluster too: some of
them always, all of them where CONFORMANCE_CLUSTER is set (`make test-cluster`).
"""

import os
from contextlib import AsyncExitStack
from inspect import signature
from pathlib import Path

import pytest

from tests.support.clients import Clients
from tests.support.cluster_server import ClusterServer
from tests.support.command_shell import Shell
from tests.support.servers import ServerClock, make_server
from tests.support.wire import Wire

HERE = Path(__file__).parent
SERVERS = ["embedded", "nats-server"]
# Modules whose tests run against the cluster too: one always, the others by `make test-cluster`.
ON_CLUSTER = {"key_value/test_buckets"}
ON_CLUSTER_IN_FULL = ON_CLUSTER | {
    "client/test_backup",
    "client/test_batches",
    "client/test_consumers",
    "client/test_core_messaging",
    "client/test_counters",
    "client/test_dead_letters",
    "client/test_explanation",
    "client/test_options",
    "client/test_request_many",
    "client/test_services",
    "client/test_streams",
    "client/test_subscribe",
    "key_value/test_objects",
}
NEEDED = {"js", "clients", "clock"}
# A nats-server cluster answers pause and resume before the consumer's leader does them, and lists deleted consumers
# for a moment.
NOT_ON_CLUSTER = {"test_ordered_fetches", "test_pause_and_resume", "test_paused"}


def pytest_generate_tests(metafunc):
    """Choose the servers of a test that does not: a cluster also, if it asks for a JetStream context and no more."""
    has_own = any("kind" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "kind" in metafunc.fixturenames and not has_own:
        modules = ON_CLUSTER_IN_FULL if os.environ.get("CONFORMANCE_CLUSTER") else ON_CLUSTER
        is_clustered = str(metafunc.definition.path.relative_to(HERE).with_suffix("")) in modules
        is_clustered = is_clustered and metafunc.function.__name__ not in NOT_ON_CLUSTER
        fits = set(signature(metafunc.function).parameters) & set(metafunc.fixturenames) <= NEEDED
        metafunc.parametrize("kind", [*SERVERS, "cluster"] if is_clustered and fits else SERVERS, indirect=True)


@pytest.fixture
def kind(request):
    """Which server the test runs against."""
    return request.param


@pytest.fixture
def clock(kind):
    """The server's time, which the test moves."""
    return ServerClock(kind)


@pytest.fixture(scope="session")
def cluster_server():
    """A cluster for all tests, started by the first that needs one."""
    server = ClusterServer()
    server.start()
    yield server
    server.discard()


@pytest.fixture
async def start(kind, request):
    """A function that starts a server: `await start(config="…", flags=[…], process=True)`.

    JetStream is on, with a folder of its own, unless the configuration has a `jetstream` key (which may name the
    folder as STORE_DIR) or the flags contain `no_jetstream`. With `process` ours runs in a process of its own too, and
    can be killed. Its clock is the test's, if the test asks for `clock`.
    """
    clock = request.getfixturevalue("clock").manual if "clock" in request.fixturenames else None
    async with AsyncExitStack() as stack:

        async def start(config="", flags=(), process=False):
            if kind == "cluster":
                server = request.getfixturevalue("cluster_server")
                await server.ready()
                stack.push_async_callback(server.clear)
                return server
            server = make_server(kind, config, flags, process, clock)
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


@pytest.fixture
def shell(server, tmp_path, monkeypatch):
    """Runs commands on the server, with no context of the machine's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return Shell(server.url)
