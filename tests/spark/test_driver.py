"""The driver's half by hand, in the order in which Spark calls it, without a Spark session."""

from __future__ import annotations

import json
import time
from unittest import mock

import pytest
from pyspark.sql.types import StructType

from jetlake.client.tables import message_gets as direct_gets
from jetlake.client.tables import survey
from jetlake.client.tables.bounds import Bounds
from jetlake.client.tables.message_columns import columns_of_direct_gets
from jetlake.client.tables.spark_offsets import read_offset
from jetlake.errors import (
    AuthorizationError,
    ConsumerHeldError,
    DataLossError,
    NoServersError,
    StreamRecreatedError,
    UnsupportedStreamError,
)
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.progress import metrics
from jetlake.spark.source import driver
from jetlake.spark.source.batch_reader import plan_batch
from jetlake.spark.source.executor import read_task
from jetlake.spark.source.stream_reader import StreamReader
from jetlake.spark.source.stream_watch import Clock
from tests.spark.driving import Query


def test_batches_follow_each_other(server, admin, stream):
    admin.create_stream(stream)
    admin.fill(stream, 25)
    query = Query(server, stream, maxMessagesPerTrigger="10")
    assert [query.batch() for _ in range(4)] == [[*range(1, 11)], [*range(11, 21)], [*range(21, 26)], None]
    admin.fill(stream, 3)
    query.restart()
    assert query.batch() == [26, 27, 28]


def test_a_batch_can_be_repeated_exactly(server, admin, stream):
    admin.create_stream(stream)
    admin.fill(stream, 30)
    query = Query(server, stream, messagesPerPartition="7")
    end = query.plan()
    first = query.ranges(end)
    assert len(first) == 5
    admin.fill(stream, 30)
    query.restart()
    assert query.ranges(end) == first
    assert query.read(end) == [*range(1, 31)]


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ("earliest", [1, 2, 3, 4, 5]),
        ("latest", []),
        ("seq:4", [4, 5]),
        ("last:2", [4, 5]),
        ("time:2020-01-01T00:00:00Z", [1, 2, 3, 4, 5]),
        ("time:1500-01-01T00:00:00Z", [1, 2, 3, 4, 5]),
        ("time:9999-12-31T00:00:00Z", []),
        ("time:2200-01-01T00:00:00Z", []),
    ],
)
def test_the_first_batch_pins_where_the_query_starts(server, admin, stream, position, expected):
    admin.create_stream(stream)
    admin.fill(stream, 5)
    query = Query(server, stream, startingPosition=position)
    assert query.batch() == expected
    admin.fill(stream, 2)
    query.restart()
    assert query.batch() == [6, 7]


def test_an_empty_stream_starts_the_query_too(server, admin, stream):
    admin.create_stream(stream)
    query = Query(server, stream, startingPosition="latest")
    assert query.batch() == []
    assert query.batch() is None
    admin.fill(stream, 2)
    query.restart()
    assert query.batch() == [1, 2]


def test_available_now_stops_where_the_stream_ended(server, admin, stream):
    admin.create_stream(stream)
    admin.fill(stream, 12)
    query = Query(server, stream, maxMessagesPerTrigger="5", minMessagesPerTrigger="5")
    query.driver.stop_at_present_end()
    admin.fill(stream, 100)
    assert [query.batch() for _ in range(4)] == [[*range(1, 6)], [*range(6, 11)], [11, 12], None]


def test_a_minimum_waits_but_not_for_ever(server, admin, stream):
    admin.create_stream(stream)
    query = Query(server, stream, minMessagesPerTrigger="10", maxTriggerDelay="60s")
    assert query.batch() == []
    admin.fill(stream, 4)
    assert query.batch() is None
    query.time.now_s += 61
    assert query.batch() == [1, 2, 3, 4]
    admin.fill(stream, 10)
    assert query.batch() == [*range(5, 15)]
    # Messages that were deleted, and messages that a filter does not want, do not count.
    admin.fill(stream, 20, subjects=2)
    for sequence in range(20, 34):
        admin.api(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})
    assert query.batch() is None
    query.time.now_s += 61
    assert query.batch() == [15, 16, 17, 18, 19, 34]
    query.restart(subjects=f"{stream}.1")
    admin.fill(stream, 16, subjects=2)
    assert query.batch() is None
    admin.fill(stream, 4, subjects=2)
    assert query.batch() == [*range(36, 55, 2)]


def test_the_server_is_asked_once_in_a_poll_interval(server, admin, stream):
    admin.create_stream(stream)
    query = Query(server, stream, pollInterval="500ms")
    query.batch()
    before = query.time.now_s
    assert query.plan() is None
    # One second was given; the driver waited for the rest of the interval by itself and asked again.
    assert query.time.now_s > before + 1
    lag = query.driver.present_end()
    admin.fill(stream, 5)
    assert query.driver.present_end() == lag
    query.time.now_s += 1
    assert query.driver.present_end().of(stream).next == 6


@pytest.mark.parametrize(("guarantee", "retention"), [("exactlyOnce", "limits"), ("atLeastOnce", "workqueue")])
def test_a_plan_without_messages_polls_for_a_while(server, admin, stream, guarantee, retention):
    admin.create_stream(stream, retention=retention)
    query = Query(server, stream, guarantee=guarantee)
    query.batch()
    time, before = query.time, query.time.sleeps

    def publish_while_the_plan_is_held():
        if time.sleeps == before + 3:
            admin.fill(stream, 2)

    time.on_sleep = publish_while_the_plan_is_held
    assert query.batch() == [1, 2]
    held_s = time.now_s
    assert query.plan() is None
    assert time.now_s - held_s < 2


def test_limits_count_what_a_filter_lets_through(server, admin, stream):
    admin.create_stream(stream)
    admin.fill(stream, 5000, subjects=1)
    admin.publish([(f"{stream}.rare", b"x")])
    admin.fill(stream, 500, subjects=1)
    query = Query(server, stream, subjects=f"{stream}.rare", maxMessagesPerTrigger="10")
    batches = list(iter(query.batch, None))
    assert [batch for batch in batches if batch] == [[5001]]
    assert len(batches) < 5


@pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
def test_a_mirror_with_a_hole_does_not_answer_for_its_origin(server, admin, stream, retention):
    """All is read and nothing is released unread, whoever the server lets answer."""
    admin.create_stream(stream, retention=retention)
    query = Query(server, stream, reader="direct", maxMessagesPerTrigger="100")
    assert query.batch() == []  # Whose consumer an interest stream keeps messages for.
    admin.fill(stream, 400)
    copy = f"{stream}_COPY"
    admin.create_stream(copy, subjects=[], mirror={"name": stream}, mirror_direct=True, max_msgs=10)
    while admin.state(copy)["last_seq"] < 400:
        time.sleep(0.02)
    assert [query.batch() for _ in range(4)] == [[*range(first, first + 100)] for first in (1, 101, 201, 301)]
    assert query.batch() in (None, [])
    assert query.lost == {stream: 0}
    admin.api(f"STREAM.DELETE.{copy}")


@pytest.mark.parametrize("reader", ["consumer", "direct", "leader"])
def test_several_subjects_are_read_in_order(server, admin, stream, reader):
    admin.create_stream(stream)
    admin.fill(stream, 3000, subjects=100)
    wanted = [number for number in range(1, admin.state(stream)["last_seq"] + 1) if (number - 1) % 100 in (7, 8, 55)]
    query = Query(server, stream, subjects=f"{stream}.7,{stream}.8,{stream}.55,{stream}.none", reader=reader)
    came = []

    def columns(*arguments):
        found, statuses = columns_of_direct_gets(*arguments)
        came.extend(found.sequence.tolist())
        return found, statuses

    with mock.patch.object(direct_gets, "columns_of_direct_gets", columns):
        assert query.batch() == wanted
    # Only what is wanted comes over the wire, and once.
    assert sorted(came) == (wanted if reader == "direct" else [])


def test_bytes_limit_a_batch_by_what_is_there(server, admin, stream):
    """Small messages and large ones: every batch is as full as its messages allow."""
    admin.create_stream(stream)
    admin.publish([(f"{stream}.x", b"y" * 100)] * 400 + [(f"{stream}.x", b"z" * 10_000)] * 20)
    query = Query(server, stream, maxBytesPerTrigger="20k")
    batches = list(iter(query.batch, None))
    assert [sequence for batch in batches for sequence in batch] == [*range(1, 421)]
    sizes = [sum(100 if sequence <= 400 else 10_000 for sequence in batch) for batch in batches]
    assert all(size <= 20_480 for size in sizes)
    # One small batch where the large ones begin, and the last.
    assert sorted(sizes)[2] >= 10_000
    assert len(batches) <= 15


def test_a_message_larger_than_the_limit_is_a_batch(server, admin, stream):
    admin.create_stream(stream)
    admin.publish([(f"{stream}.x", b"y" * 5000)] * 3)
    query = Query(server, stream, maxBytesPerTrigger="1k")
    assert list(iter(query.batch, None)) == [[1], [2], [3]]


@pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
def test_message_limits_are_exact_under_filters(server, admin, stream, retention):
    admin.create_stream(stream, retention=retention)
    query = Query(server, stream, subjects=f"{stream}.3,{stream}.7", maxMessagesPerTrigger="10")
    assert query.batch() == []
    admin.fill(stream, 1200, subjects=50)
    batches = [batch for batch in iter(query.batch, None) if batch]
    assert [len(batch) for batch in batches] == [10, 10, 10, 10, 8]
    wanted = [number for number in range(1, 1201) if (number - 1) % 50 in (3, 7)]
    assert [sequence for batch in batches for sequence in batch] == wanted


@pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
def test_message_limits_do_not_count_deleted_messages(server, admin, stream, retention):
    admin.create_stream(stream, retention=retention)
    query = Query(server, stream, maxMessagesPerTrigger="4")
    assert query.batch() == []
    for _ in range(3):
        admin.publish([(f"{stream}.kept", b"x")] * 3 + [(f"{stream}.deleted", b"x")] * 597)
    admin.api(f"STREAM.PURGE.{stream}", {"filter": f"{stream}.deleted", "seq": 1790})
    batches = list(iter(query.batch, None))
    kept = [1, 2, 3, 601, 602, 603, 1201, 1202, 1203, *range(1790, 1801)]
    assert [sequence for batch in batches for sequence in batch] == kept
    assert [len(batch) for batch in batches] == [4, 4, 4, 4, 4]


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_the_last_messages_of_a_filter(server, admin, stream, retention):
    admin.create_stream(stream, retention=retention)
    admin.fill(stream, 300, subjects=30)
    admin.fill(stream, 50, subjects=1)
    for count, expected in ((5, [159, 189, 219, 249, 279]), (20, [*range(9, 300, 30)]), (0, [])):
        options = SourceOptions.of(
            {"servers": server.url, "stream": stream, "subjects": f"{stream}.8", "startingPosition": f"last:{count}"}
        )
        tasks = plan_batch(options, Bounds(), Clock())
        assert [s for task in tasks for part in read_task(task, options) for s in part.sequence.tolist()] == expected


def test_times_that_no_server_can_count(server, admin, stream):
    """In positions, and in predicates that Spark pushes down."""
    admin.create_stream(stream)
    admin.fill(stream, 5)
    far_us, long_ago_us = 253_402_300_799_999_999 + 1, -62_135_596_800_000_000  # The years 10000 and 1.
    options = SourceOptions.of(
        {"servers": server.url, "stream": stream, "endingPosition": "time:9999-12-31T23:59:59.999999Z"}
    )
    for bounds, expected in (
        (Bounds(), [1, 2, 3, 4, 5]),
        (Bounds(first_us=long_ago_us, end_us=far_us), [1, 2, 3, 4, 5]),
        (Bounds(first_us=far_us), []),
        (Bounds(end_us=long_ago_us), []),
    ):
        tasks = plan_batch(options, bounds, Clock())
        assert [s for task in tasks for part in read_task(task, options) for s in part.sequence.tolist()] == expected


def test_several_streams(server, admin, stream):
    a, b = stream + "A", stream + "B"
    admin.create_stream(a)
    admin.create_stream(b)
    admin.fill(a, 90)
    admin.fill(b, 10)
    query = Query(server, f"{a},{b}", maxMessagesPerTrigger="50", startingPosition=json.dumps({b: "seq:6"}))
    end = query.plan()
    assert query.ranges(end) == [(a, 1, 48), (b, 6, 8)]
    query.offset = end
    while query.batch() is not None:
        pass
    assert (query.of(a)["next"], query.of(b)["next"]) == (91, 11)


def test_a_batch_has_as_many_tasks_as_the_cluster_had_cores(server, admin, stream, monkeypatch):
    admin.create_stream(stream)
    admin.fill(stream, 30)
    monkeypatch.setenv("JETLAKE_SPARK_CORES", "12")
    query = Query(server, stream, messagesPerPartition="1")
    end = query.plan()
    assert len(query.ranges(end)) == 12
    # Repeated on another cluster, or where nobody knows the cluster.
    monkeypatch.setenv("JETLAKE_SPARK_CORES", "3")
    assert len(query.ranges(end)) == 12
    monkeypatch.delenv("JETLAKE_SPARK_CORES")
    query.restart()
    assert len(query.ranges(end)) == 12
    assert query.read(end) == [*range(1, 31)]
    assert len(query.ranges(query.plan())) == 8
    query.restart(maxPartitions="5")
    assert len(query.ranges(query.plan())) == 5


def test_streams_of_a_pattern_are_found_as_they_come(server, admin, stream):
    def publish(name, count):
        admin.publish([(f"{name}.x", b"%d" % number) for number in range(count)])

    first, second, other = f"{stream}_1", f"{stream}_2", f"X{stream}_3"
    for name in (first, other):
        admin.create_stream(name)
        publish(name, 5)
    query = Query(server, f"{stream}_*", startingPosition="latest", minPartitions="1")
    query.offset = query.plan()
    publish(first, 2)
    admin.create_stream(second)
    publish(second, 4)
    # Looked for again when the interval is over; its messages from before that count.
    assert query.ranges(query.plan()) == [(first, 6, 8)]
    query.time.now_s += 10
    assert sorted(query.batch()) == [1, 2, 3, 4, 6, 7]
    assert query.batch() is None
    publish(second, 1)
    query.restart()
    assert query.batch() == [5]
    options = SourceOptions.of({"servers": server.url, "stream": f"{stream}_*,{other}"})
    assert sorted(part.stream for part in plan_batch(options, Bounds(), Clock())) == sorted([first, second, other])
    # All of the first stream is read; of the second something is not.
    admin.api(f"STREAM.DELETE.{first}")
    query.restart()
    assert query.batch() is None
    publish(second, 3)
    query.restart(maxMessagesPerTrigger="1")
    assert query.batch() == [6]
    admin.api(f"STREAM.DELETE.{second}")
    admin.create_stream(first)
    query.restart()
    with pytest.raises(DataLossError, match=f"{second} was deleted, and up to 2"):
        query.plan()


def test_what_a_deleted_stream_of_a_pattern_had_is_counted_once(server, admin, stream):
    kept, gone = f"{stream}_1", f"{stream}_2"
    for name in (kept, gone):
        admin.create_stream(name)
    admin.fill(gone, 6)
    query = Query(server, f"{stream}_*", failOnDataLoss="false", maxMessagesPerTrigger="2")
    assert query.batch() == [1, 2]
    admin.api(f"STREAM.DELETE.{gone}")
    query.restart()
    # Though nothing is to be read, the count reaches the checkpoint; neither a batch nor a restart counts again.
    assert query.batch() == []
    assert query.lost == {kept: 0, gone: 4}
    assert query.batch() is None
    query.restart()
    assert query.batch() is None
    admin.fill(kept, 1)
    query.time.now_s += 10
    assert query.batch() == [1]
    assert query.lost == {kept: 0, gone: 4}
    # Another stream of that name is read from its beginning, and the count stays.
    admin.create_stream(gone)
    admin.fill(gone, 3)
    query.restart(maxMessagesPerTrigger="10")
    assert query.batch() == [1, 2, 3]
    # A planned batch whose stream goes before it is read is lost too, and its rest.
    assert query.lost[gone] == 4
    admin.fill(gone, 5)
    query.restart(maxMessagesPerTrigger="2")
    end = query.plan()
    admin.api(f"STREAM.DELETE.{gone}")
    query.restart()
    assert query.read(end) == []
    query.offset = end
    assert query.batch() == []
    assert query.lost == {kept: 0, gone: 9}
    query.restart(failOnDataLoss="true")
    with pytest.raises(DataLossError, match=f"{gone} was deleted before its messages 4 to 5"):
        query.read(end)


@pytest.mark.parametrize("subjects", ["", ">"])
def test_a_stream_of_a_pattern_is_deleted_while_the_query_runs(server, admin, stream, subjects):
    kept, gone, other = f"{stream}_1", f"{stream}_2", f"{stream}_3"
    for name in (kept, gone):
        admin.create_stream(name)
        admin.fill(name, 3)
    query = Query(server, f"{stream}_*", **({"subjects": subjects} if subjects else {}))
    assert query.batch() == [1, 2, 3, 1, 2, 3]
    # All of it was read, and it is not yet time to look for streams again.
    admin.api(f"STREAM.DELETE.{gone}")
    assert query.batch() is None
    assert [name for name, _ in query.driver.present_end().streams] == [kept]
    waited_s = query.time.now_s
    assert query.batch() is None
    assert query.time.now_s > waited_s + 1
    admin.fill(kept, 2)
    assert query.batch() == [4, 5]
    # Another one is deleted with messages that were not read.
    admin.create_stream(other)
    admin.fill(other, 4)
    query.restart(maxMessagesPerTrigger="1")
    assert query.batch() == [1]
    admin.api(f"STREAM.DELETE.{other}")
    with pytest.raises(DataLossError, match=f"{other} was deleted, and up to 3"):
        query.batch()
    query.restart()
    query.driver.stop_at_present_end()
    admin.api(f"STREAM.DELETE.{kept}")
    query.time.now_s += 1
    with pytest.raises(UnsupportedStreamError, match="no stream matches"):
        query.driver.present_end()


def test_a_pattern_that_means_no_stream(server, stream):
    with pytest.raises(UnsupportedStreamError, match="no stream matches"):
        Query(server, f"{stream}_none_*").plan()


def test_lost_messages_are_an_error_that_says_what_to_do(server, admin, stream):
    admin.create_stream(stream)
    admin.fill(stream, 10)
    query = Query(server, stream, maxMessagesPerTrigger="3")
    query.batch()
    admin.api(f"STREAM.PURGE.{stream}", {"seq": 8})
    with pytest.raises(DataLossError, match=r"messages 4 to 7 .*failOnDataLoss=false"):
        query.plan()


def test_lost_messages_are_counted_when_they_are_no_error(server, admin, stream):
    admin.create_stream(stream)
    admin.fill(stream, 10)
    query = Query(server, stream, maxMessagesPerTrigger="3", failOnDataLoss="false")
    query.batch()
    admin.api(f"STREAM.PURGE.{stream}", {"seq": 8})
    assert query.batch() == [8, 9, 10]
    assert query.of(stream)["lost"] == 4
    assert query.of(stream)["batch"]["from"] == 8


def test_messages_deleted_in_between_are_no_loss(server, admin, stream):
    admin.create_stream(stream)
    admin.fill(stream, 10)
    query = Query(server, stream, maxMessagesPerTrigger="6")
    for sequence in (2, 6, 7, 10):
        admin.api(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})
    assert [query.batch(), query.batch(), query.batch()] == [[1, 3, 4, 5], [8, 9], None]


def test_a_repeated_batch_notices_what_was_lost_since(server, admin, stream):
    admin.create_stream(stream)
    admin.fill(stream, 10)
    query = Query(server, stream, startingPosition="seq:1")
    end = query.plan()
    admin.api(f"STREAM.PURGE.{stream}", {"seq": 5})
    query.restart()
    with pytest.raises(DataLossError, match="messages 1 to 4"):
        query.read(end)


def test_a_task_notices_what_was_lost_since_it_was_planned(server, admin, stream):
    admin.create_stream(stream)
    admin.fill(stream, 10)
    query = Query(server, stream, startingPosition="seq:1")
    (partition,) = query.driver.partitions(read_offset(query.offset), read_offset(query.plan()))
    admin.api(f"STREAM.PURGE.{stream}", {"seq": 5})
    with pytest.raises(DataLossError, match="messages 1 to 4"):
        list(read_task(partition, query.options))
    admin.api(f"STREAM.PURGE.{stream}")
    with pytest.raises(DataLossError, match="messages 1 to 10"):
        list(read_task(partition, query.options))


def test_a_stream_that_was_made_again_is_noticed(server, admin, stream):
    admin.create_stream(stream)
    admin.fill(stream, 10)
    query = Query(server, stream)
    query.batch()
    admin.api(f"STREAM.DELETE.{stream}")
    admin.create_stream(stream)
    admin.fill(stream, 20)
    with pytest.raises(StreamRecreatedError, match="deleted and recreated"):
        query.plan()
    query.restart(failOnDataLoss="false")
    assert query.batch() == [*range(1, 21)]


def test_a_stream_that_is_not_there(server, stream):
    with pytest.raises(UnsupportedStreamError, match=f"stream {stream} does not exist on .*create it"):
        Query(server, stream).plan()


@pytest.mark.parametrize("reader", ["consumer", "direct", "leader"])
def test_a_stream_that_is_deleted_while_it_is_read(server, admin, stream, reader):
    admin.create_stream(stream)
    admin.fill(stream, 100)
    query = Query(server, stream, reader=reader)
    (partition,) = query.driver.partitions(read_offset(query.offset), read_offset(query.plan()))
    admin.api(f"STREAM.DELETE.{stream}")
    with pytest.raises(UnsupportedStreamError, match=r"deleted|no longer"):
        list(read_task(partition, query.options))


def test_a_server_that_is_not_there(stream):
    class Nowhere:
        url = "nats://127.0.0.1:1"

    with pytest.raises(NoServersError, match=r"127.0.0.1:1"):
        Query(Nowhere, stream, retryFor="0s").plan()


# Work queues and interest streams


def queue(admin, stream, retention, **config):
    admin.create_stream(stream, retention=retention, **config)


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_messages_leave_a_queue_only_after_their_batch(server, admin, stream, retention):
    queue(admin, stream, retention)
    query = Query(server, stream, maxMessagesPerTrigger="4")
    assert query.batch() == []
    admin.fill(stream, 10)
    assert query.batch() == [1, 2, 3, 4]
    assert admin.state(stream)["messages"] == 10
    end = query.plan()
    assert admin.state(stream)["messages"] == 6
    # The batch was planned and read, and then the driver died before its commit.
    assert query.read(end) == [5, 6, 7, 8]
    query.restart()
    assert query.read(end) == [5, 6, 7, 8]
    query.offset = end
    assert query.batch() == [9, 10]
    assert query.batch() is None
    assert admin.state(stream)["messages"] == 0


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_only_the_own_subjects_are_released(server, admin, stream, retention):
    queue(admin, stream, retention)
    if retention == "interest":
        admin.api(
            f"CONSUMER.CREATE.{stream}.other",
            {"stream_name": stream, "config": {"name": "other", "durable_name": "other", "ack_policy": "explicit"}},
        )
    query = Query(server, stream, subjects=f"{stream}.0,{stream}.1")
    query.batch()
    admin.fill(stream, 9, subjects=3)
    assert query.batch() == [1, 2, 4, 5, 7, 8]
    assert query.batch() is None
    left = [message["seq"] for message in admin.messages(stream)]
    assert left == ([3, 6, 9] if retention == "workqueue" else [*range(1, 10)])


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
@pytest.mark.parametrize("changed", ["b", "a,b", ""])
def test_a_queue_is_read_with_the_same_subjects_on(server, admin, stream, retention, changed):
    """By others, what was never read of them would be released with what was."""
    queue(admin, stream, retention)
    query = Query(server, stream, subjects=f"{stream}.a", consumer="spark")
    assert query.batch() == []
    other = {"name": "b", "durable_name": "b", "ack_policy": "explicit", "filter_subject": f"{stream}.b"}
    admin.api(f"CONSUMER.CREATE.{stream}.b", {"stream_name": stream, "config": other})
    admin.publish([(f"{stream}.{'ab'[number % 2]}", b"") for number in range(6)])
    assert query.batch() == [1, 3, 5]
    assert query.batch() is None
    admin.publish([(f"{stream}.{'ab'[number % 2]}", b"") for number in range(2)])
    end = query.plan()
    for name in ("spark", "b"):
        admin.api(f"CONSUMER.DELETE.{stream}.{name}")
    held = admin.state(stream)["messages"]
    given = {"subjects": ",".join(f"{stream}.{token}" for token in changed.split(","))} if changed else {}
    del query.given["subjects"]
    query.restart(failOnDataLoss="false", **given)
    for action in (query.plan, lambda: query.read(end)):
        with pytest.raises(UnsupportedStreamError, match=rf"with subjects {stream}\.a, and option subjects is now"):
            action()
    assert admin.state(stream)["messages"] == held
    if retention == "workqueue":
        query.restart(subjects=f"{stream}.a")
        assert query.read(end) == [7]
        query.offset = end
        assert query.batch() is None
        assert [message["seq"] for message in admin.messages(stream)] == [2, 4, 6, 8]


@pytest.mark.parametrize("repeated", [True, False])
def test_a_checkpoint_of_a_shared_consumer_is_none_of_a_query_that_has_the_queue_for_itself(
    server, admin, stream, repeated
):
    queue(admin, stream, "workqueue")
    query = Query(server, stream, guarantee="atLeastOnce", consumer="shared")
    assert query.batch() == []
    admin.fill(stream, 1)
    admin.request(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.shared", {"batch": 1})
    admin.fill(stream, 3)
    end = query.plan()
    if not repeated:
        assert query.read(end) == [2, 3, 4]
        query.offset = end
    # A worker still holds the first message, which nobody has read: to purge up to the query's place would lose it.
    query.restart(guarantee="exactlyOnce")
    with pytest.raises(UnsupportedStreamError, match="guarantee=atLeastOnce"):
        query.read(end) if repeated else query.plan()
    assert admin.state(stream)["messages"] == 4
    query.restart(guarantee="atLeastOnce")
    if repeated:
        assert query.read(end) == [2, 3, 4]
        query.offset = end
    assert query.batch() is None
    assert admin.state(stream)["messages"] == 1


def test_at_least_once_with_other_subjects_than_the_consumers(server, admin, stream):
    queue(admin, stream, "workqueue")
    config = {"name": "c", "durable_name": "c", "ack_policy": "explicit", "filter_subject": f"{stream}.a"}
    admin.api(f"CONSUMER.CREATE.{stream}.c", {"stream_name": stream, "config": config})
    options = {"guarantee": "atLeastOnce", "consumer": "c"}
    with pytest.raises(ConsumerHeldError, match=rf"delivers {stream}\.a, not {stream}\.b"):
        Query(server, stream, subjects=f"{stream}.b", **options).plan()
    assert Query(server, stream, subjects=f"{stream}.a", **options).batch() == []
    assert Query(server, stream, **options).batch() == []


@pytest.mark.parametrize("guarantee", ["exactlyOnce", "atLeastOnce"])
def test_a_report_says_how_far_the_query_is_behind(server, admin, stream, guarantee):
    queue(admin, stream, "workqueue")
    admin.fill(stream, 10)
    for sequence in range(5, 9):
        admin.api(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})
    options = {"servers": server.url, "stream": stream, "guarantee": guarantee, "maxMessagesPerTrigger": "2"}
    reader = StreamReader(StructType().add("data", "binary"), SourceOptions.of(options))
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    source = {"endOffset": json.dumps(end), "latestOffset": json.dumps(reader.reportLatestOffset())}
    figures = metrics({"sources": [source]})[stream]
    assert (figures.lag, figures.behind, figures.lost) == (8, 6, 0)
    assert figures.server


def test_a_work_queue_has_one_reader(server, admin, stream):
    queue(admin, stream, "workqueue")
    admin.fill(stream, 3)
    first = Query(server, stream)
    first.batch()
    with pytest.raises(ConsumerHeldError, match=r"belongs to another query.*consumerTakeover"):
        Query(server, stream).plan()
    with pytest.raises(ConsumerHeldError, match="another consumer of work queue"):
        Query(server, stream, subjects=f"{stream}.1").plan()
    taker = Query(server, stream, consumerTakeover="true")
    assert taker.batch() == [1, 2, 3]
    first.restart()
    with pytest.raises(ConsumerHeldError, match="belongs to another query"):
        first.plan()


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
@pytest.mark.parametrize("takeover", ["false", "true"])
def test_a_query_that_runs_while_another_takes_over_stops(server, admin, stream, retention, takeover):
    """Also one that was told itself, once, to take over."""
    queue(admin, stream, retention)
    first = Query(server, stream, consumerTakeover=takeover)
    first.batch()
    admin.fill(stream, 3)
    assert first.batch() == [1, 2, 3]
    taker = Query(server, stream, consumerTakeover="true")
    assert taker.batch() == [1, 2, 3]
    # The first one's batch is done, and it would release it.
    with pytest.raises(ConsumerHeldError, match=r"taken over consumer "):
        first.plan()
    assert admin.state(stream)["messages"] == 3
    admin.fill(stream, 2)
    assert taker.batch() == [4, 5]
    assert taker.batch() is None
    assert admin.state(stream)["messages"] == 0


def test_a_batch_that_was_planned_before_a_takeover_is_not_read(server, admin, stream):
    queue(admin, stream, "workqueue")
    admin.fill(stream, 3)
    first = Query(server, stream)
    first.batch()
    admin.fill(stream, 2)
    end = first.plan()
    assert Query(server, stream, consumerTakeover="true").batch() == [4, 5]
    with pytest.raises(ConsumerHeldError, match=r"taken over consumer "):
        first.read(end)


def test_a_query_that_died_before_its_first_batch_can_start_again(server, admin, stream):
    queue(admin, stream, "workqueue")
    admin.fill(stream, 3)
    Query(server, stream).plan()
    assert Query(server, stream).batch() == [1, 2, 3]


def test_interest_streams_may_have_several_queries(server, admin, stream):
    queue(admin, stream, "interest")
    a, b = Query(server, stream, consumer="a"), Query(server, stream, consumer="b")
    a.batch()
    b.batch()
    admin.fill(stream, 5)
    assert a.batch() == [1, 2, 3, 4, 5]
    assert a.batch() is None
    assert admin.state(stream)["messages"] == 5
    assert b.batch() == [1, 2, 3, 4, 5]
    assert b.batch() is None
    assert admin.state(stream)["messages"] == 0


def test_a_foreign_consumer_is_not_touched(server, admin, stream):
    queue(admin, stream, "interest")
    config = {"name": "worker", "durable_name": "worker", "ack_policy": "explicit"}
    admin.api(f"CONSUMER.CREATE.{stream}.worker", {"stream_name": stream, "config": config})
    with pytest.raises(ConsumerHeldError, match="was not created by a Spark query"):
        Query(server, stream, consumer="worker").plan()


def test_an_interest_streams_deleted_consumer_is_a_loss(server, admin, stream):
    queue(admin, stream, "interest")
    query = Query(server, stream, consumer="mine")
    query.batch()
    admin.api(f"CONSUMER.DELETE.{stream}.mine")
    query.restart()
    with pytest.raises(DataLossError, match=r"consumer mine .* was deleted"):
        query.plan()


def test_a_durable_consumer_shows_the_lag(server, admin, stream):
    admin.create_stream(stream)
    admin.fill(stream, 30)
    query = Query(server, stream, subjects=f"{stream}.0,{stream}.1", maxMessagesPerTrigger="8", lagConsumer="spark")

    def pending():
        return admin.api(f"CONSUMER.INFO.{stream}.spark")["num_pending"]

    query.batch()
    query.plan()
    assert pending() == 12
    query.batch()
    admin.fill(stream, 3)
    query.plan()
    assert pending() == 4 + 2
    query.restart()
    query.batch()
    admin.api(f"CONSUMER.DELETE.{stream}.spark")
    admin.fill(stream, 3)
    assert len(query.batch()) == 2
    assert query.plan() is None
    assert pending() == 0


def test_a_consumer_that_shows_no_lag_is_not_touched(server, admin, stream):
    admin.create_stream(stream)
    admin.fill(stream, 3)
    admin.api(f"CONSUMER.DURABLE.CREATE.{stream}.theirs", {"stream_name": stream, "config": {"durable_name": "theirs"}})
    query = Query(server, stream, lagConsumer="theirs")
    query.batch()
    with pytest.raises(ConsumerHeldError, match="lagConsumer"):
        query.plan()


@pytest.mark.parametrize(
    ("config", "options", "reason"),
    [
        ({"allow_direct": False}, {}, "set allow_direct"),
        ({"deny_purge": True}, {}, "does not allow purging"),
        ({}, {"startingPosition": "latest"}, "only be read from its beginning"),
        ({}, {"reader": "consumer"}, "takes messages away"),
    ],
)
def test_work_queues_that_cannot_be_read(server, admin, stream, config, options, reason):
    queue(admin, stream, "workqueue", **config)
    with pytest.raises(UnsupportedStreamError, match=reason):
        Query(server, stream, **options).plan()


def test_a_work_queue_without_direct_gets_is_read_from_its_leader(server, admin, stream):
    queue(admin, stream, "workqueue", allow_direct=False)
    admin.fill(stream, 1500)
    query = Query(server, stream, reader="leader")
    assert query.batch() == [*range(1, 1501)]
    assert query.batch() is None
    assert admin.state(stream)["messages"] == 0


def test_a_message_that_comes_while_an_empty_work_queue_is_planned(server, admin, stream):
    """The range to survey is empty; asked for no message at all, a server answers with the one that is there by now."""
    queue(admin, stream, "workqueue")
    query = Query(server, stream, maxMessagesPerTrigger="1", subjects=f"{stream}.>", retryFor="0s")
    assert query.batch() == []
    arriving = [1]

    def measure_late(*arguments):
        admin.fill(stream, arriving.pop() if arriving else 0)
        return survey.measure(*arguments)

    with mock.patch.object(driver, "measure", measure_late):
        assert query.batch() == [1]


# At least once


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_at_least_once_acknowledges_finished_batches(server, admin, stream, retention):
    queue(admin, stream, retention, allow_direct=False, deny_purge=retention == "workqueue")
    query = Query(server, stream, guarantee="atLeastOnce", maxMessagesPerTrigger="4", minPartitions="2")
    assert query.batch() == []
    admin.fill(stream, 10)
    assert query.batch() == [1, 2, 3, 4]
    assert admin.state(stream)["messages"] == 10
    end = query.plan()
    assert admin.state(stream)["messages"] == 6
    query.restart()
    assert query.read(end) == [5, 6, 7, 8]
    query.offset = end
    assert query.batch() == [9, 10]
    assert query.batch() is None
    assert admin.state(stream)["messages"] == 0


def test_at_least_once_shares_a_queue(server, admin, stream):
    queue(admin, stream, "workqueue")
    config = {"name": "shared", "durable_name": "shared", "ack_policy": "explicit"}
    admin.api(f"CONSUMER.CREATE.{stream}.shared", {"stream_name": stream, "config": config})
    admin.fill(stream, 10)
    options = {"guarantee": "atLeastOnce", "consumer": "shared", "maxMessagesPerTrigger": "3"}
    a, b = Query(server, stream, **options), Query(server, stream, **options)
    read = {"a": [], "b": []}
    for _ in range(4):
        read["a"] += a.batch() or []
        read["b"] += b.batch() or []
    assert sorted(read["a"] + read["b"]) == [*range(1, 11)]
    assert read["a"]
    assert read["b"]
    assert admin.state(stream)["messages"] == 0


def test_at_least_once_asks_for_no_more_than_the_consumer_allows(server, admin, stream):
    queue(admin, stream, "workqueue")
    config = {"name": "c", "durable_name": "c", "ack_policy": "explicit", "max_batch": 3, "max_ack_pending": 8}
    admin.api(f"CONSUMER.CREATE.{stream}.c", {"stream_name": stream, "config": config})
    admin.fill(stream, 20)
    query = Query(server, stream, guarantee="atLeastOnce", consumer="c", maxMessagesPerTrigger="7")
    assert query.batch() == [*range(1, 8)]
    query.restart(maxMessagesPerTrigger="10")
    assert [query.batch() for _ in range(3)] == [[*range(8, 16)], [*range(16, 21)], None]


def test_at_least_once_takes_what_a_consumer_with_many_more_messages_allows(server, admin, stream):
    queue(admin, stream, "workqueue")
    config = {"name": "c", "durable_name": "c", "ack_policy": "explicit", "max_ack_pending": 4}
    admin.api(f"CONSUMER.CREATE.{stream}.c", {"stream_name": stream, "config": config})
    admin.fill(stream, 10)
    admin.request(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.c", {"batch": 1})
    query = Query(server, stream, guarantee="atLeastOnce", consumer="c")
    assert [query.batch() for _ in range(4)] == [[2, 3, 4], [5, 6, 7], [8, 9, 10], None]
    # A worker that holds all that may be on its way leaves only what it gives back.
    admin.fill(stream, 5)
    for _ in range(3):
        admin.request(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.c", {"batch": 1})
    admin.send(f"$JS.ACK.{stream}.c.1.1.1.0.0", b"-NAK")
    assert query.batch() == [1]


def test_at_least_once_with_available_now(server, admin, stream):
    queue(admin, stream, "workqueue")
    admin.fill(stream, 10)
    query = Query(server, stream, guarantee="atLeastOnce", maxMessagesPerTrigger="4")
    query.driver.stop_at_present_end()
    admin.fill(stream, 10)
    assert sum(len(batch) for batch in iter(query.batch, None)) == 10


def test_at_least_once_takes_what_others_gave_back(server, admin, stream):
    queue(admin, stream, "workqueue")
    config = {"name": "shared", "durable_name": "shared", "ack_policy": "explicit"}
    admin.api(f"CONSUMER.CREATE.{stream}.shared", {"stream_name": stream, "config": config})
    admin.fill(stream, 2)
    admin.request(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.shared", {"batch": 1})
    query = Query(server, stream, guarantee="atLeastOnce", consumer="shared")
    assert query.batch() == [2]
    # Between the message that comes again and the newest ones lie others that are done.
    admin.send(f"$JS.ACK.{stream}.shared.1.1.1.0.0", b"-NAK")
    admin.fill(stream, 2)
    assert query.batch() == [1, 3, 4]
    assert query.batch() is None
    assert admin.state(stream)["messages"] == 0


@pytest.mark.parametrize("gone", [1, 2, 6])
def test_at_least_once_goes_on_without_what_others_acknowledged(server, admin, stream, gone, caplog):
    queue(admin, stream, "workqueue")
    admin.fill(stream, 6)
    query = Query(server, stream, guarantee="atLeastOnce")
    end = query.plan()
    # As a worker leaves it that was handed the message when its ack wait was over, before the batch is read.
    admin.api(f"STREAM.MSG.DELETE.{stream}", {"seq": gone})
    query.restart()
    assert query.read(end) == [sequence for sequence in range(1, 7) if sequence != gone]
    assert f"1 messages that the consumer of stream {stream} handed out are gone" in caplog.text
    query.offset = end
    assert query.batch() is None
    assert admin.state(stream)["messages"] == 0


@pytest.mark.parametrize("running", [True, False])
def test_at_least_once_goes_on_in_a_stream_that_was_made_again(server, admin, stream, running):
    # On disk, a nats-server may find files of the stream that was deleted in the moment before.
    config = {"retention": "workqueue", "storage": "memory"}
    admin.create_stream(stream, **config)
    admin.fill(stream, 3)
    query = Query(server, stream, guarantee="atLeastOnce")
    end = query.plan()
    admin.api(f"STREAM.DELETE.{stream}")
    admin.create_stream(stream, **config)
    admin.fill(stream, 5)
    query.time.now_s += 1
    with pytest.raises(StreamRecreatedError, match="failOnDataLoss=false"):
        query.read(end)
    query.restart(failOnDataLoss="false")
    if running:
        query.driver.latest_offset(read_offset(query.offset))
        admin.api(f"STREAM.DELETE.{stream}")
        admin.create_stream(stream, **config)
        admin.fill(stream, 4)
    assert query.read(end) == []
    query.offset = end
    assert query.batch() == [*range(1, 5 if running else 6)]
    assert query.batch() is None


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_at_least_once_whose_consumer_was_deleted(server, admin, stream, retention):
    queue(admin, stream, retention)
    query = Query(server, stream, guarantee="atLeastOnce", consumer="worker", maxMessagesPerTrigger="3")
    query.offset = query.plan()
    admin.fill(stream, 3)
    assert query.batch() == [1, 2, 3]
    admin.api(f"CONSUMER.DELETE.{stream}.worker")
    with pytest.raises(UnsupportedStreamError, match=f"consumer worker of stream {stream} was deleted while"):
        query.plan()
    admin.fill(stream, 2, start=3)
    query.restart()
    if retention == "interest":
        with pytest.raises(DataLossError, match="may not have been kept"):
            query.plan()
        admin.api(f"CONSUMER.DELETE.{stream}.worker")
        query.restart(failOnDataLoss="false")
        assert query.batch() is None
        admin.fill(stream, 2)
    # A work queue hands out again what the deleted consumer had not acknowledged; it is read.
    assert query.batch() == ([4, 5] if retention == "workqueue" else [6, 7])
    assert query.batch() is None
    assert admin.state(stream)["messages"] == 0


# Logins


def test_a_wrong_password_is_an_error_at_once(start_server, stream):
    server = start_server("--user", "me", "--pass", "right")
    with pytest.raises(AuthorizationError):
        Query(server, stream, **{"auth.user": "me", "auth.password": "wrong", "retryFor": "60s"}).plan()
    server.admin(user="me", **{"pass": "right"}).create_stream(stream)
    assert Query(server, stream, **{"auth.user": "me", "auth.password": "right"}).batch() == []


def test_a_token(start_server, stream):
    server = start_server("--auth", "s3cr3t")
    server.admin(auth_token="s3cr3t").create_stream(stream)
    assert Query(server, stream, **{"auth.token": "s3cr3t"}).batch() == []


# Servers that go away


def test_a_server_that_comes_back(start_server, stream):
    server = start_server()
    admin = server.admin()
    admin.create_stream(stream)
    admin.fill(stream, 5)
    query = Query(server, stream, retryFor="30s")
    assert query.batch() == [1, 2, 3, 4, 5]
    server.kill()
    server.start()
    admin = server.admin()
    admin.fill(stream, 3)
    assert query.batch() == [6, 7, 8]


@pytest.mark.parametrize("reader", ["consumer", "direct", "leader"])
def test_a_task_goes_on_when_its_server_restarts(start_server, stream, reader):
    server = start_server()
    admin = server.admin()
    admin.create_stream(stream)
    admin.publish([(f"{stream}.x", b"%d" % number * 50) for number in range(20_000)])
    query = Query(server, stream, reader=reader, retryFor="30s")
    (partition,) = query.driver.partitions(read_offset(query.offset), read_offset(query.plan()))
    sequences: list[int] = []
    restarted = False
    for messages in read_task(partition, query.options):
        sequences += messages.sequence.tolist()
        if not restarted:
            server.kill()
            server.start()
            restarted = True
    assert sequences == [*range(1, 20_001)]
