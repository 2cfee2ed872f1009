"""The callbacks of users: of subscriptions, of events, and what they raise.

Whatever a callback or handler raises becomes an error to report; no task that runs them ends by it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from jetlake.client.messages.endings import Endings, enter_worker
from jetlake.client.messages.mailbox import Mailbox
from jetlake.client.messages.message import Message
from jetlake.client.settings.options import ErrorCallback
from jetlake.errors import JetlakeError

logger = logging.getLogger("jetlake.client")

MessageCallback = Callable[[Message], Awaitable[None] | None]
"""A plain function, called right when the message is read, or a coroutine function, called one message at a time."""

# Exceptions that end a task or the process, wherever they are raised.
_ENDING = (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)


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
        """Call a plain function with the messages of one read; returns the messages that belong into the mailbox."""
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


class EventCallbacks:
    """Calls event callbacks; what they raise is logged, since no caller could take it."""

    __slots__ = ("_endings", "_running")

    def __init__(self, endings: Endings) -> None:
        self._endings = endings
        self._running: set[asyncio.Future[Any]] = set()

    def emit(self, callback: Callable[..., Awaitable[None] | None] | None, *arguments: object) -> None:
        """Call the callback, if there is one."""
        if callback is None:
            return
        try:
            result = callback(*arguments)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # Also BaseExceptions such as pytest's outcomes: the code that reports continues.
            logger.exception("an event callback failed")
            return
        if isawaitable(result):
            task = asyncio.ensure_future(_as_worker(result))
            self._running.add(task)
            task.add_done_callback(self._done)

    def report(self, callback: ErrorCallback | None, error: Exception) -> None:
        """Report what no call can raise: to the callback, or else to the log."""
        if callback is not None:
            self.emit(callback, error)
        elif isinstance(error, JetlakeError):
            logger.warning("%s: %s", type(error).__name__, error)
        else:
            # The user's own code: only the traceback says where.
            logger.error("a handler failed", exc_info=error)

    async def finish(self) -> None:
        """Wait until all callbacks have run, except callbacks that wait for an ending themselves."""
        with self._endings.leaving():
            await self._endings.finished(self._running)

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("an event callback failed", exc_info=task.exception())


async def _as_worker(result: Awaitable[Any]) -> None:
    enter_worker()
    await result


def failure_of(error: BaseException, handled: object) -> Exception:
    """Return what a handler raised as an error; what is none, as pytest's outcomes are, becomes the cause of one."""
    if isinstance(error, Exception):
        error.add_note(f"while handling {handled!r}")
        return error
    failure = JetlakeError(f"the handler raised {type(error).__name__}, while handling {handled!r}")
    failure.__cause__ = error
    return failure


def failure_in_task(error: BaseException, handled: object) -> Exception:
    """Return what a handler raised in a task, or in a call of the event loop, as an error.

    Raises:
        BaseException: the error, if it ends the task or the process.
    """
    if not isinstance(error, _ENDING):
        return failure_of(error, handled)
    task = asyncio.current_task()
    if not isinstance(error, asyncio.CancelledError) or (task is not None and task.cancelling()):
        raise error
    failure = JetlakeError(f"the handler awaited something that was cancelled, while handling {handled!r}")
    failure.__cause__ = error
    return failure


def describe(error: BaseException) -> str:
    """Return the kind of an error and what it says, if it can say anything."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
