"""The bytes that came from a server and are not split into messages yet."""

from __future__ import annotations

import time

from jetlake.client.connection.socket_connection import SocketConnection
from jetlake.client.tables.frames import split_frames

# A read costs a Python worker as much as thousands of messages do, so it pays to take many at once.
_SIZE = 2 << 20
_SIZE_MAX = 256 << 20
_DRAIN_S = 10.0
_GATHER_PAUSE_S = 0.004
# Every message has at least this many bytes, with its control line.
_MESSAGE_BYTES_MIN = 64


class ReadBuffer:
    """A buffer that a connection fills from the front and that is emptied from the front; it grows for large messages.

    Attributes:
        data: the bytes.
        fill: how many of them are valid.
    """

    def __init__(self, size: int = _SIZE) -> None:
        self.data = bytearray(size)
        self.fill = 0

    def receive(self, connection: SocketConnection, timeout_s: float, expected: int = 0) -> None:
        """Wait for bytes, then take all that are there, as far as the buffer holds them.

        Handling a read costs as much for one message as for a hundred, and a server that is slower than its reader
        would cause a read for every few messages.

        Args:
            expected: how many messages are expected; wait for them, or half a buffer, while more arrive.

        Raises:
            RequestTimeoutError: none came in time.
            ConnectionClosedError: the connection broke.
        """
        if self.fill == len(self.data):
            self._grow()
        room = memoryview(self.data)[self.fill :]
        count = connection.recv_into(room, timeout_s)
        enough = min(expected * _MESSAGE_BYTES_MIN, len(self.data) // 2, len(room))
        more = count
        while more and count < enough:
            time.sleep(_GATHER_PAUSE_S)
            more = connection.recv_ready_into(room[count:])
            count += more
        self.fill += count

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

    def drain(self, connection: SocketConnection) -> None:
        """Discard messages that still arrive for a subscription that has ended; then the connection is clean."""
        connection.send(b"PING\r\n")
        drained = False
        while not drained:
            split = split_frames(self.data, self.fill)
            for line in split.lines:
                if line == b"PONG":
                    drained = True
                else:
                    connection.handle_line(line)
            self.discard(split.consumed)
            if not drained:
                self.receive(connection, _DRAIN_S)
