"""The watch over a push consumer's heartbeats: an alarm after silence, and a check that the consumer still exists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from jetlake.client.legacy.push_status import PushStatus

__all__ = ["HeartbeatWatch"]


class HeartbeatWatch:
    """A timer for the next alarm of a push subscription.

    Args:
        loop: the event loop.
        status: knows when an alarm is due.
        on_alarm: takes the alarm.
        check: looks after the consumer, since no server announces that one is gone.
    """

    __slots__ = ("_check", "_checking", "_is_stopped", "_loop", "_on_alarm", "_status", "_timer")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        status: PushStatus,
        on_alarm: Callable[[Exception], None],
        check: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._loop = loop
        self._status = status
        self._on_alarm = on_alarm
        self._check = check
        self._checking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False

    def start(self) -> None:
        """Begin to wait for heartbeats."""
        self._is_stopped = False
        self._arm()

    def check_now(self) -> None:
        """Check the consumer, unless a check is under way."""
        if self._checking is None or self._checking.done():
            self._checking = self._loop.create_task(self._check())

    def stop(self) -> None:
        """Wait for no heartbeat any more."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._checking is not None and self._checking is not asyncio.current_task():
            self._checking.cancel()
            self._checking = None

    def _arm(self) -> None:
        deadline = self._status.deadline()
        if deadline is not None and not self._is_stopped:
            self._timer = self._loop.call_at(deadline, self._look)

    def _look(self) -> None:
        """Raise an alarm that is due; messages only move the deadline, so the timer is set again."""
        alarm = self._status.alarm(self._loop.time())
        if alarm is not None:
            self._on_alarm(alarm)
            self.check_now()
        self._arm()
