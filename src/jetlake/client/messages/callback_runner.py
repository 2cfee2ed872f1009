"""The runner of a subscription's callback: a plain function is called by the read, a coroutine function by a task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable, iscoroutinefunction

from jetlake.client.messages.endings import enter_worker
from jetlake.client.messages.failures import failure_in_task
from jetlake.client.messages.mailbox import Mailbox
from jetlake.client.messages.message import Message

__all__ = ["CallbackRunner", "MessageCallback"]

MessageCallback = Callable[[Message], Awaitable[None] | None]
"""A plain function, called right when the message is read, or a coroutine function, called one message at a time."""


class CallbackRunner:
    """Calls a callback with each message; what the callback raises is signalled, and the next message follows.

    Args:
        callback: a plain function or a coroutine function.
        mailbox: the messages for a task; a plain function gets them at once.
        took: called with each message that the task takes.
        signal: takes errors.
        concurrency: how many tasks call a coroutine function.

    Attributes:
        is_direct: `call` gets the messages; otherwise the mailbox does.
        workers: the tasks, if there are any.
    """

    __slots__ = ("_callback", "_concurrency", "_mailbox", "_signal", "_took", "is_direct", "workers")

    def __init__(
        self,
        callback: MessageCallback,
        mailbox: Mailbox,
        took: Callable[[Message], None],
        signal: Callable[[Exception], None],
        concurrency: int = 1,
    ) -> None:
        self._callback = callback
        self._mailbox = mailbox
        self._took = took
        self._signal = signal
        self._concurrency = concurrency
        self.is_direct = not iscoroutinefunction(callback)
        self.workers: list[asyncio.Task[None]] = []
        if not self.is_direct:
            self._start()

    def _start(self, first: tuple[Awaitable[None], Message] | None = None) -> None:
        loop = self._mailbox.loop
        self.workers = [loop.create_task(self._run(None if number else first)) for number in range(self._concurrency)]

    def call(self, messages: list[Message]) -> list[Message]:
        """Call a plain function with the messages of one read; those that the mailbox has to get are returned."""
        callback = self._callback
        for number, message in enumerate(messages, 1):
            if self._mailbox.is_ended:
                return []
            try:
                result = callback(message)
            except BaseException as error:
                self._signal(failure_in_task(error, message))
                continue
            if result is not None and isawaitable(result):
                # A plain function that returned a coroutine: from now on it is called one message at a time.
                self.is_direct = False
                self._start((result, message))
                return messages[number:]
        return []

    async def _run(self, first: tuple[Awaitable[None], Message] | None = None) -> None:
        enter_worker()
        if first is not None:
            await self._finish(*first)
        callback, took = self._callback, self._took
        mailbox = self._mailbox
        messages = mailbox.messages
        while True:
            while messages:
                message = messages.popleft()
                took(message)
                try:
                    result = callback(message)
                    if result is not None:
                        await result
                except BaseException as error:
                    self._signal(failure_in_task(error, message))
            if mailbox.is_ended:
                return
            await mailbox.wait()

    async def _finish(self, result: Awaitable[None], message: Message) -> None:
        try:
            await result
        except BaseException as error:
            self._signal(failure_in_task(error, message))
