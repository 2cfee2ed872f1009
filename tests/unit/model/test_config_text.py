"""How values of configurations are written for people."""

from __future__ import annotations

import pytest

from jetlake.model.config_text import config_text, duration_text, size_text

S = 10**9


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("max_age", 3 * 86_400 * S, "3d"),
        ("max_age", 0, "none"),
        ("ack_wait", 90 * S, "1m30s"),
        ("backoff", (S, 60 * S), "1s, 1m"),
        ("backoff", [], "none"),
        ("max_bytes", -1, "unlimited"),
        ("max_bytes", 1 << 30, "1.0 GiB"),
        ("max_msgs", 1_000_000, "1,000,000"),
        ("num_replicas", 3, "3"),
        ("allow_direct", True, "true"),
        ("description", "", "none"),
        ("placement", None, "none"),
        ("subjects", ["a", "b.>"], "a, b.>"),
        ("republish", {"src": "a", "dest": "b"}, "src a, dest b"),
        ("consumer_limits", {"inactive_threshold": 60 * S}, "inactive threshold 1m"),
    ],
)
def test_values_have_the_units_that_people_type(name, value, text):
    assert config_text(name, value) == text


def test_durations_begin_with_days_and_leave_out_what_is_zero():
    hours = 3600 * S
    assert [duration_text(number * hours) for number in (12, 36, 24)] == ["12h", "1d12h", "1d"]
    assert [duration_text(number) for number in (0, -1, 1, 1_500_000)] == ["none", "none", "1ns", "1.5ms"]


def test_sizes_have_the_unit_that_fits():
    assert [size_text(number) for number in (-1, 0, 1023, 1024, 5 << 40)] == [
        "unlimited",
        "0 B",
        "1,023 B",
        "1.0 KiB",
        "5.0 TiB",
    ]
