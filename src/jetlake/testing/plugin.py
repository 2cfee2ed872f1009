"""A pytest plugin: a JetStream server for each test, a client connected to it, and a clock moved by hand.

It is there as soon as jetlake is installed. A plain `def` test gets the names of `jetlake.blocking`, and a server in a
thread of its own; an `async def` test gets the asyncio ones, and a server in the test's own loop, which pytest-asyncio
or anyio runs. The methods of a `unittest.TestCase`, also of `IsolatedAsyncioTestCase` and of Django's test cases, are
run by the case itself in a loop that fixtures cannot reach: they get what plain tests get. A test that asks for
`jetlake_clock` gets a server whose time stands still until the test moves it.

With `--jetlake-real` the same tests run on a nats-server, whose time cannot be moved: tests with `jetlake_clock` are
skipped there, with that reason.
"""

from __future__ import annotations

import inspect
import unittest
from collections.abc import AsyncIterator, Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from jetlake import blocking
    from jetlake.client import Client, JetStream
    from jetlake.server import Server
    from jetlake.testing.clock import ManualClock
    from jetlake.testing.real_server import RealServer

_HOW_TO_MARK = (
    "is an `async def` test that no plugin runs: install pytest-asyncio, and mark the test with @pytest.mark.asyncio "
    "or set asyncio_mode = auto in pytest's configuration; or write a plain `def` test, which gets the blocking names"
)
_HOW_TO_CHOOSE = (
    "runs on trio, and jetlake on asyncio alone: let the fixture `anyio_backend` return 'asyncio', or write a plain "
    "`def` test, which gets the blocking names"
)
_ANYIO = "anyio"
_LOOP_SCOPES = ("function", "class", "module", "package", "session")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--jetlake-real`."""
    parser.getgroup("jetlake").addoption(
        "--jetlake-real",
        nargs="?",
        const="nats-server",
        metavar="PROGRAM",
        help="run tests that use jetlake's fixtures on a nats-server: found on the PATH, or this program",
    )


def in_every_loop(function: Any) -> Any:
    """Register an async fixture once for each loop that a test may run in, as NAME_LOOP."""
    for loop in (_ANYIO, *_LOOP_SCOPES):
        name = f"{function.__name__}_{loop}"
        globals()[name] = _fixture_in(loop, name, function)
    return function


def _fixture_in(loop: str, name: str, function: Any) -> Any:
    # A function of its own for each, since pytest-asyncio notes the scope of the loop on the function.
    own = FunctionType(function.__code__, function.__globals__, name)
    if loop == _ANYIO:
        return pytest.fixture(own)
    try:
        import pytest_asyncio
    except ImportError:

        @pytest.fixture(name=name)
        def missing(request: pytest.FixtureRequest) -> None:
            pytest.fail(f"{request.node.nodeid} {_HOW_TO_MARK}", pytrace=False)

        return missing
    if "loop_scope" not in inspect.signature(pytest_asyncio.fixture).parameters:
        return pytest_asyncio.fixture(own)  # Before 0.24 every test had a loop of its own.
    return pytest_asyncio.fixture(own, loop_scope=cast("Any", loop))


def loop_of(request: pytest.FixtureRequest) -> str | None:
    """Return the loop that the test runs in: the scope of pytest-asyncio's, or anyio's.

    None for a plain test, and for a method of a `unittest.TestCase`, which makes its loop behind the fixtures.

    An `async def` test without a runner fails, with what to set; so does one that anyio runs on trio.
    """
    if not inspect.iscoroutinefunction(getattr(request, "function", None)):
        return None
    if request.cls is not None and issubclass(request.cls, unittest.TestCase):
        return None
    mark = request.node.get_closest_marker("asyncio")
    if mark is not None:
        return mark.kwargs.get("loop_scope") or _default_loop_scope(request.config)
    if "anyio_backend" not in request.fixturenames:
        pytest.fail(f"{request.node.nodeid} {_HOW_TO_MARK}", pytrace=False)
    if request.getfixturevalue("anyio_backend_name") != "asyncio":
        pytest.fail(f"{request.node.nodeid} {_HOW_TO_CHOOSE}", pytrace=False)
    return _ANYIO


def _default_loop_scope(config: pytest.Config) -> str:
    try:
        return str(config.getini("asyncio_default_test_loop_scope") or "function")
    except ValueError:  # Before 0.26 there was no such option.
        return "function"


@pytest.fixture
def jetlake_clock(pytestconfig: pytest.Config) -> ManualClock:
    """The time of the server: `jetlake_clock.advance(30)` makes redeliveries, expiries and heartbeats due.

    It is the server's alone: `asyncio.sleep`, `time.sleep` and the time-outs of clients continue in real time.
    """
    from jetlake.testing.clock import ManualClock

    if pytestconfig.getoption("--jetlake-real"):
        pytest.skip("the clock of a real nats-server cannot be moved: jetlake_clock needs the embedded server")
    return ManualClock()


def _clock(request: pytest.FixtureRequest) -> ManualClock | None:
    return request.getfixturevalue("jetlake_clock") if "jetlake_clock" in request.fixturenames else None


@in_every_loop
async def _jetlake_loop_server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Server]:
    from jetlake.server import Server

    clock = _clock(request)
    async with Server(tmp_path / "jetlake", clock=clock) as server:
        if clock is not None:
            clock.on_move(server.clock_moved)
        yield server


@pytest.fixture
def _jetlake_thread_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[blocking.Server]:
    from jetlake import blocking

    clock = _clock(request)
    with blocking.Server(tmp_path / "jetlake", clock=clock) as server:
        if clock is not None:
            clock.on_move(server.clock_moved)
        yield server


@pytest.fixture
def _jetlake_real_server(pytestconfig: pytest.Config, tmp_path: Path) -> Iterator[RealServer]:
    from jetlake.testing.real_server import RealServer

    with RealServer(pytestconfig.getoption("--jetlake-real"), tmp_path / "jetlake") as server:
        yield server


@pytest.fixture
def jetlake_server(request: pytest.FixtureRequest) -> Server | blocking.Server | RealServer:
    """A server of the test's own, on a free port, with an empty store that goes with the test."""
    if "jetlake_clock" in request.fixturenames:
        request.getfixturevalue("jetlake_clock")
    if request.config.getoption("--jetlake-real"):
        name = "_jetlake_real_server"
    else:
        loop = loop_of(request)
        name = f"_jetlake_loop_server_{loop}" if loop else "_jetlake_thread_server"
    server: Server | blocking.Server | RealServer = request.getfixturevalue(name)
    return server


@pytest.fixture(scope="session")
def jetlake_session_server(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[blocking.Server | RealServer]:
    """One server for all tests of the run, in a thread of its own; what a test stores, later tests find."""
    from jetlake import blocking
    from jetlake.testing.real_server import RealServer

    folder = tmp_path_factory.mktemp("jetlake")
    program = pytestconfig.getoption("--jetlake-real")
    server = RealServer(program, folder) if program else blocking.Server(folder)
    with server:
        yield server


@in_every_loop
async def _jetlake_loop_client(jetlake_server: Server | RealServer) -> AsyncIterator[Client]:
    import jetlake
    from jetlake.server import Server

    # Without TCP where the server runs in the test's own loop.
    local = jetlake_server if isinstance(jetlake_server, Server) else None
    url = None if local else jetlake_server.url
    async with jetlake.connect(url, server=local, connect_timeout=20) as client:
        yield client


@pytest.fixture
def _jetlake_thread_client(jetlake_server: blocking.Server) -> Iterator[blocking.Client]:
    from jetlake import blocking

    with blocking.connect(jetlake_server.url, connect_timeout=20) as client:
        yield client


@pytest.fixture
def jetlake_client(request: pytest.FixtureRequest) -> Client | blocking.Client:
    """A client connected to `jetlake_server`: a blocking one for a plain `def` test."""
    loop = loop_of(request)
    client: Client | blocking.Client = request.getfixturevalue(
        f"_jetlake_loop_client_{loop}" if loop else "_jetlake_thread_client"
    )
    return client


@pytest.fixture
def jetlake_js(jetlake_client: Client | blocking.Client) -> JetStream | blocking.JetStream:
    """JetStream through `jetlake_client`."""
    return jetlake_client.jetstream()
