"""One connection over many: reconnecting, buffering, pings, complaints, discovery, lame duck, closing."""

import asyncio
import gc
import logging

import pytest

from jetlake.client.connection.connection import ConnectionState
from jetlake.client.connection.handshake import ServerInfo
from jetlake.client.connection.outbox import Outbox
from jetlake.client.connection.pings import Pings
from jetlake.client.connection.server_pool import ServerPool
from jetlake.errors import (
    AuthorizationError,
    BadHeaderError,
    BadSubjectError,
    ClientConnectionError,
    ConnectionClosedError,
    DisconnectedError,
    InvalidOptionError,
    JetlakeError,
    NoRespondersError,
    NoServersError,
    OutboundBufferFullError,
    PermissionsError,
    RequestTimeoutError,
    ServerError,
    StaleConnectionError,
)
from jetlake.protocol.frames import Ping, Pub, Sub, Unsub
from tests.support.fake_server import message


def frames(wire, kind):
    return [frame for frame in wire.frames if isinstance(frame, kind)]


async def test_everything_of_one_turn_is_one_write(fake, clock):
    client = await fake.connect()
    writes = len(fake.wire.writes)
    for number in range(100):
        await client.publish(f"a.{number}", b"x")
    assert len(fake.wire.writes) == writes
    await clock.settle()
    assert len(fake.wire.writes) == writes + 1
    assert len(frames(fake.wire, Pub)) == 100


async def test_a_lone_request_is_written_at_once(fake, clock):
    client = await fake.connect()
    fake.answers["a"] = b"yes"
    await client.request("a")
    await clock.settle()
    del fake.answers["a"]
    coroutine = client.request("a", timeout=1)
    future = coroutine.send(None)
    # The coroutine has run up to its first wait, the loop has not turned, and the request is out.
    assert len(frames(fake.wire, Pub)) == 2
    future.cancel()
    coroutine.close()


async def test_a_fast_publisher_lets_the_loop_run(fake, clock):
    client = await fake.connect()
    reads = []
    clock.call_soon(reads.append, 1)
    for _ in range(100):
        await client.publish("a", b"x" * 2000)
    assert reads
    assert len(fake.wire.writes) > 1


async def test_requests_share_an_inbox_and_find_their_answers(fake, clock):
    client = await fake.connect()
    tasks = [asyncio.create_task(client.request("echo", b"%d" % number)) for number in range(10)]
    await clock.settle()
    assert len(frames(fake.wire, Sub)) == 1
    for frame in reversed(frames(fake.wire, Pub)):
        fake.reply(fake.wire, frame.reply, b"re:" + frame.payload)
    assert [(await task).payload for task in tasks] == [b"re:%d" % number for number in range(10)]


async def test_an_answer_with_a_broken_status_fails_its_request_alone(fake, clock):
    client = await fake.connect()
    tasks = [asyncio.create_task(client.request("a")) for _ in range(2)]
    await clock.settle()
    broken, other = frames(fake.wire, Pub)
    fake.reply(fake.wire, broken.reply, b"", header=b"NATS/1.0 503")
    with pytest.raises(BadHeaderError):
        await tasks[0]
    fake.reply(fake.wire, other.reply, b"yes")
    assert (await tasks[1]).payload == b"yes"
    assert client.is_connected


@pytest.mark.parametrize(
    ("read", "intruder"),
    [
        ("fetch", message(b"_INBOX", b"%b", b"", b"", b"garbage\r\n\r\n")),
        ("consume", message(b"_INBOX", b"%b", b"", b"", b"NATS/1.0 408")),
    ],
    ids=["fetch", "consume"],
)
async def test_what_a_read_cannot_make_sense_of_ends_that_read_alone(fake, clock, read, intruder):
    fake.serve_consumer()
    client = await fake.connect()
    consumer = await client.jetstream().consumer("S", "C")
    other = await client.subscribe("other")
    taken = asyncio.ensure_future(consumer.fetch(1)._all() if read == "fetch" else consumer.consume().next())
    await clock.settle()
    inbox = fake.pull_reply()
    fake.wire.deliver(
        intruder.replace(b"_INBOX", inbox).replace(b"%b", fake.sid(fake.wire, inbox))
        + message(b"other", other.sid, b"", b"in the same read")
    )
    with pytest.raises(BadHeaderError):
        await taken
    assert (await other.next(1)).payload == b"in the same read"
    assert fake.sid(fake.wire, inbox) is None
    assert client._connection.receivers().count(other) == 1
    assert not client._connection.listeners
    assert client.reconnects == 0


async def test_time_outs_of_requests_need_one_timer(fake, clock):
    client = await fake.connect()
    early = [asyncio.create_task(client.request("a", timeout=1)) for _ in range(50)]
    late = [asyncio.create_task(client.request("a", timeout=3)) for _ in range(50)]
    await clock.settle()
    assert len([handle for handle in clock._scheduled if not handle.cancelled()]) <= 3
    await clock.advance(1)
    assert all(isinstance(task.exception(), RequestTimeoutError) for task in early)
    assert not any(task.done() for task in late)
    await clock.advance(2)
    assert all(isinstance(task.exception(), TimeoutError) for task in late)


async def test_nobody_listens(fake, clock):
    client = await fake.connect()
    task = asyncio.create_task(client.request("a"))
    await clock.settle()
    reply = frames(fake.wire, Pub)[0].reply
    fake.reply(fake.wire, reply, b"", header=b"NATS/1.0 503\r\nNats-Subject: a\r\n\r\n")
    with pytest.raises(NoRespondersError, match="'a'"):
        await task


ACK = "$JS.ACK.S.C.1.1.1.1.0"


async def confirmation(fake, clock, cluster, timeout_s):
    """An acknowledgement that finds nobody."""
    fake.info = ServerInfo(headers=True, version="2.15.1", cluster=cluster)
    client = await fake.connect()
    task = asyncio.create_task(client.jetstream().api.connection.confirm(ACK.encode(), b"+ACK", timeout_s))
    await clock.settle()
    refuse(fake)
    await clock.settle()
    return task


def refuse(fake):
    fake.reply(fake.wire, fake.published(ACK)[-1].reply, b"", header=b"NATS/1.0 503\r\n\r\n")


async def test_a_consumer_that_elects_its_leader_is_waited_for(fake, clock):
    task = await confirmation(fake, clock, "C", 5)
    await clock.advance(1)
    assert len(fake.published(ACK)) == 2
    refuse(fake)
    fake.answers[ACK] = b""
    await clock.settle()
    await clock.advance(1)
    await task
    assert len(fake.published(ACK)) == 3


async def test_a_consumer_without_a_leader_is_waited_for_within_the_time_only(fake, clock):
    task = await confirmation(fake, clock, "C", 5)
    for _ in range(8):
        await clock.advance(1)
        refuse(fake)
        await clock.settle()
    with pytest.raises(NoRespondersError):
        await task


async def test_an_acknowledgement_that_nobody_takes_on_one_server_fails_at_once(fake, clock):
    task = await confirmation(fake, clock, "", 5)
    with pytest.raises(NoRespondersError):
        await task
    assert len(fake.published(ACK)) == 1


# Losing the connection


async def test_subscriptions_and_writes_go_out_on_the_next_connection_in_this_order(fake, clock):
    events = []
    client = await fake.connect(
        on_disconnected=lambda error: events.append("disconnected"), on_reconnected=lambda: events.append("reconnected")
    )
    subscription = await client.subscribe("a.>", queue="q")
    await clock.settle()
    fake.is_down = True
    fake.wire.lose()
    assert client.state is ConnectionState.RECONNECTING
    await client.publish("b", b"kept")
    later = await client.subscribe("c")
    fake.is_down = False
    await clock.advance(10)
    assert events == ["disconnected", "reconnected"]
    assert client.is_connected
    assert client.reconnects == 1
    assert [type(frame) for frame in fake.wire.frames[:3]] == [Sub, Sub, Pub]
    assert fake.wire.frames[0] == Sub(b"a.>", b"q", subscription.sid)
    assert fake.wire.frames[1].sid == later.sid
    assert fake.wire.frames[2].payload == b"kept"
    assert len(fake.wire.writes) == 1


async def test_what_was_queued_in_the_turn_of_the_loss_is_not_lost(fake, clock):
    client = await fake.connect()
    await client.publish("a", b"queued")
    fake.wire.lose()
    await clock.advance(1)
    assert frames(fake.wire, Pub)[0].payload == b"queued"


@pytest.mark.parametrize(
    ("part", "method", "times"),
    [(ServerPool, "connected", 3), (Outbox, "begin_writing", 3), (Outbox, "send_kept", 3), (Pings, "stop", 1)],
)
async def test_a_defect_is_reported_and_the_client_connects_again(fake, clock, monkeypatch, part, method, times):
    client = await fake.connect()
    await client.subscribe("s")
    method_of_part = getattr(part, method)
    left = times

    def fails(self, *given, **options):
        nonlocal left
        left -= 1
        if left < 0:
            return method_of_part(self, *given, **options)
        raise LookupError(f"a defect of {method}")

    monkeypatch.setattr(part, method, fails)
    fake.wire.lose()
    await client.publish("a", b"kept")
    for _ in range(30):
        await clock.advance(2)
    assert client.is_connected
    assert [str(error) for error in fake.errors] == [f"a defect of {method}"] * times
    assert [frame.subject for frame in frames(fake.wire, Sub)] == [b"s"]
    assert [frame.payload for frame in frames(fake.wire, Pub)][-1:] == [b"kept"]


async def test_a_defect_is_raised_by_the_first_connect(fake, monkeypatch):
    def fails(*_):
        raise LookupError("a defect")

    monkeypatch.setattr(Outbox, "begin_writing", fails)
    with pytest.raises(LookupError):
        await fake.connect()
    assert not fake.wire.alive


async def test_what_was_queued_in_the_turn_of_the_loss_and_finds_no_room_is_told(fake, clock):
    client = await fake.connect(pending_bytes_max=40)
    for number in range(5):
        await client.publish("a", b"queued %d" % number)
    fake.wire.lose()
    await clock.advance(1)
    assert [frame.payload for frame in frames(fake.wire, Pub)] == [b"queued 0", b"queued 1"]
    (error,) = fake.errors
    assert isinstance(error, OutboundBufferFullError)
    assert "40 bytes (pending_bytes_max) waited to be sent: 3 messages were dropped" in str(error)


async def test_what_the_next_server_is_too_small_for_is_told_and_not_sent(fake, clock):
    client = await fake.connect()
    sent = asyncio.ensure_future(client.jetstream().publish("r", bytes(2000), msg_id="1"))
    await clock.settle()
    fake.is_down = True
    fake.wire.lose()
    client.publish("a", bytes(2000))
    client.publish("a", b"small")
    kept = asyncio.ensure_future(client.request("r", bytes(2000)))
    await clock.settle()
    fake.is_down = False
    fake.info = ServerInfo(headers=True, max_payload=1024)
    await clock.advance(1)
    assert [frame.payload for frame in frames(fake.wire, Pub)] == [b"small"]
    for request in (sent, kept):
        with pytest.raises(InvalidOptionError, match="at most 1024"):
            await request
    (error,) = fake.errors
    assert "1024 bytes of headers and payload at most: 1 larger messages that were waiting" in str(error)


async def test_a_request_that_could_not_be_sent_leaves_nothing_behind(fake, clock):
    client = await fake.connect(pending_bytes_max=0)
    stray = []
    clock.set_exception_handler(lambda loop, context: stray.append(context))
    fake.is_down = True
    fake.wire.lose()
    with pytest.raises(OutboundBufferFullError):
        await client.request("a")
    await clock.advance(10)
    gc.collect()
    assert stray == []


async def test_the_buffer_without_a_connection_is_bounded(fake, clock):
    client = await fake.connect(pending_bytes_max=100)
    fake.is_down = True
    fake.wire.lose()
    await client.publish("a", b"x" * 50)
    with pytest.raises(OutboundBufferFullError, match="100 bytes"):
        await client.publish("a", b"x" * 50)
    fake.is_down = False
    await clock.advance(10)
    assert len(frames(fake.wire, Pub)) == 1
    await client.publish("a", b"x" * 50)


async def test_requests_under_way_fail_and_do_not_wait_for_their_time_out(fake, clock):
    client = await fake.connect()
    task = asyncio.create_task(client.request("a"))
    await clock.settle()
    fake.wire.lose()
    with pytest.raises(DisconnectedError, match="'a'"):
        await task


async def test_a_request_that_failed_is_not_sent_later(fake, clock):
    client = await fake.connect()
    fake.answers["warm"] = b"up"
    await client.request("warm")
    await clock.settle()
    await client.publish("core", b"kept")
    request = client.request("a")
    answer = request.send(None)
    # Both wait for the end of the turn, and the connection does not live to see it.
    fake.wire.lose()
    assert isinstance(answer.exception(), DisconnectedError)
    request.close()
    await clock.advance(5)
    assert [frame.subject for frame in frames(fake.wire, Pub)] == [b"core"]


async def test_a_request_without_a_connection_is_sent_on_the_next(fake, clock):
    client = await fake.connect()
    fake.is_down = True
    fake.wire.lose()
    task = asyncio.create_task(client.request("a", timeout=60))
    await clock.settle()
    fake.is_down = False
    await clock.advance(5)
    fake.reply(fake.wire, frames(fake.wire, Pub)[0].reply, b"late")
    assert (await task).payload == b"late"


async def test_unsubscribed_without_a_connection_stays_unsubscribed(fake, clock):
    client = await fake.connect()
    subscription = await client.subscribe("a")
    fake.is_down = True
    fake.wire.lose()
    await subscription.unsubscribe()
    fake.is_down = False
    await clock.advance(5)
    assert frames(fake.wire, Sub) == []


async def test_an_automatic_end_counts_over_connections(fake, clock):
    client = await fake.connect()
    subscription = await client.subscribe("a")
    await subscription.unsubscribe(after=5)
    sid = subscription.sid
    fake.wire.deliver(b"MSG a %b 1\r\nx\r\n" % sid * 2)
    fake.wire.lose()
    await clock.advance(5)
    assert frames(fake.wire, Unsub) == [Unsub(sid, 3)]
    fake.wire.deliver(b"MSG a %b 1\r\nx\r\n" % sid * 5)
    assert len([message async for message in subscription]) == 5 + 2


async def test_an_automatic_end_leaves_out_what_earlier_connections_brought(fake, clock):
    client = await fake.connect()
    subscription = await client.subscribe("a", queue="q")
    sid = subscription.sid
    fake.wire.deliver(b"MSG a %b 1\r\nx\r\n" % sid * 10)
    fake.wire.lose()
    await clock.advance(5)
    await subscription.unsubscribe(after=15)
    await clock.settle()
    # The server counts from its own SUB on, and would send the rest to a member of the queue that is gone.
    assert frames(fake.wire, Unsub) == [Unsub(sid, 5)]
    fake.wire.deliver(b"MSG a %b 1\r\nx\r\n" % sid * 5)
    assert len([message async for message in subscription]) == subscription.delivered == 15


async def test_without_reconnect_the_client_is_closed(fake, clock):
    closed = []
    client = await fake.connect(reconnect=False, on_closed=lambda: closed.append(1))
    subscription = await client.subscribe("a")
    fake.wire.lose(ConnectionResetError("reset"))
    await clock.settle()
    assert client.is_closed
    assert closed == [1]
    with pytest.raises(ClientConnectionError, match="nats://fake:4222 closed the connection: reset") as caught:
        await subscription.next()
    assert isinstance(caught.value.__cause__, ConnectionResetError)
    with pytest.raises(ConnectionClosedError):
        await client.publish("a")


async def test_attempts_run_out(fake, clock):
    closed = []
    client = await fake.connect(reconnect_attempts_max=3, on_closed=lambda: closed.append(1))
    fake.is_down = True
    fake.wire.lose()
    for _ in range(10):
        await clock.advance(5)
    assert client.is_closed
    assert closed == [1]
    assert isinstance(client.last_error, NoServersError)
    assert "down" in str(client.last_error)


async def test_the_first_connection_fails_with_what_each_server_said(fake, clock):
    fake.is_down = True
    with pytest.raises(NoServersError, match="nats://fake:4222: down"):
        await fake.connect()


async def test_the_first_connection_may_be_waited_for(fake, clock):
    fake.is_down = True
    task = asyncio.create_task(fake.connect(retry_first_connect=True))
    await clock.advance(5)
    assert not task.done()
    fake.is_down = False
    await clock.advance(5)
    assert (await task).is_connected


# Liveness


async def test_pings_are_answered(fake, clock):
    await fake.connect()
    fake.wire.deliver(b"PING\r\n")
    assert fake.wire.writes[-1] == b"PONG\r\n"


async def test_a_server_that_answers_no_pings_is_given_up(fake, clock):
    reasons = []
    client = await fake.connect(ping_interval=10, pings_outstanding_max=2, on_disconnected=reasons.append)
    fake.answer_pings = False
    for _ in range(2):
        await clock.advance(10)
    assert reasons == []
    await clock.advance(10)
    assert [type(reason) for reason in reasons] == [StaleConnectionError]
    assert len(fake.wires) == 2
    assert client.is_connected


async def test_a_server_that_answers_nothing_is_left_when_that_is_asked_for(fake, clock):
    client = await fake.connect()
    fake.answer_pings = False
    left = asyncio.create_task(client.force_reconnect(timeout=4))
    await clock.settle()
    await clock.advance(2)
    await left
    assert (len(fake.wires), client.reconnects) == (2, 1)


async def fails(call):
    with pytest.raises(TimeoutError):
        await call


async def fetch_nothing(fake, client):
    fake.serve_consumer()
    consumer = await client.jetstream().consumer("S", "C")
    fake.wire.is_cut = True
    with pytest.raises(JetlakeError):
        await consumer.fetch(1, expires=1)


OVERDUE = {
    "request": lambda fake, client: fails(client.request("a", timeout=1)),
    "flush": lambda fake, client: fails(client.flush(timeout=1)),
    "publish": lambda fake, client: fails(client.jetstream().publish("a", timeout=1)),
    "publish with an id": lambda fake, client: client.jetstream().publish("a", msg_id="1", timeout=10),
    "publish_async": lambda fake, client: client.jetstream(timeout=2).publish_async("a"),
    "fetch": fetch_nothing,
    "api": lambda fake, client: fails(client.jetstream(timeout=1).stream("S")),
    "fast publisher": lambda fake, client: fails(fast_publish(client)),
    "request_many": lambda fake, client: anext(aiter(client.request_many("a", timeout=1)), None),
}


async def fast_publish(client):
    async with client.jetstream(timeout=1).fast_publisher() as fast:
        await fast.publish("a")


@pytest.mark.parametrize("call", OVERDUE)
async def test_an_answer_that_is_overdue_probes_the_connection(fake, clock, call):
    reasons = []
    client = await fake.connect(on_disconnected=reasons.append)
    fake.wire.is_cut = call != "fetch"
    task = asyncio.create_task(OVERDUE[call](fake, client))
    # Half of the call's time, or all of it, and `connect_timeout` for the answer to the ping.
    for _ in range(15):
        await clock.advance(0.5)
    assert [str(reason) for reason in reasons] == ["nats://fake:4222 did not answer a ping within 2 s"]
    assert (len(fake.wires), client.is_connected) == (2, True)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def overdue(client, clock):
    """Let a request go without an answer for a second."""
    task = asyncio.create_task(client.request("a", timeout=1))
    await clock.settle()
    await clock.advance(1)
    with pytest.raises(RequestTimeoutError):
        await task


async def test_a_connection_that_answers_its_probe_stays(fake, clock):
    client = await fake.connect()
    for _ in range(3):
        await overdue(client, clock)
        await clock.advance(10)
    assert len(fake.wires) == 1
    assert len(frames(fake.wire, Ping)) == 3


async def test_one_probe_serves_all_who_ask(fake, clock):
    client = await fake.connect()
    fake.answer_pings = False
    tasks = [asyncio.create_task(client.request("a", timeout=1 + number / 10)) for number in range(10)]
    await clock.settle()
    for _ in range(20):
        await clock.advance(0.1)
    assert len(frames(fake.wire, Ping)) == 1
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_whatever_comes_is_a_sign_of_life(fake, clock):
    client = await fake.connect()
    fake.answer_pings = False
    await overdue(client, clock)
    # The pong may be behind much else, of which a part is read.
    client._connection.traffic.bytes_received += 1
    await clock.advance(2)
    assert len(fake.wires) == 1
    await overdue(client, clock)
    await clock.advance(2)
    assert len(fake.wires) == 2


async def test_a_probe_waits_while_much_is_written(fake, clock):
    client = await fake.connect()
    fake.answer_pings = False
    transport = fake.wire.transport
    transport.unsent = 1000
    await overdue(client, clock)
    for _ in range(3):
        transport.unsent -= 100
        await clock.advance(2)
    assert len(fake.wires) == 1
    await clock.advance(2)
    assert len(fake.wires) == 2


async def test_a_stalled_process_does_not_take_its_connection_for_dead(fake, clock):
    client = await fake.connect()
    fake.answer_pings = False
    await overdue(client, clock)
    await clock.advance(60)
    assert len(fake.wires) == 1
    fake.wire.deliver(b"PONG\r\n")
    await clock.advance(2)
    assert len(fake.wires) == 1


async def test_answered_pings_keep_the_connection(fake, clock):
    await fake.connect(ping_interval=10)
    for _ in range(20):
        await clock.advance(10)
    assert len(fake.wires) == 1
    assert len(frames(fake.wire, Ping)) == 20


async def test_flush_waits_for_its_own_pong(fake, clock):
    client = await fake.connect()
    fake.answer_pings = False
    first = asyncio.create_task(client.flush())
    await clock.settle()
    second = asyncio.create_task(client.flush())
    await clock.settle()
    fake.wire.deliver(b"PONG\r\n")
    await clock.settle()
    assert first.done() and not second.done()
    fake.wire.deliver(b"PONG\r\n")
    await second
    late = asyncio.create_task(client.flush(timeout=1))
    await clock.settle()
    await clock.advance(1)
    with pytest.raises(RequestTimeoutError):
        await late
    lost = asyncio.create_task(client.flush())
    await clock.settle()
    fake.wire.lose()
    with pytest.raises(DisconnectedError):
        await lost


async def test_flush_waits_for_a_server(fake, clock):
    client = await fake.connect()
    fake.is_down = True
    fake.wire.lose()
    flushed = asyncio.create_task(client.flush(timeout=5))
    too_soon = asyncio.create_task(client.flush(timeout=1))
    await clock.settle()
    await clock.advance(1)
    with pytest.raises(DisconnectedError, match="within 1 s"):
        await too_soon
    fake.is_down = False
    await clock.advance(2)
    await flushed


@pytest.mark.parametrize("call", ["flush", "request"])
async def test_a_loop_that_ignores_errors_lets_the_client_reconnect(fake, clock, call):
    client = await fake.connect(pending_bytes_max=1)
    fake.answers["a"] = b"answer"
    fake.is_down = True
    fake.wire.lose()
    calls = {"flush": lambda: client.flush(timeout=0.1), "request": lambda: client.request("a", timeout=0.1)}

    async def insist():
        while True:
            try:
                return await calls[call]()
            except (ClientConnectionError, RequestTimeoutError):
                pass

    task = asyncio.create_task(insist())
    await clock.settle()
    fake.is_down = False
    for _ in range(10):
        await clock.advance(1)
    await task


async def repeatable(client, timeout_s=4.0):
    task = asyncio.create_task(client._connection.request_raw(b"a", b"", b"x", timeout_s, True))
    await client._connection.loop.settle()
    return task


async def test_a_request_that_may_be_repeated_is_sent_again_once(fake, clock):
    client = await fake.connect()
    task = await repeatable(client)
    await clock.advance(2)
    first, second = fake.published("a")
    assert first == second
    await clock.advance(1)
    fake.reply(fake.wire, first.reply, b"late")
    assert (await task).payload == b"late"
    lost = await repeatable(client)
    await clock.advance(2)
    await clock.advance(2)
    with pytest.raises(RequestTimeoutError):
        await lost
    assert len(fake.published("a")) == 4


async def test_a_request_with_much_time_is_repeated_soon_and_again(fake, clock):
    client = await fake.connect()
    task = asyncio.create_task(client._connection.request_raw(b"a", b"", b"", 60, True))
    await clock.settle()
    counts = []
    for _ in range(59):
        await clock.advance(1)
        counts.append(len(fake.published("a")))
    # After 2.5, 7.5, 17.5 and 37.5 s: the leader that took the first may be frozen until another one is elected.
    assert [counts.count(number) for number in (1, 2, 3, 4, 5)] == [2, 5, 10, 20, 22]
    fake.reply(fake.wire, fake.published("a")[-1].reply, b"late")
    assert (await task).payload == b"late"


async def test_a_request_that_may_be_repeated_survives_a_lost_connection(fake, clock):
    client = await fake.connect()
    once = asyncio.create_task(client.request("b"))
    task = await repeatable(client, 20)
    fake.is_down = True
    fake.wire.lose()
    with pytest.raises(DisconnectedError):
        await once
    begun_without_a_server = await repeatable(client, 20)
    fake.is_down = False
    await clock.advance(2)
    frames = [frame for frame in fake.wire.frames if getattr(frame, "subject", b"") in (b"a", b"b")]
    assert [frame.subject for frame in frames] == [b"a", b"a"]
    assert frames[0].reply != frames[1].reply
    for frame in frames:
        fake.reply(fake.wire, frame.reply, b"answer")
    assert (await task).payload == (await begun_without_a_server).payload == b"answer"


# What the server says


async def test_a_forbidden_subscription_is_told(fake, clock):
    client = await fake.connect()
    subscription = await client.subscribe("secret")
    other = await client.subscribe("open")
    fake.wire.deliver(b"-ERR 'Permissions Violation for Subscription to \"secret\"'\r\n")
    with pytest.raises(PermissionsError, match="secret"):
        await subscription.next()
    assert not other.is_closed
    assert [type(error) for error in fake.errors] == [PermissionsError]
    assert client.is_connected


async def test_a_forbidden_request_is_told(fake, clock):
    client = await fake.connect()
    forbidden = asyncio.create_task(client.request("secret"))
    other = asyncio.create_task(client.request("open"))
    await clock.settle()
    fake.wire.deliver(b"-ERR 'Permissions Violation for Publish to \"secret\"'\r\n")
    with pytest.raises(PermissionsError):
        await forbidden
    assert not other.done()
    other.cancel()


async def test_other_complaints_reach_on_error(fake, clock):
    client = await fake.connect()
    fake.wire.deliver(b"-ERR 'Invalid Subject'\r\n")
    assert [type(error) for error in fake.errors] == [ServerError]
    assert client.is_connected


async def test_without_on_error_complaints_are_logged(fake, clock, caplog):
    await fake.connect(on_error=None)
    with caplog.at_level(logging.WARNING, logger="jetlake.client"):
        fake.wire.deliver(b"-ERR 'Invalid Subject'\r\n")
    assert "Invalid Subject" in caplog.text


async def test_without_on_error_a_failing_callback_is_logged_with_its_traceback(fake, clock, caplog):
    client = await fake.connect(on_error=None)

    def broken(message):
        raise ValueError("my own mistake")

    subscription = await client.subscribe("a", broken)
    await clock.settle()
    fake.deliver(subscription.subject, lambda sid: b"MSG a %b 5\r\nhello\r\n" % sid)
    assert "in broken" in caplog.text
    assert "my own mistake" in caplog.text
    assert "while handling <Message 'a' b'hello'>" in caplog.text


async def test_a_stale_connection_is_made_anew_and_the_reason_is_told(fake, clock):
    reasons = []
    client = await fake.connect(on_disconnected=reasons.append)
    fake.wire.deliver(b"-ERR 'Stale Connection'\r\n")
    await clock.settle()
    assert [type(reason) for reason in reasons] == [StaleConnectionError]
    assert client.is_connected
    assert len(fake.wires) == 2


async def test_expired_credentials_without_a_way_to_renew_them_close_the_client(fake, clock):
    client = await fake.connect()
    fake.wire.deliver(b"-ERR 'User Authentication Expired'\r\n")
    await clock.settle()
    assert client.is_closed
    assert isinstance(client.last_error, AuthorizationError)


async def test_a_lame_duck_is_announced_once(fake, clock):
    ducks = []
    await fake.connect(on_lame_duck=lambda: ducks.append(1))
    fake.wire.deliver(b'INFO {"ldm":true,"headers":true} \r\n')
    fake.wire.deliver(b'INFO {"ldm":true,"headers":true} \r\n')
    assert ducks == [1]


async def test_an_info_that_is_none_ends_the_connection(fake, clock):
    lost = []
    client = await fake.connect(on_disconnected=lost.append)
    fake.wire.deliver(b'INFO {"max_payload":"much"}\r\n')
    assert "INFO can't be decoded" in str(lost)
    await clock.advance(1)
    assert client.reconnects == 1


async def test_discovery(fake, clock):
    found = []
    client = await fake.connect(on_discovered=found.append)
    fake.wire.deliver(b'INFO {"headers":true,"connect_urls":["10.0.0.1:4222","fake:4222"]} \r\n')
    assert found == [["nats://10.0.0.1:4222"]]
    fake.wire.lose()
    await clock.advance(1)
    assert client.server == "nats://10.0.0.1:4222"


async def test_discovery_can_be_refused(fake, clock):
    client = await fake.connect(discover_servers=False)
    fake.wire.deliver(b'INFO {"headers":true,"connect_urls":["10.0.0.1:4222"]} \r\n')
    fake.wire.lose()
    await clock.advance(1)
    assert client.server == "nats://fake:4222"


async def test_payloads_over_the_servers_limit_are_refused_here(fake, clock):
    fake.info = ServerInfo(headers=True, max_payload=10)
    client = await fake.connect()
    assert client.max_payload == 10
    await client.publish("a", b"x" * 10)
    for send in (
        lambda: client.publish("a", b"x" * 11),
        lambda: client.publish("a", b"", headers={"A": "1"}),
        lambda: client.request("a", b"x" * 11),
        lambda: client.jetstream().publish("a", b"x" * 11),
        lambda: client.jetstream().publish_async("a", b"x" * 11),
    ):
        with pytest.raises(InvalidOptionError, match="accepts at most 10"):
            await send()


async def test_bad_subjects_are_refused_here(fake, clock):
    client = await fake.connect()
    for send in (
        lambda: client.publish("a b"),
        lambda: client.publish("a", reply="x y"),
        lambda: client.request("a.*"),
        lambda: client.subscribe("a..b"),
        lambda: client.jetstream().publish("a.>"),
    ):
        with pytest.raises(BadSubjectError):
            await send()
    await clock.settle()
    assert fake.wire.frames == []


# Ending


async def test_close_writes_what_waits(fake, clock):
    client = await fake.connect()
    await client.publish("a", b"last words")
    await client.close()
    assert frames(fake.wire, Pub)[0].payload == b"last words"
    await client.close()
    for use in (
        lambda: client.publish("a"),
        lambda: client.request("a"),
        lambda: client.subscribe("a"),
        lambda: client.flush(),
    ):
        with pytest.raises(ConnectionClosedError):
            await use()


async def test_close_tells_of_last_words_that_the_server_does_not_take(fake, clock):
    errors = []
    client = await fake.connect(on_error=errors.append)
    fake.wire.transport.unsent = 10
    await client.close()
    assert [type(error) for error in errors] == [ConnectionClosedError]
    assert "may be lost" in str(errors[0])


async def test_close_while_reconnecting(fake, clock):
    client = await fake.connect()
    fake.is_down = True
    fake.wire.lose()
    await clock.settle()
    await client.close()
    fake.is_down = False
    await clock.advance(60)
    assert len(fake.wires) == 1


async def test_events_may_be_coroutines_and_may_fail(fake, clock, caplog):
    seen = []

    async def on_disconnected(error):
        seen.append("disconnected")
        raise RuntimeError("oops")

    def on_reconnected():
        raise RuntimeError("oops too")

    client = await fake.connect(on_disconnected=on_disconnected, on_reconnected=on_reconnected)
    fake.wire.lose()
    await clock.advance(1)
    assert seen == ["disconnected"]
    assert client.is_connected
    assert caplog.text.count("an event callback failed") == 2


async def test_the_context_manager_drains_and_on_errors_closes(fake, clock):
    async with await fake.connect() as client:
        await client.publish("a", b"x")
    assert client.is_closed
    assert len(frames(fake.wire, Ping)) == 1
    with pytest.raises(ZeroDivisionError):
        async with await fake.connect() as client:
            _ = 1 / 0
    assert client.is_closed
    assert frames(fake.wire, Ping) == []


async def test_a_denied_inbox_fails_every_request_until_the_next_connection(fake, clock):
    client = await fake.connect()
    first = asyncio.create_task(client.request("a"))
    await clock.settle()
    inbox = next(iter(fake.wire.subscriptions))
    fake.wire.deliver(b"-ERR 'Permissions Violation for Subscription to \"%b\"'\r\n" % inbox)
    with pytest.raises(PermissionsError):
        await first
    for _ in range(3):
        with pytest.raises(PermissionsError):
            await client.request("a")
    assert len(frames(fake.wire, Pub)) == 1
    fake.wire.lose()
    await clock.advance(10)
    fake.answers["a"] = b"yes"
    assert (await client.request("a")).payload == b"yes"
    del fake.answers["a"]
    late = asyncio.create_task(client.request("a", timeout=1))
    await clock.settle()
    await clock.advance(1)
    with pytest.raises(RequestTimeoutError):
        await late


async def test_a_server_that_closes_after_the_handshake_is_not_stormed(fake, clock):
    await fake.connect(reconnect_wait=0.1, reconnect_wait_max=5, reconnect_jitter=0)
    for _ in range(60):
        fake.wire.lose()
        await clock.settle()
        await clock.advance(0.1)
    assert 3 < len(fake.wires) < 10
    # A connection that has lasted starts the back-off anew.
    while not fake.wire.alive:
        await clock.advance(1)
    before = len(fake.wires)
    await clock.advance(3)
    fake.wire.lose()
    await clock.settle()
    assert len(fake.wires) == before + 1


async def test_many_frames_of_a_turn_do_not_wait_for_its_end(fake, clock):
    client = await fake.connect()
    subscription = await client.subscribe("s.in")
    await clock.settle()
    sid = fake.sid(fake.wire, b"s.in")
    for number in range(600):
        fake.wire.deliver(b"MSG s.in %b $JS.ACK.S.c.1.%d.1.1.0 0\r\n\r\n" % (sid, number))
    writes = len(fake.wire.writes)
    for _ in range(600):
        (await subscription.next()).ack()
    assert len(fake.wire.writes) > writes
    await clock.settle()
    acks = [frame.subject for frame in fake.wire.frames if getattr(frame, "payload", b"") == b"+ACK"]
    assert acks == [b"$JS.ACK.S.c.1.%d.1.1.0" % number for number in range(600)]


async def test_a_publisher_of_tiny_messages_leaves_others_a_turn(fake, clock):
    client = await fake.connect()
    subscription = await client.subscribe("s.in")
    await clock.settle()
    sid = fake.sid(fake.wire, b"s.in")
    turns = []
    clock.call_soon(turns.append, 1)
    for number in range(10_000):
        if number % 100 == 0:  # Frames that are not published count too, and change nothing.
            fake.wire.deliver(b"MSG s.in %b $JS.ACK.S.c.1.%d.1.1.0 0\r\n\r\n" % (sid, number) * 300)
            for _ in range(300):
                (await subscription.next()).ack()
        await client.publish("s.out", b"x")
        if turns:
            break
    assert turns
