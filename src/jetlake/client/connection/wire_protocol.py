"""One TCP connection to a server: the handshake first, then every read parsed and delivered as one list."""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections.abc import Callable
from ssl import SSLError
from typing import TYPE_CHECKING, cast

from jetlake.client.connection.handshake import ServerInfo, complaint, connect_frame, read_info, tls_context
from jetlake.client.settings.options import ConnectOptions
from jetlake.client.settings.server_address import ServerAddress
from jetlake.errors import ClientConnectionError, ConnectTimeoutError, JetlakeError
from jetlake.protocol import encoder
from jetlake.protocol.frames import Err, Frame, Info, Msg, Pong
from jetlake.protocol.parser import ClientParser

if TYPE_CHECKING:
    from ssl import SSLContext

    from jetlake.client.connection.connection import Connection

_WRITE_BUFFER_HIGH = 256 * 1024
# As long as asyncio waits for the end of TLS.
_CLOSE_S = 30.0
# And how long a caller of `close` waits for it: a program that ends then takes the rest along.
_CLOSE_WAIT_S = 2.0

# asyncio allocates 256 KiB for every read and frees most of it. glibc maps blocks of that size from the system,
# which costs more than the read itself, until a larger one was freed; later ones come from the heap.
bytes(1024 * 1024)


class WireProtocol(asyncio.Protocol):
    """The asyncio end of one TCP connection.

    Args:
        connection: receives the frames of each read after `start`; has the type of messages and the traffic's counters.
        on_lost: called once when the TCP connection is gone after `start`.
    """

    def __init__(self, connection: Connection, on_lost: Callable[[WireProtocol, Exception | None], None]) -> None:
        self._loop = asyncio.get_running_loop()
        # The parser builds whatever takes its five positional arguments.
        self._parser = ClientParser(message_type=cast("type[Msg]", connection.message_type), message_runs=True)
        self._connection = connection
        self._on_lost = on_lost
        self._traffic = connection.traffic
        self._is_aborted = False
        self._greeting: asyncio.Future[ServerInfo] = self._loop.create_future()
        self._welcome: asyncio.Future[None] | None = None
        self._is_started = False
        # Frames behind the welcome, until `start`.
        self._early: list[Frame] = []
        self._failure: Exception | None = None
        self._resumed: asyncio.Future[None] | None = None
        self._cut_off: asyncio.TimerHandle | None = None
        self._written: asyncio.Future[None] | None = None
        self.transport: asyncio.Transport | None = None

    async def greet(self, options: ConnectOptions, address: ServerAddress, *, secure: bool) -> ServerInfo:
        """Go through INFO, TLS, CONNECT and the first PING.

        Raises:
            JetlakeError: the server refused us.
        """
        info = await self._greeting
        context = None if secure else tls_context(options, address, info)
        if context is not None:
            await self._start_tls(context, options.tls_hostname or address.host)
            secure = True
        self._check_failure()
        self._welcome = self._loop.create_future()
        self.write(connect_frame(options, address, info, secure=secure) + encoder.PING)
        await self._welcome
        self._check_failure()
        return info

    def _check_failure(self) -> None:
        """Raise what has ended the connection right behind the server's answer."""
        if self._failure is not None:
            raise self._failure

    def start(self) -> None:
        """Deliver frames from now on, first those directly behind the welcome, such as a newer INFO."""
        self._is_started = True
        early, self._early = self._early, []
        if early:
            self._connection.receive(early)

    async def _start_tls(self, context: SSLContext, hostname: str) -> None:
        assert self.transport is not None
        transport = await self._loop.start_tls(self.transport, self, context, server_hostname=hostname)
        if transport is None:
            raise ClientConnectionError("the server closed the connection during the TLS handshake")
        self.transport = transport
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_HIGH)

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=_WRITE_BUFFER_HIGH)

    def data_received(self, data: bytes) -> None:
        if self._is_aborted:
            return
        self._traffic.bytes_received += len(data)
        frames = self._parser.feed(data)
        if self._is_started:
            if frames:
                self._connection.receive(frames)
        else:
            self._greet_frames(frames)
        if self._parser.error is not None:
            self.abort(self._parser.error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.resume_writing()
        if self._cut_off is not None:
            self._cut_off.cancel()
        if self._written is not None and not self._written.done():
            self._written.set_result(None)
        error = exc or ClientConnectionError("the server closed the connection")
        if self._is_started:
            self._on_lost(self, exc)
        else:
            self._refuse(error)

    def pause_writing(self) -> None:
        if self._resumed is None:
            self._resumed = self._loop.create_future()

    def resume_writing(self) -> None:
        resumed, self._resumed = self._resumed, None
        if resumed is not None and not resumed.done():
            resumed.set_result(None)

    # What the connection calls

    @property
    def is_congested(self) -> bool:
        """Whether the socket takes no more for now."""
        return self._resumed is not None

    async def writable(self) -> None:
        """Wait until the socket takes more; returns at once when it does, or when it is gone."""
        while self._resumed is not None:
            await asyncio.shield(self._resumed)

    def write(self, data: bytes) -> None:
        """Hand the bytes to the socket."""
        self._traffic.bytes_sent += len(data)
        assert self.transport is not None
        self.transport.write(data)

    def close(self) -> None:
        """Write what is buffered, then close; a server that takes none of it for too long is cut off."""
        if self.transport is not None:
            self.transport.close()
            if self.transport.get_write_buffer_size():
                self._cut_off = self._loop.call_later(_CLOSE_S, self.transport.abort)
                self._written = self._loop.create_future()

    async def written(self) -> bool:
        """Wait, not for long, until what was buffered at `close` is written; False if the server did not take it."""
        if self._written is not None:
            await asyncio.wait([self._written], timeout=_CLOSE_WAIT_S)
        return self._written is None or self._written.done()

    def abort(self, error: Exception) -> None:
        """Close at once; nothing that is buffered is written."""
        if self._is_started:
            self._is_started = False
            self._is_aborted = True
            self.resume_writing()
            self._on_lost(self, error)
        else:
            self._refuse(error)
        if self.transport is not None:
            self.transport.abort()

    def _greet_frames(self, frames: list[Frame]) -> None:
        if self._welcome is not None and self._welcome.done():
            self._early += frames
            return
        for position, frame in enumerate(frames):
            if isinstance(frame, Info) and not self._greeting.done():
                try:
                    self._greeting.set_result(read_info(frame.json))
                except JetlakeError as error:
                    self._refuse(error)
            elif isinstance(frame, Err):
                self._refuse(complaint(frame.text))
            elif isinstance(frame, Pong) and self._welcome is not None and not self._welcome.done():
                self._welcome.set_result(None)
                self._early = frames[position + 1 :]
                return

    def _refuse(self, error: Exception) -> None:
        """Fail the handshake; the first reason counts."""
        self._failure = self._failure or error
        for waiting in (self._greeting, self._welcome):
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # Retrieved here, so that asyncio logs no exception that nothing awaits.


_LITERAL = re.compile(r"[0-9.]+|.*:.*")


async def _hosts(loop: asyncio.AbstractEventLoop, address: ServerAddress, shuffle: bool) -> list[str]:
    """Return the addresses of a name in random order, so that the clients of one name spread over its servers."""
    host = address.host
    if not shuffle or host == "localhost" or _LITERAL.fullmatch(host):
        return [host]
    found = await loop.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)
    hosts = list({str(entry[4][0]) for entry in found})
    if len(hosts) < 2:
        return [host]
    random.shuffle(hosts)
    return hosts


async def open_wire(
    options: ConnectOptions,
    address: ServerAddress,
    connection: Connection,
    on_lost: Callable[[WireProtocol, Exception | None], None],
) -> tuple[WireProtocol, ServerInfo]:
    """Connect to one server and go through its greeting.

    Raises:
        ConnectTimeoutError: it took longer than the connect timeout.
        OSError: the server cannot be reached.
        JetlakeError: the server refused us.
    """
    loop = asyncio.get_running_loop()
    unreached = OSError(f"{address.host} has no address")
    wire = WireProtocol(connection, on_lost)
    protocol: asyncio.Protocol = wire
    if address.websocket:
        from jetlake.client.connection.websocket_wire import WebSocketWire

        protocol = WebSocketWire(wire, address, options.websocket_headers)
    context = tls_context(options, address, None)
    hostname = (options.tls_hostname or address.host) if context is not None else None
    try:
        async with asyncio.timeout(options.connect_timeout_s):
            if options.server is not None:
                server = options.server() if callable(options.server) else options.server
                await loop.create_connection(lambda: protocol, sock=await server.open_socket())
            else:
                for host in await _hosts(loop, address, options.shuffle_servers):
                    try:
                        await loop.create_connection(
                            lambda: protocol, host, address.port, ssl=context, server_hostname=hostname
                        )
                    except OSError as error:
                        if isinstance(error, SSLError):
                            raise  # It was reached, and refuses us.
                        unreached = error
                    else:
                        break
                else:
                    raise unreached
            info = await wire.greet(options, address, secure=context is not None)
    except TimeoutError:
        wire.abort(ConnectTimeoutError("given up"))
        raise ConnectTimeoutError(f"{address} did not answer within {options.connect_timeout_s:g} s") from None
    except BaseException as error:
        wire.abort(error if isinstance(error, Exception) else ClientConnectionError("given up"))
        raise
    return wire, info
