"""A short, bounded history of one number, and the rate at which a counter grows."""

from __future__ import annotations

from collections import deque

__all__ = ["SAMPLES_MAX", "History", "Rate"]

SAMPLES_MAX = 120
"""How many samples a chart shows: two minutes at one sample a second. Older ones fall out."""


class History:
    """The latest samples of one number, oldest first."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=SAMPLES_MAX)

    def add(self, value: float) -> None:
        self._samples.append(value)

    def values(self) -> list[float]:
        return list(self._samples)


class Rate:
    """How fast a counter grows, from its two latest readings; a counter that went back starts anew."""

    __slots__ = ("_count", "_time_s", "history", "per_second")

    def __init__(self) -> None:
        self._count: int | None = None
        self._time_s = 0.0
        self.per_second = 0.0
        self.history = History()

    def read(self, count: int, time_s: float) -> None:
        """Take a reading of the counter. A second reading of the same moment is ignored."""
        if self._count is not None and time_s <= self._time_s:
            return
        if self._count is not None and count >= self._count:
            self.per_second = round((count - self._count) / (time_s - self._time_s), 1)
        else:
            self.per_second = 0.0
        self._count, self._time_s = count, time_s
        self.history.add(self.per_second)
