"""A decision about one client by a party beside the configuration: bounded in time, and a refusal when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from jetlake.server.engine.core.timers import Timers
from jetlake.server.shell.access.auth import Applicant, Arbiter, Identity

__all__ = ["Decision"]

_SECOND_NS = 1_000_000_000


class Decision:
    """An arbiter at work on one client.

    Args:
        loop: the server's.
    """

    def __init__(self, arbiter: Arbiter, applicant: Applicant, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._task = loop.create_task(arbiter.decide(applicant))

    def cancel(self) -> None:
        """Want no answer any more: the client is gone."""
        self._task.cancel()

    async def wait(
        self, timers: Timers, now_ns: int, timeout_s: float, report: Callable[[str], None]
    ) -> Identity | None:
        """Return who the client is; None = it is refused, as when there is no answer in time.

        Args:
            report: logs why there is no answer.
        """
        time_is_up: asyncio.Future[None] = self._loop.create_future()
        timer = timers.schedule(now_ns + int(timeout_s * _SECOND_NS), lambda _now_ns: time_is_up.set_result(None))
        try:
            # Not until the arbiter has ended: it may hold on although it was cancelled.
            waited: list[asyncio.Future[Any]] = [self._task, time_is_up]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timers.cancel(timer)
            self._task.cancel()
        if not self._task.done() or self._task.cancelled():
            report("no decision about the client within the authentication timeout")
            return None
        error = self._task.exception()
        if error is not None:
            report(f"the decision about the client failed: {type(error).__name__}: {error}")
            return None
        return self._task.result()
