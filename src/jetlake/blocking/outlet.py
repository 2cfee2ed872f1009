"""The outlet of a blocking client: answers and publishes of any thread, queued for the loop."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from jetlake.blocking.threads.loop_port import LoopPort
from jetlake.errors import ConnectionClosedError, JetlakeError

if TYPE_CHECKING:
    from jetlake.client.connection.connection import Connection
    from jetlake.client.messages.message import Message

__all__ = ["ThreadOutlet"]

_QUEUED_BYTES_MAX = 1024 * 1024


class ThreadOutlet:
    """Frames from any thread, many with one wake-up of the loop."""

    def __init__(self, port: LoopPort, connection: Connection) -> None:
        self._port = port
        self._connection = connection
        self.check_size = connection.check_size
        # What is written together, and how many frames it is.
        self._frames: deque[tuple[bytes, int]] = deque()
        self._bytes = 0
        self._is_scheduled = False

    def send(self, frame: bytes, count: int = 1) -> None:
        """Queue a frame for the loop; waits for the socket while too much is queued.

        Raises:
            ConnectionClosedError: the client is closed.
        """
        if self._port.is_shut:
            self._port.refuse()
        if self._connection.is_closed:
            raise ConnectionClosedError("the client is closed")
        self._frames.append((frame, count))
        self._bytes += len(frame)
        if not self._is_scheduled:
            self._is_scheduled = True
            try:
                self._port.post(self.flush)
            except BaseException:
                self._is_scheduled = False
                raise
        if self._bytes > _QUEUED_BYTES_MAX and threading.current_thread() is not self._port.thread:
            self._port.call(self._connection.relieve())

    def send_run(self, frames: bytes, count: int) -> None:
        """Queue so many frames as `send` queues one."""
        self.send(frames, count)

    def flush(self) -> None:
        """Write what is queued; on the loop's thread."""
        # First the flag: what is queued after this line schedules a write of its own.
        self._is_scheduled = False
        self._bytes = 0
        frames = self._frames
        while frames:
            frame, count = frames.popleft()
            try:
                if count == 1:
                    self._connection.send(frame)
                else:
                    self._connection.send_run(frame, count)
            except JetlakeError as error:
                self._connection.signal(error)
                if self._connection.is_closed:
                    frames.clear()

    async def confirm(self, subject: bytes, payload: bytes, timeout_s: float | None) -> Message:
        """Send an acknowledgement and wait for the answer; on the loop's thread."""
        return await self._connection.confirm(subject, payload, timeout_s)

    def confirm_and_wait(self, subject: bytes, payload: bytes, timeout_s: float | None) -> Message:
        """Send an acknowledgement and wait for the answer, from any other thread."""
        return self._port.call(self._connection.confirm(subject, payload, timeout_s))
