"""The clock: wall time in nanoseconds that never goes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """The server's source of time; tests pass a clock that they move by hand."""

    def now_ns(self) -> int:
        """Return nanoseconds since the Unix epoch, never less than an earlier result."""
        ...


class SystemClock:
    """Wall time that follows a clock that is set forward, and goes on steadily when it is set back.

    A machine that slept, or got its time only after it had booted, must not stamp messages and fire schedules by the
    old time; a wall clock that is set back would reorder messages and delay deadlines.

    Args:
        wall_ns: nanoseconds since the Unix epoch, which may jump.
        steady_ns: nanoseconds that never jump, and may stand still while the machine sleeps.
    """

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        self._offset_ns = wall_ns() - steady_ns()

    def now_ns(self) -> int:
        # The wall clock first: a process that is held up between the two calls must not take that for a jump.
        wall_ns = self._wall_ns()
        steady_ns = self._steady_ns()
        now_ns = self._offset_ns + steady_ns
        if wall_ns > now_ns:
            self._offset_ns = wall_ns - steady_ns
            return wall_ns
        return now_ns
