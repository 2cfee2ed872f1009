"""The transport that a connection sees above a WebSocket: bytes of the NATS protocol in frames."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from jetlake.server.shell.tls_socket import LayeredTransport
from jetlake.server.shell.websocket.core import WebSocketCore

if TYPE_CHECKING:
    from jetlake.server.shell.websocket.protocol import WebSocketProtocol

__all__ = ["WebSocketTransport"]


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
