"""Durations: seconds and timedelta to nanoseconds, and the texts in which they are written."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.errors import ConfigError
from jetlake.model.encoding.durations import format_duration, nanoseconds, parse_duration, seconds


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (30, 30_000_000_000),
        (0.5, 500_000_000),
        (1e-9, 1),
        (0.1, 100_000_000),
        (-1, -1_000_000_000),
        (timedelta(days=1, microseconds=1), 86_400_000_001_000),
        (timedelta(seconds=-1), -1_000_000_000),
    ],
)
def test_nanoseconds(value: float | timedelta, expected: int) -> None:
    assert nanoseconds(value) == expected
    assert seconds(expected) == pytest.approx(value.total_seconds() if isinstance(value, timedelta) else value)


@pytest.mark.parametrize("value", [True, "5", None, float("nan"), float("inf"), 10**12, timedelta.max])
def test_what_is_no_duration(value: object) -> None:
    with pytest.raises(ConfigError, match="a duration"):
        nanoseconds(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("0s", 0),
        ("300ms", 300_000_000),
        ("2m", 120_000_000_000),
        ("1h30m", 5_400_000_000_000),
        ("1.5s", 1_500_000_000),
        (".5s", 500_000_000),
        ("-1.5h", -5_400_000_000_000),
        ("+2us", 2_000),
        ("2µs", 2_000),
        ("2μs", 2_000),
        ("7ns", 7),
        ("1h0m0.000000001s", 3_600_000_000_001),
    ],
)
def test_parse_duration(text: str, expected: int) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text", ["", "-", "5", "s", "1x", "1s ", " 1s", "1..5s", ".s", "1s2", "٣s", "9" * 30 + "h", "1s" * 100]
)
def test_texts_that_are_no_duration(text: str) -> None:
    with pytest.raises(ConfigError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("duration_ns", "expected"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_500, "1.5µs"),
        (1_500_000, "1.5ms"),
        (5_000_000_000, "5s"),
        (90_000_000_000, "1m30s"),
        (7_200_000_000_000, "2h0m0s"),
        (-2_500_000_000, "-2.5s"),
    ],
)
def test_format_duration(duration_ns: int, expected: str) -> None:
    assert format_duration(duration_ns) == expected


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_durations_come_back(duration_ns: int) -> None:
    assert parse_duration(format_duration(duration_ns)) == duration_ns
