"""A sink's task that died in the middle of its rows and comes again when the stream has forgotten their ids."""

from __future__ import annotations

import base64

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from jetlake.errors import BatchWrittenError, RowPublishError
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.sink import stored_rows, writer

SCHEMA = StructType().add("subject", "string").add("data", "binary")
FROM_SOURCE = (
    StructType(list(SCHEMA.fields)).add("stream", "string").add("sequence", "long").add("timestamp", "timestamp")
)


class Context:
    """Spark's word on where a task is in its query."""

    batch = "7"
    partition = 0

    def partitionId(self) -> int:
        return self.partition

    def getLocalProperty(self, name: str) -> str:
        return self.batch if name == "streaming.sql.batchId" else "query"


@pytest.fixture
def context(monkeypatch):
    context = Context()
    monkeypatch.setattr(writer.TaskContext, "get", lambda: context)
    return context


def rows(stream, count):
    columns = [[f"{stream}.{number % 3}" for number in range(count)], [b"%d" % number for number in range(count)]]
    return pa.RecordBatch.from_arrays([pa.array(columns[0]), pa.array(columns[1], pa.binary())], ["subject", "data"])


def numbers(admin, stream):
    return [int(base64.b64decode(message["data"])) for message in admin.messages(stream)]


def forget_ids(admin, stream):
    """Publish one id until the stream takes it again: by then it has forgotten all that are older."""
    probe = [(f"{stream}.probe", b"-1", {"Nats-Msg-Id": "probe"})]
    admin.publish(probe)
    while admin.publish(probe)[0].get("duplicate"):
        pass


@pytest.mark.parametrize("kind", ["streaming", "update"])
def test_a_task_that_comes_again_writes_what_is_missing(server, admin, stream, context, kind):
    window = {"duplicate_window": 100_000_000, "discard": "new"}
    admin.create_stream(stream, max_msgs=60, **window)
    options = {"servers": server.url, "stream": stream, "ledger": f"L{stream}"}

    def write(count=100):
        if kind == "streaming":
            return writer.StreamWriter(SCHEMA, SinkOptions.of(options)).write(iter([rows(stream, count)]))
        named = SinkOptions.of({**options, "runId": f"query/{context.batch}"})
        return writer.BatchWriter(SCHEMA, named).write(iter([rows(stream, count)]))

    with pytest.raises(RowPublishError, match="maximum messages exceeded"):
        write()
    stored = admin.state(stream)["messages"]
    assert 0 < stored <= 60
    admin.api(f"STREAM.UPDATE.{stream}", {"name": stream, "subjects": [f"{stream}.>"], "allow_direct": True, **window})
    forget_ids(admin, stream)
    again = write()
    assert (again.rows, again.duplicates) == (100, stored)
    forget_ids(admin, stream)
    third = write()
    assert third.duplicates == 100
    assert sorted(number for number in numbers(admin, stream) if number >= 0) == list(range(100))
    # The next batch begins anew, with the same rows.
    context.batch = "8"
    assert (write().rows, len(numbers(admin, stream)) > 200) == (100, True)


def test_a_batch_that_is_written_to_two_streams(server, admin, stream, context):
    """As `foreachBatch` does it: what is noted of one stream says nothing about the other."""
    window = {"duplicate_window": 100_000_000, "discard": "new"}
    long, short = f"{stream}L", f"{stream}S"
    admin.create_stream(long, **window)
    admin.fill(long, 100)
    admin.create_stream(short, max_msgs=60, **window)

    def write(target):
        options = {"servers": server.url, "stream": target, "ledger": f"L{stream}", "runId": "query/7"}
        return writer.BatchWriter(SCHEMA, SinkOptions.of(options)).write(iter([rows(target, 100)]))

    write(long)
    with pytest.raises(RowPublishError, match="maximum messages exceeded"):
        write(short)
    stored = admin.state(short)["messages"]
    admin.api(f"STREAM.UPDATE.{short}", {"name": short, "subjects": [f"{short}.>"], "allow_direct": True, **window})
    for target in (long, short):
        forget_ids(admin, target)
    assert [write(target).duplicates for target in (long, short)] == [100, stored]
    assert sorted(number for number in numbers(admin, short) if number >= 0) == list(range(100))


def test_without_a_ledger_or_a_stream_only_the_streams_memory_is_left(server, admin, stream, context):
    admin.create_stream(stream)
    for given in ({"ledger": "none", "stream": stream}, {"ledger": f"L{stream}"}):
        options = SinkOptions.of({"servers": server.url, **given})
        for _ in range(2):
            writer.StreamWriter(SCHEMA, options).write(iter([rows(stream, 10)]))
    assert len(numbers(admin, stream)) == 10


def test_a_finished_batch_whose_rows_a_stream_has_rolled_up_was_not_purged(server, admin, stream, context):
    admin.create_stream(stream, allow_rollup_hdrs=True)
    sink = writer.StreamWriter(
        SCHEMA, SinkOptions.of({"servers": server.url, "stream": stream, "ledger": f"L{stream}"})
    )
    sink.commit([sink.write(iter([rows(stream, 10)]))], 7)
    admin.publish([(f"{stream}.0", b"-1", {"Nats-Rollup": "all"})])
    # Killed before Spark's commit log had the batch.
    again = sink.write(iter([rows(stream, 10)]))
    assert (again.rows, again.duplicates) == (0, 10)
    assert numbers(admin, stream) == [-1]


def slices(count, tasks):
    """Row numbers as a range of sequences is cut into tasks."""
    return [list(range(count * task // tasks, count * (task + 1) // tasks)) for task in range(tasks)]


class Query:
    """A streaming query whose batches are cut into tasks as a test says."""

    def __init__(self, url, admin, stream, context, **options):
        self.admin = admin
        self.stream = stream
        self.context = context
        self.options = {"servers": url, "subject": f"{stream}.x", "ledger": f"L{stream}", **options}

    def attempt(self, tasks, *, batch=7, dies_in=None, **options):
        """Run a batch's tasks one after the other; one may die in the middle, and the batch is not committed then."""
        self.context.batch = str(batch)
        sink = writer.StreamWriter(StructType().add("data", "binary"), SinkOptions.of({**self.options, **options}))
        written = []
        for partition, numbers in enumerate(tasks):
            self.context.partition = partition
            written.append(sink.write(iter(self.batches(numbers, dies=partition == dies_in))))
        sink.commit(written, batch)
        return [(single.rows, single.duplicates) for single in written]

    def batches(self, numbers, *, dies):
        half = len(numbers) // 2
        stored = self.admin.state(self.stream)["last_seq"]
        for part in (numbers[:half], numbers[half:]):
            yield from pa.table({"data": pa.array([b"%d" % number for number in part], pa.binary())}).to_batches()
            while dies and self.admin.state(self.stream)["last_seq"] < stored + half:
                pass
            if dies:
                raise RuntimeError("the task dies")


@pytest.fixture
def query(server, admin, stream, context, monkeypatch):
    # Tasks of these attempts run one after the other: none confirms its rows while another one waits.
    monkeypatch.setattr(stored_rows, "_CONFIRMATION_WAIT_S", 0.0)
    # The stream forgets ids soon: what knows the rows of a batch again is not its window.
    admin.create_stream(stream, duplicate_window=100_000_000)
    return Query(server.url, admin, stream, context)


# How a batch of a hundred rows was cut first, which of its tasks died, and how it is cut when it comes again.
LAYOUTS = [(4, 2, 2), (2, 1, 4), (1, 0, 3), (4, 3, 3), (2, None, 3), (3, None, 2)]


@pytest.mark.parametrize(("before", "dies_in", "after"), LAYOUTS)
def test_a_batch_that_is_cut_into_other_tasks_is_not_written_twice(admin, stream, query, before, dies_in, after):
    if dies_in is None:
        query.attempt(slices(100, before))
    else:
        with pytest.raises(RuntimeError, match="dies"):
            query.attempt(slices(100, before), dies_in=dies_in)
    stored = numbers(admin, stream)
    with pytest.raises(BatchWrittenError, match=r"split into other tasks.*changedBatch"):
        query.attempt(slices(100, after))
    assert numbers(admin, stream) == stored
    # As it was cut first, it is written to its end.
    query.attempt(slices(100, before))
    assert sorted(numbers(admin, stream)) == list(range(100))
    query.attempt(slices(50, 2), batch=8)
    assert len(numbers(admin, stream)) == 150


def test_what_to_do_with_a_changed_batch_can_be_said(admin, stream, query):
    with pytest.raises(RuntimeError, match="dies"):
        query.attempt(slices(100, 4), dies_in=2)
    assert len(numbers(admin, stream)) == 62
    query.attempt(slices(100, 3), changedBatch="skip")
    assert sorted(numbers(admin, stream)) == list(range(100))
    query.attempt(slices(100, 2), changedBatch="write")
    assert len(numbers(admin, stream)) > 100


def test_rows_that_come_in_another_order_are_known(admin, stream, query):
    with pytest.raises(RuntimeError, match="dies"):
        query.attempt([list(range(50)), list(range(50, 100))], dies_in=1)
    query.attempt([list(range(50))[::-1], list(range(50, 100))[::-1]])
    assert sorted(numbers(admin, stream)) == list(range(100))
    # Equal rows are as many as there are.
    with pytest.raises(RuntimeError, match="dies"):
        query.attempt([[1, 1, 2, 2], [1, 1, 3, 3]], batch=8, dies_in=0)
    query.attempt([[2, 1, 2, 1], [1, 1, 3, 3]], batch=8)
    assert sorted(numbers(admin, stream)[100:]) == [1, 1, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_batch_that_is_planned_anew_with_more_rows(admin, stream, query, is_finished):
    """A checkpoint that was set back by one batch gives its number to other messages."""
    query.attempt([list(range(10))], batch=6)
    if is_finished:
        query.attempt([list(range(10, 20))])
    else:
        with pytest.raises(RuntimeError, match="dies"):
            query.attempt([list(range(10, 20))], dies_in=0)
    query.attempt([list(range(10, 30))])
    assert sorted(numbers(admin, stream)) == list(range(30))
    query.attempt([list(range(10, 30)), list(range(30, 40))])
    assert sorted(numbers(admin, stream)) == list(range(40))


def test_a_finished_batch_with_fewer_or_other_rows_is_refused(admin, stream, query):
    query.attempt([list(range(10)), list(range(10, 20))])
    for tasks in ([list(range(5)), list(range(10, 20))], [list(range(100, 110)), list(range(10, 20))]):
        with pytest.raises(BatchWrittenError, match="not among its rows now"):
            query.attempt(tasks)
    assert numbers(admin, stream) == list(range(20))
    with pytest.raises(BatchWrittenError, match="written batch 7 since"):
        query.attempt([[1]], batch=6)


def test_a_batch_that_is_planned_anew_with_fewer_tasks_is_refused_before_it_counts(admin, stream, query):
    """The rows that are missing would come again in a later batch."""
    query.attempt([list(range(10)), list(range(10, 20))])
    for tasks in ([list(range(10))], [list(range(10)), []]):
        with pytest.raises(BatchWrittenError, match="rows of its task 1, which has none now"):
            query.attempt(tasks)
    query.attempt([list(range(10)), list(range(10, 20))])
    assert numbers(admin, stream) == list(range(20))


def test_a_changed_batch_whose_stored_rows_nobody_knows_is_refused(admin, stream, query):
    """A work queue's readers take the rows; and ids that are not asked for tell nothing."""
    admin.create_stream(f"{stream}Q", retention="workqueue")
    for given in ({"subject": f"{stream}Q.x"}, {"messageId": "none", "ledger": f"N{stream}"}):
        query.attempt([list(range(10))], **given)
        with pytest.raises(BatchWrittenError, match="changedBatch"):
            query.attempt([list(range(20))], **given)
        assert query.attempt([list(range(10))], **given) == [(0, 10)]
        query.attempt([list(range(20))], changedBatch="write", **given)


def test_a_batch_write_with_a_name_that_is_cut_into_other_tasks(server, admin, stream, context):
    admin.create_stream(stream, duplicate_window=100_000_000)
    options = SinkOptions.of({"servers": server.url, "ledger": f"L{stream}", "stream": stream, "runId": "nightly"})

    def run(tasks):
        sink = writer.BatchWriter(SCHEMA, options)
        written = []
        for partition, numbers_of in enumerate(tasks):
            context.partition = partition
            first, last = numbers_of[0], numbers_of[-1]
            written.append(sink.write(iter([rows(stream, 100).slice(first, last + 1 - first)])))
        sink.commit(written)

    run(slices(100, 2))
    with pytest.raises(BatchWrittenError, match="split into other tasks"):
        run(slices(100, 3))
    forget_ids(admin, stream)
    run(slices(100, 2))
    assert [number for number in numbers(admin, stream) if number >= 0] == list(range(100))


def test_a_row_does_not_run_a_request(server, admin, stream, context):
    admin.create_stream(stream)
    admin.fill(stream, 10)
    subject = f"$JS.API.STREAM.PURGE.{stream}"
    batch = pa.table({"subject": [subject], "data": pa.array([b""])}).to_batches()
    sink = writer.BatchWriter(SCHEMA, SinkOptions.of({"servers": server.url}))
    with pytest.raises(RowPublishError, match="allowSystemSubjects"):
        sink.write(iter(batch))
    assert admin.state(stream)["messages"] == 10


def test_a_recreated_source_is_not_taken_for_the_first(server, admin, stream, context):
    """Messages of another stream with the same name and sequences are no duplicates."""
    admin.create_stream(stream)
    options = SinkOptions.of({"servers": server.url, "messageId": "source"})
    for time_us in (1_000_000, 2_000_000, 2_000_000):
        columns = {
            "subject": [f"{stream}.x"] * 50,
            "data": pa.array([b"%d" % number for number in range(50)], pa.binary()),
            "stream": ["S"] * 50,
            "sequence": list(range(1, 51)),
            "timestamp": pa.array([time_us] * 50, pa.timestamp("us", "UTC")),
        }
        writer.BatchWriter(FROM_SOURCE, options).write(iter(pa.table(columns).to_batches()))
    assert len(numbers(admin, stream)) == 100
