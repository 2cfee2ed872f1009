"""The contract of a clock: wall time in nanoseconds that never goes back."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Clock"]


class Clock(Protocol):
    """The server's source of time; tests pass a clock that they move by hand."""

    def now_ns(self) -> int:
        """Return nanoseconds since the Unix epoch, never less than an earlier result."""
        ...
