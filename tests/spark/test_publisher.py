"""The sink's publishing by hand, without a Spark session."""

from __future__ import annotations

import base64

import pytest

from jetlake.errors import RowPublishError, UnsupportedStreamError
from jetlake.spark.ledger import Ledger
from jetlake.spark.options import SinkOptions
from jetlake.spark.outgoing import OutgoingBatch, OutgoingMessage
from jetlake.spark.publisher import Publisher
from jetlake.spark.writer import warn_of_short_memory


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


def test_everything_is_acknowledged_and_in_order(server, admin, stream):
    admin.create_stream(stream)
    publisher = Publisher(options(server, publishWindow="64"))
    publish(publisher, numbered(stream, 1000))
    assert (publisher.count, publisher.duplicates, publisher.stream) == (1000, 0, stream)
    assert numbers(admin, stream) == list(range(1000))


def test_repeated_ids_are_counted_and_not_stored(server, admin, stream):
    admin.create_stream(stream)
    publish(Publisher(options(server)), numbered(stream, 300))
    again = Publisher(options(server))
    publish(again, numbered(stream, 400))
    assert (again.count, again.duplicates) == (400, 300)
    assert numbers(admin, stream) == list(range(400))


def test_what_a_broken_connection_left_open_is_published_again(start_server, stream):
    server = start_server()
    server.admin().create_stream(stream)

    def rows():
        for first in range(0, 3000, 100):
            if first == 1500:
                server.kill()
                server.start()
            yield OutgoingBatch.of(numbered(stream, 100, first))

    publisher = Publisher(options(server, publishWindow="200"))
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
    assert ledger.task_digest("query", 0, 1) == ""
    ledger.add_task("query", 4, 1, "abc")
    assert ledger.task_digest("query", 4, 1) == "abc"
    assert ledger.task_digest("query", 5, 1) == ""
    assert ledger.task_digest("query", 4, 2) == ""
    ledger.add_batch("query", 4)
    assert ledger.has_batch("query", 3)
    assert ledger.has_batch("query", 4)
    assert not ledger.has_batch("query", 5)
    assert not ledger.has_batch("other", 4)


def test_no_ledger(server):
    ledger = Ledger(options(server, ledger="none"))
    ledger.add_batch("query", 4)
    assert not ledger.has_batch("query", 4)


def test_a_ledger_that_cannot_be_written(server, admin, stream):
    admin.create_stream(f"KV_full{stream}", subjects=[f"$KV.full{stream}.>"], max_msgs=1, discard="new")
    ledger = Ledger(options(server, ledger=f"full{stream}"))
    ledger.add_batch("query", 1)
    with pytest.raises(UnsupportedStreamError, match=r"could not be noted.*ledger=none"):
        ledger.add_batch("query", 2)


@pytest.mark.parametrize(("window_s", "warnings"), [(10, 1), (120, 0)])
def test_a_stream_that_forgets_ids_too_soon_is_named_once(server, admin, stream, caplog, window_s, warnings):
    admin.create_stream(stream, duplicate_window=window_s * 10**9)
    for _ in range(3):
        warn_of_short_memory(options(server), stream)
    assert [stream in record.getMessage() for record in caplog.records] == [True] * warnings
