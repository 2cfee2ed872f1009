"""The server: its parts, and their start, reload and stop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from msgspec import structs

from jetlake.completion import hides
from jetlake.errors import ConfigError
from jetlake.server.config.options import JetStreamOptions, Options
from jetlake.server.engine.core.clock import Clock
from jetlake.server.nkey import new_server_id
from jetlake.server.shell.access.auth import Authentication, Authenticator
from jetlake.server.shell.access.settings import Settings
from jetlake.server.shell.account_table import AccountTable
from jetlake.server.shell.connection.connection import Connection
from jetlake.server.shell.connection.server_info import ServerInfo
from jetlake.server.shell.connection.services import ConnectionServices
from jetlake.server.shell.connection_table import ConnectionTable
from jetlake.server.shell.engine_loop import EngineLoop, SystemClock
from jetlake.server.shell.listener import TcpListener
from jetlake.server.shell.log import Log, open_log
from jetlake.server.shell.run_files import remove_ports_file, write_pid_file, write_ports_file
from jetlake.server.shell.sockets import ServerSockets
from jetlake.server.shell.statistics import Defects, ServerStatistics
from jetlake.server.shell.system.events import SystemEvents
from jetlake.server.shell.system.requests import SystemRequests

if TYPE_CHECKING:
    import socket
    from types import TracebackType

    from jetlake.server.engine.engine import Engine
    from jetlake.server.jwt.operators import Operators
    from jetlake.server.shell.access.function import Authenticate
    from jetlake.server.shell.jetstream import JetStreamService
    from jetlake.server.shell.leaf.leaf_nodes import LeafNodes
    from jetlake.server.shell.monitoring.http import Monitoring
    from jetlake.server.shell.monitoring.pages import Pages
    from jetlake.server.shell.websocket.listener import WebSocketListener

__all__ = ["Server"]


@hides("clock_moved", "defects", "engine", "make_connection", "open_socket", "options")
class Server:
    """An embedded server; `async with Server() as server:` starts it, and stops it at the end.

    Args:
        store_dir: where streams are kept; None = a temporary folder that goes with the server.
        host: the address to listen on; default the loopback interface.
        port: the port to listen on; default any free one, to be read from `port` or `url`.
        websocket_port: the port for clients over WebSocket, with the TLS of the options or in the clear; 0 = any free
            one, to be read from `websocket_url`; default no WebSocket.
        leafnodes_port: the port for leaf nodes that join this server; 0 = any free one, to be read from
            `leafnodes_url`; default none.
        jetstream: whether there is JetStream; default yes.
        domain: the JetStream domain, under which other servers find the streams; default none.
        leaf: the URL of a hub to join as a leaf node, such as `nats://user:password@hub:7422`, or several of one hub's
            cluster; default none.
        options: everything else; the arguments above win over it.
        clock: tells the time; a test passes one that it moves by hand, followed by `clock_moved`.
        log: where log lines go; default the file of the options, or Python's logger `jetlake.server`.
        authenticate: a plain or coroutine function that decides who may connect, beside the users of the options; it
            gets a `ConnectRequest`, and returns an `Access`, True, or False. Default: the options decide.
        sockets: already listening ones; None = the server listens for clients when it has recovered.
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
        random: Random | None = None,
        sockets: ServerSockets | None = None,
    ) -> None:
        given = options or Options()
        if host is not None:
            given = given.replace(host=host)
        if port is not None:
            given = given.replace(port=port)
        if websocket_port is not None:
            given = given.with_websocket(websocket_port)
        if leafnodes_port is not None:
            given = given.with_leafnodes(leafnodes_port)
        if leaf is not None:
            given = given.with_leaf(leaf)
        self.wants_jetstream = (options is None or given.jetstream is not None) if jetstream is None else jetstream
        if domain and not self.wants_jetstream:
            raise ConfigError("a domain needs JetStream")
        self.jetstream_folder = ""
        self._store_dir = os.fspath(store_dir) if store_dir is not None else ""
        self._domain = domain
        self._temporary_folder = ""
        self.clock = clock or SystemClock()
        self.log = log or open_log(given)
        self._random = random or Random()
        self._defects = Defects(self.log)
        self.statistics = ServerStatistics()
        self.engine_loop = EngineLoop(self.clock, self._defects.report)
        self.operators: Operators | None = None
        if given.operators is not None:
            from jetlake.server.jwt.operators import Operators

            self.operators = Operators(given, self.clock, self.log)
            given = self.operators.complete(given)
        timers = self.engine_loop.timers
        self._account_table = AccountTable(given, self._random, self.clock, timers.schedule)
        self.accounts = self._account_table.by_name
        server_id, make_authenticator = self._choose_authentication(given, authenticate)
        self.settings = Settings(given, self.clock.now_ns(), make_authenticator=make_authenticator)
        self.info = ServerInfo(server_id, self.clock, self.settings, self.engine_loop)
        self._connection_table = ConnectionTable(self.settings, self.log, self.statistics, self.engine_loop)
        self.connections = self._connection_table.open
        self.closed_connections = self._connection_table.recent
        self._services = ConnectionServices(
            settings=self.settings,
            clock=self.clock,
            log=self.log,
            engine_loop=self.engine_loop,
            accounts=self._account_table,
            info=self.info,
            statistics=self.statistics,
            report_defect=self._defects.report,
        )
        self._listener = TcpListener()
        self._sockets = sockets or ServerSockets()
        self.websocket: WebSocketListener | None = None
        self.leafnodes: LeafNodes | None = None
        self._jetstream: JetStreamService | None = None
        self._events = SystemEvents(self, self._account_table.get_or_create(given.system_account))
        self.load_options: Callable[[], Options] | None = None
        """Reads the configuration again, for a reload over the system account; None = there is no file."""
        self.monitoring: Monitoring | None = None
        self.pages: Pages | None = None
        self.running = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._stopping: asyncio.Task[None] | None = None

    def _choose_authentication(
        self, options: Options, authenticate: Authenticate | None
    ) -> tuple[str, Callable[[Options, str], Authentication]]:
        """Return the server's id, and what makes the check of credentials for options and a connection type.

        Raises:
            ConfigError: several that decide who may connect, of which only one can.
        """
        clock, log, operators = self.clock, self.log, self.operators
        if authenticate is not None:
            from jetlake.server.shell.access.function import FunctionArbiter, FunctionAuthenticator

            arbiter = FunctionArbiter(authenticate, clock)
            return new_server_id(), lambda options, kind: FunctionAuthenticator(options, kind, arbiter)
        if operators is None and options.callout is None:
            return new_server_id(), Authenticator
        from jetlake.server.jwt.callout import (
            CalloutAuthenticator,
            CalloutService,
            OperatorCalloutAuthenticator,
            ServerKeys,
        )

        keys = ServerKeys()
        service = CalloutService(keys, self._account_table, clock, self.engine_loop.schedule)
        if operators is None:
            return keys.identity.public, lambda options, kind: CalloutAuthenticator(options, kind, service, log)
        trusted = operators
        return keys.identity.public, lambda options, kind: OperatorCalloutAuthenticator(
            trusted, options, kind, clock, log, service
        )

    @property
    def options(self) -> Options:
        """The options in force."""
        return self.settings.options

    @property
    def id(self) -> str:
        """The server's public nkey."""
        return self.info.id

    @property
    def name(self) -> str:
        """The server's name; its id unless the options name it."""
        return self.info.name

    @property
    def host(self) -> str:
        """The address that is listened on."""
        return self.options.host

    @property
    def port(self) -> int:
        """The port that is listened on; 0 before the start."""
        return self.info.port

    @property
    def url(self) -> str:
        """The URL for clients on this machine."""
        scheme = "tls" if self.options.tls is not None else "nats"
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(self.host, self.host)
        return f"{scheme}://{host}:{self.port}"

    @property
    def websocket_url(self) -> str:
        """The URL for clients on this machine that speak WebSocket; empty without a listener."""
        return self.websocket.url if self.websocket is not None else ""

    @property
    def leafnodes_url(self) -> str:
        """The URL for leaf nodes on this machine; empty without a listener."""
        listen, port = self.options.leafnodes.listen, self.leafnodes_port
        if listen is None or port is None:
            return ""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(listen.host, listen.host)
        return f"nats://{host}:{port}"

    @property
    def leafnodes_port(self) -> int | None:
        """The port for leaf nodes; None without a listener."""
        listener = self.leafnodes.listener if self.leafnodes is not None else None
        return listener.port if listener is not None else None

    @property
    def engine(self) -> Engine | None:
        """JetStream's engine; None without JetStream."""
        return self.engine_loop.engine

    @property
    def defects(self) -> int:
        """The number of internal errors."""
        return self._defects.count

    # Start

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
            raise ConfigError("this server was already started; create a new one")
        self._loop = asyncio.get_running_loop()
        self.engine_loop.start(self._loop)
        self._stopped = asyncio.Event()
        try:
            if self.options.http_port is not None:
                await self._start_monitoring()
            if self.operators is not None and self.operators.lookup is not None:
                await self.operators.look_up_first(self.options.leafnodes)
                self._take_over_accounts()
            if self.wants_jetstream:
                self._start_jetstream()
            self._start_system_account()
            if self.operators is not None and self.operators.lookup is not None and self.jetstream_folder:
                await self.operators.look_up_stored(self.jetstream_folder)
            leafnodes = self.options.leafnodes
            if leafnodes.remotes or leafnodes.listen is not None:
                await self._start_leafnodes()
            await self._start_listening()
            write_pid_file(self.options)
            monitoring = self.monitoring
            address = (monitoring.host, monitoring.port) if monitoring is not None else None
            websocket_port = self.websocket.settings.port if self.websocket is not None else None
            write_ports_file(self.options, self.port, address, websocket_port, self.leafnodes_port)
        except BaseException:
            await self._release()
            raise
        self.running = True
        self.log.info("Server is ready")

    def _start_system_account(self) -> None:
        requests = SystemRequests(self)
        self._account_table.on_created = requests.listen
        for account in self.accounts.values():
            requests.listen(account)
        self._connection_table.observer = self._events
        self._events.start()
        if self.operators is not None:
            from jetlake.server.jwt.requests import AccountRequests

            account = self._account_table.get_or_create(self.options.system_account)
            AccountRequests(self.operators, account, self.info, self.clock)
            self.operators.start(self.engine_loop.timers, self._take_over_accounts)

    async def _start_monitoring(self) -> None:
        from jetlake.server.shell.monitoring.http import Monitoring

        self.monitoring = Monitoring(self, self.log, self._defects.report, self.pages)
        await self.monitoring.start(self._sockets.monitoring)

    def _start_jetstream(self) -> None:
        from jetlake.server.shell.jetstream import JetStreamService, jetstream_folder
        from jetlake.store.log.open_files import connections_max

        options = self.options.jetstream or JetStreamOptions(store_dir=self._store_dir or self._make_folder())
        if self._store_dir and options.store_dir != self._store_dir:
            options = structs.replace(options, store_dir=self._store_dir)
        if self._domain is not None:
            options = structs.replace(options, domain=self._domain)
        self.settings.options = self.options.replace(jetstream=options)
        self.jetstream_folder = jetstream_folder(options)
        self._connection_table.limit_to(connections_max())
        self._jetstream = JetStreamService(
            self.clock, self.log, self._account_table, self.engine_loop, self._defects.report
        )
        self._jetstream.start(self.name, self.options)

    def _make_folder(self) -> str:
        import tempfile

        self._temporary_folder = tempfile.mkdtemp(prefix="jetlake-")
        return self._temporary_folder

    async def _start_listening(self) -> None:
        options = self.options
        if options.websocket is not None:
            await self._start_websocket()
        sockets = self._sockets.clients
        await self._listener.start(options.host, max(options.port, 0), self.make_connection, sockets=sockets)
        self.settings.port = port = self._listener.port
        address = f"[{options.host}]:{port}" if ":" in options.host else f"{options.host}:{port}"
        self.log.info(f"Listening for client connections on {address}")
        if options.tls is not None:
            self.log.info("TLS required for client connections")

    async def _start_websocket(self) -> None:
        try:
            from jetlake.server.shell.websocket.listener import WebSocketListener
        except ModuleNotFoundError:
            raise ConfigError("WebSocket needs the package websockets: install jetlake[server]") from None
        self.websocket = WebSocketListener(self._services, self.make_connection, self._connection_table)
        if self.leafnodes is not None and self.leafnodes.listener is not None:
            self.websocket.make_leaf_connection = self.leafnodes.listener.make_websocket_connection
        await self.websocket.start(self._sockets.websocket)

    async def _start_leafnodes(self) -> None:
        from jetlake.server.shell.leaf.leaf_nodes import LeafNodes

        options = self.options
        domain = options.jetstream.domain if self.engine is not None and options.jetstream is not None else ""
        self.leafnodes = LeafNodes(
            self._services,
            options.leafnodes,
            domain,
            self._random,
            self._connection_table,
        )
        await self.leafnodes.start(self._sockets.leafnodes)

    def make_connection(self, services: ConnectionServices | None = None) -> Connection:
        """Make the connection for a new socket; a listener with settings of its own gives its services."""
        return Connection(services or self._services, self._connection_table)

    async def open_socket(self) -> socket.socket:
        """Open a connection for a client in this event loop, without TCP, and return the client's end.

        Raises:
            OSError: the server does not run, or runs in another event loop.
        """
        import socket

        if not self.running or self.info.lame_duck:
            raise ConnectionRefusedError("the server in this process does not run")
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            raise ConnectionRefusedError("the server runs in another event loop: connect to its url")
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        try:
            await loop.connect_accepted_socket(self.make_connection, ours)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        return theirs

    # Stop

    async def stop(self) -> None:
        """Stop cleanly: answer waiting pulls, put everything on disk, let the last bytes leave, close.

        Every call waits for the same stop, which continues to its end when a caller is cancelled.
        """
        if self._stopping is None:
            if not self.running:
                return
            # A stop that ended half-way would leave open connections and a locked folder.
            self._stopping = self.engine_loop.loop.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        self._events.shut_down()
        self.running = False
        self.engine_loop.cancel_tasks()
        await self._retire()
        await self._connection_table.close()
        await self._release()
        assert self._stopped is not None
        self._stopped.set()

    async def _retire(self) -> None:
        """Accept no more clients and close JetStream; connections stay."""
        self._listener.close()
        if self.websocket is not None:
            self.websocket.close()
        if self.leafnodes is not None:
            self.leafnodes.retire()
        if self._jetstream is not None:
            await self._jetstream.stop()
        self.engine_loop.flush_dirty()

    async def _release(self) -> None:
        """Give back what may have been taken, however far the start had come."""
        await self._retire()
        if self.operators is not None and self.operators.lookup is not None:
            await self.operators.lookup.close()
        if self.leafnodes is not None:
            await self.leafnodes.stop()
        remove_ports_file(self.options)
        if self.monitoring is not None:
            await self.monitoring.stop()
            self.monitoring = None
        self.engine_loop.stop()
        if self._temporary_folder:
            import shutil

            shutil.rmtree(self._temporary_folder, ignore_errors=True)
            self._temporary_folder = ""

    @property
    def has_stopped(self) -> bool:
        """Whether the server has run and has stopped."""
        return self._stopped is not None and self._stopped.is_set()

    async def wait_stopped(self) -> None:
        """Return when the server has stopped."""
        if self._stopped is not None:
            await self._stopped.wait()

    def enter_lame_duck(self) -> None:
        """Accept no more clients, tell the connected ones to go elsewhere, end them one by one, and stop."""
        if not self.info.lame_duck and self.running:
            self.info.lame_duck = True
            self._events.lame_duck()
            self.engine_loop.start_task(self._leave())

    async def _leave(self) -> None:
        self.log.info("Entering lame duck mode, stop accepting new clients")
        await self._retire()
        await self._connection_table.close_gradually(self._random)
        self.log.info("Initiating Shutdown...")
        await self.stop()

    # While it runs

    def clock_moved(self) -> None:
        """Run what is due after the clock was set by a test."""
        self.engine_loop.clock_moved()

    def reload_configuration(self) -> list[str]:
        """Read the configuration file again, take over what has changed, and name it.

        Raises:
            JetlakeError: there is no file, it makes no sense, or an option has changed that needs a restart.
        """
        if self.load_options is None:
            raise ConfigError("can only reload config when a file is provided using -c or --config")
        changed = self.reload(self.load_options())
        for name in changed:
            self.log.info(f"Reloaded: {name}")
        self.log.info("Reloaded server configuration")
        return changed

    def reload(self, options: Options) -> list[str]:
        """Take over new options as far as a running server can, and name what has changed.

        Raises:
            ConfigError: an option has changed that needs a restart; nothing was taken over.
        """
        from jetlake.server.shell.reload import check_reload

        operators = self.operators
        if operators is not None and options.operators is not None:
            # First what may refuse the rest, so that nothing is taken over by halves.
            check_reload(self.options, operators.complete(options))
            operators.reload(options.operators)
            options = operators.complete(options)
        changed = check_reload(self.options, options)
        self.settings.apply(options.replace(jetstream=self.options.jetstream), self.clock.now_ns())
        self.log.debugging, self.log.tracing = options.debug, options.trace
        self._apply_accounts()
        return changed

    def _take_over_accounts(self) -> None:
        """Put accounts into force whose tokens have changed, and end the connections that may not stay."""
        operators = self.operators
        assert operators is not None
        self.settings.options = operators.complete(self.options)
        self._apply_accounts()

    def _apply_accounts(self) -> None:
        """Put the accounts of the options into force, and let connections take over what concerns them."""
        operators = self.operators
        for connection in list(self.connections.values()) if operators is not None else ():
            identity = connection.session.identity
            refusal = operators.refusal(identity) if operators is not None and identity is not None else None
            if refusal is not None:
                error, reason = refusal
                connection.end(error, reason=reason)
        self._account_table.apply(self.options)
        if self._jetstream is not None:
            self._jetstream.apply(self.options)
        if self.websocket is not None:
            self.websocket.apply_settings()
        if self.leafnodes is not None:
            self.leafnodes.apply_settings()
        self._connection_table.apply_settings(self._account_table)
        self.engine_loop.schedule()
