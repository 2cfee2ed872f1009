"""The outlet of a blocking client: answers and publishes of any thread, queued for the loop in order of the calls."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from jetlake.blocking.threads.loop_port import LoopPort
from jetlake.errors import ConnectionClosedError, JetlakeError, RequestTimeoutError

if TYPE_CHECKING:
    from jetlake.client.connection.connection import Connection
    from jetlake.client.messages.message import Message

__all__ = ["QueuedMessage", "ThreadOutlet"]

_QUEUED_BYTES_MAX = 1024 * 1024


class QueuedMessage(Protocol):
    """A message of `publish_async`, which goes into its window when its turn comes."""

    def enter(self) -> Coroutine[Any, Any, None] | None:
        """Go into the window, on the loop's thread; returns what waits for that if there is no room."""


class _Mark:
    """A place among what is queued, and a future that is done when all before it is written."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.reached: asyncio.Future[None] = loop.create_future()

    def enter(self) -> None:
        """Take note that all before it is written."""
        if not self.reached.done():
            self.reached.set_result(None)


class ThreadOutlet:
    """Frames and messages from any thread, many with one wake-up of the loop.

    They go out in the order of the calls: an acknowledgement waits behind a message that was published before it and
    that its window has no room for.
    """

    def __init__(self, port: LoopPort, connection: Connection) -> None:
        self._port = port
        self._connection = connection
        self.check_size = connection.check_size
        # What is written together, and how many frames it is; or a message that goes into its window.
        self._queued: deque[tuple[bytes, int] | QueuedMessage] = deque()
        self._bytes = 0
        self._is_scheduled = False
        self._held_up: asyncio.Task[None] | None = None

    def send(self, frame: bytes, count: int = 1) -> None:
        """Queue a frame for the loop; waits for the socket while too much is queued.

        Raises:
            ConnectionClosedError: the client is closed.
        """
        if self._port.is_shut:
            self._port.refuse()
        if self._connection.is_closed:
            raise ConnectionClosedError("the client is closed")
        self._bytes += len(frame)
        self.queue((frame, count))
        if self._bytes > _QUEUED_BYTES_MAX and threading.current_thread() is not self._port.thread:
            self._port.call(self._relieve())

    def send_run(self, frames: bytes, count: int) -> None:
        """Queue so many frames as `send` queues one."""
        self.send(frames, count)

    def queue(self, queued: tuple[bytes, int] | QueuedMessage) -> None:
        """Queue frames, or a message of `publish_async`, behind what is queued."""
        self._queued.append(queued)
        if not self._is_scheduled:
            self._is_scheduled = True
            try:
                self._port.post(self.flush)
            except BaseException:
                self._is_scheduled = False
                raise

    # On the loop's thread

    def flush(self) -> None:
        """Write what is queued, up to a message that its window has no room for."""
        # First the flag: what is queued after this line schedules a write of its own.
        self._is_scheduled = False
        queued = self._queued
        if self._held_up is None:
            self._bytes = 0
        while queued and self._held_up is None:
            first = queued.popleft()
            if isinstance(first, tuple):
                self._write(*first)
            elif (entering := first.enter()) is not None:
                self._held_up = self._port.loop.create_task(entering)
                self._held_up.add_done_callback(self._go_on)

    def _go_on(self, entered: asyncio.Task[None]) -> None:
        self._held_up = None
        if not entered.cancelled():
            self.flush()

    def _write(self, frames: bytes, count: int) -> None:
        try:
            if count == 1:
                self._connection.send(frames)
            else:
                self._connection.send_run(frames, count)
        except JetlakeError as error:
            self._connection.signal(error)
            if self._connection.is_closed:
                self._queued.clear()

    async def flushed(self, timeout_s: float | None = None) -> None:
        """Write what is queued now; waits while a message is among it that its window has no room for.

        Raises:
            RequestTimeoutError: that took too long.
        """
        self.flush()
        if self._held_up is not None:
            mark = _Mark(self._port.loop)
            self._queued.append(mark)
            try:
                async with asyncio.timeout(timeout_s):
                    await mark.reached
            except TimeoutError:
                raise RequestTimeoutError(f"a publish window had no room within {timeout_s:g} s") from None

    async def _relieve(self) -> None:
        await self.flushed()
        await self._connection.apply_back_pressure()

    async def confirm(self, subject: bytes, payload: bytes, timeout_s: float | None) -> Message:
        """Send an acknowledgement and wait for the answer."""
        await self.flushed(timeout_s or self._connection.options.request_timeout_s)
        return await self._connection.confirm(subject, payload, timeout_s)

    # In any other thread

    def confirm_and_wait(self, subject: bytes, payload: bytes, timeout_s: float | None) -> Message:
        """Send an acknowledgement and wait for the answer."""
        return self._port.call(self.confirm(subject, payload, timeout_s))
