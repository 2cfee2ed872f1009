"""Times: RFC 3339 text with nanoseconds on the wire, integers of nanoseconds since 1970 where one counts."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from functools import lru_cache

from jetlake.errors import ConfigError
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND

__all__ = [
    "TIME_PATTERN",
    "ZERO_TIME",
    "countable",
    "format_time",
    "parse_time",
    "start_text",
    "time_text",
    "wire_time",
]

ZERO_TIME = "0001-01-01T00:00:00Z"
"""How the wire says "never": the first second of year one."""

TIME_PATTERN = (
    r"^[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
    r"(?:\.[0-9]{1,30})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])\Z"
)
"""What a time on the wire looks like; `parse_time` checks the calendar besides."""

# Servers count nanoseconds since 1970 in 64 bits, from 1677 to 2262, and what is beyond wraps around to the other end.
# Whole seconds inside of that, so that adding a nanosecond does no harm either.
_WIRE_SECONDS_MAX = (1 << 63) // NANOSECONDS_PER_SECOND - 1

_SHAPE = re.compile(TIME_PATTERN)
_EPOCH_DAY = date(1970, 1, 1).toordinal()


def parse_time(text: str) -> int:
    """Nanoseconds since 1970 of an RFC 3339 time with any offset; digits after the ninth are cut off.

    Raises:
        ConfigError: not such a time, or no such day.
    """
    if _SHAPE.match(text) is None:
        raise ConfigError(f"not an RFC 3339 time: {text[:64]!r} (write it like 2026-01-31T12:00:00Z)")
    try:
        days = date(int(text[0:4]), int(text[5:7]), int(text[8:10])).toordinal() - _EPOCH_DAY
    except ValueError as error:
        raise ConfigError(f"no such day: {text[:10]!r} ({error})") from None
    second = days * 86_400 + int(text[11:13]) * 3_600 + int(text[14:16]) * 60 + int(text[17:19])
    if text.endswith("Z"):
        fraction = text[20:-1]
    else:
        fraction = text[20:-6]
        offset_s = int(text[-5:-3]) * 3_600 + int(text[-2:]) * 60
        second += offset_s if text[-6] == "-" else -offset_s
    return second * NANOSECONDS_PER_SECOND + (int(fraction[:9].ljust(9, "0")) if fraction else 0)


@lru_cache(maxsize=256)
def _second_text(second: int) -> str:
    """Return the time without fraction and zone; what is listed together was often made within few seconds."""
    days, second = divmod(second, 86_400)
    minutes, second = divmod(second, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{date.fromordinal(days + _EPOCH_DAY).isoformat()}T{hours:02d}:{minutes:02d}:{second:02d}"


def format_time(time_ns: int) -> str:
    """Return the UTC time as the server writes it: nanoseconds without trailing zeros, `Z` at the end.

    Raises:
        ConfigError: before year one or after year 9999.
    """
    second, fraction_ns = divmod(time_ns, NANOSECONDS_PER_SECOND)
    try:
        text = _second_text(second)
    except (ValueError, OverflowError):
        raise ConfigError(f"a time must lie in the years 1 to 9999, not {time_ns} ns from 1970") from None
    return f"{text}.{fraction_ns:09d}".rstrip("0") + "Z" if fraction_ns else text + "Z"


def countable(time_ns: int) -> int:
    """Return a time that servers can count: one before 1677 or after 2262 as the nearest of these."""
    limit_ns = _WIRE_SECONDS_MAX * NANOSECONDS_PER_SECOND
    return max(-limit_ns, min(time_ns, limit_ns))


def wire_time(time_ns: int) -> str:
    """Return a time by which a server looks for messages, or plans one, as a text that it can count.

    No message is stored before 1677 or after 2262, so the nearest countable time means the same messages.
    """
    return format_time(countable(time_ns))


def time_text(value: str | datetime) -> str:
    """Return what callers wrote for a time, as the wire's text in UTC; a datetime without a zone is local time.

    Raises:
        ConfigError: a text that is not a time.
    """
    if isinstance(value, str):
        return format_time(parse_time(value))
    if not isinstance(value, datetime):
        raise ConfigError(f"a time must be a str or a datetime, not {value!r}")
    try:
        moment = value.astimezone(UTC)
    except (OverflowError, ValueError):
        # At the edges of the calendar the time zone leads out of it.
        moment = value.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return format_time(microseconds * 1_000)


def start_text(value: str | datetime) -> str:
    """Return what callers wrote for a time by which a server looks for messages, or plans one; see `wire_time`.

    Raises:
        ConfigError: a text that is not a time.
    """
    return wire_time(parse_time(time_text(value)))
