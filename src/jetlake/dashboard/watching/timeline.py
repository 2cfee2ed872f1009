"""The history of one number over five minutes to seven days, in bounded memory, with its gaps."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

__all__ = ["HISTORY_S", "LONG_MAX", "RANGES", "Rate", "Timeline", "Timelines", "newest_s"]

RANGES: dict[str, tuple[int, int]] = {
    "5m": (2, 150),
    "1h": (30, 120),
    "6h": (180, 120),
    "24h": (600, 144),
    "7d": (3600, 168),
}
"""The ranges a chart can show: seconds a slot, and number of slots. Older slots fall out."""
HISTORY_S = max(step_s * slots for step_s, slots in RANGES.values())
"""The time that the longest range shows."""
LIVE = "5m"
"""The range that every timeline has."""
LONG_MAX = 2000
"""How many timelines reach back seven days (about 11 KiB each); later ones have five minutes."""
TIMELINES_MAX = 40_000
"""How many timelines there are at most (about 2.5 KiB each); of more streams and consumers no charts are drawn."""
_NOTHING = math.nan


class _Ring:
    """The slots of one range: mean and highest value of each, NaN where nothing was sampled."""

    __slots__ = ("_highs", "_last", "_means", "_number", "_step_s")

    def __init__(self, step_s: int, slots: int) -> None:
        self._step_s = step_s
        self._means = array("d", [_NOTHING]) * slots
        self._highs = array("d", [_NOTHING]) * slots
        self._last = -1
        self._number = 0

    def add(self, value: float, since_s: float | None, time_s: float) -> None:
        slot, size = int(time_s // self._step_s), len(self._means)
        if slot < self._last - 1:
            self._forget()  # the clock was set back: samples from its future can't be distinguished from new ones
        if slot <= self._last:
            at = self._last % size
            self._number += 1
            self._means[at] += (value - self._means[at]) / self._number
            self._highs[at] = max(self._highs[at], value)
            return
        covered = slot if since_s is None else int(since_s // self._step_s) + 1
        for between in range(max(self._last + 1, slot - size + 1), slot + 1):
            self._means[between % size] = self._highs[between % size] = value if between >= covered else _NOTHING
        self._last, self._number = slot, 1

    def _forget(self) -> None:
        for values in (self._means, self._highs):
            values[:] = array("d", [_NOTHING]) * len(values)
        self._last = -1

    def window(self, now_s: float) -> dict[str, Any]:
        """Return the slots that end now, oldest first; None where nothing was sampled."""
        end, size = int(now_s // self._step_s), len(self._means)
        first = end - size + 1
        slots = [slot % size if self._last - size < slot <= self._last else None for slot in range(first, end + 1)]
        return {
            "start": first * self._step_s,
            "step": self._step_s,
            "mean": [None if at is None else _shown(self._means[at]) for at in slots],
            "high": [None if at is None else _shown(self._highs[at]) for at in slots],
        }

    def dump(self) -> tuple[int, bytes, bytes]:
        return self._last, self._means.tobytes(), self._highs.tobytes()

    def take_over(self, other: _Ring) -> None:
        """Become a copy of a ring of the same range."""
        self._means, self._highs = array("d", other._means), array("d", other._highs)
        self._last, self._number = other._last, other._number

    def load(self, last: int, means: bytes, highs: bytes) -> None:
        """Take over what `dump` gave.

        Raises:
            ValueError: slots of another number.
        """
        size = len(self._means) * self._means.itemsize
        if len(means) != size or len(highs) != size:
            raise ValueError("a history of another format")
        self._means, self._highs = array("d", means), array("d", highs)
        self._last, self._number = last, 1


def _shown(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 1)


class Timeline:
    """One number over time, in every range that it was made for.

    Args:
        long: reach back seven days, not only five minutes.
    """

    __slots__ = ("_rings",)

    def __init__(self, *, long: bool) -> None:
        names = RANGES if long else (LIVE,)
        self._rings = {name: _Ring(*RANGES[name]) for name in names}

    @property
    def is_long(self) -> bool:
        return len(self._rings) > 1

    def add(self, value: float, since_s: float | None, time_s: float) -> None:
        """Add a sample.

        Args:
            since_s: the time of the sample before, since which the value holds; None after a gap.
        """
        for ring in self._rings.values():
            ring.add(value, since_s, time_s)

    def window(self, name: str, now_s: float) -> dict[str, Any]:
        """Return the slots of a range, as far as this timeline reaches back."""
        return self._rings.get(name, self._rings[LIVE]).window(now_s)

    def means(self, now_s: float) -> list[float]:
        """Return the samples of the last five minutes, without the gaps."""
        return [value for value in self.window(LIVE, now_s)["mean"] if value is not None]

    def take_over(self, other: Timeline) -> None:
        """Copy the ranges that both have."""
        for name, ring in self._rings.items():
            if name in other._rings:
                ring.take_over(other._rings[name])

    def dump(self) -> dict[str, tuple[int, bytes, bytes]]:
        """Return the long ranges, for a file. The five minutes are not worth it."""
        return {name: ring.dump() for name, ring in self._rings.items() if name != LIVE}

    def load(self, dumped: dict[str, tuple[int, bytes, bytes]]) -> None:
        """Take over what `dump` gave.

        Raises:
            ValueError: it has another shape.
        """
        for name, ring in self._rings.items():
            if name in dumped:
                ring.load(*dumped[name])


def newest_s(series: Mapping[str, Mapping[str, tuple[int, bytes, bytes]]]) -> float:
    """Return the time of the newest sample in dumped timelines; 0 without any."""
    return max(
        (
            float((last + 1) * RANGES[name][0])
            for dumped in series.values()
            for name, (last, _, _) in dumped.items()
            if name in RANGES
        ),
        default=0.0,
    )


class Timelines:
    """Makes timelines as long as there is room for them."""

    def __init__(self, long_max: int = LONG_MAX, timelines_max: int = TIMELINES_MAX) -> None:
        self._long_left = long_max
        self._left = timelines_max

    def make(self) -> Timeline | None:
        """Return a timeline, a long one while there is room; None when there are too many."""
        if self._left <= 0:
            return None
        self._left -= 1
        is_long = self._long_left > 0
        self._long_left -= is_long
        return Timeline(long=is_long)

    def release(self, timeline: Timeline | None) -> None:
        """Release the memory of a timeline that is no longer used."""
        if timeline is not None:
            self._left += 1
            self._long_left += timeline.is_long


READINGS_S = 0.5
"""Readings of a counter that are closer together than this say nothing about its rate."""


class Rate:
    """How fast a counter grows, from its two latest readings; a counter that went back starts over.

    A page that is opened reads counters between two samples. Such a reading changes nothing, so that all pages show
    the same rate.

    Attributes:
        known: the rate per second; None until there are two readings.
    """

    __slots__ = ("_count", "_time_s", "known")

    def __init__(self) -> None:
        self._count: int | None = None
        self._time_s = 0.0
        self.known: float | None = None

    @property
    def per_second(self) -> float:
        """The rate, 0 while it is not known."""
        return self.known or 0.0

    def take_over(self, other: Rate) -> None:
        """Continue where another watch of the same counter is."""
        self._count, self._time_s, self.known = other._count, other._time_s, other.known

    def read(self, count: int, time_s: float, gap_s: float = math.inf) -> bool:
        """Take a reading of the counter, and tell whether the rate since the last one is known.

        Args:
            gap_s: readings further apart than this say nothing about the time between.
        """
        before, since_s = self._count, self._time_s
        if before is not None and count >= before and 0 <= time_s - since_s < READINGS_S:
            return False
        self._count, self._time_s = count, time_s
        is_known = before is not None and count >= before and 0 < time_s - since_s <= gap_s
        self.known = round((count - (before or 0)) / (time_s - since_s), 1) if is_known else None
        return is_known
