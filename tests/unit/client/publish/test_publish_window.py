"""Pipelined publishing: the window, lost acknowledgements, broken connections."""

import asyncio
import gc

import pytest

from jetlake.client.connection.handshake import ServerInfo
from jetlake.errors import (
    ApiError,
    ConnectionClosedError,
    DecodeError,
    DisconnectedError,
    DrainTimeoutError,
    InvalidOptionError,
    NoRespondersError,
    PermissionsError,
    PublishTimeoutError,
    PublishWindowError,
)
from jetlake.protocol.frames import Pub
from jetlake.protocol.headers import Headers


def published(fake, wire=None):
    return [frame for frame in (wire or fake.wire).frames if getattr(frame, "subject", b"").startswith(b"s.")]


def acknowledge(fake, frame, seq, wire=None):
    fake.reply(wire or fake.wire, frame.reply, b'{"stream":"S","seq":%d}' % seq)


def refuse(fake, frame):
    fake.reply(
        fake.wire,
        frame.reply,
        b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 1"},"stream":"S","seq":0}',
    )


NOBODY = b"NATS/1.0 503\r\n\r\n"


@pytest.fixture
async def js(fake):
    client = await fake.connect()
    return client.jetstream(timeout=5, publish_window=3)


async def test_acknowledgements_are_matched_in_any_order(fake, clock, js):
    pending = [await js.publish_async(f"s.{number}") for number in range(3)]
    assert js.publish_async_pending == 3
    await clock.settle()
    for seq, frame in reversed(list(enumerate(published(fake), 1))):
        acknowledge(fake, frame, seq)
    assert js.publish_async_pending == 0
    assert [(await one).seq for one in pending] == [1, 2, 3]
    assert all(one.is_done for one in pending)
    await js.publish_async_complete()


@pytest.mark.parametrize("is_refused", [False, True])
async def test_many_acknowledgements_of_one_read(fake, clock, is_refused):
    client = await fake.connect()
    js = client.jetstream(publish_window=300)
    pending = [await js.publish_async(f"s.{number}") for number in range(200)]
    awaited = asyncio.ensure_future(pending[7])
    await clock.settle()
    frames = published(fake)
    received = client.statistics.messages_received
    answers = [b'{"stream":"S","seq":%d}' % seq for seq in range(1, 201)]
    if is_refused:
        answers[150] = b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence"},"stream":"S"}'
    sid = fake.sid(fake.wire, frames[0].reply)
    # A stranger's answer, and one that comes twice, are nobody's.
    pairs = [(b"%b.x" % frames[0].reply.rsplit(b".", 1)[0], b'{"stream":"S","seq":9}')]
    pairs += [(frame.reply, answer) for frame, answer in zip(frames, answers, strict=True)] + [
        (frames[0].reply, answers[1])
    ]
    fake.wire.deliver(b"".join(b"MSG %b %b %d\r\n%b\r\n" % (reply, sid, len(text), text) for reply, text in pairs))
    assert js.publish_async_pending == 0
    assert client.statistics.messages_received == received + len(pairs)
    assert (await awaited).seq == 8
    if is_refused:
        with pytest.raises(PublishWindowError, match=r"s\.150.*wrong last sequence"):
            await js.publish_async_complete()
        with pytest.raises(ApiError, match="wrong last sequence"):
            await pending.pop(150)
    assert [(await one).seq for one in pending] == [seq for seq in range(1, 201) if not is_refused or seq != 151]
    await js.publish_async_complete()


async def test_one_write_for_a_turn(fake, clock, js):
    writes = len(fake.wire.writes)
    for number in range(3):
        await js.publish_async(f"s.{number}")
    await clock.settle()
    assert len(fake.wire.writes) == writes + 1


async def test_a_full_window_holds_the_publisher_back(fake, clock, js):
    for number in range(3):
        await js.publish_async(f"s.{number}")
    fourth = asyncio.create_task(js.publish_async("s.4"))
    await clock.settle()
    assert not fourth.done()
    assert len(published(fake)) == 3
    acknowledge(fake, published(fake)[0], 1)
    await clock.settle()
    assert fourth.done()
    assert len(published(fake)) == 4


async def test_who_waits_for_room_waits_for_some_of_it_but_not_for_long(fake, clock):
    js = (await fake.connect()).jetstream(publish_window=80)
    for _ in range(80):
        await js.publish_async("s.1")
    waiting = asyncio.create_task(js.publish_async("s.2"))
    await clock.settle()
    frames = published(fake)
    for frame in frames[:9]:
        acknowledge(fake, frame, 1)
    await clock.settle()
    assert not waiting.done()
    acknowledge(fake, frames[9], 1)
    await clock.settle()
    assert waiting.done()
    for _ in range(9):
        await js.publish_async("s.3")
    waiting = asyncio.create_task(js.publish_async("s.4"))
    await clock.settle()
    acknowledge(fake, frames[10], 1)
    await clock.settle()
    assert not waiting.done()
    await clock.advance(0.01)  # The other messages may be stuck.
    assert waiting.done()


async def test_bytes_fill_the_window_too(fake, clock):
    client = await fake.connect()
    js = client.jetstream(publish_window_bytes=100)
    await js.publish_async("s.1", b"x" * 200)
    second = asyncio.create_task(js.publish_async("s.2"))
    await clock.settle()
    assert not second.done()
    acknowledge(fake, published(fake)[0], 1)
    await clock.settle()
    assert second.done()


async def test_a_refusal_is_raised_where_it_is_awaited(fake, clock, js):
    pending = await js.publish_async("s.1")
    waiting = asyncio.ensure_future(asyncio.wait_for(pending, 5))
    await clock.settle()
    refuse(fake, published(fake)[0])
    with pytest.raises(ApiError, match="wrong last sequence"):
        await waiting
    # Who awaited it knows; nobody else has to.
    await js.publish_async_complete()
    assert fake.errors == []


async def test_a_refusal_that_nobody_awaits_surfaces(fake, clock, js):
    await js.publish_async("s.1")
    await js.publish_async("s.2")
    await clock.settle()
    refuse(fake, published(fake)[0])
    acknowledge(fake, published(fake)[1], 1)
    with pytest.raises(PublishWindowError, match="1 messages were not acknowledged") as caught:
        await js.publish_async_complete()
    assert [(subject, error.err_code) for subject, error in caught.value.failures] == [("s.1", 10071)]
    assert [type(error) for error in fake.errors] == [PublishWindowError]
    # Once told, it is told.
    await js.publish_async_complete()


async def test_a_stream_named_error_is_no_error(fake, clock, js):
    pending = await js.publish_async("s.1")
    await clock.settle()
    fake.reply(fake.wire, published(fake)[0].reply, b'{"stream":"error","seq":7}')
    assert (await pending).stream == "error"


async def test_an_answer_that_is_none(fake, clock, js):
    pending = await js.publish_async("s.1")
    await clock.settle()
    fake.reply(fake.wire, published(fake)[0].reply, b"hello")
    with pytest.raises(DecodeError):
        await pending


async def test_a_lost_acknowledgement_surfaces(fake, clock, js):
    await js.publish_async("s.1")
    await clock.advance(2.5)
    later = await js.publish_async("s.2")
    await clock.advance(2.5)
    assert js.publish_async_pending == 1
    assert [type(error) for error in fake.errors] == [PublishWindowError]
    assert isinstance(fake.errors[0].failures[0][1], PublishTimeoutError)
    await clock.advance(3)
    with pytest.raises(PublishTimeoutError):
        await later
    with pytest.raises(PublishWindowError):
        await js.publish_async_complete()


async def test_one_timer_for_the_window(fake, clock):
    client = await fake.connect()
    js = client.jetstream(publish_window=1000)
    before = len(clock._scheduled)
    for number in range(500):
        await js.publish_async(f"s.{number}")
    assert len(clock._scheduled) == before + 1


async def test_no_stream_yet_is_tried_again(fake, clock, js):
    pending = await js.publish_async("s.1")
    await clock.settle()
    frame = published(fake)[0]
    fake.reply(fake.wire, frame.reply, b"", header=NOBODY)
    await clock.advance(0.25)
    assert len(published(fake)) == 2
    acknowledge(fake, published(fake)[1], 1)
    assert (await pending).seq == 1


def serve_names(fake, *names):
    """Answer the question which streams capture a subject."""
    fake.answers["$JS.API.STREAM.NAMES"] = {
        "type": "io.nats.jetstream.api.v1.stream_names_response",
        "total": len(names),
        "offset": 0,
        "limit": 1024,
        "streams": list(names),
    }


async def nobody_listens(fake, clock, attempts):
    """Let so many attempts to publish find no stream."""
    for _ in range(attempts):
        await clock.settle()
        fake.reply(fake.wire, published(fake)[-1].reply, b"", header=NOBODY)
        await clock.settle()
        await clock.advance(0.25)


async def test_no_stream_at_all(fake, clock, js):
    serve_names(fake)
    pending = await js.publish_async("s.1")
    await nobody_listens(fake, clock, 3)
    with pytest.raises(NoRespondersError):
        await pending
    assert len(published(fake)) == 3


async def test_a_stream_without_a_leader_is_waited_for(fake, clock, js):
    serve_names(fake, "S")
    lost = await js.publish_async("s.1")
    own = await js.publish_async("s.1", timeout=2)
    for _ in range(40):
        await clock.settle()
        for frame in published(fake)[-2:]:
            fake.reply(fake.wire, frame.reply, b"", header=NOBODY)
        await clock.settle()
        await clock.advance(0.25)
    # The time that the caller has set holds; a default lets the election end.
    with pytest.raises(PublishTimeoutError):
        await own
    assert not lost.is_done
    assert len(fake.published("$JS.API.STREAM.NAMES")) == 1
    acknowledge(fake, published(fake)[-1], 1)
    assert (await lost).seq == 1


@pytest.mark.parametrize(("cluster", "is_waited_for"), [("C", True), ("", False)])
async def test_a_server_whose_jetstream_is_not_up_yet_in_a_cluster_is_waited_for(fake, clock, cluster, is_waited_for):
    fake.info = ServerInfo(headers=True, max_payload=1024, version="2.15.1", cluster=cluster)
    js = (await fake.connect()).jetstream()
    pending = await js.publish_async("s.1")
    for _ in range(8):
        await clock.settle()
        for frame in (*published(fake), *fake.published("$JS.API.STREAM.NAMES")):
            fake.reply(fake.wire, frame.reply, b"", header=NOBODY)
        await clock.settle()
        await clock.advance(0.25)
    assert pending.is_done is not is_waited_for
    if not is_waited_for:
        with pytest.raises(NoRespondersError):
            await pending


async def test_an_election_without_end(fake, clock, js):
    serve_names(fake, "S")
    pending = await js.publish_async("s.1")
    await nobody_listens(fake, clock, 150)
    with pytest.raises(NoRespondersError):
        await pending
    assert len(published(fake)) == 121  # Half a minute.


async def test_only_the_subjects_without_a_stream_are_given_up(fake, clock, js):
    fake.answers["$JS.API.STREAM.NAMES"] = lambda frame: {
        "type": "io.nats.jetstream.api.v1.stream_names_response",
        "total": int(b"s.1" in frame.payload),
        "offset": 0,
        "limit": 1024,
        "streams": ["S"] if b"s.1" in frame.payload else [],
    }
    there, nowhere = await js.publish_async("s.1"), await js.publish_async("s.2")
    for _ in range(4):
        await clock.settle()
        for frame in published(fake)[-2:]:
            fake.reply(fake.wire, frame.reply, b"", header=NOBODY)
        await clock.settle()
        await clock.advance(0.25)
    with pytest.raises(NoRespondersError, match=r"s\.2"):
        await nowhere
    assert not there.is_done


async def test_one_timer_for_all_that_wait_for_a_leader(fake, clock):
    client = await fake.connect()
    js = client.jetstream(publish_window=1000)
    for number in range(500):
        await js.publish_async(f"s.{number}")
    await clock.settle()
    before = len(clock._scheduled)
    for frame in published(fake):
        fake.reply(fake.wire, frame.reply, b"", header=NOBODY)
    assert len(clock._scheduled) == before + 1
    await clock.advance(0.25)
    assert [frame.subject for frame in published(fake)[500:]] == [b"s.%d" % number for number in range(500)]


async def test_a_message_with_an_id_is_sent_again_when_its_acknowledgement_stays_away(fake, clock, js):
    with_id = await js.publish_async("s.1", msg_id="1")
    without = await js.publish_async("s.2")
    await clock.settle()
    await clock.advance(2.5)
    assert [frame.subject for frame in published(fake)] == [b"s.1", b"s.2", b"s.1"]
    acknowledge(fake, published(fake)[2], 1)
    assert (await with_id).seq == 1
    await clock.advance(2.5)
    with pytest.raises(PublishTimeoutError):
        await without
    assert len(published(fake)) == 3


async def test_a_refusal_is_not_final_while_a_copy_may_be_stored(fake, clock, js):
    stored, refused, unknown = [await js.publish_async("s.1", msg_id=name) for name in "123"]
    await clock.settle()
    await clock.advance(2.5)
    for frame in published(fake)[:3]:
        refuse(fake, frame)
    assert not stored.is_done
    acknowledge(fake, published(fake)[3], 1)
    refuse(fake, published(fake)[4])
    assert (await stored).seq == 1
    with pytest.raises(ApiError, match="wrong last sequence"):
        await refused
    await clock.advance(2.5)
    with pytest.raises(PublishTimeoutError, match=r"another attempt was refused: .*wrong last sequence"):
        await unknown


async def test_a_copy_in_process_is_no_refusal(fake, clock, js):
    pending = await js.publish_async("s.1", msg_id="1")
    await clock.settle()
    in_process = b'{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"},"seq":0}'
    fake.reply(fake.wire, published(fake)[0].reply, in_process)
    await clock.advance(0.25)
    acknowledge(fake, published(fake)[1], 1)
    assert (await pending).seq == 1


# Connections


async def test_messages_with_an_id_are_sent_again_and_others_fail(fake, clock, js):
    with_id = await js.publish_async("s.1", msg_id="a")
    without = await js.publish_async("s.2")
    await clock.settle()
    fake.is_down = True
    fake.wire.lose()
    with pytest.raises(DisconnectedError, match="may or may not be stored"):
        await without
    assert not with_id.is_done
    # What is published meanwhile waits and keeps its place behind.
    third = await js.publish_async("s.3")
    fake.is_down = False
    await clock.advance(5)
    assert [frame.subject for frame in published(fake)] == [b"s.1", b"s.3"]
    for seq, frame in enumerate(published(fake), 1):
        acknowledge(fake, frame, seq)
    assert (await with_id).seq == 1
    assert (await third).seq == 2
    assert len([error for error in fake.errors if isinstance(error, PublishWindowError)]) <= 1


async def test_order_is_kept_though_some_were_written_in_the_turn_of_the_loss(fake, clock):
    js = (await fake.connect()).jetstream()
    await js.publish_async("s.1", msg_id="1")
    await clock.settle()
    await js.publish_async("s.2", msg_id="2")
    fake.wire.lose()
    await js.publish_async("s.3", msg_id="3")
    await clock.advance(5)
    assert [frame.subject for frame in published(fake)] == [b"s.1", b"s.2", b"s.3"]


async def test_no_acknowledgement_overtakes_a_publish_that_waits_for_a_connection(fake, clock):
    client = await fake.connect()
    js = client.jetstream()
    await js.publish_async("s.1", msg_id="1")
    fake.is_down = True
    fake.wire.lose()
    await js.publish_async("s.2")
    await client.publish("$JS.ACK.S.C.1.1.1.1.0", b"+ACK")  # As a message's `ack` does.
    await js.publish_async("s.3")
    fake.is_down = False
    await clock.advance(5)
    sent = [frame.subject for frame in fake.wire.frames if isinstance(frame, Pub)]
    assert sent == [b"s.1", b"s.2", b"s.3", b"$JS.ACK.S.C.1.1.1.1.0"]


async def test_time_without_a_connection_does_not_count(fake, clock, js):
    pending = await js.publish_async("s.1", msg_id="a")
    await clock.settle()
    fake.is_down = True
    fake.wire.lose()
    for _ in range(10):
        await clock.advance(5)
    assert not pending.is_done
    fake.is_down = False
    await clock.advance(5)
    await clock.advance(4)
    acknowledge(fake, published(fake)[0], 1)
    assert (await pending).seq == 1


async def test_closing_fails_what_is_under_way(fake, clock, js):
    pending = await js.publish_async("s.1")
    await fake.clients[0].close()
    with pytest.raises(ConnectionClosedError):
        await pending
    with pytest.raises(ConnectionClosedError):
        await js.publish_async("s.2")


async def test_complete_gives_up_in_time(fake, clock, js):
    await js.publish_async("s.1")
    waiting = asyncio.create_task(js.publish_async_complete(timeout=1))
    await clock.settle()
    await clock.advance(1)
    with pytest.raises(PublishTimeoutError, match="1 messages"):
        await waiting


async def test_a_window_needs_room(fake, clock):
    client = await fake.connect()
    with pytest.raises(InvalidOptionError):
        client.jetstream(publish_window=0)


# One by one


async def test_publish_waits_and_reads_the_acknowledgement(fake, clock, js):
    fake.answers["s.1"] = b'{"stream":"S","seq":7,"duplicate": true}'
    ack = await js.publish("s.1", b"x", msg_id="m")
    assert (ack.stream, ack.seq, ack.duplicate) == ("S", 7, True)
    assert b"Nats-Msg-Id: m" in published(fake)[0].header


async def test_publish_tries_again_when_nobody_listens(fake, clock, js):
    task = asyncio.create_task(js.publish("s.1", retries=1))
    await clock.settle()
    fake.reply(fake.wire, published(fake)[0].reply, b"", header=NOBODY)
    await clock.settle()
    await clock.advance(0.25)
    assert len(published(fake)) == 2
    fake.reply(fake.wire, published(fake)[1].reply, b"", header=NOBODY)
    with pytest.raises(NoRespondersError):
        await task


async def test_publish_waits_for_a_stream_without_a_leader(fake, clock, js):
    serve_names(fake, "S")
    task = asyncio.create_task(js.publish("s.1"))
    await nobody_listens(fake, clock, 40)
    assert len(published(fake)) == 41
    acknowledge(fake, published(fake)[-1], 7)
    assert (await task).seq == 7


async def test_publish_waits_for_a_leader_no_longer_than_its_caller(fake, clock, js):
    serve_names(fake, "S")
    task = asyncio.create_task(js.publish("s.1", timeout=2))
    await nobody_listens(fake, clock, 9)
    with pytest.raises(NoRespondersError):
        await task


async def test_publish_where_there_is_no_stream_fails_soon(fake, clock, js):
    serve_names(fake)
    task = asyncio.create_task(js.publish("s.1"))
    await nobody_listens(fake, clock, 3)
    with pytest.raises(NoRespondersError):
        await task
    assert len(published(fake)) == 3


async def test_publish_with_an_id_survives_a_lost_connection(fake, clock, js):
    with_id = asyncio.create_task(js.publish("s.1", msg_id="1"))
    without = asyncio.create_task(js.publish("s.2"))
    await clock.settle()
    fake.wire.lose()
    with pytest.raises(DisconnectedError):
        await without
    await clock.advance(2)
    acknowledge(fake, published(fake)[0], 1)
    assert (await with_id).seq == 1


async def test_publish_with_an_id_is_sent_again_when_its_acknowledgement_stays_away(fake, clock, js):
    task = asyncio.create_task(js.publish("s.1", msg_id="1"))
    await clock.settle()
    await clock.advance(2.5)
    first, second = published(fake)
    assert first.reply == second.reply
    acknowledge(fake, first, 1)
    assert (await task).seq == 1


async def test_publish_asks_again_when_a_copy_of_what_was_refused_may_be_stored(fake, clock, js):
    task = asyncio.create_task(js.publish("s.1", msg_id="1"))
    await clock.settle()
    await clock.advance(3)
    first, _copy = published(fake)
    refuse(fake, first)
    await clock.settle()
    assert not task.done()
    acknowledge(fake, published(fake)[2], 1)
    assert (await task).seq == 1
    task = asyncio.create_task(js.publish("s.1", msg_id="2"))
    await clock.settle()
    await clock.advance(3)
    refuse(fake, published(fake)[3])
    await clock.settle()
    refuse(fake, published(fake)[5])
    with pytest.raises(ApiError, match="wrong last sequence"):
        await task


async def test_publish_gives_up_in_time(fake, clock, js):
    task = asyncio.create_task(js.publish("s.1", timeout=2))
    await clock.settle()
    await clock.advance(2)
    with pytest.raises(PublishTimeoutError, match="may be stored"):
        await task


@pytest.fixture
async def clustered(fake):
    """JetStream on a server of a cluster."""
    fake.info = ServerInfo(headers=True, max_payload=1024 * 1024, cluster="C")
    return (await fake.connect()).jetstream(timeout=5)


async def publish_at_once(js, **options):
    return await js.publish("s.1", **options)


async def publish_in_a_window(js, **options):
    return await (await js.publish_async("s.1", **options))


WAYS = pytest.mark.parametrize("publish", [publish_at_once, publish_in_a_window])


@WAYS
async def test_a_message_with_an_id_outlasts_a_leader_that_is_frozen(fake, clock, clustered, publish):
    task = asyncio.create_task(publish(clustered, msg_id="1"))
    for _ in range(20):
        await clock.advance(1)
    assert not task.done()
    # Sent again every few seconds, and the next leader answers one of these.
    frames = published(fake)
    assert 5 <= len(frames) <= 9
    assert {frame.header for frame in frames} == {frames[0].header}
    acknowledge(fake, frames[-1], 7)
    assert (await task).seq == 7


@WAYS
@pytest.mark.parametrize(
    ("options", "time_s"),
    [({"msg_id": "1"}, 30), ({}, 5), ({"msg_id": "1", "timeout": 8}, 8)],
    ids=["half a minute", "without an id", "the caller's time"],
)
async def test_a_leader_that_stays_frozen_is_given_up_in_time(fake, clock, clustered, publish, options, time_s):
    task = asyncio.create_task(publish(clustered, **options))
    await clock.settle()
    for _ in range(2 * time_s - 1):
        await clock.advance(0.5)
        assert not task.done()
    await clock.advance(0.5)
    await clock.advance(0.5)
    with pytest.raises(PublishTimeoutError, match=f"within {time_s} s"):
        await task


async def test_a_message_in_doubt_is_not_reported_as_one_that_nobody_took(fake, clock, clustered):
    serve_names(fake)
    task = asyncio.create_task(clustered.publish("s.1", msg_id="1"))
    await clock.settle()
    for _ in range(6):
        await clock.advance(1)
    await nobody_listens(fake, clock, 2)
    with pytest.raises(PublishTimeoutError, match="may be stored"):
        await task


def batches(fake):
    """The ids of the batches that were begun, and how many messages of each were sent."""
    counts = {}
    for frame in published(fake):
        batch_id = Headers(frame.header)["Nats-Batch-Id"]
        counts[batch_id] = counts.get(batch_id, 0) + 1
    return list(counts.values())


@pytest.fixture
async def committing(clustered, clock):
    batch = clustered.batch()
    for number in range(3):
        batch.publish(f"s.{number}")
    task = asyncio.create_task(batch.commit())
    await clock.settle()
    return task


async def test_a_batch_waits_for_a_stream_without_a_leader(fake, clock, committing):
    serve_names(fake, "S")
    await nobody_listens(fake, clock, 40)
    assert not committing.done()
    assert batches(fake) == [1] * 41
    fake.reply(fake.wire, published(fake)[-1].reply, b"")
    await clock.settle()
    assert batches(fake) == [1] * 40 + [3]
    # The leader dies before it has the end: the messages before it are gone with it.
    fake.reply(fake.wire, published(fake)[-1].reply, b"", header=NOBODY)
    await clock.settle()
    await clock.advance(0.25)
    fake.reply(fake.wire, published(fake)[-1].reply, b"")
    await clock.settle()
    assert batches(fake) == [1] * 40 + [3, 3]
    acknowledge(fake, published(fake)[-1], 3)
    assert (await committing).seq == 3


async def test_a_batch_where_there_is_no_stream_fails_soon(fake, clock, committing):
    serve_names(fake)
    await nobody_listens(fake, clock, 3)
    with pytest.raises(NoRespondersError):
        await committing
    assert batches(fake) == [1, 1, 1]


async def test_a_batch_whose_beginning_has_no_answer_is_sent_again_and_one_whose_end_has_none_is_not(
    fake, clock, committing
):
    for _ in range(6):
        await clock.advance(1)
    assert batches(fake) == [1, 1]
    fake.reply(fake.wire, published(fake)[-1].reply, b"")
    await clock.settle()
    assert batches(fake) == [1, 3]
    for _ in range(6):
        await clock.advance(1)
    with pytest.raises(PublishTimeoutError):
        await committing
    assert batches(fake) == [1, 3]


async def test_publish_raises_the_servers_refusal(fake, clock, js):
    task = asyncio.create_task(js.publish("s.1", expected_last_sequence=3))
    await clock.settle()
    refuse(fake, published(fake)[0])
    with pytest.raises(ApiError) as caught:
        await task
    assert caught.value.err_code == 10071


# Without a server


async def test_a_window_that_opens_without_a_server_sends_once(fake, clock):
    js = (await fake.connect()).jetstream()
    fake.is_down = True
    fake.wire.lose()
    pending = [await js.publish_async(f"s.{number}") for number in range(100)]
    fake.is_down = False
    await clock.advance(10)
    assert len(published(fake)) == 100
    for seq, frame in enumerate(published(fake), 1):
        acknowledge(fake, frame, seq)
    assert [(await one).seq for one in pending] == list(range(1, 101))


async def test_a_publish_that_timed_out_without_a_server_is_not_sent_later(fake, clock, js):
    await js.publish_async("s.0")  # The inbox is there.
    fake.is_down = True
    fake.wire.lose()
    for _ in range(6):
        task = asyncio.create_task(js.publish("s.1", timeout=1))
        await clock.settle()
        await clock.advance(1)
        with pytest.raises(PublishTimeoutError):
            await task
    cancelled = asyncio.create_task(js.publish("s.2", timeout=50))
    await clock.settle()
    cancelled.cancel()
    last = asyncio.create_task(js.publish("s.3", timeout=50))
    await clock.settle()
    fake.answers["s.3"] = b'{"stream":"S","seq":7}'
    fake.is_down = False
    await clock.advance(10)
    assert (await last).seq == 7
    assert [frame.subject for frame in published(fake)] == [b"s.3"]
    await asyncio.gather(cancelled, return_exceptions=True)


async def test_a_cancelled_request_leaves_nothing_behind(fake, clock, js):
    client = fake.clients[0]
    tasks = [asyncio.create_task(client.request("s.1", timeout=500)) for _ in range(10)]
    await clock.settle()
    for task in tasks:
        task.cancel()
    await clock.settle()
    assert not client._connection.requests._waiting


# Draining


async def test_drain_waits_for_the_acknowledgements(fake, clock, js):
    pending = [await js.publish_async(f"s.{number}") for number in range(3)]
    answered = asyncio.create_task(js.publish("s.9", timeout=4))
    draining = asyncio.create_task(fake.clients[0].drain())
    await clock.advance(2)
    assert not draining.done()
    for seq, frame in enumerate(published(fake), 1):
        acknowledge(fake, frame, seq)
    await draining
    assert [(await one).seq for one in pending] == [1, 2, 3]
    assert (await answered).seq == 4
    assert fake.errors == []


async def test_drain_without_a_server_waits_for_one(fake, clock):
    client = await fake.connect()
    fake.is_down = True
    fake.wire.lose()
    await client.publish("s.1", b"kept")
    draining = asyncio.create_task(client.drain())
    await clock.advance(5)
    assert not draining.done()
    fake.is_down = False
    await clock.advance(6)
    await draining
    assert client.is_closed
    assert [frame.payload for frame in published(fake)] == [b"kept"]


async def test_drain_without_a_server_says_what_was_not_sent(fake, clock):
    client = await fake.connect(drain_timeout=5)
    fake.is_down = True
    fake.wire.lose()
    await client.publish("s.1", b"kept")
    draining = asyncio.create_task(client.drain())
    await clock.settle()
    await clock.advance(5)
    with pytest.raises(DrainTimeoutError):
        await draining
    assert "1 messages that waited for a server were not sent" in str(fake.errors[-1])


async def test_drain_without_a_server_and_without_messages_ends_at_once(fake, clock):
    client = await fake.connect()
    fake.is_down = True
    fake.wire.lose()
    await client.drain()
    assert client.is_closed and fake.errors == []


async def test_a_connection_lost_during_drain_is_told(fake, clock):
    client = await fake.connect()
    await clock.settle()
    fake.answer_pings = False
    await client.publish("s.1", b"x")
    draining = asyncio.create_task(client.drain())
    await clock.settle()
    fake.wire.lose()
    await draining
    assert client.is_closed
    assert isinstance(fake.errors[0], DisconnectedError)


# Refusals and leftovers


async def test_a_denied_subject_fails_at_once(fake, clock, js):
    denied, fine = await js.publish_async("s.1"), await js.publish_async("s.2")
    await clock.settle()
    fake.wire.deliver(b"-ERR 'Permissions Violation for Publish to \"s.1\"'\r\n")
    with pytest.raises(PermissionsError):
        await denied
    assert not fine.is_done


async def test_a_denied_inbox_is_told_at_once_until_the_next_connection(fake, clock, js):
    pending = await js.publish_async("s.1", msg_id="1")
    await clock.settle()
    inbox = next(iter(fake.wire.subscriptions))
    fake.wire.deliver(b"-ERR 'Permissions Violation for Subscription to \"%b\"'\r\n" % inbox)
    with pytest.raises(PermissionsError):
        await pending
    for _ in range(2):
        with pytest.raises(PermissionsError):
            await js.publish_async("s.2")
    await clock.advance(10)
    fake.wire.lose()
    await clock.advance(10)
    pending = await js.publish_async("s.3")
    await clock.settle()
    acknowledge(fake, published(fake)[-1], 1)
    assert (await pending).seq == 1


async def test_windows_end_with_their_contexts(fake, clock):
    client = await fake.connect()
    for number in range(20):
        js = client.jetstream()
        pending = await js.publish_async("s.1", b"%d" % number)
        await clock.settle()
        if number % 2:
            del js  # The acknowledgement comes when nobody holds the context any more.
        acknowledge(fake, published(fake)[-1], number + 1)
        assert (await pending).seq == number + 1
    js = None
    await clock.settle()
    assert fake.wire.subscriptions == {}


async def test_what_the_next_server_is_too_small_for_is_given_up(fake, clock):
    client = await fake.connect()
    js = client.jetstream(publish_window=2)
    large = await js.publish_async("s.large", bytes(2000), msg_id="1")
    small = await js.publish_async("s.small", b"x", msg_id="2")
    waiting = asyncio.ensure_future(js.publish_async("s.later", bytes(2000)))
    many = asyncio.ensure_future(js.publish_many([("s.many", bytes(2000))] * 5))
    await clock.settle()
    fake.info = ServerInfo(headers=True, max_payload=1024)
    fake.wire.lose()
    await clock.advance(1)
    for refused in (large, waiting):
        with pytest.raises(InvalidOptionError, match="at most 1024"):
            await refused
    (frame,) = published(fake)
    acknowledge(fake, frame, 1)
    assert (await small).seq == 1
    with pytest.raises(InvalidOptionError, match="at most 1024"):
        await many
    assert published(fake) == [frame]
    assert client.reconnects == 1


async def test_messages_of_publish_many_that_wait_for_room_are_checked_again(fake, clock):
    client = await fake.connect()
    js = client.jetstream(publish_window=4)
    await js.publish_async("s.1", msg_id="1")
    many = asyncio.ensure_future(js.publish_many([("s.small", b"")] * 3 + [("s.large", bytes(2000))] * 4))
    await clock.settle()
    fake.info = ServerInfo(headers=True, max_payload=1024)
    fake.wire.lose()
    await clock.advance(1)
    with pytest.raises(InvalidOptionError, match="at most 1024") as raised:
        await many
    assert "message 6 of publish_many" in str(raised.value.__notes__)
    assert [frame.subject for frame in published(fake)] == [b"s.1"]


async def test_a_window_that_nobody_holds_leaves_no_timer(fake, clock):
    client = await fake.connect()
    before = len([handle for handle in clock._scheduled if not handle.cancelled()])
    for seq in range(1, 4):
        js = client.jetstream()
        await js.publish_async("s.1")
        await clock.settle()
        acknowledge(fake, published(fake)[-1], seq)
        del js
        gc.collect()
        await clock.settle()
    assert len([handle for handle in clock._scheduled if not handle.cancelled()]) == before
