"""Received messages that wait to be taken: filled by the read, emptied by tasks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from jetlake.client.messages.message import Message
from jetlake.client.messages.message_batch import MessageBatch

__all__ = ["Mailbox"]


class Mailbox:
    """Messages in order, and the end of them.

    Attributes:
        messages: those not taken yet.
        is_ended: no more will come.
        error: why, if there is a reason to tell.
        on_wait: called with the number of waiting tasks whenever one more begins to wait.
    """

    __slots__ = ("_waiters", "error", "is_ended", "loop", "messages", "on_wait")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiters: list[asyncio.Future[None]] = []
        self.messages: deque[Message] = deque()
        self.is_ended = False
        self.error: Exception | None = None
        self.on_wait: Callable[[int], None] | None = None

    def put(self, messages: Iterable[Message]) -> None:
        """Add the messages of one read and wake the waiting tasks, once."""
        self.messages.extend(messages)
        if self._waiters:
            self.wake()

    def end(self, error: Exception | None = None) -> None:
        """End the mailbox: no more messages follow; the first reason counts."""
        if not self.is_ended:
            self.is_ended = True
            self.error = error
            self.wake()

    def wake(self) -> None:
        """Wake all waiting tasks."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until something has changed since the last look."""
        waiter = self.loop.create_future()
        self._waiters.append(waiter)
        if self.on_wait is not None:
            self.on_wait(len(self._waiters))
        try:
            await waiter
        finally:
            if not waiter.done() or waiter.cancelled():
                try:
                    self._waiters.remove(waiter)
                except ValueError:
                    pass

    async def filled(self) -> None:
        """Wait until there is a message, or there will be none."""
        while not self.messages and not self.is_ended:
            await self.wait()

    def take_all(self) -> MessageBatch[Message]:
        """Return all messages at once."""
        taken = MessageBatch(self.messages)
        self.messages.clear()
        return taken
