"""Pull requests over the wire: what they may ask, every status that answers them, and who is served when."""

import asyncio

import pytest

from tests.support.wire import Wire
from tests.support.workbench import MILLISECOND, SECOND, Workbench, numbers_of, sequences


@pytest.fixture
async def bench(server):
    bench = await Workbench.open(server)
    yield bench
    await bench.close()


async def test_an_empty_body_asks_for_one_message_and_lingers(bench):
    await bench.consumer()
    await bench.pull()
    await bench.reaches(((0, 0), (0, 0), 0, 0, 0, 1))
    await bench.store("s.a", payload=b"helo")
    message = await bench.take()
    # Not the inbox but the subject that the message was stored under (NATS ADR-13).
    assert (message.subject, message.sid, message.payload) == ("s.a", "1", b"helo")
    assert message.reply.startswith("$JS.ACK.S.c.1.1.1.")
    assert await bench.numbers() == ((1, 1), (0, 0), 0, 1, 0, 0)


@pytest.mark.parametrize("body", [b"3", b" 3 ", {"batch": 3}, {"batch": 3, "unknown": True}])
async def test_batches(bench, body):
    await bench.fill(5)
    await bench.consumer()
    await bench.pull(body)
    messages = await bench.take(3)
    assert [numbers_of(message) for message in messages] == [(1, 1, 1, 4), (1, 2, 2, 3), (1, 3, 3, 2)]
    await bench.quiet()
    assert (await bench.numbers())[5] == 0


async def test_bodies_without_meaning_ask_for_one(bench):
    await bench.fill(3)
    await bench.consumer()
    for number, body in enumerate((b"hello", b"0", b"-1"), 1):
        assert numbers_of(await bench.next(body))[1] == number
    await bench.quiet()


async def test_no_wait_with_heartbeats_ends_when_acks_make_no_room(bench):
    await bench.fill(5)
    await bench.consumer(max_ack_pending=2)
    shot = {"batch": 5, "no_wait": True, "expires": 10 * SECOND, "idle_heartbeat": 100 * MILLISECOND}
    await bench.pull(shot)
    first, second, end = await bench.take(3)
    assert (sequences([first, second]), end.header) == ([1, 2], b"NATS/1.0 404 No Messages\r\n\r\n")
    # One that had no message yet waits for room, with heartbeats.
    await bench.pull(shot)
    assert (await bench.take()).description == "Idle Heartbeat"
    await bench.data.publish(first.reply)
    while (message := await bench.take()).description == "Idle Heartbeat":
        pass
    assert numbers_of(message)[1] == 3
    assert (await bench.take()).status == 404


async def test_no_wait(bench):
    await bench.consumer()
    message = await bench.next({"batch": 1, "no_wait": True})
    # Byte for byte the 28 of NATS ADR-13.
    assert (message.subject, message.header, message.payload) == ("inbox", b"NATS/1.0 404 No Messages\r\n\r\n", b"")
    await bench.fill(2)
    await bench.pull({"batch": 5, "no_wait": True})
    first, second, end = await bench.take(3)
    assert (sequences([first, second]), end.header) == ([1, 2], b"NATS/1.0 404 No Messages\r\n\r\n")
    await bench.fill(2)
    await bench.pull({"batch": 2, "no_wait": True})
    await bench.take(2)
    await bench.quiet()


async def test_expiry(bench, clock):
    await bench.fill(1)
    await bench.consumer()
    await bench.pull({"batch": 3, "expires": 500 * MILLISECOND})
    assert numbers_of(await bench.take())[1] == 1
    clock.advance(0.5)
    end = await bench.take()
    assert end.header == b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 2\r\nNats-Pending-Bytes: 0\r\n\r\n"
    assert (await bench.numbers())[5] == 0


async def test_a_negative_expiry(bench):
    """NATS ADR-13: zero and less mean that it does not expire; nats-server 2.15.1 ends it at once with 408."""
    await bench.consumer()
    if bench.is_embedded:
        await bench.pull({"batch": 1, "expires": -1})
        await bench.reaches(((0, 0), (0, 0), 0, 0, 0, 1))
        await bench.store("s.a")
        assert numbers_of(await bench.take())[1] == 1
    else:
        assert await bench.status({"batch": 1, "expires": -1}) == "408 Request Timeout"


async def test_no_wait_with_expiry_waits_for_the_first_message(bench):
    """Today's one shot; NATS ADR-13 would let no_wait win."""
    await bench.consumer()
    await bench.pull({"batch": 5, "no_wait": True, "expires": 5 * SECOND})
    await bench.reaches(((0, 0), (0, 0), 0, 0, 0, 1))
    await bench.store("s.a")
    message, end = await bench.take(2)
    assert (numbers_of(message)[1], end.status) == (1, 404)
    assert await bench.status({"batch": 5, "no_wait": True, "expires": 50 * MILLISECOND}) == "408 Request Timeout"


async def test_max_bytes(bench):
    await bench.fill(9)
    await bench.consumer()
    first = await bench.next()
    size = len(first.subject) + len(first.reply) + len(first.payload)
    await bench.pull({"batch": 5, "max_bytes": 2 * size + 10})
    *messages, end = await bench.take(3)
    assert sequences(messages) == [2, 3]
    assert end.header == (
        b"NATS/1.0 409 Message Size Exceeds MaxBytes\r\nNats-Pending-Messages: 3\r\nNats-Pending-Bytes: 10\r\n\r\n"
    )
    await bench.pull({"batch": 5, "max_bytes": size})
    assert numbers_of(await bench.take())[1] == 4
    await bench.quiet()
    await bench.pull({"batch": 2, "max_bytes": 1000})
    *messages, end = await bench.take(3)
    assert end.description == "Batch Completed"
    assert end.headers == {"Nats-Pending-Messages": "0", "Nats-Pending-Bytes": str(1000 - 2 * size)}
    assert await bench.status({"batch": 2, "max_bytes": 5}) == "409 Message Size Exceeds MaxBytes"


async def test_max_bytes_counts_headers(bench):
    await bench.store("s.a", header=b"NATS/1.0\r\nA: " + b"x" * 100 + b"\r\n\r\n")
    await bench.consumer()
    assert await bench.status({"batch": 1, "max_bytes": 130}) == "409 Message Size Exceeds MaxBytes"


async def test_max_bytes_alone_asks_for_one_message(bench):
    await bench.fill(2)
    await bench.consumer()
    await bench.pull({"max_bytes": 1000})
    message, end = await bench.take(2)
    assert (numbers_of(message)[1], end.headers["Nats-Pending-Messages"]) == (1, "-1")


async def test_heartbeats(bench, clock):
    await bench.fill(1)
    await bench.consumer()
    await bench.pull({"batch": 5, "expires": 10 * SECOND, "idle_heartbeat": 50 * MILLISECOND})
    assert numbers_of(await bench.take())[1] == 1
    clock.advance(0.05)
    beat = await bench.take()
    assert beat.header == b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\nNats-Last-Stream: 1\r\n\r\n"
    assert beat.subject == "inbox"
    clock.advance(0.05)
    assert (await bench.take()).header == beat.header
    if bench.is_embedded:
        clock.advance(10)
        assert (await bench.take()).status == 408


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"batch": 6}, "409 Exceeded MaxRequestBatch of 5"),
        ({"batch": 1, "expires": 61 * SECOND}, "409 Exceeded MaxRequestExpires of 1m0s"),
        ({"batch": 1, "max_bytes": 1001}, "409 Exceeded MaxRequestMaxBytes of 1000"),
        ({"batch": 1, "idle_heartbeat": SECOND}, "400 Bad Request - heartbeat value too large"),
        ({"batch": 1, "expires": SECOND, "idle_heartbeat": SECOND}, "400 Bad Request - heartbeat value too large"),
        ({"batch": 1, "min_pending": 1}, "400 Bad Request - Not a Overflow Priority consumer"),
        ({"batch": 1, "min_ack_pending": 1}, "400 Bad Request - Not a Overflow Priority consumer"),
        ({"batch": 1, "id": "x"}, "400 Bad Request - Not a Pinned Client Priority consumer"),
        ({"batch": 1, "priority": 10}, "400 Bad Request - Priority must be between 0 and 9"),
        ({"batch": 6, "id": "x"}, "409 Exceeded MaxRequestBatch of 5"),
    ],
)
async def test_refusals_in_their_order(bench, body, status):
    await bench.fill(1)
    await bench.consumer(max_batch=5, max_expires=60 * SECOND, max_bytes=1000)
    assert await bench.status(body) == status
    assert (await bench.numbers())[5] == 0


async def test_other_refusals(bench):
    await bench.consumer()
    for body in (b"{", b'{"batch":"x"}'):
        assert (await bench.status(body)).startswith("400 Bad Request - ")
    await bench.consumer("push", deliver_subject="d")
    assert await bench.status(b"", "push") == "409 Consumer is push based"
    assert (await bench.next(name="nobody")).header.startswith(b"NATS/1.0 503\r\n")
    await bench.data.publish(
        "$JS.API.CONSUMER.MSG.NEXT.S.c", b"", reply="inbox", header=b"NATS/1.0\r\nNats-Required-Api-Level: 99\r\n\r\n"
    )
    message = await bench.take()
    assert (message.status, message.description) == (412, "Required Api Level")


async def test_too_many_waiting(bench):
    """Today's status; NATS ADR-13 answers 408."""
    assert (await bench.consumer("default"))["config"]["max_waiting"] == 512
    await bench.consumer(max_waiting=2)
    await bench.pull()
    await bench.pull()
    assert await bench.status(b"") == "409 Exceeded MaxWaiting"
    await bench.pull({"batch": 1, "expires": 10 * SECOND, "idle_heartbeat": SECOND})
    await bench.quiet()
    assert (await bench.numbers())[5] == 2


async def test_requests_pending(bench):
    await bench.fill(2)
    await bench.consumer(max_ack_pending=1)
    await bench.pull({"batch": 5})
    await bench.take()
    assert await bench.status({"batch": 1, "no_wait": True}) == "408 Requests Pending"


async def test_requests_take_turns(bench):
    await bench.consumer()
    await bench.pull({"batch": 3}, inbox="inbox.a")
    await bench.pull({"batch": 2}, inbox="inbox")
    await bench.reaches(((0, 0), (0, 0), 0, 0, 0, 2))
    by_sid = {"1": [], "2": []}
    for number in range(5):
        await bench.store(f"s.{number}")
        message = await bench.take()
        by_sid[message.sid].append(numbers_of(message)[1])
    assert by_sid == {"2": [1, 3, 5], "1": [2, 4]}


async def test_lost_interest_drops_the_request(bench, server):
    await bench.consumer()
    other = await (await Wire.open(server.host, server.port)).hello()
    await other.subscribe("elsewhere", "1")
    await other.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":3}', reply="elsewhere")
    await other.ping()
    await bench.reaches(((0, 0), (0, 0), 0, 0, 0, 1))
    await other.send("UNSUB 1\r\n")
    await other.ping()
    await bench.reaches(((0, 0), (0, 0), 0, 0, 0, 0))
    # A client that disconnects.
    await other.subscribe("elsewhere", "1")
    await other.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch":3}', reply="elsewhere")
    await other.ping()
    await bench.reaches(((0, 0), (0, 0), 0, 0, 0, 1))
    await other.close()
    await bench.reaches(((0, 0), (0, 0), 0, 0, 0, 0))
    await bench.pull()
    await bench.store("s.a")
    assert numbers_of(await bench.take())[:3] == (1, 1, 1)


async def test_a_subscription_that_ends_with_its_number_leaves_the_rest(bench):
    await bench.fill(4)
    await bench.consumer()
    await bench.data.send("SUB limited 5\r\nUNSUB 5 2\r\n")
    await bench.pull({"batch": 4}, inbox="limited")
    assert sequences(await bench.take(2)) == [1, 2]
    if bench.is_embedded:
        # nats-server may have counted deliveries that nobody took by now.
        await bench.reaches(((2, 2), (0, 0), 2, 2, 0, 0))
    await bench.pull(b"2")
    assert sorted(sequences(await bench.take(2))) == [3, 4]


async def test_max_ack_pending_stops_new_messages_and_lets_redeliveries_through(bench, clock):
    await bench.fill(3)
    await bench.consumer(max_ack_pending=1, ack_wait=100 * MILLISECOND)
    await bench.pull({"batch": 3, "expires": 10 * SECOND})
    assert numbers_of(await bench.take())[:2] == (1, 1)
    clock.advance(0.1)
    message = await bench.take()
    assert numbers_of(message)[:2] == (2, 1)
    while numbers_of(message)[1] == 1:
        # It may come once more before its acknowledgement has arrived.
        await bench.data.publish(message.reply)
        message = await bench.take()
    assert numbers_of(message)[:2] == (1, 2)


async def test_no_wait_lingers_while_acks_are_due(bench):
    await bench.fill(2)
    await bench.consumer(max_ack_pending=1)
    first = await bench.next()
    await bench.pull({"batch": 1, "no_wait": True})
    await bench.quiet()
    await bench.data.publish(first.reply)
    assert numbers_of(await bench.take())[1] == 2


async def test_no_wait_ends_when_nothing_is_left_although_acks_are_due(bench):
    """NATS ADR-13 wants an answer at once; nats-server waits for the acknowledgement."""
    await bench.fill(1)
    await bench.consumer(max_ack_pending=1)
    await bench.pull({"batch": 5, "no_wait": True})
    message = await bench.take()
    if not bench.is_embedded:
        await bench.quiet()
        await bench.data.publish(message.reply)
    assert (await bench.take()).status == 404


async def test_a_deleted_consumer_ends_its_requests(bench):
    await bench.consumer()
    await bench.pull({"batch": 2, "max_bytes": 100})
    await bench.reaches(((0, 0), (0, 0), 0, 0, 0, 1))
    await bench.api("CONSUMER.DELETE.S.c")
    assert (await bench.take()).header == b"NATS/1.0 409 Consumer Deleted\r\n\r\n"


async def test_a_deleted_stream_ends_them_too(bench):
    await bench.consumer()
    await bench.pull({"batch": 2})
    await bench.reaches(((0, 0), (0, 0), 0, 0, 0, 1))
    await bench.api("STREAM.DELETE.S")
    assert (await bench.take()).description == "Consumer Deleted"


async def test_a_server_that_stops_ends_them(bench, server):
    await bench.consumer()
    await bench.pull({"batch": 2, "max_bytes": 77})
    await bench.reaches(((0, 0), (0, 0), 0, 0, 0, 1))
    stopping = asyncio.ensure_future(server.stop())
    message = await bench.take()
    assert message.header == (
        b"NATS/1.0 409 Server Shutdown\r\nNats-Pending-Messages: 2\r\nNats-Pending-Bytes: 77\r\n\r\n"
    )
    await stopping


async def test_a_paused_consumer(bench):
    await bench.fill(1)
    await bench.consumer()
    await bench.api("CONSUMER.PAUSE.S.c", {"pause_until": "2099-01-01T00:00:00Z"})
    assert await bench.status({"batch": 1, "no_wait": True}) == "404 No Messages"
    await bench.pull({"batch": 1, "expires": 10 * SECOND, "idle_heartbeat": 30 * MILLISECOND})
    assert (await bench.take()).description == "Idle Heartbeat"
    await bench.api("CONSUMER.PAUSE.S.c")
    messages = [await bench.take()]
    while messages[-1].status is not None:
        messages.append(await bench.take())
    assert numbers_of(messages[-1])[1] == 1


async def test_headers_only(bench):
    await bench.store("s.a", payload=b"12345", header=b"NATS/1.0\r\nA: b\r\n\r\n")
    await bench.store("s.b", payload=b"")
    await bench.consumer(headers_only=True)
    await bench.pull(b"2")
    first, second = await bench.take(2)
    assert (first.header, first.payload) == (b"NATS/1.0\r\nA: b\r\nNats-Msg-Size: 5\r\n\r\n", b"")
    assert (second.header, second.payload) == (b"NATS/1.0\r\nNats-Msg-Size: 0\r\n\r\n", b"")


async def test_filters(bench):
    await bench.store("s.a", "s.b", "s.c.d", "s.a", "s.b")
    await bench.consumer("one", filter_subject="s.b")
    await bench.consumer("two", filter_subjects=["s.a", "s.c.>"])
    await bench.pull(b"2", "one")
    messages = await bench.take(2)
    assert [numbers_of(message) for message in messages] == [(1, 2, 1, 1), (1, 5, 2, 0)]
    await bench.pull(b"3", "two")
    assert sequences(await bench.take(3)) == [1, 3, 4]
    await bench.answer(messages[0])
    assert await bench.numbers("one") == ((2, 5), (1, 4), 0, 1, 0, 0)


async def test_last_per_subject(bench):
    await bench.store("s.a", "s.b", "s.a", "s.c", "s.b")
    await bench.consumer(deliver_policy="last_per_subject", filter_subject="s.>")
    await bench.store("s.c")
    await bench.has_pending(4)
    await bench.pull(b"4")
    assert [numbers_of(message)[1::2] for message in await bench.take(4)] == [(3, 3), (4, 2), (5, 1), (6, 0)]


async def test_a_start_in_the_future_is_waited_for(bench):
    await bench.consumer(deliver_policy="by_start_sequence", opt_start_seq=3)
    await bench.pull(b"2")
    await bench.fill(4)
    assert sequences(await bench.take(2)) == [3, 4]


async def test_a_first_delivery_to_a_vanished_inbox_stays_in_its_place(bench):
    await bench.fill(3)
    await bench.consumer()
    await bench.pull({"batch": 1}, inbox="nobody.listens")
    await bench.pull(b"3")
    assert [numbers_of(message)[:3] for message in await bench.take(3)] == [(1, 1, 1), (1, 2, 2), (1, 3, 3)]
