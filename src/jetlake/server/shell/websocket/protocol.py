"""The protocol of a WebSocket's socket: the upgrade within its time, then frames, unpacked in bounded pieces."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from jetlake.server.engine.core.timers import Timer
from jetlake.server.shell.connection.peer_connection import PeerConnection
from jetlake.server.shell.tls_socket import LayeredTransport
from jetlake.server.shell.websocket.core import WebSocketCore
from jetlake.server.shell.websocket.upgrade import forwarded_address, is_of_leaf_node, read_cookies

if TYPE_CHECKING:
    from jetlake.server.shell.websocket.listener import WebSocketListener

__all__ = ["WebSocketProtocol"]

# Received bytes are unpacked in pieces: what a piece may inflate to is bounded, and so is the time one client takes
# before the others get theirs.
_PIECE_BYTES = 4096
_SHARE_S = 0.001

_SECOND_NS = 1_000_000_000

# Why a connection ended, and the close code that says it; all others are internal errors.
_NORMAL, _GOING_AWAY, _PROTOCOL_ERROR, _POLICY, _TOO_BIG, _INTERNAL = 1000, 1001, 1002, 1008, 1009, 1011
_CLOSE_CODES = {
    "Client Closed": _NORMAL,
    "Server Shutdown": _GOING_AWAY,
    "Stale Connection": _GOING_AWAY,
    "Read Error": _GOING_AWAY,
    "Parse Error": _PROTOCOL_ERROR,
    "Unknown Protocol Operation": _PROTOCOL_ERROR,
    "Bad Client Protocol Version": _PROTOCOL_ERROR,
    "Message Header Violation": _PROTOCOL_ERROR,
    "Maximum Payload Violation": _TOO_BIG,
    "Authentication Failure": _POLICY,
    "Authentication Timeout": _POLICY,
    "No Responders Requires Headers": _POLICY,
    "Slow Consumer (Pending Bytes)": _POLICY,
    "Slow Consumer (Write Deadline)": _POLICY,
    "maximum connections exceeded": _POLICY,
    "maximum control line exceeded": _POLICY,
}


class WebSocketProtocol(asyncio.Protocol):
    """One socket of the WebSocket listener.

    Args:
        listener: has the sockets in their upgrade, and makes the connection of an upgraded one.
    """

    def __init__(self, listener: WebSocketListener) -> None:
        self._listener = listener
        self._services = services = listener.services
        options = services.settings.options
        assert options.websocket is not None
        self._options = options.websocket
        self._core = WebSocketCore(
            self._options,
            options.max_payload,
            is_encrypted=self._options.tls is not None,
            takes_leaf_nodes=listener.make_leaf_connection is not None,
        )
        self._socket: asyncio.Transport | None = None
        self._client: PeerConnection | None = None
        self._input: deque[bytes] = deque()
        self._client_reads = True
        self._can_write = True
        self._is_waiting = False  # for a turn
        self._timer: Timer | None = None

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast("asyncio.Transport", transport)
        if not self._listener.has_room():
            self.hang_up()
            return
        self._listener.upgrading.add(self)
        engine_loop, clock = self._services.engine_loop, self._services.clock
        deadline_ns = clock.now_ns() + int(self._options.handshake_timeout_s * _SECOND_NS)
        self._timer = engine_loop.timers.schedule(deadline_ns, lambda _now_ns: self.hang_up())
        engine_loop.schedule()

    def data_received(self, data: bytes) -> None:
        engine_loop = self._services.engine_loop
        engine_loop.begin()
        self._input.append(data)
        if not self._is_waiting and (not engine_loop.has_time() or self._unpack_share()):
            self._wait_for_turn()
        engine_loop.schedule()

    def pause_writing(self) -> None:
        # A client that does not take its pongs gets no more of them.
        self._can_write = False
        if self._client is not None:
            self._client.pause_writing()

    def resume_writing(self) -> None:
        self._can_write = True
        if self._client is not None:
            self._client.resume_writing()
        self._wait_for_turn()

    def eof_received(self) -> bool:
        if self._client is not None:
            self._client.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_upgrade()
        self._input.clear()
        if self._client is not None:
            self._client.connection_lost(exc)
        self._socket = None

    # Reading

    def read_on(self) -> bool:
        """Unpack another share in a later turn; whether there is one more."""
        self._is_waiting = self._unpack_share()
        return self._is_waiting

    def _wait_for_turn(self) -> None:
        """Unpack the next share after connections that waited longer."""
        if self._is_waiting:
            return
        self._is_waiting = True
        if self._input and self._socket is not None and not self._socket.is_closing():
            self._socket.pause_reading()
        self._services.engine_loop.wait_for_turn(self)

    def _unpack_share(self) -> bool:
        """Unpack received bytes for a bounded time, as far as the client reads; whether there are more."""
        try:
            is_over = self._unpack()
        except Exception as error:
            self._services.report_defect("a WebSocket", error)
            self.hang_up()
            return False
        socket = self._socket
        if socket is None or socket.is_closing():
            return False
        if self._input:
            socket.pause_reading()
        elif self._client_reads and self._can_write:
            socket.resume_reading()
        return not is_over

    def _unpack(self) -> bool:
        """Unpack pieces until the time is up; True when there are no more, or the client has to continue first."""
        ticks = self._services.engine_loop.ticks
        deadline_s = ticks() + _SHARE_S
        while self._input and self._socket is not None and self._client_reads and self._can_write:
            self._receive(self._next_piece(), self._socket)
            if self._input and ticks() >= deadline_s:
                return False
        if self._core.ended and self._client_reads and self._socket is not None:
            self._end(self._socket)  # The client's connection has handled all that came before the close frame.
        return True

    def _next_piece(self) -> bytes:
        first = self._input.popleft()
        if len(first) > _PIECE_BYTES:
            self._input.appendleft(first[_PIECE_BYTES:])
            return first[:_PIECE_BYTES]
        return first

    def _receive(self, piece: bytes, socket: asyncio.Transport) -> None:
        if self._core.ended:
            return
        core = self._core
        data = core.receive(piece)
        if answer := core.to_send():
            socket.write(answer)
        client = self._client or self._enter(socket)
        if data and client is not None:
            client.data_received(data)
        if core.ended:
            self._input.clear()

    def set_reading(self, is_reading: bool) -> None:
        """Pass on whether the connection wants to read."""
        self._client_reads = is_reading
        socket = self._socket
        if socket is None or socket.is_closing():
            return
        if is_reading:
            self._wait_for_turn()
        else:
            socket.pause_reading()

    # The upgrade

    def _enter(self, socket: asyncio.Transport) -> PeerConnection | None:
        """Hand the upgraded socket to a connection; None before the upgrade."""
        request = self._core.request
        if request is None:
            return None
        self._end_upgrade()
        extra: dict[str, object] = {
            "client_type": "websocket",
            "cookies": read_cookies(request.headers, self._options),
            "forwarded_for": forwarded_address(request.headers),
        }
        transport = WebSocketTransport(socket, self._core, extra, self)
        make_leaf = self._listener.make_leaf_connection if is_of_leaf_node(request) else None
        self._client = make_leaf() if make_leaf is not None else self._listener.make_connection()
        self._client.connection_made(transport)
        return self._client

    def _end_upgrade(self) -> None:
        self._listener.upgrading.discard(self)
        self._services.engine_loop.timers.cancel(self._timer)

    # The end

    def _end(self, socket: asyncio.Transport) -> None:
        """Close the socket after the client's close frame, a violation of the protocol, or a refused upgrade."""
        if self._core.violation:
            self._services.log.debug(f"WebSocket closed: {self._core.violation}")
        if self._client is not None:
            self._client.eof_received()
        socket.close()

    def hang_up(self) -> None:
        """Close the socket without a close frame."""
        if self._socket is not None:
            self._socket.abort()

    def close_frame(self) -> bytes:
        """Return the close frame, with the code of the connection's end."""
        reason = self._client.close_reason if self._client is not None else ""
        return self._core.close(_CLOSE_CODES.get(reason, _INTERNAL), reason)


class WebSocketTransport(LayeredTransport):
    """A socket with frames around what is written to it.

    Args:
        socket: the transport of the socket, with TLS where there is some.
        core: makes the frames.
        extra: what is known of the client beyond the socket, by the names of `get_extra_info`.
        protocol: the protocol of the socket.
    """

    def __init__(
        self, socket: asyncio.Transport, core: WebSocketCore, extra: dict[str, Any], protocol: WebSocketProtocol
    ) -> None:
        super().__init__(socket, extra)
        self._core = core
        self._protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._core.is_open:
            self._socket.write(self._core.frame(bytes(data)))

    def pause_reading(self) -> None:
        self._protocol.set_reading(False)

    def resume_reading(self) -> None:
        self._protocol.set_reading(True)

    def can_write_eof(self) -> bool:
        return self._socket.can_write_eof()

    def write_eof(self) -> None:
        self._send_close_frame()
        self._socket.write_eof()

    def close(self) -> None:
        self._send_close_frame()
        self._socket.close()

    def _send_close_frame(self) -> None:
        if frame := self._protocol.close_frame():
            self._socket.write(frame)
