"""The clock: wall time in nanoseconds that never goes back."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """The server's source of time; tests pass a clock that they move by hand."""

    def now_ns(self) -> int:
        """Return nanoseconds since the Unix epoch, never less than an earlier result."""
        ...


class SystemClock:
    """Wall time at the start, advanced by the monotonic clock.

    A wall clock that is set back would reorder messages and delay deadlines.
    """

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        return self._offset_ns + time.monotonic_ns()
