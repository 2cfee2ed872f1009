"""The transport that a connection sees above a WebSocket: bytes of the NATS protocol in frames."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jetlake.server.shell.websocket.core import WebSocketCore

if TYPE_CHECKING:
    from jetlake.server.shell.websocket.protocol import WebSocketProtocol

__all__ = ["WebSocketTransport"]


class WebSocketTransport(asyncio.Transport):
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
        super().__init__(extra)
        self._socket = socket
        self._core = core
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        found = super().get_extra_info(name)
        return found if found is not None else self._socket.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._core.is_open:
            self._socket.write(self._core.frame(bytes(data)))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._socket.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._socket.get_write_buffer_size()

    def pause_reading(self) -> None:
        self._protocol.set_reading(False)

    def resume_reading(self) -> None:
        self._protocol.set_reading(True)

    def is_closing(self) -> bool:
        return self._socket.is_closing()

    def can_write_eof(self) -> bool:
        return self._socket.can_write_eof()

    def write_eof(self) -> None:
        self._send_close_frame()
        self._socket.write_eof()

    def close(self) -> None:
        self._send_close_frame()
        self._socket.close()

    def abort(self) -> None:
        self._socket.abort()

    def _send_close_frame(self) -> None:
        if frame := self._protocol.close_frame():
            self._socket.write(frame)
