"""When schedules are due: cron lines, time zones, changes of clocks, intervals."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from jetlake.server.engine.schedule.pattern import parse_pattern

SECOND = 1_000_000_000


def ns(*when, zone="UTC"):
    return int(datetime(*when, tzinfo=ZoneInfo(zone)).timestamp()) * SECOND


def times(pattern, zone, start_ns, count):
    """The next times as clocks of the zone show them, with their offsets."""
    found = parse_pattern(pattern, zone)
    shown, now_ns = [], start_ns
    for _ in range(count):
        now_ns = found.first_ns(now_ns)
        shown.append(found.text_of(now_ns))
    return shown


@pytest.mark.parametrize(
    ("pattern", "first", "second"),
    [
        ("0 0 0 1 1 *", "2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z"),
        ("@hourly", "2026-03-01T13:00:00Z", "2026-03-01T14:00:00Z"),
        ("@daily", "2026-03-02T00:00:00Z", "2026-03-03T00:00:00Z"),
        ("@weekly", "2026-03-08T00:00:00Z", "2026-03-15T00:00:00Z"),
        ("@monthly", "2026-04-01T00:00:00Z", "2026-05-01T00:00:00Z"),
        ("*/20 * * * * *", "2026-03-01T12:30:20Z", "2026-03-01T12:30:40Z"),
        ("5/30 10 * * * *", "2026-03-01T13:10:05Z", "2026-03-01T13:10:35Z"),
        ("0 0 9 * * mon-FRI", "2026-03-02T09:00:00Z", "2026-03-03T09:00:00Z"),
        ("0 0 9 13 * fri", "2026-03-06T09:00:00Z", "2026-03-13T09:00:00Z"),
        ("0 0 9 13 * ?", "2026-03-13T09:00:00Z", "2026-04-13T09:00:00Z"),
        ("0 0 9 */10 * fri", "2026-03-06T09:00:00Z", "2026-03-11T09:00:00Z"),
        ("0 0 0 29 feb *", "2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"),
        ("0 0 0 31 * *", "2026-03-31T00:00:00Z", "2026-05-31T00:00:00Z"),
        ("59 59 23 31 12 *", "2026-12-31T23:59:59Z", "2027-12-31T23:59:59Z"),
    ],
)
def test_cron_lines(pattern, first, second):
    assert times(pattern, None, ns(2026, 3, 1, 12, 30), 2) == [first, second]


def test_a_time_that_is_skipped_in_spring_is_left_out():
    # In Berlin, 2026-03-29 has no 02:30.
    assert times("0 30 2 * * *", "Europe/Berlin", ns(2026, 3, 27, 12), 3) == [
        "2026-03-28T02:30:00+01:00",
        "2026-03-30T02:30:00+02:00",
        "2026-03-31T02:30:00+02:00",
    ]


def test_a_time_that_is_repeated_in_autumn_comes_twice():
    assert times("0 30 2 * * *", "Europe/Berlin", ns(2026, 10, 24, 12), 3) == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-25T02:30:00+01:00",
        "2026-10-26T02:30:00+01:00",
    ]


def test_a_day_without_midnight():
    # In Sao Paulo, 2018-11-04 began at 01:00.
    assert times("0 0 0 * * *", "America/Sao_Paulo", ns(2018, 11, 2, 12), 3) == [
        "2018-11-03T00:00:00-03:00",
        "2018-11-05T00:00:00-02:00",
        "2018-11-06T00:00:00-02:00",
    ]


def test_hours_of_a_zone_with_half_hours():
    assert times("0 15 9 * * *", "Asia/Kolkata", ns(2026, 1, 1), 1) == ["2026-01-01T09:15:00+05:30"]


def test_a_cron_line_without_a_time_has_no_first():
    assert parse_pattern("0 0 0 31 2 *", None).first_ns(ns(2026, 1, 1)) is None


def test_a_field_without_values_is_no_pattern():
    for line in (", * * * * *", "0 , * * * *", "0 0 , * * *", "0 0 0 * * ,,"):
        assert parse_pattern(line, None) is None
    assert times("0, 0 0 * * *", None, ns(2026, 1, 1), 1) == ["2026-01-02T00:00:00Z"]


def test_intervals_are_counted_in_whole_seconds():
    every = parse_pattern("@every 90s", None)
    assert every.first_ns(10 * SECOND + 499_999_999) == 100 * SECOND
    assert every.first_ns(10 * SECOND + 500_000_000) == 101 * SECOND
    assert every.next_ns(100 * SECOND, 100 * SECOND + 5) == 190 * SECOND
    assert every.next_ns(100 * SECOND, 1000 * SECOND + 5) == 1090 * SECOND


def test_one_time():
    at = parse_pattern("@at 2026-05-01T10:00:00.25+02:00", None)
    assert at.first_ns(0) == ns(2026, 5, 1, 8) + SECOND // 4
    assert at.next_ns(at.first_ns(0), 0) is None


@pytest.mark.parametrize("year", ["9999", "2300", "0001"])
def test_times_that_are_saved_as_64_bits(year):
    assert abs(parse_pattern(f"@at {year}-05-01T10:00:00Z", None).first_ns(0)) < 2**63


def test_the_zone_of_the_machine():
    found = parse_pattern("0 0 12 * * *", "Local").first_ns(ns(2026, 5, 1))
    assert datetime.fromtimestamp(found // SECOND, UTC).astimezone().hour == 12
