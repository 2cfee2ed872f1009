"""Pipelined publishing from any thread: checked by the caller, queued, and put into the window by the loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING

from jetlake.blocking.loop_thread import LoopThread
from jetlake.errors import ConnectionClosedError, JetlakeError
from jetlake.model.publish import PubAck

if TYPE_CHECKING:
    from jetlake.client.jetstream import JetStream
    from jetlake.client.publish_window import PendingAck as AsyncPendingAck

__all__ = ["PendingAck", "PublishQueue"]

_QUEUED_MAX = 1000


class PendingAck:
    """The acknowledgement of a message under way: `result()` waits for it."""

    __slots__ = ("_error", "_inner", "_queue", "has_id", "header", "payload", "subject")

    def __init__(self, queue: PublishQueue, subject: bytes, header: bytes, payload: bytes, has_id: bool) -> None:
        self.subject = subject
        self.header = header
        self.payload = payload
        self.has_id = has_id
        self._queue = queue
        self._inner: AsyncPendingAck | None = None
        self._error: JetlakeError | None = None

    @property
    def is_done(self) -> bool:
        """Whether the answer is known."""
        return self._error is not None or (self._inner is not None and self._inner.is_done)

    def __repr__(self) -> str:
        outcome = f"failed: {self._error}" if self._error is not None else "known" if self.is_done else "under way"
        return f"<PendingAck on {self.subject.decode('utf-8', 'replace')!r} {outcome}>"

    def result(self) -> PubAck:
        """The acknowledgement.

        Raises:
            ApiError: the stream refused the message.
            JetlakeError: there was no acknowledgement.
        """
        return self._queue.thread.call(self._wait())

    async def _wait(self) -> PubAck:
        if self._inner is None:
            await self._queue.empty()
        if self._error is not None:
            raise self._error
        assert self._inner is not None
        return await self._inner


class PublishQueue:
    """What was published and is not in the window yet; one wake-up of the loop for many.

    Attributes:
        thread: where the loop runs.
    """

    def __init__(self, thread: LoopThread, js: JetStream) -> None:
        self.thread = thread
        self._js = js
        self._waiting: deque[PendingAck] = deque()
        self._lock = threading.Lock()
        self._is_scheduled = False
        self._turn = asyncio.Lock()

    @property
    def waiting(self) -> int:
        """Messages that are not in the window yet."""
        return len(self._waiting)

    def put(self, subject: bytes, header: bytes, payload: bytes, has_id: bool) -> PendingAck:
        """Queue a message; whoever is much faster than the window waits.

        Raises:
            ConnectionClosedError: the client is closed.
        """
        pending = PendingAck(self, subject, header, payload, has_id)
        with self._lock:
            # Under the lock, so that messages of one thread keep their order.
            self._waiting.append(pending)
            is_first, self._is_scheduled = not self._is_scheduled, True
        if is_first:
            self.thread.start(self.empty())
        if len(self._waiting) > _QUEUED_MAX:
            self.thread.call(self.empty())
        return pending

    async def empty(self) -> None:
        """Put everything that waits into the window, one after the other; on the loop's thread."""
        async with self._turn:
            self._is_scheduled = False
            waiting = self._waiting
            while waiting:
                pending = waiting.popleft()
                try:
                    pending._inner = await self._js.put_async(
                        pending.subject, pending.header, pending.payload, pending.has_id
                    )
                except ConnectionClosedError as error:
                    pending._error = error
                pending.header = pending.payload = b""
