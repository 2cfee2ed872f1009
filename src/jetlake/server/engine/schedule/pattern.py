"""The pattern of a schedule: `@at <time>`, `@every <duration>`, a cron line or a descriptor such as `@daily`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Protocol

from jetlake.errors import ConfigError
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND, parse_duration
from jetlake.model.encoding.times import countable, format_time, parse_time
from jetlake.server.engine.schedule.cron import Cron, parse_cron

_AT = "@at "
_EVERY = "@every "

_PATTERNS_KEPT = 256


class Pattern(Protocol):
    """When a schedule is due."""

    def first_ns(self, stored_ns: int) -> int | None:
        """Return the first time, from the time at which the schedule was stored; None when there is none."""
        ...

    def next_ns(self, planned_ns: int, now_ns: int) -> int | None:
        """Return the time after a planned one that has passed; missed times collapse into one."""
        ...

    def text_of(self, time_ns: int) -> str:
        """Return a time as published messages tell it."""
        ...


class At:
    """One time."""

    def __init__(self, time_ns: int) -> None:
        self._time_ns = time_ns

    def first_ns(self, stored_ns: int) -> int | None:
        """Return the time, which may have passed."""
        return self._time_ns

    def next_ns(self, planned_ns: int, now_ns: int) -> int | None:
        """Return None: there is no other time."""
        return None

    def text_of(self, time_ns: int) -> str:
        """Return the time in UTC."""
        return format_time(time_ns)


class Every:
    """An interval, counted in whole seconds of the clock."""

    def __init__(self, interval_ns: int) -> None:
        self._interval_ns = interval_ns

    def first_ns(self, stored_ns: int) -> int | None:
        """Return the end of the first interval."""
        return _rounded(stored_ns) + self._interval_ns

    def next_ns(self, planned_ns: int, now_ns: int) -> int | None:
        """Return the end of the interval after the planned time, or after now when that has passed too."""
        following_ns = _rounded(planned_ns) + self._interval_ns
        return following_ns if following_ns > now_ns else _rounded(now_ns) + self._interval_ns

    def text_of(self, time_ns: int) -> str:
        """Return the time in UTC."""
        return format_time(time_ns)


class CronPattern:
    """The times of a cron line."""

    def __init__(self, cron: Cron) -> None:
        self._cron = cron
        self._found: tuple[int, int | None] = (-1, None)  # A schedule is checked, and then stored: both ask the same.

    def first_ns(self, stored_ns: int) -> int | None:
        """Return the first time after the second in which the schedule was stored."""
        second = stored_ns // NANOSECONDS_PER_SECOND
        if self._found[0] != second:
            following = self._cron.next_after(second)
            self._found = (second, None if following is None else following * NANOSECONDS_PER_SECOND)
        return self._found[1]

    def next_ns(self, planned_ns: int, now_ns: int) -> int | None:
        """Return the first time after now."""
        return self.first_ns(max(planned_ns, now_ns))

    def text_of(self, time_ns: int) -> str:
        """Return the time as the clocks of the time zone show it."""
        offset_s = self._cron.offset_at(time_ns // NANOSECONDS_PER_SECOND)
        if not offset_s:
            return format_time(time_ns)
        hours, minutes = divmod(abs(offset_s) // 60, 60)
        sign = "-" if offset_s < 0 else "+"
        return f"{format_time(time_ns + offset_s * NANOSECONDS_PER_SECOND)[:-1]}{sign}{hours:02d}:{minutes:02d}"


def _rounded(time_ns: int) -> int:
    return (time_ns + NANOSECONDS_PER_SECOND // 2) // NANOSECONDS_PER_SECOND * NANOSECONDS_PER_SECOND


def find_zone(name: str) -> Callable[[int], int] | None:
    """Return the offset from UTC, by the second since 1970, in a zone with an IANA name, `UTC` or `Local`; or None."""
    if name == "UTC":
        return lambda _second: 0
    if name == "Local":
        return lambda second: _offset_of(datetime.fromtimestamp(second).astimezone())
    from zoneinfo import ZoneInfo  # A server without time zones starts without their files.

    try:
        zone = ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # Unknown names are KeyErrors; odd ones fail in other ways.
        return None
    return lambda second: _offset_of(datetime.fromtimestamp(second, zone))


def _offset_of(time: datetime) -> int:
    offset = time.utcoffset()
    return int(offset.total_seconds()) if offset is not None else 0


@lru_cache(_PATTERNS_KEPT)
def parse_pattern(text: str, zone: str | None) -> Pattern | None:
    """Parse a pattern; None when it is malformed, or has no time within five years.

    Args:
        zone: the name of a known time zone for a cron line; None for UTC.
    """
    try:
        if text.startswith(_AT):
            return None if zone is not None else At(countable(parse_time(text[len(_AT) :])))
        if text.startswith(_EVERY):
            interval_ns = parse_duration(text[len(_EVERY) :])
            return None if zone is not None or interval_ns < NANOSECONDS_PER_SECOND else Every(interval_ns)
    except ConfigError:
        return None
    offset_at = find_zone(zone or "UTC")
    cron = parse_cron(text, offset_at) if offset_at is not None else None
    return CronPattern(cron) if cron is not None else None
