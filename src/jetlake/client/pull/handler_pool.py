"""The tasks that call the user's handler with a read's messages, several at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from jetlake.client.messages.endings import Endings, enter_worker
from jetlake.client.messages.failures import failure_in_task
from jetlake.client.messages.message import Message
from jetlake.errors import InvalidOptionError

if TYPE_CHECKING:
    from jetlake.client.messages.mailbox import Mailbox
    from jetlake.client.pull.puller import Puller

__all__ = ["HandlerPool", "MessageHandler"]

MessageHandler = Callable[[Message], Awaitable[None] | None]
"""A plain or a coroutine function that takes a message."""


class HandlerPool:
    """Tasks that take messages and call the handler with each.

    Args:
        handler: what they call.
        concurrency: how many of them there are.
        on_failure: takes each message whose handler raised, with the error.
        endings: knows which handlers wait for an ending themselves.

    Attributes:
        handled: messages that the handler has finished.

    Raises:
        InvalidOptionError: that is no handler, or no number of tasks.
    """

    __slots__ = ("_concurrency", "_endings", "_handler", "_on_failure", "_tasks", "handled")

    def __init__(
        self,
        handler: MessageHandler | None,
        concurrency: int,
        on_failure: Callable[[Message, Exception], Awaitable[None]],
        endings: Endings,
    ) -> None:
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise InvalidOptionError(f"concurrency is 1 or more, not {concurrency!r}")
        if concurrency > 1 and handler is None:
            raise InvalidOptionError("concurrency needs a handler")
        if handler is not None and not callable(handler):
            raise InvalidOptionError(f"handler is a function that takes a message, not {handler!r}")
        self._handler = handler
        self._concurrency = concurrency
        self._on_failure = on_failure
        self._endings = endings
        self._tasks: list[asyncio.Task[None]] = []
        self.handled = 0

    @property
    def has_handler(self) -> bool:
        """Whether there is anything to call."""
        return self._handler is not None

    def start(self, mailbox: Mailbox, puller: Puller) -> None:
        """Begin to take messages."""
        if self._handler is not None:
            work = self._handler
            self._tasks = [mailbox.loop.create_task(self._run(work, mailbox, puller)) for _ in range(self._concurrency)]

    async def _run(self, handler: MessageHandler, mailbox: Mailbox, puller: Puller) -> None:
        enter_worker()
        messages = mailbox.messages
        while True:
            while messages:
                message = messages.popleft()
                if len(messages) <= puller.refill_at:
                    puller.handed_out(message)
                try:
                    result = handler(message)
                    if result is not None:
                        await result
                    self.handled += 1
                except BaseException as error:
                    # One bad message must not stop the others.
                    await self._on_failure(message, failure_in_task(error, message))
            if mailbox.is_ended:
                return
            await mailbox.wait()

    async def finished(self) -> None:
        """Wait until all tasks have ended, but for those that wait for an ending themselves."""
        await self._endings.finished(self._tasks)

    def cancel(self) -> None:
        """End the tasks in the middle of their messages, which come again later."""
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
