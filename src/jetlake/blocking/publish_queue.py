"""Pipelined publishing from any thread: checked by the caller, queued, and put into the window by the loop.

Messages stand in one line with whatever else the threads send, so that everything goes out in the order of the calls.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from jetlake.blocking.threads.loop_port import LoopPort
from jetlake.client.settings.options import timeout_s
from jetlake.completion import hides
from jetlake.errors import ConnectionClosedError, JetlakeError, PublishTimeoutError, PublishWindowError
from jetlake.model.encoding.durations import Seconds
from jetlake.model.publish import PubAck

if TYPE_CHECKING:
    from jetlake.client.publish.outgoing_message import OutgoingMessage
    from jetlake.client.publish.pending_ack import PendingAck as AsyncPendingAck
    from jetlake.client.publish.publisher import Publisher

__all__ = ["PendingAck", "PublishQueue"]

_QUEUED_MAX = 1000
_FAILURES_KEPT_MAX = 10_000


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
        """Go into the window, on the loop's thread; returns what waits for that if there is no room."""
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
    """What was published and is not in the window yet.

    While the window is full, one task of the loop's own empties it, so a caller who is interrupted takes nobody's
    message away.

    Args:
        port: the way into the loop.
        stand_in_line: puts a message in line with what others send; it enters the window when its turn comes.
        publisher: puts messages into its window.
        signal: reports what no call can raise.
    """

    def __init__(
        self,
        port: LoopPort,
        stand_in_line: Callable[[PendingAck], None],
        publisher: Publisher,
        signal: Callable[[Exception], None],
    ) -> None:
        self.port = port
        self._stand_in_line = stand_in_line
        self._publisher = publisher
        self._signal = signal
        self._waiting: deque[PendingAck] = deque()
        self._mover: asyncio.Task[None] | None = None
        self._moved: asyncio.Future[None] | None = None
        self._failures: deque[PendingAck] = deque(maxlen=_FAILURES_KEPT_MAX)
        port.queues.add(self)

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
        # Whoever finds no room waits here, and holds nobody else up. Nobody may wait on the loop's own thread.
        is_full = waiting > self._publisher.room and threading.current_thread() is not self.port.thread
        if is_full or waiting > _QUEUED_MAX:
            self.port.call(pending.left_queue())
        else:
            self._stand_in_line(pending)
        return pending

    # On the loop's thread

    def move_up_to(self, last: PendingAck) -> bool:
        """Put the messages up to this one into the window; False if it has no room, and the rest follows by itself."""
        waiting = self._waiting
        while self._mover is None and waiting:
            pending = waiting[0]
            assert pending.message is not None
            try:
                inner = self._publisher.put_now(pending.message)
            except JetlakeError:
                inner = None  # The task is refused as well, and reports all that are by one error.
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
                # Only now: until it has an outcome, the end of this task finds it here.
                waiting.popleft()
                if self._moved is not None:
                    self._wake()
        finally:
            self._mover = None
            self._wake()
        if refused:
            self._signal(PublishWindowError(refused))

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
            PublishWindowError: some were given up since the last call and nobody asked for their result.
            PublishTimeoutError: `timeout` seconds have passed.
        """
        wait_s = timeout_s(timeout)
        told: list[tuple[str, Exception]] = []
        try:
            async with asyncio.timeout(wait_s):
                await self.emptied()
                await self._publisher.complete()
        except PublishWindowError as error:
            told = error.failures
        except TimeoutError as error:
            if isinstance(error, PublishTimeoutError):
                raise
            waiting = self.waiting + self._publisher.pending
            raise PublishTimeoutError(f"{waiting} messages are not acknowledged yet") from None
        failures = list(self._failures)
        self._failures.clear()
        told += [(one.subject, one._error) for one in failures if one._error is not None and not one._is_observed]
        if told:
            raise PublishWindowError(told)
