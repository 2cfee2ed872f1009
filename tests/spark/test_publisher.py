"""The sink's publishing by hand, without a Spark session."""

from __future__ import annotations

import base64

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from jetlake.client.tables.read_buffer import ReadBuffer
from jetlake.errors import BatchWrittenError, RowPublishError, UnsupportedStreamError
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.sink import writer
from jetlake.spark.sink.ledger import Ledger, TaskId
from jetlake.spark.sink.outgoing import OutgoingBatch, OutgoingMessage
from jetlake.spark.sink.publisher import Publisher
from jetlake.spark.sink.writer import StreamWriter, warn_of_short_memory


def options(server, **given):
    return SinkOptions.of({"servers": server.url, "retryFor": "30s", **given})


def message(subject, number, **headers):
    lines = "".join(f"{key.replace('_', '-')}: {value}\r\n" for key, value in headers.items())
    block = f"NATS/1.0\r\n{lines}\r\n".encode() if headers else b""
    return OutgoingMessage(subject.encode(), block, b"%d" % number, headers.get("Nats_Msg_Id", "").encode())


def numbered(stream, count, first=0):
    return [message(f"{stream}.x", number, Nats_Msg_Id=f"id{number}") for number in range(first, first + count)]


def publish(publisher, messages, rows=100):
    """Publish single messages, some of them in a batch."""
    publisher.publish_all(OutgoingBatch.of(messages[first : first + rows]) for first in range(0, len(messages), rows))


def numbers(admin, stream):
    return [int(base64.b64decode(single["data"])) for single in admin.messages(stream)]


@pytest.fixture(params=[False, True], ids=["asked by row", "counted"])
def repeatable(request):
    """Both ways to know that a message is stored: by its own reply subject, by counting the answers to a shared one."""
    return request.param


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_everything_is_acknowledged_and_in_order(server, admin, stream, repeatable, count):
    admin.create_stream(stream)
    publisher = Publisher(options(server, publishWindow="64"), repeatable=repeatable)
    publish(publisher, numbered(stream, count))
    assert (publisher.count, publisher.duplicates, publisher.stream) == (count, 0, stream if count else "")
    assert publisher.counts == repeatable
    assert numbers(admin, stream) == list(range(count))


def test_repeated_ids_are_counted_and_not_stored(server, admin, stream, repeatable):
    admin.create_stream(stream)
    publish(Publisher(options(server)), numbered(stream, 300, 50))
    again = Publisher(options(server), repeatable=repeatable)
    publish(again, numbered(stream, 400))
    assert (again.count, again.duplicates) == (400, 300)
    assert sorted(numbers(admin, stream)) == list(range(400))


def test_a_piece_for_two_streams(server, admin, stream):
    """Sequences of two streams may be the same ones, so they say nothing about which rows are stored."""
    names = [stream, f"{stream}b"]
    for name in names:
        admin.create_stream(name)
    rows = numbered(stream, 200)
    mixed = [row._replace(subject=f"{names[n % 2]}.x".encode()) for n, row in enumerate(rows)]
    publisher = Publisher(options(server), repeatable=True)
    publish(publisher, mixed)
    assert (publisher.count, publisher.duplicates, publisher.counts) == (200, 0, False)
    assert [numbers(admin, name) for name in names] == [list(range(0, 200, 2)), list(range(1, 200, 2))]


@pytest.mark.parametrize("read_bytes", [256 << 10, 200], ids=["answers at once", "answers one by one"])
@pytest.mark.parametrize(
    "fault", ["no stream", "another stream expected", "too large for the stream", "stream is full"]
)
def test_one_row_of_a_piece_is_refused(server, admin, stream, fault, read_bytes, monkeypatch):
    monkeypatch.setattr("jetlake.spark.sink.publisher.ReadBuffer", lambda size: ReadBuffer(read_bytes))
    admin.create_stream(stream, max_msg_size=500, **({"max_msgs": 70, "discard": "new"} if "full" in fault else {}))
    rows = numbered(stream, 100)
    if fault == "no stream":
        rows[70] = rows[70]._replace(subject=f"nobody.{stream}".encode())
    elif fault == "another stream expected":
        rows[70] = message(f"{stream}.x", 70, Nats_Msg_Id="id70", Nats_Expected_Stream="OTHER")
    elif fault == "too large for the stream":
        rows[70] = rows[70]._replace(payload=b"x" * 1000)
    publisher = Publisher(options(server, publishWindow="64"), repeatable=True)
    with pytest.raises(RowPublishError) as caught:
        publish(publisher, rows)
    assert caught.value.row == 70
    assert numbers(admin, stream)[:70] == list(range(70))
    assert publisher.duplicates == 0


def test_what_a_broken_connection_left_open_is_published_again(start_server, stream, repeatable):
    server = start_server()
    server.admin().create_stream(stream)

    def rows():
        for first in range(0, 3000, 100):
            if first == 1500:
                server.kill()
                server.start()
            yield OutgoingBatch.of(numbered(stream, 100, first))

    publisher = Publisher(options(server, publishWindow="200"), repeatable=repeatable)
    publisher.publish_all(rows())
    assert publisher.count == 3000
    assert sorted(numbers(server.admin(), stream)) == list(range(3000))


def test_a_subject_without_a_stream(server, stream):
    with pytest.raises(RowPublishError, match=r"row 0 .* no stream has this subject"):
        publish(Publisher(options(server)), [message(f"nobody.{stream}", 1)])


def test_a_message_that_is_too_large_is_named_before_it_is_sent(server, admin, stream):
    admin.create_stream(stream)
    large = OutgoingMessage(f"{stream}.x".encode(), b"", b"x" * 1_100_000, b"")
    with pytest.raises(RowPublishError, match=r"row 1 .* more than the server takes \(1048576\)"):
        publish(Publisher(options(server)), [message(f"{stream}.x", 0), large])


def test_a_subject_that_is_too_long_is_named_before_it_is_sent(server, admin, stream, repeatable):
    admin.create_stream(stream)
    row = message(f"{stream}.x", 0, Nats_Msg_Id="id0")
    long = row._replace(subject=f"{stream}.".encode().ljust(5000, b"x"))
    with pytest.raises(RowPublishError, match=r"5000 bytes are more than the server takes .*control line") as caught:
        publish(Publisher(options(server), repeatable=repeatable), [row, long, *[row] * 3], rows=1)
    assert caught.value.row == 1


def test_a_server_that_takes_long_subjects_has_them(start_server, stream, tmp_path):
    config = tmp_path / "server.conf"
    config.write_text("max_control_line: 8KB\n")
    server = start_server("-c", str(config))
    admin = server.admin()
    admin.create_stream(stream)
    publish(Publisher(options(server)), [message(f"{stream}.{'x' * 5000}", number) for number in range(3)])
    assert numbers(admin, stream) == [0, 1, 2]


def test_another_stream_than_the_expected_one(server, admin, stream):
    admin.create_stream(stream)
    wrong = message(f"{stream}.x", 0, Nats_Expected_Stream="OTHER")
    with pytest.raises(RowPublishError) as caught:
        publish(Publisher(options(server)), [wrong])
    assert (caught.value.row, caught.value.subject, caught.value.err_code) == (0, f"{stream}.x", 10060)


@pytest.mark.parametrize("kind", ["Nats_Expected_Last_Sequence", "Nats_Expected_Last_Subject_Sequence"])
def test_expected_sequences(server, admin, stream, kind):
    admin.create_stream(stream)

    def chain():
        return [message(f"{stream}.x", n, Nats_Msg_Id=f"id{n}", **{kind: str(n)}) for n in range(5)]

    publish(Publisher(options(server)), chain())
    # The whole task comes again: no expectation holds any more, and every message is the one that was stored.
    again = Publisher(options(server, stream=stream))
    publish(again, chain())
    assert again.duplicates == 5
    assert numbers(admin, stream) == [0, 1, 2, 3, 4]
    with pytest.raises(RowPublishError) as caught:
        publish(Publisher(options(server)), [message(f"{stream}.x", 9, Nats_Msg_Id="other", **{kind: "2"})])
    assert caught.value.err_code in (10071, 10164)


def test_a_service_that_is_no_stream(server, stream):
    other = server.admin()
    other._socket.sendall(f"SUB service.{stream} 9\r\nPING\r\n".encode())
    while other._line() != b"PONG":
        pass
    import threading

    def answer():
        line = b""
        while not line.startswith(b"MSG service"):
            line = other._line()
        other._socket.sendall(b"PUB %b 2\r\nhi\r\n" % line.split(b" ")[3])

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(RowPublishError, match="no stream but another service"):
        publish(Publisher(options(server)), [message(f"service.{stream}", 1)])
    thread.join()


def test_the_ledger(server, stream):
    ledger = Ledger(options(server, ledger=f"ledger_{stream}"))
    assert not ledger.has_batch("query", 0)
    assert ledger.task_digest(TaskId("query", 0, 1)) is None
    ledger.add_task(TaskId("query", 4, 1), "attempt", "abc")
    assert ledger.task_digest(TaskId("query", 4, 1)) == "abc"
    assert ledger.task_digest(TaskId("query", 5, 1)) is None
    assert ledger.task_digest(TaskId("query", 4, 2)) is None
    ledger.add_batch("query", 4)
    assert ledger.has_batch("query", 4)
    assert not ledger.has_batch("query", 5)
    assert not ledger.has_batch("other", 4)


class Context:
    """What a task asks Spark."""

    batch = 0

    def get(self):
        return self

    def partitionId(self):
        return 0

    def getLocalProperty(self, name):
        return {"sql.streaming.queryId": "query", "streaming.sql.batchId": str(self.batch)}[name]


@pytest.fixture
def write(server, stream, monkeypatch):
    """Writes and commits one batch of a streaming query, ten rows; says what the task did."""
    context = Context()
    monkeypatch.setattr(writer, "TaskContext", context)

    def write(batch, **given):
        context.batch = batch
        schema = StructType().add("data", "binary")
        sink = StreamWriter(
            schema, options(server, stream=stream, subject=f"{stream}.x", ledger=f"ledger_{stream}", **given)
        )
        rows = pa.table({"data": [b"%d" % number for number in range(10 * batch, 10 * batch + 10)]})
        written = sink.write(iter(rows.to_batches()))
        sink.commit([written], batch)
        return written

    return write


def test_a_checkpoint_that_was_rolled_back_is_not_swallowed(admin, stream, write):
    admin.create_stream(stream)
    for batch in range(4):
        assert write(batch).rows == 10
    # The last batch may come again after a crash: it is there.
    assert write(3).duplicates == 10
    admin.api(f"STREAM.PURGE.{stream}")
    for batch in (2, 3):
        with pytest.raises(BatchWrittenError, match=rf"batch {batch} of query query was written before.*runId"):
            write(batch)
    assert numbers(admin, stream) == []
    for batch in (2, 3):
        assert write(batch, runId="again").rows == 10
    assert numbers(admin, stream) == list(range(20, 40))
    with pytest.raises(BatchWrittenError, match="written batch 3 since"):
        write(2, runId="again")


def test_a_batch_that_comes_again_when_its_readers_took_it(admin, stream, write):
    """A work queue whose messages were consumed looks as if it had been purged, and is no reason to write again."""
    admin.create_stream(stream, retention="workqueue")
    write(0)
    admin.api(f"STREAM.PURGE.{stream}")
    assert write(0).duplicates == 10
    assert numbers(admin, stream) == []


def test_no_ledger(server):
    ledger = Ledger(options(server, ledger="none"))
    ledger.add_batch("query", 4)
    assert not ledger.has_batch("query", 4)


def test_a_ledger_that_cannot_be_written(server, admin, stream):
    admin.create_stream(f"KV_full{stream}", subjects=[f"$KV.full{stream}.>"], max_msgs=1, discard="new")
    ledger = Ledger(options(server, ledger=f"full{stream}"))
    ledger.add_batch("query", 1)
    with pytest.raises(UnsupportedStreamError, match=r"could not be written.*ledger=none"):
        ledger.add_batch("query", 2)


@pytest.mark.parametrize(("window_s", "warnings"), [(10, 1), (120, 0)])
def test_a_stream_that_forgets_ids_too_soon_is_named_once(server, admin, stream, caplog, window_s, warnings):
    admin.create_stream(stream, duplicate_window=window_s * 10**9)
    for _ in range(3):
        warn_of_short_memory(options(server), stream)
    assert [stream in record.getMessage() for record in caplog.records] == [True] * warnings
