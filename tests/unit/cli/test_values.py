"""What people type means what they meant, or is refused with an example of how to write it."""

from __future__ import annotations

import time

import click
import pytest

from jetlake.cli import beginning
from jetlake.cli.values import DELIVER, DURATION, HEADER, PAIR, SAMPLE, SIZE
from jetlake.model.encoding.times import parse_time


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("30s", 30_000_000_000),
        ("2m", 120_000_000_000),
        ("1h30m", 5_400_000_000_000),
        ("250ms", 250_000_000),
        ("7d", 604_800_000_000_000),
        ("1w", 604_800_000_000_000),
        ("1d12h", 129_600_000_000_000),
        ("0d", 0),
        ("0", 0),
        ("-1", 0),
    ],
)
def test_durations(text, nanoseconds):
    assert DURATION.convert(text, None, None) == nanoseconds


@pytest.mark.parametrize("text", ["", "5", "1x", "m", "1d2", "--", "1 d", "d1", "1000y", "9" * 5000 + "d"])
def test_durations_that_are_none(text):
    with pytest.raises(click.BadParameter, match=r"is not a duration|is too long"):
        DURATION.convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1048576", 1_048_576),
        ("1K", 1000),
        ("1KB", 1024),
        ("1KiB", 1024),
        ("2mb", 2 * 1024**2),
        ("1.5GB", 1610612736),
        ("9007199254740993", 2**53 + 1),
        ("8191.75TB", 8191 * 1024**4 + 3 * 1024**4 // 4),
        ("-1", -1),
    ],
)
def test_sizes(text, number):
    assert SIZE.convert(text, None, None) == number


@pytest.mark.parametrize("text", ["", "x", "1XB", "-5", "1e3", "MB", "9000000TB", "9" * 400])
def test_sizes_that_are_none(text):
    with pytest.raises(click.BadParameter, match=r"is not a size|is too large"):
        SIZE.convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("all", {"deliver_policy": "all"}),
        ("new", {"deliver_policy": "new"}),
        ("last", {"deliver_policy": "last"}),
        ("subject", {"deliver_policy": "last_per_subject"}),
        ("10", {"deliver_policy": "by_start_sequence", "opt_start_seq": 10}),
        (
            "2026-01-31T12:00:00+01:00",
            {"deliver_policy": "by_start_time", "opt_start_time": "2026-01-31T11:00:00Z"},
        ),
    ],
)
def test_starting_points(text, fields):
    assert DELIVER.convert(text, None, None).fields == fields


def test_a_starting_point_can_be_how_long_ago():
    fields = DELIVER.convert("2m", None, None).fields
    ago_s = time.time() - parse_time(fields["opt_start_time"]) / 1e9
    assert fields["deliver_policy"] == "by_start_time"
    assert ago_s == pytest.approx(120, abs=30)


@pytest.mark.parametrize("text", ["first", "2026-01-31", "-5", "1.5"])
def test_starting_points_that_are_none(text):
    with pytest.raises(click.BadParameter, match="start position"):
        DELIVER.convert(text, None, None)


def test_headers_and_pairs():
    assert HEADER.convert("Nats-Msg-Id:1", None, None) == ("Nats-Msg-Id", "1")
    assert HEADER.convert("Location: http://x", None, None) == ("Location", "http://x")
    assert PAIR.convert("team=orders=eu", None, None) == ("team", "orders=eu")
    for bad in ("novalue", ":x", ""):
        with pytest.raises(click.BadParameter):
            HEADER.convert(bad, None, None)


def test_samples():
    assert SAMPLE.convert("80", None, None) == "80"
    assert SAMPLE.convert("80%", None, None) == "80"
    for bad in ("101", "x", "-1", "8.5"):
        with pytest.raises(click.BadParameter, match="percentage"):
            SAMPLE.convert(bad, None, None)


def test_a_duration_counts_from_when_the_command_was_typed(monkeypatch):
    monkeypatch.setattr(beginning, "_began_ns", 1_800_000_000 * 10**9)
    assert DELIVER.convert("2m", None, None).fields["opt_start_time"] == "2027-01-15T07:58:00Z"
    began = time.time_ns()
    beginning.began()
    assert beginning.typed_at_ns() < began
