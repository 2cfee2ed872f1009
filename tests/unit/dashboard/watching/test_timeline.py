"""Timelines keep times, show gaps as gaps, and stay bounded."""

from __future__ import annotations

from jetlake.dashboard.watching.timeline import RANGES, Rate, Timeline, Timelines


def filled(*samples: tuple[float, float | None, float]) -> Timeline:
    timeline = Timeline(long=True)
    for sample in samples:
        timeline.add(*sample)
    return timeline


def test_a_sample_holds_since_the_one_before():
    window = filled((5.0, None, 100.0), (7.0, 100.0, 105.0)).window("5m", 105.0)
    assert window["step"] == 2
    assert window["mean"][-3:] == [5.0, 7.0, 7.0]
    assert window["start"] + 149 * 2 == 104


def test_time_without_samples_is_a_gap():
    timeline = filled((5.0, None, 100.0), (7.0, None, 120.0))
    assert timeline.window("5m", 120.0)["mean"][-11:] == [5.0, *[None] * 9, 7.0]
    # Long after the last sample the chart is empty, whatever it was.
    assert set(timeline.window("5m", 120.0 + 26 * 60)["mean"]) == {None}
    assert [value for value in timeline.window("1h", 120.0 + 26 * 60)["mean"] if value is not None] == [5.0, 7.0]


def test_a_slot_has_its_mean_and_its_highest():
    timeline = filled((1.0, None, 600.0), (9.0, 600.0, 601.0), (2.0, 601.0, 602.0))
    window = timeline.window("1h", 602.0)
    assert (window["mean"][-1], window["high"][-1]) == (4.0, 9.0)
    window = timeline.window("5m", 602.0)
    assert (window["mean"][-2:], window["high"][-2:]) == ([5.0, 2.0], [9.0, 2.0])


def test_every_range_is_bounded_and_ends_now():
    timeline = Timeline(long=True)
    for hour in range(24 * 9):
        timeline.add(float(hour), None if hour == 0 else (hour - 1) * 3600.0, hour * 3600.0)
    now_s = (24 * 9 - 1) * 3600.0
    for name, (step, slots) in RANGES.items():
        window = timeline.window(name, now_s)
        assert len(window["mean"]) == len(window["high"]) == slots
        assert window["start"] + (slots - 1) * step == now_s
        assert window["mean"][-1] == 24 * 9 - 1
    assert timeline.window("7d", now_s)["mean"] == [float(hour) for hour in range(24 * 9 - 168, 24 * 9)]


def test_a_clock_that_is_set_back_begins_anew():
    timeline = filled((5.0, None, 10_000.0), (6.0, None, 5000.0), (7.0, 5000.0, 5002.0))
    assert [value for value in timeline.window("5m", 5002.0)["mean"] if value is not None] == [6.0, 7.0]


def test_there_are_long_ones_then_short_ones_then_none_and_room_is_given_back():
    timelines = Timelines(long_max=1, timelines_max=2)
    first, second = timelines.make(), timelines.make()
    assert first is not None and first.is_long
    assert second is not None and not second.is_long
    assert timelines.make() is None
    assert second.window("7d", 10.0)["step"] == 2
    timelines.release(first)
    timelines.release(None)
    third = timelines.make()
    assert third is not None and third.is_long


def test_rate_is_the_growth_between_two_readings():
    rate = Rate()
    assert not rate.read(100, 10.0)
    assert rate.read(150, 12.0)
    assert rate.per_second == 25.0
    assert not rate.read(160, 12.0)  # a second reading of the same moment
    assert not rate.read(160, 12.1)  # and one that a page makes between two samples
    assert rate.known == 25.0


def test_rate_of_a_counter_that_went_back_or_was_not_read_for_long_starts_anew():
    rate = Rate()
    rate.read(100, 1.0)
    assert not rate.read(5, 2.0)
    assert rate.per_second == 0.0
    assert rate.read(15, 3.0)
    assert rate.per_second == 10.0
    assert not rate.read(1015, 103.0, gap_s=20.0)
    assert rate.per_second == 0.0
