"""The board keeps what the page shows, bounded, with rates from successive samples."""

from __future__ import annotations

import json

from jetlake.dashboard.board import ADVISORIES_MAX, PIPELINES_MAX, SAMPLES_PER_CONSUMER, Board
from jetlake.dashboard.history import SAMPLES_MAX, Rate
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo, SequenceInfo
from jetlake.model.stream import StreamConfig, StreamInfo, StreamState


def stream(name: str, last: int, *, consumers: int = 0, created: str = "2026-11-15T00:00:00Z") -> StreamInfo:
    state = StreamState(messages=last, last_seq=last, consumer_count=consumers)
    return StreamInfo(config=StreamConfig(name=name, subjects=(f"{name}.>",)), created=created, state=state)


def consumer(name: str, delivered: int, *, pending: int = 0) -> ConsumerInfo:
    return ConsumerInfo(
        stream_name="S",
        name=name,
        config=ConsumerConfig(durable_name=name),
        delivered=SequenceInfo(consumer_seq=delivered, stream_seq=delivered),
        num_pending=pending,
    )


def ack_sample(ack_time_ns: int, stream_name: str = "S") -> bytes:
    return json.dumps({"stream": stream_name, "consumer": "C", "ack_time": ack_time_ns}).encode()


def test_rate_is_the_growth_between_two_samples():
    rate = Rate()
    rate.read(100, 10.0)
    assert rate.per_second == 0.0
    rate.read(150, 12.0)
    assert rate.per_second == 25.0
    assert rate.history.values() == [0.0, 25.0]


def test_rate_of_a_counter_that_went_back_starts_anew():
    rate = Rate()
    rate.read(100, 1.0)
    rate.read(5, 2.0)
    assert rate.per_second == 0.0
    rate.read(15, 3.0)
    assert rate.per_second == 10.0


def test_a_second_reading_of_the_same_moment_is_ignored():
    rate = Rate()
    rate.read(1, 1.0)
    rate.read(9, 1.0)
    assert rate.history.values() == [0.0]


def test_charts_are_bounded():
    board = Board()
    for second in range(SAMPLES_MAX + 50):
        board.see_streams([stream("S", second)], float(second))
    assert len(board.stream("S")["chart"]) == SAMPLES_MAX


def test_a_stream_that_is_gone_takes_its_consumers_and_samples_along():
    board = Board()
    board.see_streams([stream("S", 1, consumers=1)], 1.0)
    board.see_consumers("S", [consumer("C", 0)], 1.0)
    board.see_advisory("$JS.EVENT.METRIC.CONSUMER.ACK.S.C", ack_sample(1), 1.0)
    board.see_streams([], 2.0)
    assert board.overview(2.0)["streams"] == []
    assert board.overview(2.0)["consumers"] == []
    board.see_streams([stream("S", 1, consumers=1)], 3.0)
    board.see_consumers("S", [consumer("C", 0)], 3.0)
    assert board.consumer("S", "C")["ack_times"] == {}


def test_a_stream_made_anew_under_the_same_name_starts_a_new_chart():
    board = Board()
    board.see_streams([stream("S", 100)], 1.0)
    board.see_streams([stream("S", 200)], 2.0)
    board.see_streams([stream("S", 300, created="2026-11-16T00:00:00Z")], 3.0)
    assert board.stream("S")["chart"] == [0.0]


def test_consumer_shows_rates_and_percentiles_of_its_samples():
    board = Board()
    board.see_streams([stream("S", 10, consumers=1)], 1.0)
    board.see_consumers("S", [consumer("C", 0, pending=10)], 1.0)
    board.see_consumers("S", [consumer("C", 8, pending=2)], 3.0)
    for milliseconds in range(1, 101):
        board.see_advisory("$JS.EVENT.METRIC.CONSUMER.ACK.S.C", ack_sample(milliseconds * 1_000_000), 3.0)
    shown = board.consumer("S", "C")
    assert shown["rate"] == 4.0
    assert shown["charts"]["pending"] == [10, 2]
    assert shown["ack_times"] == {"samples": 100, "p50": 51.0, "p95": 95.0, "p99": 99.0}


def test_samples_of_one_consumer_are_bounded_and_unknown_streams_keep_none():
    board = Board()
    board.see_streams([stream("S", 10, consumers=1)], 1.0)
    board.see_consumers("S", [consumer("C", 0)], 1.0)
    for _ in range(SAMPLES_PER_CONSUMER + 10):
        board.see_advisory("$JS.EVENT.METRIC.CONSUMER.ACK.S.C", ack_sample(5), 1.0)
        board.see_advisory("$JS.EVENT.METRIC.CONSUMER.ACK.X.C", ack_sample(5, "X"), 1.0)
    assert board.consumer("S", "C")["ack_times"]["samples"] == SAMPLES_PER_CONSUMER
    assert board.consumer("X", "C") is None


def test_advisories_are_newest_first_and_bounded():
    board = Board()
    for number in range(ADVISORIES_MAX + 5):
        event = {"type": "io.nats.jetstream.advisory.v1.max_deliver", "stream": "S", "stream_seq": number}
        board.see_advisory("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.C", json.dumps(event).encode(), float(number))
    kept = board.advisories()
    assert len(kept) == ADVISORIES_MAX
    assert kept[0]["kind"] == "max_deliver"
    assert kept[0]["text"] == f"stream S, stream_seq {ADVISORIES_MAX + 4}"


def test_events_that_are_not_json_objects_are_left_out():
    board = Board()
    for payload in (b"", b"[1]", b"{", b"\xff", b"[" * 100_000):
        board.see_advisory("$JS.EVENT.ADVISORY.API", payload, 1.0)
        board.see_pipeline(payload, 1.0)
    assert board.advisories() == []
    assert board.overview(1.0)["pipelines"] == []


def test_pipelines_are_shown_while_they_report():
    board = Board()
    board.see_pipeline(b'{"id": "archive-1", "lag": 5}', 100.0)
    assert [one["id"] for one in board.overview(200.0)["pipelines"]] == ["archive-1"]
    assert board.overview(2000.0)["pipelines"] == []


def test_the_pipeline_silent_for_longest_makes_room():
    board = Board()
    for number in range(PIPELINES_MAX + 1):
        board.see_pipeline(json.dumps({"id": f"p{number}"}).encode(), 1.0)
    shown = [one["id"] for one in board.overview(1.0)["pipelines"]]
    assert len(shown) == PIPELINES_MAX
    assert "p0" not in shown
