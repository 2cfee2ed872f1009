"""The connections of a client's bulk reads: beside its own, to the same servers, and used by one thread."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec.structs import replace

from jetlake.client.connection.connection import Connection
from jetlake.client.connection.socket_connection import SocketConnection, greet_socket, open_socket
from jetlake.client.settings.options import ConnectOptions
from jetlake.errors import ConnectionClosedError, JetlakeError

__all__ = ["ClientLink", "LinkedRows", "ReadStoppedError"]

T = TypeVar("T")

_RETRY_FOR_S = 30.0


class ReadStoppedError(JetlakeError):
    """The read was stopped while it waited for the server."""


class ClientLink:
    """Connections like a client's own, opened when they are needed and kept until `close`.

    Used by one thread at a time; `stop` may be called by another one.

    Args:
        connection: the client's connection, whose options and server are used.
        api_prefix: what the subjects of the JetStream API begin with.
        request_timeout_s: how long to wait for one answer.

    Raises:
        ConnectionClosedError: the client is closed.
    """

    retry_for_s = _RETRY_FOR_S

    def __init__(self, connection: Connection, api_prefix: str, request_timeout_s: float) -> None:
        if connection.is_closed:
            raise ConnectionClosedError("the client is closed")
        self.api_prefix = api_prefix
        self.request_timeout_s = request_timeout_s
        self._loop = connection.loop
        self._options = _like(connection)
        self._idle: list[SocketConnection] = []
        self._open: set[SocketConnection] = set()
        self._is_stopped = False

    @contextmanager
    def lease(self) -> Iterator[SocketConnection]:
        """Lease a connection for the block; one in which the block fails is closed."""
        if self._is_stopped:
            raise ReadStoppedError("the read was stopped")
        self._check_thread()
        connection = self._idle.pop() if self._idle else self._connect()
        self._open.add(connection)
        try:
            yield connection
        except BaseException:
            connection.close()
            if self._is_stopped:
                raise ReadStoppedError("the read was stopped") from None
            raise
        finally:
            self._open.discard(connection)
        if not connection.closed:
            self._idle.append(connection)

    def stop(self) -> None:
        """Wake the thread that reads, which then ends with `ReadStoppedError`."""
        self._is_stopped = True
        for connection in list(self._open):
            try:
                connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # Closed meanwhile.

    def close(self) -> None:
        """Close every connection; no thread reads any more."""
        for connection in (*self._idle, *self._open):
            connection.close()
        self._idle.clear()

    def _connect(self) -> SocketConnection:
        options = self._options
        if options.asks:
            options = self._on_loop(options.answered())
        if options.server is None:
            return open_socket(options)
        server = options.server() if callable(options.server) else options.server
        return greet_socket(self._on_loop(server.open_socket()), options, options.servers[0])

    def _check_thread(self) -> None:
        """Refuse to block the thread of the client's event loop."""
        try:
            is_inside = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_inside = False
        if is_inside:
            raise JetlakeError(
                "a table cannot be read in the thread of the event loop: await a method of the table, or use "
                "asyncio.to_thread"
            )

    def _on_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the client's event loop, from another thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(self._options.connect_timeout_s)


class LinkedRows(Iterator[T]):
    """The rows of a read; when they end or are left, the link's connections are closed."""

    __slots__ = ("_link", "_rows")

    def __init__(self, link: ClientLink, rows: Iterator[T]) -> None:
        self._link = link
        self._rows = rows

    def __next__(self) -> T:
        try:
            return next(self._rows)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Read no more."""
        self._rows = iter(())
        self._link.close()

    __del__ = close


def _like(connection: Connection) -> ConnectOptions:
    """Return the client's options, with the server first that it is connected to."""
    options, address = connection.options, connection.address
    if address is None or options.server is not None:
        return options
    first = next((known for known in options.servers if str(known) == str(address)), address)
    others = [known for known in options.servers if known is not first]
    return replace(options, servers=(first, *others), shuffle_servers=False)
