"""Every sequence is a row once, a removal that is no loss, or a loss that is told; by hand, without a Spark session."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest

from jetlake.client.tables.bounds import Bounds
from jetlake.client.tables.spark_offsets import read_offset
from jetlake.errors import DataLossError, StreamRecreatedError, UnsupportedStreamError
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.source.batch_reader import plan_batch
from jetlake.spark.source.executor import read_task
from jetlake.spark.source.stream_watch import Clock
from tests.spark.driving import Query

READERS = ["consumer", "direct", "leader"]

# More than what is on its way to a task at any time, in few messages.
LARGE = b"x" * 100_000
MANY = 400


def drain(query):
    """The sequences of all batches until there is nothing to read."""
    return [sequence for batch in iter(query.batch, None) for sequence in batch]


def read_batch(server, stream, **options):
    """A batch read's tasks, planned."""
    source = SourceOptions.of({"servers": server.url, "stream": stream, "retryFor": "2s", **options})
    return source, plan_batch(source, Bounds(), Clock())


def slow_rows(partition, options, between=lambda: None):
    """A task's sequences, with something done behind its first rows."""
    found = []
    for messages in read_task(partition, options):
        if not found:
            between()
        found += messages.sequence.tolist()
    return found


# Several streams


def test_an_idle_stream_is_not_read_again(server, admin, stream):
    busy, idle = stream + "A", stream + "B"
    for name in (busy, idle):
        admin.create_stream(name)
        admin.fill(name, 10)
    query = Query(server, f"{busy},{idle}")
    assert query.batch() == [*range(1, 11)] * 2
    for first in (11, 13, 15):
        admin.fill(busy, 2)
        query.restart()
        assert query.batch() == [first, first + 1]
        assert query.batch() is None
    assert "batch" not in query.of(idle)


def test_a_stream_is_added_removed_and_added_again(server, admin, stream):
    a, b = stream + "A", stream + "B"
    for name in (a, b):
        admin.create_stream(name)
        admin.fill(name, 5)
    query = Query(server, a)
    assert query.batch() == [1, 2, 3, 4, 5]
    query.restart(stream=f"{a},{b}")
    assert query.ranges(query.plan()) == [(b, 1, 6)]
    assert drain(query) == [1, 2, 3, 4, 5]
    query.restart(stream=a)
    admin.fill(a, 1)
    admin.fill(b, 2)
    assert drain(query) == [6]
    query.restart(stream=f"{a},{b}")
    assert query.ranges(query.plan()) == [(b, 6, 8)]


def test_a_stream_cannot_be_removed_while_its_batch_is_to_be_repeated(server, admin, stream):
    a, b = stream + "A", stream + "B"
    for name in (a, b):
        admin.create_stream(name)
        admin.fill(name, 5)
    query = Query(server, f"{a},{b}")
    end = query.plan()
    query.restart(stream=a)
    with pytest.raises(UnsupportedStreamError, match="no longer names: name it until the batch is done"):
        query.read(end)


def test_two_work_queues_of_which_one_is_idle(server, admin, stream):
    busy, idle = stream + "A", stream + "B"
    for name in (busy, idle):
        admin.create_stream(name, retention="workqueue")
        admin.fill(name, 5)
    query = Query(server, f"{busy},{idle}")
    assert len(drain(query)) == 10
    for first in (6, 8):
        admin.fill(busy, 2)
        query.restart()
        assert drain(query) == [first, first + 1]
    assert [admin.state(name)["messages"] for name in (busy, idle)] == [0, 0]


def test_a_checkpoint_of_version_1_goes_on(server, admin, stream):
    busy, idle = stream + "A", stream + "B"
    created = {}
    for name in (busy, idle):
        created[name] = admin.create_stream(name)["created"]
        admin.fill(name, 10)

    def entry(name, **fields):
        return {"created": created[name], **fields}

    first = {"v": 1, "streams": {name: entry(name, next=9, **{"from": 3}) for name in (busy, idle)}}
    second = {"v": 1, "streams": {busy: entry(busy, next=11), idle: first["streams"][idle]}}
    query = Query(server, f"{busy},{idle}")
    assert query.ranges(first) == [(busy, 3, 9), (idle, 3, 9)]
    query.offset = first
    assert query.ranges(second) == [(busy, 9, 11)]
    query.offset = second
    assert query.ranges(query.plan()) == [(idle, 9, 11)]
    assert drain(query) == [9, 10]


def test_the_checkpoint_of_the_first_release_is_planned_as_it_was():
    folder = Path(__file__).parent / "resources" / "checkpoint-v1" / "offsets"
    first, second = (
        read_offset(json.loads((folder / str(number)).read_text().splitlines()[-1])) for number in range(2)
    )
    assert [offset.range_after(None) for _, offset in first.streams] == [(1, 16), (1, 6)]
    ranges = {name: offset.range_after(first.of(name)) for name, offset in second.streams}
    assert all(start == first.of(name).next for name, (start, end) in ranges.items() if end > start)


# Losses inside a range


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("position", ["seq:1", "earliest"])
def test_a_purge_while_a_task_reads_is_a_loss(server, admin, stream, reader, position):
    admin.create_stream(stream)
    # The leader is asked for some hundreds at a time, however large they are.
    count, payload = (2000, b"x") if reader == "leader" else (MANY, LARGE)
    admin.publish([(f"{stream}.x", payload)] * count)
    query = Query(server, stream, reader=reader, startingPosition=position)
    (partition,) = query.driver.partitions(read_offset(query.offset), read_offset(query.plan()))
    with pytest.raises(DataLossError, match=rf"messages \d+ to {count - 2} .* are gone before they were read"):
        slow_rows(partition, query.options, lambda: admin.api(f"STREAM.PURGE.{stream}", {"seq": count - 1}))
    # The task is repeated, as Spark does it on a cluster: the planned range is still the range.
    with pytest.raises(DataLossError, match=f"messages 1 to {count - 2} .* are gone before they were read"):
        slow_rows(partition, query.options)


@pytest.mark.parametrize("reader", ["consumer", "direct"])
def test_messages_pushed_out_while_a_task_reads_are_counted(server, admin, stream, reader):
    admin.create_stream(stream, max_msgs=MANY)
    admin.publish([(f"{stream}.x", LARGE)] * MANY)
    query = Query(server, stream, reader=reader, startingPosition="seq:1", failOnDataLoss="false")
    end = query.plan()
    (partition,) = query.driver.partitions(read_offset(query.offset), read_offset(end))
    rows = slow_rows(partition, query.options, lambda: admin.publish([(f"{stream}.x", b"y")] * (MANY - 1)))
    assert len(rows) < MANY
    query.offset = end
    assert query.batch() == [*range(MANY + 1, 2 * MANY)]
    assert query.lost == {stream: MANY - len(rows)}
    assert query.batch() is None
    query.restart()
    assert query.batch() is None
    assert query.lost == {stream: MANY - len(rows)}


def test_a_loss_in_the_last_batch_is_counted_too(server, admin, stream):
    admin.create_stream(stream)
    admin.fill(stream, 10)
    query = Query(server, stream, startingPosition="seq:1", failOnDataLoss="false", minPartitions="2")
    end = query.plan()
    admin.api(f"STREAM.PURGE.{stream}", {"seq": 8})
    assert query.read(end) == [8, 9, 10]
    query.offset = end
    assert drain(query) == []
    assert query.lost == {stream: 7}


def test_gaps_that_were_there_are_no_loss_when_the_head_passes_them(server, admin, stream):
    admin.create_stream(stream)
    admin.fill(stream, 10)
    for sequence in (1, 3, 4, 7):
        admin.api(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})
    query = Query(server, stream, startingPosition="seq:2")
    (partition,) = query.driver.partitions(read_offset(query.offset), read_offset(query.plan()))
    rows = slow_rows(partition, query.options, lambda: admin.api(f"STREAM.PURGE.{stream}", {"seq": 9}))
    assert rows == [2, 5, 6, 8, 9, 10]


@pytest.mark.parametrize("reader", READERS)
def test_a_filters_rows_are_counted(server, admin, stream, reader):
    """What is not wanted may go from the head while a task reads; what is wanted may not."""
    admin.create_stream(stream)
    admin.fill(stream, 3000, subjects=100)
    query = Query(server, stream, reader=reader, startingPosition="seq:1", subjects=f"{stream}.99")
    (partition,) = query.driver.partitions(read_offset(query.offset), read_offset(query.plan()))
    admin.api(f"STREAM.PURGE.{stream}", {"seq": 100})
    assert slow_rows(partition, query.options) == [*range(100, 3001, 100)]
    admin.api(f"STREAM.PURGE.{stream}", {"seq": 2000})
    with pytest.raises(DataLossError, match="messages 100 to 1999"):
        slow_rows(partition, query.options)


# Identity


def test_a_work_queue_that_was_made_again_is_not_emptied(server, admin, stream):
    admin.create_stream(stream, retention="workqueue")
    admin.fill(stream, 10)
    query = Query(server, stream)
    assert query.batch() == [*range(1, 11)]
    admin.api(f"STREAM.DELETE.{stream}")
    admin.create_stream(stream, retention="workqueue")
    admin.fill(stream, 20)
    for restart in (False, True):
        if restart:
            query.restart()
        with pytest.raises(StreamRecreatedError, match="deleted and recreated"):
            query.plan()
        assert admin.state(stream)["messages"] == 20
    query.restart(failOnDataLoss="false")
    assert drain(query) == [*range(1, 21)]
    assert admin.state(stream)["messages"] == 0


def test_an_interest_stream_that_was_made_again_is_not_released(server, admin, stream):
    admin.create_stream(stream, retention="interest")
    query = Query(server, stream)
    query.batch()
    admin.fill(stream, 10)
    assert query.batch() == [*range(1, 11)]
    admin.api(f"STREAM.DELETE.{stream}")
    admin.create_stream(stream, retention="interest")
    config = {"name": "other", "durable_name": "other", "ack_policy": "explicit"}
    admin.api(f"CONSUMER.CREATE.{stream}.other", {"stream_name": stream, "config": config})
    admin.fill(stream, 20)
    with pytest.raises(StreamRecreatedError, match="deleted and recreated"):
        query.plan()
    assert admin.state(stream)["messages"] == 20


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_a_stream_restored_from_an_older_state(server, admin, stream, retention):
    """The checkpoint has read more than the stream has, and then as much: the messages are others."""
    created = admin.create_stream(stream, retention=retention)["created"]
    query = Query(server, stream)
    assert query.batch() == []
    admin.fill(stream, 5)
    assert query.batch() == [1, 2, 3, 4, 5]
    entry = query.of(stream)
    # As if twelve had been there and read, a day before all that is there now.
    entry.update(next=13, seen=[12, "2020-01-01T00:00:00Z"], created=created)
    for count in (5, 20):
        admin.fill(stream, count - admin.state(stream)["last_seq"])
        query.restart(failOnDataLoss="true")
        with pytest.raises(StreamRecreatedError, match="restored from an older state"):
            query.plan()
        assert admin.state(stream)["messages"] == count
    query.restart(failOnDataLoss="false")
    assert drain(query) == [*range(1, 21)]


@pytest.mark.parametrize("reader", READERS)
def test_a_stream_made_again_behind_a_tasks_back(server, admin, stream, reader):
    admin.create_stream(stream)
    admin.fill(stream, 10)
    query = Query(server, stream, reader=reader, failOnDataLoss="false")
    end = query.plan()
    (partition,) = query.driver.partitions(read_offset(query.offset), read_offset(end))
    admin.api(f"STREAM.DELETE.{stream}")
    admin.create_stream(stream)
    admin.fill(stream, 20)
    with pytest.raises(StreamRecreatedError, match=r"while it was read: .* Start the read, or the query, again"):
        slow_rows(partition, query.options)
    query.restart()
    assert query.read(end) == []
    query.offset = end
    assert drain(query) == [*range(1, 21)]


# What `earliest` means


@pytest.mark.parametrize("pieces", ["1", "4"])
def test_earliest_is_what_is_still_there(server, admin, stream, pieces):
    admin.create_stream(stream, max_msgs=100)
    admin.fill(stream, 250)
    options, tasks = read_batch(server, stream, minPartitions=pieces)
    query = Query(server, stream, minPartitions=pieces)
    end = query.plan()
    admin.fill(stream, 60)
    assert [*chain(*(slow_rows(task, options) for task in tasks))] == [*range(211, 251)]
    query.restart()
    assert query.read(end) == [*range(211, 251)]
    query.offset = end
    assert drain(query) == [*range(251, 311)]
    admin.fill(stream, 101)
    with pytest.raises(DataLossError, match="messages 311 to 311"):
        query.plan()


@pytest.mark.parametrize("limits", [{"max_msgs": 200}, {"max_bytes": 50_000}, {"max_age": 3600 * 10**9}], ids=str)
@pytest.mark.parametrize("subjects", ["", "0"])
def test_earliest_does_not_hide_a_purge(server, admin, stream, limits, subjects):
    """Limits explain only what they can have removed: a purge leaves a stream that is not full, or takes the young."""
    admin.create_stream(stream, **limits)
    admin.fill(stream, 200, subjects=2)
    options = {"minPartitions": "3", **({"subjects": f"{stream}.{subjects}"} if subjects else {})}
    source, tasks = read_batch(server, stream, **options)
    query = Query(server, stream, **options)
    end = query.plan()
    admin.api(f"STREAM.PURGE.{stream}", {"seq": 150})
    admin.fill(stream, 20, subjects=2)
    with pytest.raises(DataLossError, match="gone before they were read"):
        [*chain(*(slow_rows(task, source) for task in tasks))]
    for _ in range(2):
        query.restart()
        with pytest.raises(DataLossError, match="gone before they were read"):
            query.read(end)
    query.restart(failOnDataLoss="false")
    assert len(query.read(end)) == (25 if subjects else 51)


def test_a_named_sequence_is_meant_as_it_stands(server, admin, stream):
    admin.create_stream(stream, max_msgs=100)
    admin.fill(stream, 100)
    options, tasks = read_batch(server, stream, startingPosition="seq:1")
    admin.fill(stream, 10)
    with pytest.raises(DataLossError, match="messages 1 to 10"):
        list(read_task(tasks[0], options))
    with pytest.raises(DataLossError, match="messages 1 to 10"):
        read_batch(server, stream, startingPosition="seq:1")


# No false alarms


@pytest.mark.parametrize("history", [1, 3])
def test_overwritten_keys_are_no_loss(server, admin, stream, history):
    admin.create_stream(stream, max_msgs_per_subject=history, discard="new")
    keys = [f"{stream}.{number}" for number in range(20)]
    query = Query(server, stream)
    read = []
    for value in range(5):
        for _ in range(2 * history):
            admin.publish([(key, b"%d" % value) for key in keys])
        query.restart()
        read += query.batch()
        assert {message["seq"] for message in admin.messages(stream)} <= set(read)
    assert len(read) == len(set(read))
    assert query.lost == {stream: 0}


def test_keys_overwritten_while_a_task_reads_are_no_loss(server, admin, stream):
    admin.create_stream(stream, max_msgs_per_subject=1)
    admin.fill(stream, 100, subjects=100)
    query = Query(server, stream, startingPosition="seq:1", messagesPerPartition="30")
    end = query.plan()
    tasks = query.driver.partitions(read_offset(query.offset), read_offset(end))
    admin.fill(stream, 60, subjects=100)
    rows = [sequence for task in tasks for messages in read_task(task, query.options) for sequence in messages.sequence]
    assert rows == [*range(61, 101)]
    query.offset = end
    assert query.batch() == [*range(101, 161)]


def test_a_purged_bucket_is_a_loss(server, admin, stream):
    admin.create_stream(stream, max_msgs_per_subject=1)
    admin.fill(stream, 10, subjects=10)
    query = Query(server, stream)
    query.batch()
    admin.fill(stream, 10, subjects=10)
    admin.api(f"STREAM.PURGE.{stream}")
    with pytest.raises(DataLossError, match="messages 11 to 20"):
        query.plan()


def test_a_head_that_the_filter_does_not_want_may_go(server, admin, stream):
    admin.create_stream(stream)
    wanted, other = f"{stream}.wanted", f"{stream}.other"
    query = Query(server, stream, subjects=wanted)
    assert query.batch() == []
    admin.publish([(other, b"")] * 10 + [(wanted, b"")] * 2)
    end = query.plan()
    admin.api(f"STREAM.PURGE.{stream}", {"filter": other})
    query.restart()
    assert query.read(end) == [11, 12]
    query.offset = end
    admin.publish([(other, b"")] * 10 + [(wanted, b"")])
    admin.api(f"STREAM.PURGE.{stream}", {"seq": 20})
    query.restart()
    assert query.batch() == [23]
    assert query.lost == {stream: 0}


def test_a_full_stream_may_lose_what_the_filter_does_not_want(server, admin, stream):
    admin.create_stream(stream, max_msgs=100)
    wanted, other = f"{stream}.wanted", f"{stream}.other"
    admin.publish([(wanted, b"")] * 3)
    query = Query(server, stream, subjects=wanted, maxMessagesPerTrigger="2")
    read = query.batch()
    for _ in range(4):
        admin.publish([(other, b"")] * 50 + [(wanted, b"")])
        read += query.batch()
    read += drain(query)
    assert read == [1, 2, 3, 54, 105, 156, 207]
    admin.publish([(wanted, b"")] * 4)
    read += query.batch()
    admin.publish([(other, b"")] * 100)
    with pytest.raises(DataLossError, match="messages 210 to 211"):
        query.plan()
