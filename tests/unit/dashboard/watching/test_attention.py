"""What the dashboard calls stuck, behind or full, and what it leaves in peace."""

from __future__ import annotations

import json

import pytest

from jetlake.dashboard.app import KINDS
from jetlake.dashboard.watching.attention import (
    BEHIND_SAMPLES_MIN,
    STUCK_S,
    Standstill,
    consumer_finding,
    stream_finding,
)
from jetlake.dashboard.watching.board import FINDINGS_MAX, Board
from jetlake.dashboard.watching.listing import Listing
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo, PriorityGroupState, SequenceInfo
from jetlake.model.enums import AckPolicy, DiscardPolicy
from jetlake.model.stream import ErrorBody, LostData, StreamConfig, StreamInfo, StreamSourceInfo, StreamState


def consumer(name="C", *, delivered=0, config=None, **fields):
    return ConsumerInfo(
        stream_name="S",
        name=name,
        config=ConsumerConfig(durable_name=name, **(config or {})),
        delivered=SequenceInfo(consumer_seq=delivered, stream_seq=delivered),
        **fields,
    )


def stream(name="S", *, config=None, **state):
    return StreamInfo(config=StreamConfig(name=name, **(config or {})), state=StreamState(**state))


@pytest.mark.parametrize(
    ("info", "level", "words"),
    [
        (consumer(num_pending=5), "bad", "no pull requests, 5 messages pending"),
        (consumer(num_pending=1, num_waiting=1), "bad", "not delivering, 1 message pending"),
        (consumer(num_pending=5, paused=True), "warn", "paused, 5 messages pending"),
        (consumer(num_pending=5, config={"deliver_subject": "x"}), "bad", "no active subscriber"),
        (
            consumer(num_pending=5, num_ack_pending=100, num_waiting=1, config={"max_ack_pending": 100}),
            "bad",
            "max_ack_pending of 100 reached",
        ),
        (consumer(num_ack_pending=3), "warn", "3 messages awaiting an ack, none received for 10s"),
    ],
)
def test_a_consumer_with_work_that_does_not_move_is_told_with_the_reason(info, level, words):
    found = consumer_finding(info, STUCK_S, [])
    assert found is not None
    assert (found.level, found.stream, found.consumer) == (level, "S", "C")
    assert words in found.text
    assert consumer_finding(info, STUCK_S - 1, []) is None


@pytest.mark.parametrize(
    ("info", "kind", "options"),
    [
        (consumer(num_pending=5), "consumer.delete", None),
        (consumer(num_pending=5, paused=True), "consumer.resume", None),
        (consumer(num_pending=5, config={"deliver_subject": "x"}), "consumer.delete", None),
        (
            consumer(num_pending=5, num_ack_pending=100, num_waiting=1, config={"max_ack_pending": 100}),
            "consumer.edit",
            {"max_ack_pending": 200},
        ),
        (
            consumer(
                num_pending=5, num_waiting=1, priority_groups=(PriorityGroupState(group="g", pinned_client_id="abc"),)
            ),
            "consumer.unpin",
            None,
        ),
    ],
)
def test_what_is_stuck_comes_with_the_way_out(info, kind, options):
    found = consumer_finding(info, STUCK_S, [])
    assert found.advice and found.command in ("jetlake consumer why S C", "jetlake consumer info S C")
    assert found.command.split()[2] == ("info" if info.config.deliver_subject else "why")
    assert found.remedy.kind == kind in KINDS
    assert {name: found.remedy.arguments[name] for name in ("stream", "consumer")} == {"stream": "S", "consumer": "C"}
    assert found.remedy.arguments.get("options") == options


def test_who_holds_messages_is_told_when_they_come_again():
    slow = consumer(num_ack_pending=3, config={"ack_policy": AckPolicy.EXPLICIT, "ack_wait": 30 * 10**9})
    assert "Without an ack within 30s they are delivered again." in consumer_finding(slow, STUCK_S, []).advice
    waits = {"ack_policy": AckPolicy.EXPLICIT, "ack_wait": 30 * 10**9, "backoff": (5 * 10**9, 60 * 10**9)}
    backing_off = consumer(num_redelivered=3, config=waits)
    assert "within 5s" in consumer_finding(backing_off, 0.0, []).advice


def test_a_client_at_work_on_what_it_fetched_is_not_taken_for_gone():
    """Until its messages are due again it may ask for more; the consumer is not to be deleted."""
    ack_wait = {"ack_policy": AckPolicy.EXPLICIT, "ack_wait": 30 * 10**9}
    working = consumer(num_pending=5, num_ack_pending=3, config=ack_wait)
    found = consumer_finding(working, 29.0, [])
    assert (found.level, found.state, found.remedy) == ("warn", "unacked", None)
    assert "3 messages awaiting an ack, none received for 29s; 5 messages pending and not requested" in found.text
    assert consumer_finding(working, 30.0, []).text == "no pull requests, 5 messages pending"


def test_a_reached_limit_is_not_blamed_for_messages_that_nobody_fetches_again():
    config = {"ack_policy": AckPolicy.EXPLICIT, "ack_wait": 30 * 10**9, "max_ack_pending": 3}
    full = consumer(num_pending=5, num_ack_pending=3, config=config)
    assert "max_ack_pending of 3 reached" in consumer_finding(full, 29.0, []).text
    assert consumer_finding(full, 30.0, []).text == "no pull requests, 5 messages pending"


def test_a_full_stream_comes_with_twice_the_limit_that_is_reached():
    full = stream(config={"discard": DiscardPolicy.NEW, "max_msgs": 100, "max_bytes": 10}, messages=1, bytes=10)
    remedy = stream_finding(full).remedy
    assert (remedy.kind, remedy.arguments) == ("stream.edit", {"stream": "S", "options": {"max_bytes": 20}})


def test_a_consumer_that_moves_or_has_nothing_to_do_stands_not_still():
    standstill = Standstill()
    standstill.observe(consumer(delivered=1, num_pending=9), 0.0)
    standstill.observe(consumer(delivered=1, num_pending=9), 8.0)
    assert standstill.seconds == 8.0
    standstill.observe(consumer(delivered=2, num_pending=8), 9.0)
    assert standstill.seconds == 0.0
    standstill.observe(consumer(delivered=2), 50.0)
    assert standstill.seconds == 0.0


def test_pending_that_rises_is_told_and_a_burst_that_is_worked_off_is_not():
    moving = consumer(num_pending=1)
    rising = [float(1000 * step) for step in range(BEHIND_SAMPLES_MIN)]
    found = consumer_finding(moving, 0.0, rising)
    assert found is not None and found.text == "falling behind: pending grew from 0 to 29,000 in the last five minutes"
    assert consumer_finding(moving, 0.0, rising[:-1]) is None
    assert consumer_finding(moving, 0.0, [*rising, 15_000.0]) is None
    assert consumer_finding(moving, 0.0, [float(step) for step in range(BEHIND_SAMPLES_MIN)]) is None


def test_redeliveries_are_told():
    found = consumer_finding(consumer(num_redelivered=2), 0.0, [])
    assert found is not None and found.state == "redelivering"


def test_streams_that_refuse_or_lost_messages_are_told():
    refusing = {"discard": DiscardPolicy.NEW, "max_msgs": 10}
    assert stream_finding(stream(config=refusing, messages=8)) is None
    assert stream_finding(stream(config=refusing, messages=9)).state == "nearly full"
    assert stream_finding(stream(config=refusing, messages=10)).level == "bad"
    assert stream_finding(stream(config={"max_msgs": 10}, messages=10)) is None
    assert stream_finding(stream(messages=1, lost=LostData(msgs=[7]))).state == "lost"


def test_what_the_server_itself_complains_of_is_told():
    board = Board()
    assert board.summary(0.0)["attention"] == []
    board.health = {"status": "ok"}
    assert board.summary(0.0)["attention"] == []
    board.health = {"status": "unavailable", "error": "stream in A of account $G is set aside"}
    (found,) = board.summary(0.0)["attention"]
    assert (found["level"], found["text"]) == ("bad", "stream in A of account $G is set aside")


def test_a_store_that_is_nearly_full_and_clients_that_read_too_slowly_are_told():
    board = Board()
    shown = board.summary(0.0)
    assert (shown["storage"], shown["slow_consumers"]) == (None, None)
    board.account = {"storage": 50, "max_storage": -1}
    report = {"slow_consumers": 3, "jetstream": {"config": {"max_storage": 1000}, "stats": {"storage": 899}}}
    board.observe_server(report, 0.0)
    shown = board.summary(0.0)
    assert (shown["storage"], shown["storage_max"], shown["slow_consumers"]) == (899, 1000, 3)
    assert shown["attention"] == []  # those three may be from last year
    report = {"slow_consumers": 4, "jetstream": {"config": {"max_storage": 1000}, "stats": {"storage": 900}}}
    board.observe_server(report, 10.0)
    full, slow = board.summary(10.0)["attention"]
    assert (full["state"], slow["state"]) == ("disk", "slow")
    assert "1 client was disconnected" in slow["text"] and full["advice"] and slow["command"]
    assert [one["state"] for one in board.summary(611.0)["attention"]] == ["disk"]
    # The limit of an account is nearer than that of the server.
    board.account = {"storage": 50, "max_storage": 100}
    assert (board.summary(611.0)["storage"], board.summary(611.0)["attention"]) == (50, [])
    # Nothing that a server answers breaks the page.
    board.observe_server({"slow_consumers": "x", "jetstream": {"config": 1}}, 700.0)
    assert board.summary(700.0)["slow_consumers"] == 0


def test_the_board_gathers_them_the_worst_first_and_tells_how_many():
    board = Board()
    board.observe_streams([stream(consumer_count=2)], 0.0)
    many = [consumer(f"C{number}", num_redelivered=1) for number in range(FINDINGS_MAX)]
    for time_s in (0.0, STUCK_S):
        heavy = consumer("heavy", num_pending=9)
        board.observe_consumers("S", [*many, consumer("stuck", num_pending=1), heavy], time_s)
    advisory = {
        "type": "io.nats.jetstream.advisory.v1.max_deliver",
        "stream": "S",
        "consumer": "stuck",
        "stream_seq": 3,
    }
    for _ in range(2):
        board.observe_advisory("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.stuck", json.dumps(advisory).encode(), 5.0)
    board.observe_pipeline(b'{"id": "1", "name": "archive S", "state": "failed"}', 5.0)
    shown = board.summary(STUCK_S)
    assert (len(shown["attention"]), shown["attention_total"]) == (FINDINGS_MAX, FINDINGS_MAX + 4)
    assert shown["attention"][0]["consumer"] == "heavy"
    worst = {one["text"] for one in shown["attention"][1:4]}
    assert worst == {
        "no pull requests, 1 message pending",
        "2 messages reached max_deliver",
        "pipeline archive S failed",
    }
    assert board.summary(700.0)["attention_total"] == FINDINGS_MAX + 2
    assert board.consumer("S", "stuck", Listing(), STUCK_S)["finding"]["state"] == "stuck"


@pytest.mark.parametrize(
    ("copy", "words"),
    [
        (
            StreamSourceInfo(name="O", error=ErrorBody(code=404, err_code=10059, description="stream not found")),
            "not found",
        ),
        (StreamSourceInfo(name="O", lag=7, active=60 * 10**9), "7 messages of O are not copied yet"),
        (StreamSourceInfo(name="O", lag=7, active=-1), "7 messages of O"),
        (StreamSourceInfo(name="O", lag=7, active=10**9), None),
        (StreamSourceInfo(name="O", lag=0, active=60 * 10**9), None),
    ],
)
def test_mirrors_and_sources_that_do_not_copy(copy, words):
    for info in (
        StreamInfo(config=StreamConfig(name="S"), mirror=copy),
        StreamInfo(config=StreamConfig(name="S"), sources=(StreamSourceInfo(name="P"), copy)),
    ):
        finding = stream_finding(info)
        if words is None:
            assert finding is None
        else:
            assert (finding.level, finding.state, finding.stream) == ("bad", "not copying", "S")
            assert words in finding.text
