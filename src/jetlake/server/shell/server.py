"""The server: accounts and connections, the turns of the loop that drive them, and their start and end."""

from __future__ import annotations

import asyncio
import os
from base64 import urlsafe_b64encode
from collections import deque
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec import structs

from jetlake.errors import ConfigError
from jetlake.server.config.options import (
    GLOBAL_ACCOUNT,
    SYSTEM_ACCOUNT,
    JetStreamLimits,
    JetStreamOptions,
    Options,
)
from jetlake.server.engine.core.clock import Clock, SystemClock
from jetlake.server.engine.routing.account import Account
from jetlake.server.nkey import new_server_id
from jetlake.server.shell.connection.auth import Authenticator, Identity
from jetlake.server.shell.connection.connect_options import ConnectOptions
from jetlake.server.shell.connection.connection import Connection
from jetlake.server.shell.connection.info import describe_client, describe_server
from jetlake.server.shell.connection.tls import server_context
from jetlake.server.shell.engine_loop import Turns
from jetlake.server.shell.lame_duck import leave_as_lame_duck
from jetlake.server.shell.listener import listen
from jetlake.server.shell.log import Log, open_log
from jetlake.server.shell.monitoring.system_requests import answer_system_requests
from jetlake.server.shell.run_files import remove_ports_file, write_pid_file, write_ports_file

if TYPE_CHECKING:
    from types import TracebackType

    from jetlake.server.engine.engine import Engine
    from jetlake.server.shell.committer import Committer
    from jetlake.server.shell.connection.handshake import Entrance
    from jetlake.server.shell.jetstream import FolderLock
    from jetlake.server.shell.monitoring.http import Monitoring
    from jetlake.server.shell.monitoring.pages import Pages

__all__ = ["ClosedTotals", "Server"]

# Connections that have ended and are still shown on request.
_CLOSED_KEPT = 1000
# Sockets of clients that were turned away and may linger.
_LINGERING_MAX = 32
# How long a clean stop waits for its last bytes to be taken.
_STOP_S = 1.0


class ClosedTotals:
    """What connections that have ended had counted."""

    __slots__ = ("in_bytes", "in_msgs", "out_bytes", "out_msgs")

    def __init__(self) -> None:
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = 0


class Server:
    """An embedded server; `async with Server() as server:` starts it, and stops it at the end.

    Args:
        store_dir: where streams are kept; None = a temporary folder that goes with the server.
        host: the address to listen on; default the loopback interface.
        port: the port to listen on; default any free one, to be read from `port` or `url`.
        jetstream: whether there is JetStream; default yes.
        options: everything else; the arguments above win over it.
        clock: tells the time; a test passes one that it moves by hand, followed by `clock_moved`.
        log: where log lines go; default the file of the options, or Python's logger `jetlake.server`.
    """

    def __init__(
        self,
        store_dir: str | os.PathLike[str] | None = None,
        *,
        host: str | None = None,
        port: int | None = None,
        jetstream: bool | None = None,
        options: Options | None = None,
        clock: Clock | None = None,
        log: Log | None = None,
        random: Random | None = None,
    ) -> None:
        given = options or Options()
        if host is not None:
            given = given.replace(host=host)
        if port is not None:
            given = given.replace(port=port)
        self._temporary_folder = ""
        self.wants_jetstream = (options is None or given.jetstream is not None) if jetstream is None else jetstream
        self._store_dir = os.fspath(store_dir) if store_dir is not None else ""
        self.options = given
        self.clock = clock or SystemClock()
        self.log = log or open_log(given)
        self.id = new_server_id()
        self.start_ns = self.config_load_ns = self.clock.now_ns()
        self.turns = Turns(self.clock, self.report_defect)
        self.authenticator = Authenticator(given)
        self.tls_context = server_context(given.tls) if given.tls is not None else None
        self.accounts: dict[str, Account] = {}
        self._random = random or Random()
        for name in (GLOBAL_ACCOUNT, SYSTEM_ACCOUNT, *(account.name for account in given.accounts)):
            self.accounts.setdefault(name, Account(name, random=self._random))
        self.global_account = self.accounts[GLOBAL_ACCOUNT]
        self.engine: Engine | None = None
        self.committer: Committer | None = None
        self.monitoring: Monitoring | None = None
        self.pages: Pages | None = None
        self.loop: asyncio.AbstractEventLoop
        self.jetstream_folder = ""
        self._folder_lock: FolderLock | None = None
        self.connections: dict[int, Connection] = {}
        self.closed_connections: deque[Connection] = deque(maxlen=_CLOSED_KEPT)
        self.closed_totals = ClosedTotals()
        self.pressured_sends = 0
        self.total_connections = 0
        self.slow_consumers = 0
        self.stale_connections = 0
        self.stalled = 0
        self.said = 0
        self.defects = 0
        self._connections_max: int | None = None
        self.lame_duck = False
        self.running = False
        self._last_cid = 4  # as nats-server, whose own clients take the first numbers
        self._sockets: set[Connection] = set()
        self._listeners: list[asyncio.Server] = []
        self._port = 0
        self._stopped: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # Where it is

    @property
    def name(self) -> str:
        """The server's name; its id unless it was given one."""
        return self.options.server_name or self.id

    @property
    def host(self) -> str:
        """The address that is listened on."""
        return self.options.host

    @property
    def port(self) -> int:
        """The port that is listened on; 0 before the start."""
        return self._port

    @property
    def url(self) -> str:
        """Where clients on this machine connect to."""
        scheme = "tls" if self.options.tls is not None else "nats"
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(self.host, self.host)
        return f"{scheme}://{host}:{self._port}"

    @property
    def uptime_ns(self) -> int:
        """How long it has run."""
        return self.clock.now_ns() - self.start_ns

    # Start and end

    async def __aenter__(self) -> Server:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Recover what is stored, then listen. A server runs once; after a stop make a new one.

        Raises:
            ConfigError: an address that cannot be listened on, a folder that cannot be used, or a second start.
        """
        if self._stopped is not None:
            raise ConfigError("this server was started before; make a new one")
        self.loop = asyncio.get_running_loop()
        self.turns.start(self.loop)
        self._stopped = asyncio.Event()
        try:
            if self.options.http_port is not None:
                await self._start_monitoring()
            if self.wants_jetstream:
                self._start_jetstream()
            answer_system_requests(self)
            await self._start_listening()
            write_pid_file(self)
            write_ports_file(self)
        except BaseException:
            await self._release()
            raise
        self.running = True
        self.log.info("Server is ready")

    async def _start_listening(self) -> None:
        sockets = listen(self.options.host, max(self.options.port, 0))
        for socket in sockets:
            server = await self.loop.create_server(lambda: Connection(self), sock=socket, backlog=1024)
            self._listeners.append(server)
        self._port = sockets[0].getsockname()[1]
        self.log.info(f"Listening for client connections on {_address(self.options.host, self._port)}")
        if self.options.tls is not None:
            self.log.info("TLS required for client connections")

    async def _start_monitoring(self) -> None:
        from jetlake.server.shell.monitoring.http import Monitoring

        self.monitoring = Monitoring(self)
        await self.monitoring.start()

    def _start_jetstream(self) -> None:
        from jetlake.server.shell.committer import Committer
        from jetlake.server.shell.jetstream import FolderLock, jetstream_folder, start_engine
        from jetlake.store.log.open_files import connections_max

        options = self.options.jetstream or JetStreamOptions(store_dir=self._store_dir or self._make_folder())
        if self._store_dir and options.store_dir != self._store_dir:
            options = structs.replace(options, store_dir=self._store_dir)
        self.options = self.options.replace(jetstream=options)
        self.jetstream_folder = jetstream_folder(options)
        limits = {account.name: account.jetstream for account in self.options.accounts if account.jetstream is not None}
        if not self.options.accounts:
            limits[GLOBAL_ACCOUNT] = JetStreamLimits()
        self._connections_max = connections_max()
        if self._connection_limit() != self.options.max_connections:
            self.log.info(
                f"At most {self._connection_limit():,} connections, to keep files for the store: "
                "raise the limit of open files (ulimit -n) for more"
            )
        self._folder_lock = FolderLock(options)
        self.engine = self.turns.engine = start_engine(self, options, limits)
        self.committer = self.turns.committer = Committer(self.engine.commit, self.loop, self.turns.schedule)
        self.turns.schedule()

    def _make_folder(self) -> str:
        import tempfile

        self._temporary_folder = tempfile.mkdtemp(prefix="jetlake-")
        return self._temporary_folder

    async def stop(self) -> None:
        """Stop cleanly: tell waiting pulls, put everything on disk, let the last bytes leave, close."""
        if not self.running:
            return
        self.running = False
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        await self.retire()
        for connection in list(self.connections.values()):
            connection.end(reason="Server Shutdown")
        await self._wait_for_sockets()
        await self._release()
        assert self._stopped is not None
        self._stopped.set()

    async def _release(self) -> None:
        """Give back what may have been taken, however far the start had come."""
        await self.retire()
        remove_ports_file(self)
        if self.monitoring is not None:
            await self.monitoring.stop()
            self.monitoring = None
        self.turns.stop()
        if self._temporary_folder:
            import shutil

            shutil.rmtree(self._temporary_folder, ignore_errors=True)
            self._temporary_folder = ""

    async def retire(self) -> None:
        """Take no more clients and close JetStream; connections stay."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        engine, self.engine, self.turns.engine = self.engine, None, None
        committer, self.committer, self.turns.committer = self.committer, None, None
        if committer is not None:
            await committer.stop()
        if engine is not None:
            try:
                engine.close()
            except Exception as error:
                self.report_defect("closing JetStream", error)
            for account in self.accounts.values():
                account.js = None
        if self._folder_lock is not None:
            self._folder_lock.release()
            self._folder_lock = None
        self.turns.flush_dirty()

    async def _wait_for_sockets(self) -> None:
        deadline = self.loop.time() + _STOP_S
        while self._sockets and self.loop.time() < deadline:
            for connection in list(self._sockets):
                connection.hang_up()
            await asyncio.sleep(0.002)
        for connection in list(self._sockets):
            connection.hang_up(at_once=True)
        await asyncio.sleep(0)  # the loop tells connections of their end in its next turn

    @property
    def has_stopped(self) -> bool:
        """Whether it ran once and has stopped."""
        return self._stopped is not None and self._stopped.is_set()

    async def wait_stopped(self) -> None:
        """Return when the server has stopped, whoever stopped it."""
        if self._stopped is not None:
            await self._stopped.wait()

    def enter_lame_duck(self) -> None:
        """Take no more clients, tell those that are there to go elsewhere, then let them go one by one and stop."""
        if not self.lame_duck and self.running:
            self.lame_duck = True
            self._keep(self.loop.create_task(leave_as_lame_duck(self, self._random)))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def clock_moved(self) -> None:
        """The clock was moved by hand: run what is due now."""
        self.turns.clock_moved()

    # Connections

    def admit(self, connection: Connection) -> str | None:
        """Number a new connection; the error's text when there is no room for it."""
        self._last_cid += 1
        self.total_connections += 1
        connection.cid = self._last_cid
        self._sockets.add(connection)
        if 0 <= self._connection_limit() <= len(self.connections):
            self.log.error(f"{connection} - maximum connections exceeded")
            return "maximum connections exceeded"
        self.connections[connection.cid] = connection
        self.log.debug(f"{connection} - Client connection created")
        return None

    def _connection_limit(self) -> int:
        """How many clients there may be, negative for any number: no more than leave the store the files it needs."""
        limit, fitting = self.options.max_connections, self._connections_max
        return limit if fitting is None or 0 <= limit <= fitting else fitting

    @property
    def is_crowded(self) -> bool:
        """Whether sockets of clients that were turned away must not linger for their last bytes."""
        return len(self._sockets) > self._connection_limit() + _LINGERING_MAX

    def forgotten(self, connection: Connection) -> None:
        """A connection has ended; its counters go on in the totals."""
        if self.connections.pop(connection.cid, None) is None:
            return
        totals = self.closed_totals
        totals.in_msgs += connection.in_msgs
        totals.in_bytes += connection.in_bytes
        totals.out_msgs += connection.out_msgs
        totals.out_bytes += connection.out_bytes
        self.closed_connections.append(connection)
        self.turns.schedule()

    def disconnected(self, connection: Connection) -> None:
        """The socket of a connection is gone."""
        self._sockets.discard(connection)

    def account(self, name: str) -> Account:
        """The account of this name; made when a reload brought a new one."""
        account = self.accounts.get(name)
        if account is None:
            account = self.accounts[name] = Account(name, random=self._random)
        return account

    def check_in_thread(self, connection: Entrance, options: ConnectOptions) -> None:
        """Authenticate where it takes long, without keeping the loop from its work."""
        self._keep(self.loop.create_task(self._check(connection, options)))

    async def _check(self, connection: Entrance, options: ConnectOptions) -> None:
        authenticate = self.authenticator.authenticate
        identity: Identity | None = None
        try:
            identity = await self.loop.run_in_executor(None, authenticate, options, connection.nonce)
        except ConfigError as error:
            self.log.error(f"{connection} - {error}")
        connection.checked(options, identity)

    def new_nonce(self) -> str:
        """Fresh text to be signed by a client with an nkey."""
        return urlsafe_b64encode(os.urandom(11)).decode().rstrip("=")

    def info_for(self, connection: Entrance, *, connect_info: bool = False) -> bytes:
        """The JSON of INFO as this client gets it."""
        return describe_server(self, connection, connect_info=connect_info)

    def client_info(self, connection: Connection) -> dict[str, Any]:
        """Who a client is, with the keys that advisories use."""
        return describe_client(self, connection)

    # Reload

    def reload(self, options: Options) -> list[str]:
        """Take over new options as far as a running server can, and name what has changed.

        Raises:
            ConfigError: an option has changed that needs a restart; nothing was taken over.
        """
        from jetlake.server.shell.reload import check_reload

        changed = check_reload(self.options, options)
        tls_context = server_context(options.tls) if options.tls is not None else None
        self.options = options.replace(jetstream=self.options.jetstream)
        self.config_load_ns = self.clock.now_ns()
        self.tls_context = tls_context
        self.log.debugging, self.log.tracing = options.debug, options.trace
        previous, self.authenticator = self.authenticator, Authenticator(options)
        for connection in list(self.connections.values()):
            connection.apply_limits()
            if connection.identity is not None:
                connection.reauthorize(self.authenticator.recognize(connection.identity, previous))
        self.turns.schedule()
        return changed

    # Defects

    def report_defect(self, where: str, error: Exception) -> None:
        """Something failed that never should: one line in the log, a counter in monitoring, and life goes on."""
        self.defects += 1
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        place = ""
        if traceback is not None:
            code = traceback.tb_frame.f_code
            place = f" ({Path(code.co_filename).name}:{traceback.tb_lineno} in {code.co_name})"
        self.log.error(f"{where} - internal error: {type(error).__name__}: {error}{place}")


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
