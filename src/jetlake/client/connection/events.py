"""The event callbacks that a user gave: called at once, and when they are coroutines, run until they are done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from inspect import isawaitable
from typing import Any

from jetlake.client.messages.endings import Endings, enter_worker
from jetlake.client.settings.options import EventCallback
from jetlake.errors import JetlakeError

__all__ = ["Events"]

logger = logging.getLogger("jetlake.client")


class Events:
    """Calls event callbacks; what they raise is logged, since no caller could take it."""

    __slots__ = ("_endings", "_running")

    def __init__(self, endings: Endings) -> None:
        self._endings = endings
        self._running: set[asyncio.Future[Any]] = set()

    def emit(self, callback: EventCallback | None, *arguments: object) -> None:
        """Call the callback, if there is one."""
        if callback is None:
            return
        try:
            result = callback(*arguments)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # also of what is no Exception, as pytest's outcomes: whoever reports goes on
            logger.exception("an event callback failed")
            return
        if isawaitable(result):
            task = asyncio.ensure_future(_as_worker(result))
            self._running.add(task)
            task.add_done_callback(self._done)

    def report(self, callback: EventCallback | None, error: Exception) -> None:
        """Report what no call can raise: to the callback, or else to the log."""
        if callback is not None:
            self.emit(callback, error)
        elif isinstance(error, JetlakeError):
            logger.warning("%s: %s", type(error).__name__, error)
        else:
            # The user's own code: only the traceback says where.
            logger.error("a handler failed", exc_info=error)

    async def finish(self) -> None:
        """Wait until all callbacks have run, but for those that wait for an ending themselves."""
        with self._endings.leaving():
            await self._endings.finished(self._running)

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("an event callback failed", exc_info=task.exception())


async def _as_worker(result: Awaitable[Any]) -> None:
    enter_worker()
    await result
