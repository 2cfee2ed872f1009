"""A clock that tests move by hand."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from jetlake.model.encoding.durations import nanoseconds

__all__ = ["ManualClock"]

_START_NS = 1_790_000_000_000_000_000  # a fixed day in 2026, so that runs are alike


class ManualClock:
    """Wall time of a server that stands still until it is moved; never backwards.

    It moves what the server decides by time, and nothing else: `asyncio.sleep`, `time.sleep` and the time-outs of
    clients continue in real time.

    Args:
        start_ns: where it begins, nanoseconds since 1970.
    """

    def __init__(self, start_ns: int = _START_NS) -> None:
        self._now_ns = start_ns
        self._on_move: list[Callable[[], None]] = []

    def now_ns(self) -> int:
        """Nanoseconds since 1970."""
        return self._now_ns

    def advance(self, seconds: float | timedelta) -> None:
        """Advance by `seconds`, and notify every listener.

        Raises:
            ValueError: time does not go back.
        """
        step_ns = nanoseconds(seconds)
        if step_ns < 0:
            raise ValueError(f"a clock cannot be moved back, not even by {seconds!r}")
        self._now_ns += step_ns
        for callback in tuple(self._on_move):
            callback()

    def on_move(self, callback: Callable[[], None]) -> None:
        """Have `callback` called after each move: a server in the same loop runs what has become due."""
        self._on_move.append(callback)
