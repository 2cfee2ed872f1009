"""The embedded server in a thread of its own, for programs and tests without an event loop."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from jetlake.blocking.loop_thread import LoopThread
from jetlake.completion import hides
from jetlake.errors import ConfigError

if TYPE_CHECKING:
    from jetlake.server import Options
    from jetlake.server.engine.core.clock import Clock
    from jetlake.server.shell.access.function import Authenticate
    from jetlake.server.shell.log import Log


@hides("clock_moved")
class Server:
    """A server in a thread of its own; `with Server() as server:` starts it, and stops it at the end.

    Clients of any kind reach the server over `url`, from this process or another one: blocking ones, and asyncio ones
    in whatever loop they run.

    Args:
        store_dir: where streams are kept; None = a temporary folder that goes with the server.
        host: the address to listen on; default the loopback interface.
        port: the port to listen on; default any free one, to be read from `port` or `url`.
        websocket_port: the port for clients over WebSocket; 0 = any free one; default no WebSocket.
        leafnodes_port: the port for leaf nodes that join this server; 0 = any free one; default none.
        jetstream: whether there is JetStream; default yes.
        domain: the JetStream domain, under which other servers find the streams; default none.
        leaf: the URL of a hub to join as a leaf node, or several of one hub's cluster; default none.
        options: everything else; the arguments above win over it.
        clock: tells the time; a test passes one that it moves by hand, followed by `clock_moved`.
        log: where log lines go; default the file of the options, or Python's logger `jetlake.server`.
        authenticate: decides who may connect, as in `jetlake.Server`; a coroutine function runs in the server's loop.

    Raises:
        ImportError: the packages of `jetlake[server]` are not installed.
    """

    def __init__(
        self,
        store_dir: str | os.PathLike[str] | None = None,
        *,
        host: str | None = None,
        port: int | None = None,
        websocket_port: int | None = None,
        leafnodes_port: int | None = None,
        jetstream: bool | None = None,
        domain: str | None = None,
        leaf: str | Sequence[str] | None = None,
        options: Options | None = None,
        clock: Clock | None = None,
        log: Log | None = None,
        authenticate: Authenticate | None = None,
    ) -> None:
        # Imported here: `jetlake.blocking` is there without the server's packages too.
        from jetlake import server

        self._inner = server.Server(
            store_dir,
            host=host,
            port=port,
            websocket_port=websocket_port,
            leafnodes_port=leafnodes_port,
            jetstream=jetstream,
            domain=domain,
            leaf=leaf,
            options=options,
            clock=clock,
            log=log,
            authenticate=authenticate,
        )
        self._thread: LoopThread | None = None

    def start(self) -> None:
        """Recover what is stored, then listen. A server runs once; after a stop make a new one.

        Raises:
            ConfigError: an address that cannot be listened on, a folder that cannot be used, or a second start.
        """
        if self._thread is not None:
            raise ConfigError("this server was already started; create a new one")
        self._thread = thread = LoopThread("jetlake-server", noun="server")
        thread.port.shutdown = self._inner.stop
        try:
            thread.call(self._inner.start())
        except BaseException:
            thread.stop()
            raise
        thread.keep("jetlake-server")

    def stop(self) -> None:
        """Write what waits, end all connections and the thread; does nothing when the server does not run."""
        if self._thread is not None and not self._thread.port.is_shut:
            try:
                self._thread.call(self._inner.stop())
            except BaseException:
                self._thread.port.leave()  # Interrupted: the server's thread finishes the stop.
                raise
            self._thread.stop()

    def clock_moved(self) -> None:
        """Run what is due after the clock was set by a test, and return when that has happened."""
        if self._thread is not None and not self._thread.port.is_shut:
            self._thread.call(self._run_due())

    async def _run_due(self) -> None:
        self._inner.clock_moved()

    @property
    def host(self) -> str:
        """The address that is listened on."""
        return self._inner.host

    @property
    def port(self) -> int:
        """The port that is listened on; 0 before the start."""
        return self._inner.port

    @property
    def url(self) -> str:
        """The URL for clients on this machine."""
        return self._inner.url

    @property
    def websocket_url(self) -> str:
        """The URL for clients on this machine that speak WebSocket; empty without WebSocket."""
        return self._inner.websocket_url

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<blocking {self._inner!r}>"
