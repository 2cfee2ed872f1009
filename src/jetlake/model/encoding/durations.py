"""Durations: nanoseconds on the wire and on the Structs, seconds or timedelta where people write them.

The reasons are in decision 3 (docs/decisions).
"""

from __future__ import annotations

import math
import re
from datetime import timedelta

from jetlake.errors import ConfigError

NANOSECONDS_PER_SECOND = 1_000_000_000

Seconds = float | timedelta
"""What callers may write for a duration: a number of seconds or a timedelta."""

_INT64_MAX = 2**63 - 1

# In the order in which a duration's text tries them; `us` has three spellings.
_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5, the micro sign
    "μs": 1_000,  # U+03BC, the Greek letter
    "ms": 1_000_000,
    "s": NANOSECONDS_PER_SECOND,
    "m": 60 * NANOSECONDS_PER_SECOND,
    "h": 3600 * NANOSECONDS_PER_SECOND,
}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")


def nanoseconds(value: Seconds) -> int:
    """Return the duration in whole nanoseconds; integers and timedeltas are exact, floats are rounded.

    Raises:
        ConfigError: not a number, or beyond what 64 bits hold.
    """
    if isinstance(value, timedelta):
        microseconds = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
        result = microseconds * 1_000
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"a duration must be a number of seconds or a timedelta, not {value!r}")
    elif isinstance(value, int):
        result = value * NANOSECONDS_PER_SECOND
    elif math.isfinite(value):
        result = round(value * NANOSECONDS_PER_SECOND)
    else:
        raise ConfigError(f"a duration must be finite, not {value!r}")
    if not -_INT64_MAX <= result <= _INT64_MAX:
        raise ConfigError(f"a duration must be shorter than 292 years, not {value!r}")
    return result


def seconds(duration_ns: int) -> float:
    """Return the wire's nanoseconds as seconds."""
    return duration_ns / NANOSECONDS_PER_SECOND


def parse_duration(text: str) -> int:
    """Read `300ms`, `2m`, `1h30m`, `-1.5s` or `0` as nanoseconds.

    Raises:
        ConfigError: any other text, or beyond what 64 bits hold.
    """
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest == "0":
        return 0
    total = 0
    position = 0
    while position < len(rest):
        part = _PART.match(rest, position)
        if part is None:
            break
        whole, _, fraction = part[1].partition(".")
        unit_ns = _UNITS_NS[part[2]]
        total += int(whole or "0") * unit_ns
        if fraction:
            total += int(fraction) * unit_ns // 10 ** len(fraction)
        position = part.end()
    if not rest or position < len(rest) or total > _INT64_MAX or len(text) > 100:
        raise ConfigError(f"not a duration: {text[:100]!r} (write it like 500ms, 30s or 1h30m)")
    return sign * total


def format_duration(duration_ns: int) -> str:
    """Write nanoseconds as the server prints durations: `5s`, `1m30s`, `2h0m0s`, `1.5ms`, `0s`."""
    if duration_ns == 0:
        return "0s"
    sign = "-" if duration_ns < 0 else ""
    rest = abs(duration_ns)
    if rest < NANOSECONDS_PER_SECOND:
        for unit, size in (("ms", 1_000_000), ("µs", 1_000)):
            if rest >= size:
                return f"{sign}{_decimal(rest, size)}{unit}"
        return f"{sign}{rest}ns"
    minutes, second_ns = divmod(rest, 60 * NANOSECONDS_PER_SECOND)
    text = f"{_decimal(second_ns, NANOSECONDS_PER_SECOND)}s"
    if minutes:
        hours, minutes = divmod(minutes, 60)
        text = f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}"
    return sign + text


def _decimal(value: int, unit: int) -> str:
    whole, fraction = divmod(value, unit)
    if not fraction:
        return str(whole)
    digits = len(str(unit)) - 1
    return f"{whole}.{fraction:0{digits}d}".rstrip("0")


FOREVER = -1
"""TTL `never`: exempt from the stream's `max_age` as well."""


def parse_lifetime(text: bytes) -> int | None:
    """Parse `90`, `2m` or `never` in any case (`FOREVER`) into nanoseconds; None when malformed or under a second."""
    if text.lower() == b"never":
        return FOREVER
    if text.isdigit():
        seconds = int(text) if len(text) <= 9 else 0
        return seconds * NANOSECONDS_PER_SECOND if seconds else None
    try:
        lifetime_ns = parse_duration(text.decode("utf-8", "replace"))
    except ConfigError:
        return None
    return lifetime_ns if lifetime_ns >= NANOSECONDS_PER_SECOND else None
