"""A sink's task that died in the middle of its rows and comes again when the stream has forgotten their ids."""

from __future__ import annotations

import base64

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from jetlake.errors import RowPublishError
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.sink import writer

SCHEMA = StructType().add("subject", "string").add("data", "binary")


class Context:
    """Spark's word on where a task is in its query."""

    batch = "7"

    @staticmethod
    def partitionId() -> int:
        return 0

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
