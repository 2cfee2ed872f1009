"""The way out of a blocking client: frames and messages of any thread, queued for the loop in the order of the calls.

Acknowledgements and core publishes are frames; messages of `publish_async` have to enter a publish window, which may
be full. All stand in one queue (`SendQueue`), so that everything goes out in the order of the calls: a frame waits
behind a message that has no room yet.

Threads only append to deques and schedule one wake-up of the loop; everything else happens on the loop's thread. A
caller that is interrupted therefore never holds a lock, and takes no other caller's message away.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from jetlake.blocking.loop_thread import LoopPort
from jetlake.client.settings.options import timeout_s
from jetlake.completion import hides
from jetlake.errors import (
    ConnectionClosedError,
    JetlakeError,
    PublishTimeoutError,
    PublishWindowError,
    RequestTimeoutError,
)
from jetlake.model.encoding.durations import Seconds
from jetlake.model.publish import PubAck

if TYPE_CHECKING:
    from jetlake.client.connection.connection import Connection
    from jetlake.client.messages.message import Message
    from jetlake.client.publish.outgoing_message import OutgoingMessage
    from jetlake.client.publish.pending_ack import PendingAck as AsyncPendingAck
    from jetlake.client.publish.publisher import Publisher

_QUEUED_BYTES_MAX = 1024 * 1024
_QUEUED_MAX = 1000
_FAILURES_KEPT_MAX = 10_000


class _Mark:
    """A mark in the queue, and a future that is done when everything before it is written."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.reached: asyncio.Future[None] = loop.create_future()

    def enter(self) -> None:
        """Note that everything before the mark is written."""
        if not self.reached.done():
            self.reached.set_result(None)


class SendQueue:
    """Frames and messages of any thread, sent with one wake-up of the loop for many of them.

    Args:
        port: the way into the loop.
        connection: the connection that sends.
    """

    def __init__(self, port: LoopPort, connection: Connection) -> None:
        self.port = port
        self.connection = connection
        # Frames that are written together, with their number; or a message that enters its window.
        self._queued: deque[_Queued] = deque()
        self._bytes = 0
        self._is_scheduled = False
        self._held_up: asyncio.Task[None] | None = None

    def check_size(self, size: int) -> None:
        """Check that headers and payload of this size may be sent."""
        self.connection.check_size(size)

    def send(self, frame: bytes, count: int = 1) -> None:
        """Queue a frame for the loop; waits for the socket while too much is queued.

        Raises:
            ConnectionClosedError: the client is closed.
        """
        if self.port.is_shut:
            self.port.refuse()
        if self.connection.is_closed:
            raise ConnectionClosedError("the client is closed")
        self._bytes += len(frame)
        self.queue((frame, count))
        if self._bytes > _QUEUED_BYTES_MAX and threading.current_thread() is not self.port.thread:
            self.port.call(self._relieve())

    def send_run(self, frames: bytes, count: int) -> None:
        """Queue `count` frames, as `send` queues one."""
        self.send(frames, count)

    def queue(self, queued: _Queued) -> None:
        """Append frames, or a message of `publish_async`, to the queue."""
        self._queued.append(queued)
        if not self._is_scheduled:
            self._is_scheduled = True
            try:
                self.port.post(self.flush)
            except BaseException:
                self._is_scheduled = False
                raise

    # On the loop's thread

    def flush(self) -> None:
        """Write the queue, up to a message for which its window has no room."""
        # First the flag: an entry that is queued after this line schedules a write of its own.
        self._is_scheduled = False
        queued = self._queued
        if self._held_up is None:
            self._bytes = 0
        while queued and self._held_up is None:
            first = queued.popleft()
            if isinstance(first, tuple):
                self._write(*first)
            elif (entering := first.enter()) is not None:
                self._held_up = self.port.loop.create_task(entering)
                self._held_up.add_done_callback(self._go_on)

    def _go_on(self, entered: asyncio.Task[None]) -> None:
        self._held_up = None
        if not entered.cancelled():
            self.flush()

    def _write(self, frames: bytes, count: int) -> None:
        try:
            if count == 1:
                self.connection.send(frames)
            else:
                self.connection.send_run(frames, count)
        except JetlakeError as error:
            self.connection.signal(error)
            if self.connection.is_closed:
                self._queued.clear()

    async def flushed(self, timeout_s: float | None = None) -> None:
        """Write the queue as it is now; waits for a message for which its window has no room.

        Raises:
            RequestTimeoutError: that took too long.
        """
        self.flush()
        if self._held_up is not None:
            mark = _Mark(self.port.loop)
            self._queued.append(mark)
            try:
                async with asyncio.timeout(timeout_s):
                    await mark.reached
            except TimeoutError:
                raise RequestTimeoutError(f"a publish window had no room within {timeout_s:g} s") from None

    async def _relieve(self) -> None:
        await self.flushed()
        await self.connection.apply_back_pressure()

    async def confirm(self, subject: bytes, payload: bytes, timeout_s: float | None) -> Message:
        """Send an acknowledgement and wait for the answer."""
        await self.flushed(timeout_s or self.connection.options.request_timeout_s)
        return await self.connection.confirm(subject, payload, timeout_s)


@hides("enter", "left_queue", "message", "raw_subject")
class PendingAck:
    """The acknowledgement of a message under way: `result()` waits for it."""

    __slots__ = (
        "_error",
        "_inner",
        "_is_observed",
        "_queue",
        "message",
        "raw_subject",
    )

    def __init__(self, queue: PublishQueue, message: OutgoingMessage) -> None:
        self.raw_subject = message.subject
        self.message: OutgoingMessage | None = message
        self._queue = queue
        self._inner: AsyncPendingAck | None = None
        self._error: JetlakeError | None = None
        self._is_observed = False

    @property
    def subject(self) -> str:
        """Where the message went."""
        return self.raw_subject.decode("utf-8", "replace")

    @property
    def is_done(self) -> bool:
        """Whether the answer is known."""
        return self._error is not None or (self._inner is not None and self._inner.is_done)

    def __repr__(self) -> str:
        outcome = f"failed: {self._error}" if self._error is not None else "known" if self.is_done else "under way"
        return f"<PendingAck on {self.subject!r} {outcome}>"

    def result(self) -> PubAck:
        """Return the acknowledgement.

        Raises:
            ApiError: the stream refused the message.
            JetlakeError: there was no acknowledgement.
        """
        self._is_observed = True
        if not self.is_done:
            return self._queue.port.call(self._wait())
        return self._known()

    def enter(self) -> Coroutine[Any, Any, None] | None:
        """Enter the window, on the loop's thread; returns a coroutine that waits for it if there is no room."""
        if self._inner is None and self._error is None and not self._queue.move_up_to(self):
            return self.left_queue()
        return None

    async def left_queue(self) -> None:
        """Wait until it is in the window, or was refused; on the loop's thread."""
        while self._inner is None and self._error is None:
            await self._queue.moved()

    async def _wait(self) -> PubAck:
        await self.left_queue()
        if self._inner is not None:
            return await self._inner
        return self._known()

    def _known(self) -> PubAck:
        if self._error is not None:
            raise self._error
        assert self._inner is not None
        return self._inner.known()


class PublishQueue:
    """Messages of `publish_async` that are not in the window yet.

    While the window is full, one task of the loop moves them, so an interrupted caller affects no other message.

    Args:
        sends: the queue in which messages wait for their turn among frames.
        publisher: puts messages into its window.
    """

    def __init__(self, sends: SendQueue, publisher: Publisher) -> None:
        self.port = sends.port
        self._sends = sends
        self._publisher = publisher
        self._waiting: deque[PendingAck] = deque()
        self._mover: asyncio.Task[None] | None = None
        self._moved: asyncio.Future[None] | None = None
        self._failures: deque[PendingAck] = deque(maxlen=_FAILURES_KEPT_MAX)
        self.port.queues.add(self)

    @property
    def waiting(self) -> int:
        """Messages that are not in the window yet."""
        return len(self._waiting)

    def put(self, message: OutgoingMessage) -> PendingAck:
        """Queue a message; waits while the window has no room for it, or too many are queued.

        Raises:
            ConnectionClosedError: the client is closed.
        """
        if self.port.is_shut:
            self.port.refuse()
        if self._publisher.is_closed:
            raise ConnectionClosedError("the client is closed")
        pending = PendingAck(self, message)
        self._waiting.append(pending)
        waiting = len(self._waiting)
        # A caller without room waits here, outside of the queue, so that it blocks no other; the loop's thread never.
        is_full = waiting > self._publisher.room and threading.current_thread() is not self.port.thread
        if is_full or waiting > _QUEUED_MAX:
            self.port.call(pending.left_queue())
        else:
            self._sends.queue(pending)
        return pending

    # On the loop's thread

    def move_up_to(self, last: PendingAck) -> bool:
        """Put the messages up to this one into the window; False if it is full, and a task moves the others."""
        waiting = self._waiting
        while self._mover is None and waiting:
            pending = waiting[0]
            assert pending.message is not None
            try:
                inner = self._publisher.put_now(pending.message)
            except JetlakeError:
                inner = None  # The task is refused as well, and reports all refusals in one error.
            if inner is None:
                self._move()
                return False
            pending._inner = inner
            pending.message = None
            waiting.popleft()
            if self._moved is not None:
                self._wake()
            if pending is last:
                return True
        return False

    def _move(self) -> None:
        if self._mover is None and self._waiting:
            self._mover = self.port.loop.create_task(self._move_all())

    async def _move_all(self) -> None:
        waiting = self._waiting
        refused: list[tuple[str, Exception]] = []
        try:
            while waiting:
                pending = waiting[0]
                try:
                    assert pending.message is not None
                    pending._inner = await self._publisher.put(pending.message)
                except JetlakeError as error:
                    pending._error = error
                    refused.append((pending.subject, error))
                    self._failures.append(pending)
                pending.message = None
                # Only now: a message without an outcome stays in the queue, also when this task is cancelled.
                waiting.popleft()
                if self._moved is not None:
                    self._wake()
        finally:
            self._mover = None
            self._wake()
        if refused:
            self._sends.connection.signal(PublishWindowError(refused))

    async def emptied(self) -> None:
        """Wait until everything that waits now has gone into the window, or was refused."""
        if self._waiting:
            await self._waiting[-1].left_queue()

    async def moved(self) -> None:
        """Wait until something has gone into the window."""
        self._move()
        if self._waiting:
            if self._moved is None:
                self._moved = self.port.loop.create_future()
            await asyncio.shield(self._moved)

    def _wake(self) -> None:
        moved, self._moved = self._moved, None
        if moved is not None and not moved.done():
            moved.set_result(None)

    async def complete(self, timeout: Seconds | None) -> None:
        """Wait until all messages are acknowledged or given up.

        Raises:
            PublishWindowError: some were given up since the last call, and their result was not read.
            PublishTimeoutError: `timeout` seconds have passed.
        """
        wait_s = timeout_s(timeout)
        failed: list[tuple[str, Exception]] = []
        try:
            async with asyncio.timeout(wait_s):
                await self.emptied()
                await self._publisher.complete()
        except PublishWindowError as error:
            failed = error.failures
        except TimeoutError as error:
            if isinstance(error, PublishTimeoutError):
                raise
            waiting = self.waiting + self._publisher.pending
            raise PublishTimeoutError(f"{waiting} messages are not acknowledged yet") from None
        failures = list(self._failures)
        self._failures.clear()
        failed += [(one.subject, one._error) for one in failures if one._error is not None and not one._is_observed]
        if failed:
            raise PublishWindowError(failed)


_Queued = tuple[bytes, int] | PendingAck | _Mark
