"""The board keeps what the page shows, bounded, with rates from successive samples."""

from __future__ import annotations

import json

from jetlake.dashboard.watching.board import ADVISORIES_MAX, PIPELINES_MAX, SAMPLES_PER_CONSUMER, Board
from jetlake.dashboard.watching.listing import Listing
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


def known(window: dict) -> list[float]:
    return [value for value in window["mean"] if value is not None]


def ack_sample(ack_time_ns: int, stream_name: str = "S") -> bytes:
    return json.dumps({"stream": stream_name, "consumer": "C", "ack_time": ack_time_ns}).encode()


def test_a_stream_that_is_gone_takes_its_consumers_and_samples_along():
    board = Board()
    board.observe_streams([stream("S", 1, consumers=1)], 1.0)
    board.observe_consumers("S", [consumer("C", 0)], 1.0)
    board.observe_advisory("$JS.EVENT.METRIC.CONSUMER.ACK.S.C", ack_sample(1), 1.0)
    board.drop_unlisted(set())
    assert board.streams(Listing(), 2.0)["rows"] == []
    assert board.consumers(Listing(), 2.0)["rows"] == []
    board.observe_streams([stream("S", 1, consumers=1)], 3.0)
    board.observe_consumers("S", [consumer("C", 0)], 3.0)
    assert board.consumer("S", "C", Listing(), 3.0)["ack_times"] == {}


def test_a_stream_made_anew_under_the_same_name_starts_a_new_chart():
    board = Board()
    board.observe_streams([stream("S", 100)], 1.0)
    board.observe_streams([stream("S", 200)], 2.0)
    board.observe_streams([stream("S", 300, created="2026-11-16T00:00:00Z")], 3.0)
    assert known(board.stream("S", Listing(), 3.0)["charts"]["messages"]) == [300.0]


def test_consumer_shows_rates_and_percentiles_of_its_samples():
    board = Board()
    board.observe_streams([stream("S", 10, consumers=1)], 1.0)
    board.observe_consumers("S", [consumer("C", 0, pending=10)], 1.0)
    board.observe_consumers("S", [consumer("C", 8, pending=2)], 3.0)
    for milliseconds in range(1, 101):
        board.observe_advisory("$JS.EVENT.METRIC.CONSUMER.ACK.S.C", ack_sample(milliseconds * 1_000_000), 3.0)
    shown = board.consumer("S", "C", Listing(), 3.0)
    assert shown["rate"] == 4.0
    assert known(shown["charts"]["pending"]) == [10.0, 2.0]
    assert shown["ack_times"] == {"samples": 100, "p50": 51.0, "p95": 95.0, "p99": 99.0}


def test_samples_of_one_consumer_are_bounded_and_unknown_streams_keep_none():
    board = Board()
    board.observe_streams([stream("S", 10, consumers=1)], 1.0)
    board.observe_consumers("S", [consumer("C", 0)], 1.0)
    for _ in range(SAMPLES_PER_CONSUMER + 10):
        board.observe_advisory("$JS.EVENT.METRIC.CONSUMER.ACK.S.C", ack_sample(5), 1.0)
        board.observe_advisory("$JS.EVENT.METRIC.CONSUMER.ACK.X.C", ack_sample(5, "X"), 1.0)
    assert board.consumer("S", "C", Listing(), 1.0)["ack_times"]["samples"] == SAMPLES_PER_CONSUMER
    assert board.consumer("X", "C", Listing(), 1.0) is None


def test_advisories_are_newest_first_and_bounded():
    board = Board()
    for number in range(ADVISORIES_MAX + 5):
        event = {"type": "io.nats.jetstream.advisory.v1.max_deliver", "stream": "S", "stream_seq": number}
        board.observe_advisory(
            "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.C", json.dumps(event).encode(), float(number)
        )
    kept = board.advisories()
    assert len(kept) == ADVISORIES_MAX
    assert kept[0]["kind"] == "max_deliver"
    assert kept[0]["text"] == f"stream S, stream_seq {ADVISORIES_MAX + 4}"


def test_events_that_are_not_json_objects_are_left_out():
    board = Board()
    for payload in (b"", b"[1]", b"{", b"\xff", b"[" * 100_000):
        board.observe_advisory("$JS.EVENT.ADVISORY.API", payload, 1.0)
        board.observe_pipeline(payload, 1.0)
    assert board.advisories() == []
    assert board.pipelines(1.0) == []


def test_pipelines_are_shown_while_they_report():
    board = Board()
    board.observe_pipeline(b'{"id": "archive-1", "lag": 5}', 100.0)
    assert [one["id"] for one in board.pipelines(200.0)] == ["archive-1"]
    assert board.pipelines(2000.0) == []


def test_the_pipeline_silent_for_longest_makes_room():
    board = Board()
    for number in range(PIPELINES_MAX + 1):
        board.observe_pipeline(json.dumps({"id": f"p{number}"}).encode(), 1.0)
    shown = [one["id"] for one in board.pipelines(1.0)]
    assert len(shown) == PIPELINES_MAX
    assert "p0" not in shown


def test_ten_thousand_streams_are_a_page_of_fifty():
    board = Board()
    board.observe_streams((stream(f"S{number:05}", number) for number in range(10_000)), 1.0)
    page = board.streams(Listing(sort="messages", descending=True, offset=100), 1.0)
    assert [row["name"] for row in page["rows"]] == [f"S{number:05}" for number in range(9899, 9849, -1)]
    assert (page["total"], page["found"], page["offset"]) == (10_000, 10_000, 100)
    page = board.streams(Listing(filter="s0999"), 1.0)
    assert (len(page["rows"]), page["found"]) == (10, 10)
    # Charts of all would take too much memory: some have none, and the table shows them all the same.
    assert board.stream("S09999", Listing(range="7d"), 1.0)["charts"]["published"]["step"] == 2
    assert board.summary(1.0)["totals"]["streams"] == 10_000


def test_histories_go_on_after_a_restart_for_streams_that_are_still_the_same():
    board = Board()
    for second in range(0, 7200, 10):
        board.observe_streams([stream("S", second), stream("T", 5)], float(second))
        board.observe_consumers("S", [consumer("C", 0, pending=second)], float(second))
    again = Board(board.dump())
    again.observe_streams([stream("S", 7200), stream("T", 5, created="2026-11-16T00:00:00Z")], 7200.0)
    again.observe_consumers("S", [consumer("C", 0, pending=7200)], 7200.0)
    charts = again.stream("S", Listing(range="6h"), 7200.0)["charts"]
    assert charts["messages"]["mean"][-41:-1] == [90.0 + 180 * slot - 5 for slot in range(40)]
    assert known(again.consumer("S", "C", Listing(range="6h"), 7200.0)["charts"]["pending"])[-1] == 7200.0
    assert known(again.stream("T", Listing(range="6h"), 7200.0)["charts"]["messages"]) == [5.0]


def test_a_history_that_was_not_seen_yet_is_kept_and_one_of_another_shape_is_not():
    kept = {"created": "2026-11-15T00:00:00Z", "series": {"messages": {"6h": (40, b"short", b"short")}}}
    board = Board({"S": kept, "LATER": kept})
    board.observe_streams([stream("S", 3)], 1.0)
    assert known(board.stream("S", Listing(range="6h"), 1.0)["charts"]["messages"]) == [3.0]
    assert board.dump()["LATER"] == kept
