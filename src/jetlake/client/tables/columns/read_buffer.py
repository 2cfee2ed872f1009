"""The bytes that came from a server and are not split into messages yet."""

from __future__ import annotations

from jetlake.client.connection.socket_connection import SocketConnection
from jetlake.client.tables.columns.frame_split import split_frames

__all__ = ["ReadBuffer"]

_SIZE = 1 << 20
_SIZE_MAX = 256 << 20
_SETTLE_S = 10.0


class ReadBuffer:
    """A buffer that a connection fills from the front and that is emptied from the front; it grows for large messages.

    Attributes:
        data: the bytes.
        fill: how many of them are valid.
    """

    def __init__(self, size: int = _SIZE) -> None:
        self.data = bytearray(size)
        self.fill = 0

    def receive(self, connection: SocketConnection, timeout_s: float) -> None:
        """Wait for bytes, then take all that are there, as far as the buffer holds them.

        Raises:
            RequestTimeoutError: none came in time.
            ConnectionClosedError: the connection broke.
        """
        if self.fill == len(self.data):
            self._grow()
        self.fill += connection.recv_into(memoryview(self.data)[self.fill :], timeout_s)

    def discard(self, count: int) -> None:
        """Forget the first bytes."""
        rest = self.fill - count
        if count and rest:
            self.data[:rest] = self.data[count : self.fill]
        self.fill = rest

    def _grow(self) -> None:
        """Make room for a message that is longer than the buffer."""
        larger = bytearray(min(len(self.data) * 2, _SIZE_MAX))
        larger[: self.fill] = self.data[: self.fill]
        self.data = larger

    def settle(self, connection: SocketConnection) -> None:
        """Read away what still comes for a subscription that has just ended; then the connection is as good as new."""
        connection.send(b"PING\r\n")
        settled = False
        while not settled:
            split = split_frames(self.data, self.fill)
            for line in split.lines:
                if line == b"PONG":
                    settled = True
                else:
                    connection.handle_line(line)
            self.discard(split.consumed)
            if not settled:
                self.receive(connection, _SETTLE_S)
