"""The link to whichever server accepts the client: dialled, lost, and dialled again with back-off.

    CONNECTING ──accepted──► CONNECTED ──lost──► RECONNECTING ──accepted──► CONNECTED …
         └──no server────────────┴──final loss───────┴──no server, close──► CLOSED

`wire` is the one TCP connection in use: it is None in every state but CONNECTED, and events of another wire are
ignored. `ServerPool` decides which server is tried next and after which wait; only an expired login, `reconnect=False`
and a pool without servers are final. A defect of the client must not end the attempts: it is reported, and the next
server is tried.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from random import Random
from typing import TYPE_CHECKING

from jetlake.client.connection.handshake import ServerInfo
from jetlake.client.connection.server_pool import ServerPool
from jetlake.client.connection.wire_protocol import WireProtocol, open_wire
from jetlake.client.settings.server_address import ServerAddress
from jetlake.errors import (
    AuthorizationError,
    ClientConnectionError,
    ConnectionClosedError,
    JetlakeError,
    NoServersError,
)

if TYPE_CHECKING:
    from jetlake.client.connection.connection import Connection

# A TCP connection that lasted this long proves its server sound: the next loss restarts the back-off.
_LASTED_S = 2.0


class ConnectionState(Enum):
    """What a connection is doing."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    CLOSED = "closed"


class ServerLink:
    """The TCP connection to one server of the pool, and the next one when it is lost.

    Args:
        connection: is notified of a new, lost or impossible TCP connection; has the options.
        random: for the order of servers and the jitter of waits.

    Attributes:
        state: what the connection is doing.
        wire: the open TCP connection; None between two.
        address: the server that is, or was last, connected.
        info: the last INFO of that server.
        pool: the servers.
        reconnects: how often the link was opened again.
    """

    def __init__(self, connection: Connection, random: Random) -> None:
        options = connection.options
        self._connection = connection
        self._options = options
        self._loop = connection.loop
        self.pool = ServerPool(
            options.servers,
            attempts_max=options.reconnect_attempts_max,
            backoff=options.backoff,
            random=random,
            shuffle=options.shuffle_servers,
            choose=options.choose_server,
        )
        self._reconnect_task: asyncio.Task[None] | None = None
        self._connected_at = 0.0
        self._state_changed: asyncio.Future[None] | None = None
        self._closing: WireProtocol | None = None
        self.state = ConnectionState.CONNECTING
        self.wire: WireProtocol | None = None
        self.address: ServerAddress | None = None
        self.info = ServerInfo()
        self.reconnects = 0

    @property
    def is_closed(self) -> bool:
        """Whether the link is closed for good."""
        return self.state is ConnectionState.CLOSED

    # Opening

    async def open(self) -> None:
        """Connect for the first time.

        Raises:
            NoServersError: no server could be reached.
            AuthorizationError: the only answer was that the credentials are wrong.
        """
        last_error: Exception | None = None
        while True:
            attempt = self.pool.next_attempt()
            if attempt is None or (attempt.wait_s and not self._options.retry_first_connect):
                if isinstance(last_error, AuthorizationError):
                    raise last_error
                raise NoServersError(self.pool.failures) from last_error
            await asyncio.sleep(attempt.wait_s)
            last_error = await self._try(attempt.address)
            if last_error is None:
                return

    async def _try(self, address: ServerAddress) -> Exception | None:
        """Try one server; the error if it did not work."""
        try:
            wire, info = await open_wire(await self._options.answered(), address, self._connection, self.lost)
        except Exception as error:  # Also of a function for credentials: another attempt asks again.
            reason = str(error) or type(error).__name__
            is_refused = isinstance(error, AuthorizationError)
            is_first = self.state is ConnectionState.CONNECTING
            self.pool.failed(address, reason, authorization=is_refused and is_first)
            if isinstance(error, AuthorizationError) and not is_first:
                # A server that accepted these credentials before may do so again, once its own are corrected.
                self._connection.signal(error)
            return error
        if self.is_closed:
            wire.close()
            return None
        return self._use(wire, address, info)

    def _use(self, wire: WireProtocol, address: ServerAddress, info: ServerInfo) -> Exception | None:
        """Use a server that accepted the client; returns the error if that fails before the link is open.

        Only a defect of the client fails there. It is reported, and after the usual wait the next server is tried;
        while the client connects for the first time, it is raised.
        """
        is_first = self.state is ConnectionState.CONNECTING
        try:
            self._connected(wire, address, info)
        except Exception as error:
            reason = ClientConnectionError(f"the client failed to use {address}: {error!r}")
            reason.__cause__ = error
            if is_first:
                wire.abort(reason)
                raise
            self._connection.signal(error)
            is_open = self.wire is wire
            wire.abort(reason)
            if is_open:
                self.lost(wire, reason)  # A wire that has not started notifies nothing.
                return None
            self.pool.failed(address, str(reason))
            return reason
        return None

    def _connected(self, wire: WireProtocol, address: ServerAddress, info: ServerInfo) -> None:
        is_first = self.state is ConnectionState.CONNECTING
        self.address = address
        self._connected_at = self._loop.time()
        self.pool.connected(address, first=is_first)
        self.update_info(info)
        self.state = ConnectionState.CONNECTED
        self.wire = wire
        self.reconnects += not is_first
        self._connection.connected(wire, is_first=is_first)
        if not is_first:
            self._wake()
        if self.wire is wire:
            wire.start()

    def update_info(self, info: ServerInfo) -> None:
        """Store an INFO of the server, and learn the addresses of its cluster."""
        is_connected = self.state is ConnectionState.CONNECTED
        is_cluster_changed = is_connected and set(info.connect_urls) != set(self.info.connect_urls)
        self.info = info
        discovered: list[str] = []
        if self._options.discover_servers and info.connect_urls:
            websocket = self.address is not None and self.address.websocket
            fresh = self.pool.discovered(info.connect_urls, tls=info.tls_required, websocket=websocket)
            if self.state is not ConnectionState.CONNECTING:
                discovered = [str(address) for address in fresh]
        self._connection.informed(info, discovered, is_cluster_changed=is_cluster_changed)

    # Losing and dialling again

    def abort(self, error: Exception) -> None:
        """Give up the TCP connection for this reason, if there is one."""
        if self.wire is not None:
            self.wire.abort(error)

    def lost(self, wire: WireProtocol, error: Exception | None) -> None:
        """Notify the connection that the wire is gone, and dial again unless that is final."""
        if wire is not self.wire:
            return
        self.wire = None
        if self.is_closed:
            return
        reason = self._translated(error)
        is_final = not self._options.reconnect or self._expired_for_good(error)
        if not is_final:
            self.state = ConnectionState.RECONNECTING
        try:
            self._connection.lost(reason, is_clean=error is None, is_final=is_final)
        except Exception as defect:
            self._connection.signal(defect)
        if is_final:
            return
        if self.address is not None:
            lasted_s = self._loop.time() - self._connected_at
            self.pool.lost(self.address, lasted=lasted_s >= _LASTED_S)
        self._reconnect_task = self._loop.create_task(self._reconnect())

    def _translated(self, error: Exception | None) -> Exception:
        """Name the server in the operating system's errors, which say neither who nor what."""
        if isinstance(error, JetlakeError):
            return error
        reason = ClientConnectionError(f"{self.address} closed the connection" + (f": {error}" if error else ""))
        reason.__cause__ = error
        return reason

    def _expired_for_good(self, error: Exception | None) -> bool:
        is_expired = isinstance(error, AuthorizationError) and "expired" in str(error).lower()
        return is_expired and self._options.credentials is None and not self._options.asks

    async def _reconnect(self) -> None:
        while self.state is ConnectionState.RECONNECTING:
            attempt = self.pool.next_attempt()
            if attempt is None:
                self._connection.gave_up(NoServersError(self.pool.failures))
                return
            await asyncio.sleep(attempt.wait_s)
            if await self._try(attempt.address) is None:
                return

    async def wait_connected(self) -> None:
        """Wait until a server is connected.

        Raises:
            ConnectionClosedError: the link is closed, or is closed meanwhile.
        """
        while self.wire is None:
            if self.is_closed:
                raise ConnectionClosedError("the connection is closed")
            await self.changed()

    async def changed(self) -> None:
        """Wait for the next connection, or for the end."""
        if self._state_changed is None:
            self._state_changed = self._loop.create_future()
        await asyncio.shield(self._state_changed)

    def _wake(self) -> None:
        changed, self._state_changed = self._state_changed, None
        if changed is not None:
            changed.set_result(None)

    # Closing

    def close(self) -> None:
        """Write what is buffered and close for good."""
        self.state = ConnectionState.CLOSED
        if self._reconnect_task is not None and self._reconnect_task is not asyncio.current_task(self._loop):
            self._reconnect_task.cancel()
        wire, self.wire = self.wire, None
        if wire is not None:
            wire.close()
            self._closing = wire
        self._wake()

    async def written(self) -> bool:
        """Wait, not for long, until what was buffered at `close` is written; False if the server did not take it."""
        if self._closing is not None and await self._closing.written():
            self._closing = None
        return self._closing is None

    def cut_off(self) -> None:
        """Give up what is still not written after `close`, and release the socket."""
        closing, self._closing = self._closing, None
        if closing is not None and closing.transport is not None:
            closing.transport.abort()
