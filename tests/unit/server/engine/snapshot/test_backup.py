"""Backups: chunks within the window, ends and time-outs, and what the archive shows of a stream that goes on."""

import json

import pytest

from jetlake.model.archive.archive import ArchiveReader
from jetlake.model.archive.items import ArchivedConsumer, ArchivedMessage


def items_of(archive):
    reader = ArchiveReader("S", 1024 * 1024)
    return [*reader.feed(archive), *reader.finish()]


def messages_of(archive):
    return [item for item in items_of(archive) if isinstance(item, ArchivedMessage)]


def test_chunks_have_the_size_that_was_asked_for_and_a_status_ends_them(filled, backup):
    taken = backup(filled, chunk_size=1024)
    assert taken.answer["state"] == filled.state()
    assert taken.answer["config"]["name"] == "S"
    assert taken.end.header == b"NATS/1.0 204\r\n\r\n"
    assert [message.sequence for message in messages_of(taken.archive)] == [*range(1, 20), *range(21, 301)]


def test_a_small_archive_ends_without_a_status(filled, backup):
    assert backup(filled).end.header == b""


def test_memory_streams_are_backed_up_too(harness, backup):
    harness.create(storage="memory")
    harness.store("s.a", b"x")
    assert [message.payload for message in messages_of(backup(harness).archive)] == [b"x"]


def test_consumers_can_be_left_out(filled, backup):
    with_consumers = items_of(backup(filled).archive)
    without = items_of(backup(filled, no_consumers=True).archive)
    assert [item.name for item in with_consumers if isinstance(item, ArchivedConsumer)] == ["c"]
    assert not [item for item in without if isinstance(item, ArchivedConsumer)]


def test_what_is_published_meanwhile_is_left_out(filled, backup):
    filled.account.subscribe(b"backup", b"7", filled.client)
    filled.publish("$JS.API.STREAM.SNAPSHOT.S", b'{"deliver_subject":"backup"}', reply=b"_INBOX.x")
    filled.publish("s.new", b"new")
    filled.turn()
    frames = filled.client.take()
    archive = b"".join(frame.payload for frame in frames if frame.subject == b"backup")
    assert messages_of(archive)[-1].sequence == 300
    assert filled.state()["last_seq"] == 301


def in_flight(harness):
    frames = [frame for frame in harness.client.take() if frame.subject == b"backup"]
    return [frame.reply for frame in frames if frame.reply], frames


def start(harness, **request):
    harness.account.subscribe(b"backup", b"7", harness.client)
    body = {"deliver_subject": "backup", "chunk_size": 1024, "window_size": 3072, **request}
    harness.publish("$JS.API.STREAM.SNAPSHOT.S", json.dumps(body).encode(), reply=b"_INBOX.x")
    harness.turn()


def test_no_more_than_the_window_is_in_flight(filled):
    start(filled)
    replies, _ = in_flight(filled)
    assert len(replies) == 3
    assert replies[0].startswith(b"$JS.SNAPSHOT.ACK.S.")
    assert replies[0].endswith(b".1024.1")
    filled.publish(replies[0], b"anything")
    filled.turn()
    more, _ = in_flight(filled)
    assert [reply.rsplit(b".", 1)[1] for reply in more] == [b"4"]


def test_a_client_that_does_not_acknowledge_gets_a_408(filled):
    start(filled)
    in_flight(filled)
    filled.advance(4.9)
    assert in_flight(filled) == ([], [])
    filled.advance(0.2)
    _, frames = in_flight(filled)
    assert [frame.header for frame in frames] == [b"NATS/1.0 408 No Flow Response\r\n\r\n"]
    filled.advance(60)
    assert in_flight(filled) == ([], [])


def test_a_client_that_leaves_ends_the_backup(filled):
    subscription = filled.account.subscribe(b"backup", b"8", filled.client)
    body = {"deliver_subject": "backup", "chunk_size": 1024, "window_size": 2048}
    filled.publish("$JS.API.STREAM.SNAPSHOT.S", json.dumps(body).encode(), reply=b"_INBOX.x")
    filled.turn()
    (reply, _), _ = in_flight(filled)
    filled.account.unsubscribe(subscription)
    filled.turn()
    assert filled.account.publish(reply, b"", b"", b"") == 0, "nobody takes acknowledgements any more"


def test_the_first_chunk_waits_for_a_subscriber_but_not_for_ever(filled):
    body = b'{"deliver_subject":"late"}'
    filled.request("$JS.API.STREAM.SNAPSHOT.S", body)
    filled.account.subscribe(b"late", b"9", filled.client)
    filled.turn()
    assert [frame.payload == b"" for frame in filled.client.take()] == [False, True]
    filled.account.subscribe(b"$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.>", b"10", filled.client)
    filled.request("$JS.API.STREAM.SNAPSHOT.S", b'{"deliver_subject":"nobody"}')
    filled.advance(1.9)
    assert not filled.client.take()
    filled.advance(0.2)
    (advisory,) = filled.client.take()
    assert "error" not in json.loads(advisory.payload)


def test_a_deleted_stream_ends_its_backup_with_a_500(make_harness, fill):
    harness = make_harness()
    fill(harness, 5000)
    start(harness)
    replies, _ = in_flight(harness)
    harness.api("STREAM.DELETE.S")
    sent = []
    while replies:
        for reply in replies:
            harness.publish(reply, b"")
        harness.turn()
        replies, frames = in_flight(harness)
        sent += frames
    assert sent[-1].header == b"NATS/1.0 500 cannot read the messages: the stream was deleted\r\n\r\n"


def test_a_backup_goes_in_slices(make_harness, fill):
    """Between two slices others are served."""
    harness = make_harness()
    fill(harness, 3000)
    harness.engine.long_work.slice_ns = 0
    start(harness, chunk_size=128 * 1024, window_size=0)
    turns = 0
    harness.publish("$JS.API.STREAM.SNAPSHOT.S", b'{"deliver_subject":"backup"}', reply=b"_INBOX.x")
    while harness.engine.has_ready():
        harness.engine.flush()
        turns += 1
    assert turns > 10


def test_too_many_of_one_turn_are_refused(filled):
    for number in range(40):
        filled.publish("$JS.API.STREAM.SNAPSHOT.S", b'{"deliver_subject":"nobody"}', reply=b"_INBOX.many.%d" % number)
    filled.turn()
    answers = [json.loads(frame.payload) for frame in filled.client.take()]
    assert [answer["error"]["err_code"] for answer in answers if "error" in answer] == [10064] * 8


def test_too_many_at_a_time_are_refused(filled):
    for _ in range(32):
        filled.publish("$JS.API.STREAM.SNAPSHOT.S", b'{"deliver_subject":"nobody"}', reply=b"_INBOX.x")
        filled.turn()
    answer = filled.api("STREAM.SNAPSHOT.S", {"deliver_subject": "nobody"})
    assert answer["error"]["err_code"] == 10064


@pytest.mark.parametrize(("chunk", "first"), [(0, b".131072.1"), (1, b".1024.1"), (9_000_000, b".1048576.1")])
def test_sizes_are_kept_within_bounds(make_harness, fill, chunk, first):
    harness = make_harness()
    harness.create()
    from random import Random

    noise = Random(1)
    for _ in range(3):
        harness.store("s.a", noise.randbytes(700_000))
    start(harness, chunk_size=chunk, window_size=0)
    replies, _ = in_flight(harness)
    assert replies[0].endswith(first)


def test_no_request_is_made_in_the_servers_name(filled, begin):
    """Chunks and acknowledgements go to subscribers, never to the API."""
    filled.create("T", subjects=["t"])
    filled.api("STREAM.SNAPSHOT.S", {"deliver_subject": "$JS.API.STREAM.DELETE.T"})
    filled.advance(3)
    subject = begin(filled, "R", subjects=["r"])
    for payload in (b"x", b""):
        filled.publish(subject, payload, reply=b"$JS.API.STREAM.DELETE.T")
        filled.turn()
    assert "T" in filled.jetstream.streams
