"""Times in SQL that mean the same whatever the session's time zone: everything counts from 1970 in UTC."""

from __future__ import annotations

__all__ = ["utc_date", "utc_hour", "utc_text"]

_DAY_MICROS = 86_400_000_000
_HOUR_MICROS = 3_600_000_000


def utc_date(column: str) -> str:
    """Return the date of a timestamp in UTC."""
    return f"date_from_unix_date(cast(floor(unix_micros({column}) / {_DAY_MICROS}D) as int))"


def utc_hour(column: str) -> str:
    """Return the hour of a timestamp in UTC, two digits."""
    return f"lpad(cast(pmod(floor(unix_micros({column}) / {_HOUR_MICROS}D), 24) as string), 2, '0')"


def utc_text(column: str) -> str:
    """Return a timestamp as `2026-01-31T12:00:00.000001Z`."""
    # A time without a zone goes through none when it is written, so that no hour is skipped or repeated.
    local = f"cast(timestampadd(MICROSECOND, unix_micros({column}), timestamp_ntz'1970-01-01 00:00:00') as string)"
    return f"concat(replace(substring({local}, 1, 19), ' ', 'T'), '.', rpad(substring({local}, 21), 6, '0'), 'Z')"
