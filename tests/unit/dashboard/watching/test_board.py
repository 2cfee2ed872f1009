"""The board keeps what the page shows, bounded, with rates from successive samples."""

from __future__ import annotations

import json
import tracemalloc

import msgspec

from jetlake.dashboard.watching import board as board_module
from jetlake.dashboard.watching.board import (
    ADVISORIES_MAX,
    PIPELINES_MAX,
    SAMPLES_PER_CONSUMER,
    Board,
)
from jetlake.dashboard.watching.listing import Listing
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo, SequenceInfo
from jetlake.model.stream import StreamConfig, StreamInfo, StreamSource, StreamState


def stream(name: str, last: int, *, consumers: int = 0, created: str = "2026-11-15T00:00:00Z") -> StreamInfo:
    state = StreamState(messages=last, last_seq=last, consumer_count=consumers)
    return StreamInfo(config=StreamConfig(name=name, subjects=(f"{name}.>",)), created=created, state=state)


def consumer(name: str, delivered: int, *, pending: int = 0) -> ConsumerInfo:
    return ConsumerInfo(
        stream_name="S",
        name=name,
        config=ConsumerConfig(durable_name=name, sample_freq="100"),
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


def watching_one_consumer() -> Board:
    board = Board()
    board.observe_streams([stream("S", 10, consumers=1)], 1.0)
    board.observe_consumers("S", [consumer("C", 0)], 1.0)
    return board


def test_a_flood_of_events_does_not_fill_the_memory():
    """Everybody may publish events, of any size, about consumers that never existed."""
    board = watching_one_consumer()
    rounds = ADVISORIES_MAX + 100
    tracemalloc.start()
    for number in range(rounds):
        long = f"{number}{'x' * 12_000}"
        advisory = dict.fromkeys(("type", "stream", "consumer", "reason", "else"), long)
        report = dict.fromkeys(("name", "state", "error", "else"), long) | {"id": str(number)}
        board.observe_advisory(f"$JS.EVENT.METRIC.CONSUMER.ACK.S.{number}", ack_sample(1), 1.0)
        board.observe_advisory(f"$JS.EVENT.ADVISORY.STREAM.CREATED.{long}", json.dumps(advisory).encode(), 1.0)
        board.observe_pipeline(json.dumps(report).encode(), 1.0)
        board.observe_pipeline(json.dumps({"id": "a", "name": long * 6}).encode(), 1.0)
        board.observe_pipeline(json.dumps({"id": long}).encode(), 1.0)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 4 * 1024 * 1024
    assert len(json.dumps([board.advisories(), board.pipelines(1.0)])) < 4 * 1024 * 1024
    assert board.dropped == {
        "of unknown consumers": rounds,
        "too large": rounds,
        "unreadable": rounds,
        "older": 2 * rounds - ADVISORIES_MAX - PIPELINES_MAX,
    }


def test_ack_times_are_those_of_the_subject_and_of_consumers_that_are_sampled():
    board = watching_one_consumer()
    board.observe_consumers(
        "S", [consumer("C", 0), msgspec.structs.replace(consumer("D", 0), config=ConsumerConfig())], 1.0
    )
    for payload in (ack_sample(-1), ack_sample(1 << 63), ack_sample(1 << 200), b'{"ack_time": "1"}', b"{}"):
        board.observe_advisory("$JS.EVENT.METRIC.CONSUMER.ACK.S.C", payload, 1.0)
    assert board.consumer("S", "C", Listing(), 1.0)["ack_times"] == {}
    board.observe_advisory("$JS.EVENT.METRIC.CONSUMER.ACK.S.C", ack_sample(5, "OTHER"), 1.0)
    board.observe_advisory("$JS.EVENT.METRIC.CONSUMER.ACK.S.D", ack_sample(5), 1.0)
    board.observe_advisory("$JS.EVENT.METRIC.CONSUMER.ACK.OTHER.C", ack_sample(5), 1.0)
    assert board.consumer("S", "C", Listing(), 1.0)["ack_times"]["samples"] == 1
    assert board.consumer("S", "D", Listing(), 1.0)["ack_times"] == {}
    assert board.dropped == {"unreadable": 5, "of unknown consumers": 2}


def test_the_consumer_sampled_longest_ago_makes_room(monkeypatch):
    monkeypatch.setattr(board_module, "SAMPLED_CONSUMERS_MAX", 2)
    board = watching_one_consumer()
    board.observe_consumers("S", [consumer(name, 0) for name in "ABC"], 1.0)
    for name in "ABACC":
        board.observe_advisory(f"$JS.EVENT.METRIC.CONSUMER.ACK.S.{name}", ack_sample(5), 1.0)
    samples = {name: board.consumer("S", name, Listing(), 1.0)["ack_times"].get("samples", 0) for name in "ABC"}
    assert samples == {"A": 2, "B": 0, "C": 2}
    assert board.dropped == {"older": 1}


def test_what_is_a_day_old_is_not_kept():
    board = watching_one_consumer()
    board.observe_advisory("$JS.EVENT.METRIC.CONSUMER.ACK.S.C", ack_sample(5), 1.0)
    board.observe_advisory("$JS.EVENT.ADVISORY.STREAM.CREATED.S", b'{"type": "created", "stream": "S"}', 1.0)
    board.observe_advisory("$JS.EVENT.ADVISORY.STREAM.CREATED.T", b'{"type": "created", "stream": "T"}', 60.0)
    board.summary(24 * 3600 + 30.0)
    assert [one["stream"] for one in board.advisories()] == ["T"]
    assert board.consumer("S", "C", Listing(), 1.0)["ack_times"] == {}


def test_messages_that_ran_out_of_deliveries_are_reported_of_consumers_that_exist():
    board = watching_one_consumer()
    for name in ("C", "made-up"):
        event = {"type": "io.nats.jetstream.advisory.v1.max_deliver", "stream": "S", "consumer": name}
        subject = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.{name}"
        board.observe_advisory(subject, json.dumps(event).encode(), 1.0)
    assert [one["consumer"] for one in board.summary(1.0)["attention"]] == ["C"]


def test_a_table_lists_some_of_very_many_subjects():
    board = Board()
    config = StreamConfig(name="S", subjects=tuple(f"s.{number}" for number in range(5000)))
    board.observe_streams([StreamInfo(config=config, created="2026-11-15T00:00:00Z", state=StreamState())], 1.0)
    (row,) = board.streams(Listing(), 1.0)["rows"]
    assert row["subjects"][-2:] == ["s.99", "and 4,900 more"]
    assert len(board.stream("S", Listing(), 1.0)["config"]["subjects"]) == 5000


def test_the_pages_of_a_stream_and_a_consumer_show_their_settings_in_human_units():
    board = Board()
    config = StreamConfig(
        name="S", subjects=("s",), max_msgs=-1, max_bytes=1 << 30, max_age=3 * 86_400 * 10**9, sealed=True
    )
    state = StreamState(consumer_count=1)
    board.observe_streams([StreamInfo(config=config, created="2026-11-15T00:00:00Z", state=state)], 1.0)
    shown = dict(board.stream("S", Listing(), 1.0)["settings"])
    assert (shown["max_msgs"], shown["max_bytes"], shown["max_age"]) == ("unlimited", "1.0 GiB", "3d")
    assert shown["sealed"] == "true" and "subjects" not in shown and "compression" not in shown
    worker = ConsumerConfig(durable_name="C", ack_wait=90 * 10**9, filter_subject="s")
    board.observe_consumers("S", [ConsumerInfo(stream_name="S", name="C", config=worker)], 1.0)
    shown = dict(board.consumer("S", "C", Listing(), 1.0)["settings"])
    assert (shown["ack_wait"], shown["filter_subject"]) == ("1m30s", "s") and "durable_name" not in shown


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


def test_events_say_what_happened():
    board = Board()
    for kind, action in (("stream_action", "create"), ("consumer_action", "modify"), ("consumer_pause", "")):
        event = {"type": f"io.nats.jetstream.advisory.v1.{kind}", "stream": "S", "action": action}
        board.observe_advisory("$JS.EVENT.ADVISORY.X", json.dumps(event).encode(), 1.0)
    assert [row["title"] for row in board.advisories()] == ["consumer pause", "consumer updated", "stream created"]
    assert {row["text"] for row in board.advisories()} == {"stream S"}


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
    again = Board(board.dump(7200.0))
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
    assert board.dump(7200.0)["LATER"] == kept
    assert "LATER" not in board.dump(8 * 24 * 3600.0)  # its seven days are over


def attention(board: Board, time_s: float) -> tuple[list[str], int]:
    shown = board.summary(time_s)
    return [one["state"] for one in shown["attention"]], shown["unknown"]


def test_what_has_not_been_watched_for_long_enough_is_not_known_yet():
    board = Board()
    board.observe_streams([stream("S", 100, consumers=2)], 100.0)
    assert attention(board, 100.0) == ([], 2)  # their infos are not there yet
    waiting, idle = consumer("waiting", 1, pending=99), consumer("idle", 100)
    board.observe_consumers("S", [waiting, idle], 100.0)
    assert attention(board, 100.0) == ([], 1)
    assert board.consumer("S", "waiting", Listing(), 100.0)["rate"] is None
    board.observe_consumers("S", [waiting, idle], 110.0)
    assert attention(board, 110.0) == (["stuck"], 0)


def test_a_consumer_that_moves_is_known_at_once():
    board = Board()
    board.observe_streams([stream("S", 100, consumers=1)], 100.0)
    board.observe_consumers("S", [consumer("C", 1, pending=99)], 100.0)
    board.observe_consumers("S", [consumer("C", 2, pending=98)], 101.0)
    assert attention(board, 101.0) == ([], 0)


def test_a_board_goes_on_from_one_that_has_watched_for_longer():
    before = Board()
    for time_s in (100.0, 102.0, 104.0):
        before.observe_streams([stream("S", int(time_s), consumers=1)], time_s)
        before.observe_consumers("S", [consumer("C", 1, pending=99)], time_s)
    board = Board(before=before)
    board.observe_streams([stream("S", 112, consumers=1)], 112.0)
    board.observe_consumers("S", [consumer("C", 1, pending=99)], 112.0)
    assert attention(board, 112.0) == (["stuck"], 0)
    assert board.stream("S", Listing(), 112.0)["rate"] == 1.0
    assert known(board.stream("S", Listing(), 112.0)["charts"]["messages"])[:3] == [100.0, 102.0, 104.0]
    # What was made anew since has no past.
    other = Board(before=before)
    other.observe_streams([stream("S", 5, created="2026-11-16T00:00:00Z")], 112.0)
    assert known(other.stream("S", Listing(), 112.0)["charts"]["messages"]) == [5.0]


def test_consumers_of_a_stream_that_has_none_any_more_are_gone():
    board = Board()
    board.observe_streams([stream("S", 100, consumers=1)], 100.0)
    for time_s in (100.0, 120.0):
        board.observe_consumers("S", [consumer("C", 1, pending=99)], time_s)
    assert attention(board, 120.0) == (["stuck"], 0)
    board.observe_streams([stream("S", 100)], 121.0)
    assert attention(board, 121.0) == ([], 0)
    assert board.consumer("S", "C", Listing(), 121.0) is None


def test_the_first_page_has_rates_and_lag_of_everything_over_time_also_after_a_restart():
    board = Board()
    assert board.summary(1.0)["totals"]["rate"] is not None  # nothing is published where there is nothing
    for time_s in (4000.0, 4002.0, 4004.0):
        last = int(time_s)
        board.observe_streams([stream("S", last, consumers=1), stream("T", 2 * last, consumers=1)], time_s)
        if time_s == 4000.0:
            assert board.summary(time_s)["totals"]["rate"] is None  # one reading says nothing about a rate
        for name in ("S", "T"):
            board.observe_consumers(name, [consumer("C", last, pending=7)], time_s)
        board.observe_totals(time_s)
    shown = board.totals(Listing(), 4004.0)
    assert known(shown["charts"]["published"]) == [3.0, 3.0]
    assert known(shown["charts"]["pending"]) == [14.0, 14.0, 14.0]
    assert shown["delivered"] == 2.0
    later = Board(board.dump(4005.0))
    later.observe_totals(4100.0)
    assert known(later.totals(Listing(range="1h"), 4100.0)["charts"]["pending"])[0] == 14.0


def test_sums_of_what_a_reader_may_not_list_are_not_shown():
    before = Board()
    for time_s in (100.0, 102.0):
        before.observe_streams([stream("S", 1, consumers=1), stream("SECRET", 1, consumers=1)], time_s)
        for name in ("S", "SECRET"):
            before.observe_consumers(name, [consumer("C", 1, pending=5)], time_s)
        before.observe_totals(time_s)
    for names, pending in ((["S"], [5.0]), (["S", "SECRET"], [10.0, 10.0, 10.0])):
        board = Board(before=before)
        board.observe_streams([stream(name, 1, consumers=1) for name in names], 104.0)
        for name in names:
            board.observe_consumers(name, [consumer("C", 1, pending=5)], 104.0)
        board.observe_totals(104.0)
        assert known(board.totals(Listing(), 104.0)["charts"]["pending"]) == pending


def test_sums_are_taken_over_as_soon_as_nothing_is_missing():
    before = Board()
    for time_s in (100.0, 105.0):
        before.observe_streams([stream("S", 0, consumers=2)], time_s)
        before.observe_consumers("S", [consumer("gone", 0, pending=3), consumer("worker", 0, pending=4)], time_s)
        before.observe_totals(time_s)
    board = Board(before=before)
    pending = []
    for time_s in (106.0, 110.0):
        board.observe_streams([stream("S", 0, consumers=1)], time_s)
        board.observe_consumers("S", [consumer("worker", 0, pending=4)], time_s)
        board.observe_totals(time_s)
        pending.append(known(board.totals(Listing(), time_s)["charts"]["pending"])[0])
        # What is gone was deleted since the board before was fed last, and is not in it any more either.
        before.observe_consumers("S", [consumer("worker", 0, pending=4)], time_s + 1)
    assert pending == [4.0, 7.0]


def test_what_a_mirror_copies_was_published_once():
    board = Board()
    mirror = StreamConfig(name="COPY", mirror=StreamSource(name="S"))
    for time_s in range(100, 140, 2):
        copied = StreamInfo(config=mirror, state=StreamState(last_seq=5 * (time_s - 100)))
        board.observe_streams([stream("S", 5 * (time_s - 100)), copied], time_s)
        board.observe_totals(time_s)
    shown = board.totals(Listing(), 140.0)
    assert (board.summary(140.0)["totals"]["rate"], known(shown["charts"]["published"])[-1]) == (5.0, 5.0)
    assert [row["stream"] for row in shown["busiest"]] == ["S"]


def test_the_busiest_streams_and_the_most_pending_consumers_are_drawn():
    board = Board()
    for time_s in range(100, 140, 2):
        names = [f"S{number}" for number in range(8)]
        board.observe_streams([stream(name, at * (time_s - 100), consumers=1) for at, name in enumerate(names)], time_s)
        for at, name in enumerate(names):
            board.observe_consumers(name, [consumer("worker", 0, pending=at)], time_s)
    shown = board.totals(Listing(), 140.0)
    assert [row["stream"] for row in shown["busiest"]] == ["S7", "S6", "S5", "S4", "S3"]
    assert [row["stream"] for row in shown["lagging"]] == ["S7", "S6", "S5", "S4", "S3"]
    assert known(shown["busiest"][0])[-1] == 7.0 and known(shown["lagging"][0])[-1] == 7.0
