"""The clock: wall time in nanoseconds that never goes back."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Where the server gets the time from; tests pass one that they move by hand."""

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch; never less than an earlier answer."""
        ...


class SystemClock:
    """The machine's time: the wall's when it was made, then moved on by the monotonic clock.

    A wall clock that is set back would reorder messages and let deadlines fire late; this one cannot be.
    """

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        return self._offset_ns + time.monotonic_ns()
