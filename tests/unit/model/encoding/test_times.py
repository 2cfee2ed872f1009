"""Times: RFC 3339 with nanoseconds, to integers and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.errors import ConfigError
from jetlake.model.encoding.times import ZERO_TIME, format_time, parse_time, start_text, time_text, wire_time

YEAR_ONE_NS = -62_135_596_800 * 10**9
YEAR_10000_NS = 253_402_300_800 * 10**9


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("2026-11-15T06:14:48.577142138Z", 1_794_723_288_577_142_138),
        ("2026-11-15T08:14:48.577142138+02:00", 1_794_723_288_577_142_138),
        ("2026-11-15T04:44:48.577142138-01:30", 1_794_723_288_577_142_138),
        ("2026-11-15T06:14:48.5Z", 1_794_723_288_500_000_000),
        ("1970-01-01T00:00:00.1234567899Z", 123_456_789),
        (ZERO_TIME, YEAR_ONE_NS),
        ("2024-02-29T23:59:59Z", 1_709_251_199 * 10**9),
    ],
)
def test_parse_time(text: str, expected: int) -> None:
    assert parse_time(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2026-11-15",
        "2026-11-15T06:14:48",
        "2026-11-15 06:14:48Z",
        "2026-13-15T06:14:48Z",
        "2026-02-30T06:14:48Z",
        "2025-02-29T06:14:48Z",
        "0000-01-01T00:00:00Z",
        "2026-11-15T24:14:48Z",
        "2026-11-15T06:60:48Z",
        "2026-11-15T06:14:60Z",
        "2026-11-15T06:14:48.Z",
        "2026-11-15T06:14:48,5Z",
        "2026-11-15T06:14:48Z\n",
        "2026-11-15T06:14:48+25:00",
        "٢٠٢٦-11-15T06:14:48Z",
    ],
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_time(text)


@pytest.mark.parametrize(
    ("time_ns", "expected"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (YEAR_ONE_NS, ZERO_TIME),
        (1_794_723_288_577_142_138, "2026-11-15T06:14:48.577142138Z"),
        (1_794_723_288_500_000_000, "2026-11-15T06:14:48.5Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
    ],
)
def test_format_time(time_ns: int, expected: str) -> None:
    assert format_time(time_ns) == expected


@pytest.mark.parametrize("time_ns", [YEAR_ONE_NS - 1, YEAR_10000_NS, 10**40])
def test_times_beyond_the_calendar(time_ns: int) -> None:
    with pytest.raises(ConfigError, match="years 1 to 9999"):
        format_time(time_ns)


@given(st.integers(YEAR_ONE_NS, YEAR_10000_NS - 1))
def test_times_come_back(time_ns: int) -> None:
    assert parse_time(format_time(time_ns)) == time_ns


def test_what_people_write() -> None:
    assert time_text("2026-01-01T02:00:00+02:00") == "2026-01-01T00:00:00Z"
    assert time_text(datetime(2026, 1, 1, 2, 0, 0, 5, tzinfo=timezone(timedelta(hours=2)))) == (
        "2026-01-01T00:00:00.000005Z"
    )
    assert time_text(datetime(1, 1, 1, tzinfo=UTC)) == ZERO_TIME


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (datetime.max, "2262-04-11T23:47:15Z"),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))), "2262-04-11T23:47:15Z"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=5))), "1677-09-21T00:12:45Z"),
        ("9999-12-31T23:59:59Z", "2262-04-11T23:47:15Z"),
        (ZERO_TIME, "1677-09-21T00:12:45Z"),
        ("2262-04-11T23:47:14.5Z", "2262-04-11T23:47:14.5Z"),
        ("2026-01-01T02:00:00+02:00", "2026-01-01T00:00:00Z"),
    ],
)
def test_times_that_servers_can_count(given: str | datetime, expected: str) -> None:
    assert start_text(given) == expected


def test_numbers_that_servers_can_count() -> None:
    assert (wire_time(10**30), wire_time(-(10**30))) == ("2262-04-11T23:47:15Z", "1677-09-21T00:12:45Z")
