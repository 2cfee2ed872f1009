"""A connection to a server over WebSocket: the frames below what speaks the NATS protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, cast

from jetlake.client.settings.server_address import ServerAddress
from jetlake.errors import ClientConnectionError, InvalidOptionError

try:
    from websockets.client import ClientProtocol
    from websockets.frames import Frame, Opcode
    from websockets.protocol import SEND_EOF, State
    from websockets.uri import parse_uri
except ModuleNotFoundError:
    raise InvalidOptionError("addresses with ws and wss need the package websockets: pip install websockets") from None

__all__ = ["WebSocketWire"]

# A server sends what it has gathered for a client as one message, and lets clients be this far behind.
_MESSAGE_BYTES_MAX = 128 * 1024 * 1024
_DATA = (Opcode.BINARY, Opcode.TEXT, Opcode.CONT)


class WebSocketWire(asyncio.Protocol):
    """The asyncio end of a socket with WebSocket on it.

    Args:
        wire: speaks the NATS protocol above the frames.
        address: the server's address.
        headers: additional headers of the upgrade request.
    """

    def __init__(
        self, wire: asyncio.Protocol, address: ServerAddress, headers: Mapping[str, str | list[str]] | None = None
    ) -> None:
        self._wire = wire
        self._headers = headers or {}
        self._core = ClientProtocol(parse_uri(str(address)), max_size=_MESSAGE_BYTES_MAX)
        self._address = address
        self._socket: asyncio.Transport | None = None
        self._is_upgraded = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast("asyncio.Transport", transport)
        request = self._core.connect()
        for name, values in self._headers.items():
            for value in [values] if isinstance(values, str) else values:
                request.headers[name] = value
        self._core.send_request(request)
        self._flush(self._socket)

    def data_received(self, data: bytes) -> None:
        core, socket = self._core, self._socket
        if socket is None or core.eof_sent:
            return
        core.receive_data(data)
        payloads = [
            event.data for event in core.events_received() if isinstance(event, Frame) and event.opcode in _DATA
        ]
        if not self._is_upgraded and core.state is not State.CONNECTING and core.handshake_exc is None:
            self._is_upgraded = True
            self._wire.connection_made(_Transport(socket, core))
        self._flush(socket)
        if payloads:
            self._wire.data_received(b"".join(payloads))
        if core.handshake_exc is not None or core.parser_exc is not None or core.close_rcvd is not None:
            socket.close()

    def pause_writing(self) -> None:
        self._wire.pause_writing()

    def resume_writing(self) -> None:
        self._wire.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._socket = None
        if exc is None and not self._is_upgraded:
            reason = self._core.handshake_exc or "the connection was closed"
            exc = ClientConnectionError(f"{self._address} does not speak WebSocket: {reason}")
        self._wire.connection_lost(exc)

    def _flush(self, socket: asyncio.Transport) -> None:
        data = b"".join(piece for piece in self._core.data_to_send() if piece is not SEND_EOF)
        if data and not socket.is_closing():
            socket.write(data)


class _Transport(asyncio.Transport):
    """The socket as the NATS protocol sees it: what is written to it goes into frames."""

    def __init__(self, socket: asyncio.Transport, core: ClientProtocol) -> None:
        super().__init__()
        self._socket = socket
        self._core = core

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._core.state is State.OPEN:
            self._socket.write(Frame(Opcode.BINARY, bytes(data)).serialize(mask=True))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._socket.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._socket.get_write_buffer_size()

    def is_reading(self) -> bool:
        return self._socket.is_reading()

    def pause_reading(self) -> None:
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._socket.resume_reading()

    def is_closing(self) -> bool:
        return self._socket.is_closing()

    def close(self) -> None:
        if self._core.state is State.OPEN and not self._socket.is_closing():
            self._core.send_close(1000)
            self._socket.write(b"".join(self._core.data_to_send()))
        self._socket.close()

    def abort(self) -> None:
        self._socket.abort()
