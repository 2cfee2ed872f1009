"""The headers of a message schedule, from what a publisher writes."""

from __future__ import annotations

from datetime import datetime
from typing import TypedDict

from jetlake.errors import InvalidOptionError
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND, Seconds, format_duration, nanoseconds
from jetlake.model.encoding.times import time_text

__all__ = ["ScheduleOptions", "schedule_headers"]


class ScheduleOptions(TypedDict, total=False):
    """When a schedule publishes, and what; exactly one of `at`, `every` and `cron`."""

    at: datetime | str | None
    """One time: a datetime, or RFC 3339 text."""
    every: Seconds | None
    """An interval in seconds, at least one."""
    cron: str | None
    """A cron line of six fields with seconds, or `@daily` and the like."""
    time_zone: str | None
    """The IANA name of the cron line's time zone. Default: UTC."""
    source: str | None
    """Publish the newest message of this subject. Default: the schedule's own content."""
    message_ttl: Seconds | None
    """Seconds that published messages live; the stream needs `allow_msg_ttl`."""
    rollup: bool
    """A published message replaces all earlier ones on its subject. Default: false."""


def schedule_headers(
    target: str,
    *,
    at: datetime | str | None = None,
    every: Seconds | None = None,
    cron: str | None = None,
    time_zone: str | None = None,
    source: str | None = None,
    message_ttl: Seconds | None = None,
    rollup: bool = False,
) -> dict[str, str]:
    """Return the headers of a schedule that publishes to `target`.

    Raises:
        InvalidOptionError: none or several of `at`, `every` and `cron`, or one that cannot be meant.
        ConfigError: `at` is no time.
    """
    if sum(given is not None for given in (at, every, cron)) != 1:
        raise InvalidOptionError("a schedule has exactly one of at, every and cron")
    if time_zone is not None and cron is None:
        raise InvalidOptionError("time_zone is for cron lines")
    if at is not None:
        pattern = f"@at {time_text(at)}"
    elif every is not None:
        interval_ns = nanoseconds(every)
        if interval_ns < NANOSECONDS_PER_SECOND:
            raise InvalidOptionError(f"every is at least one second, not {every!r}")
        pattern = f"@every {format_duration(interval_ns)}"
    else:
        pattern = cron or ""
        if not pattern.strip():
            raise InvalidOptionError("cron is empty")
    headers = {"Nats-Schedule": pattern, "Nats-Schedule-Target": target}
    if time_zone is not None:
        headers["Nats-Schedule-Time-Zone"] = time_zone
    if source is not None:
        headers["Nats-Schedule-Source"] = source
    if message_ttl is not None:
        headers["Nats-Schedule-TTL"] = format_duration(nanoseconds(message_ttl))
    if rollup:
        headers["Nats-Schedule-Rollup"] = "sub"
    return headers
