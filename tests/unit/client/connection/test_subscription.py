"""Core subscriptions: iterating, callbacks, and what happens when they are too slow."""

import asyncio

import pytest

from jetlake.errors import (
    DrainTimeoutError,
    InvalidOptionError,
    RequestTimeoutError,
    SlowSubscriberError,
    SubscriptionClosedError,
)
from jetlake.protocol.frames import Ping


def feed(fake, subscription, *payloads):
    fake.wire.deliver(b"".join(b"MSG a %b %d\r\n%b\r\n" % (subscription.sid, len(p), p) for p in payloads))


async def test_iterate(fake, clock):
    client = await fake.connect()
    subscription = await client.subscribe("a")
    feed(fake, subscription, b"1", b"2")
    taken = []
    async for message in subscription:
        taken.append(message.payload)
        if len(taken) == 2:
            await subscription.unsubscribe()
    assert taken == [b"1", b"2"]


async def test_many_messages_of_one_read_are_whole(fake, clock):
    client = await fake.connect()
    subscription = await client.subscribe("a")
    reply = b"$JS.ACK.S.c.1.%d.%d.1700000000000000000.0"
    lines = [b"MSG a %b %b 1\r\nx\r\n" % (subscription.sid, reply % (number, number)) for number in range(1, 101)]
    fake.wire.deliver(b"".join(lines))
    messages = [await subscription.next() for _ in lines]
    assert [message.metadata.stream_seq for message in messages] == list(range(1, 101))
    assert {(message.subject, message.sid, message.payload) for message in messages} == {("a", subscription.sid, b"x")}
    messages[41].ack()
    await clock.settle()
    assert fake.wire.frames[-1].subject == reply % (42, 42)
    await subscription.unsubscribe()
    fake.wire.deliver(b"".join(lines))  # Messages that were under way then are dropped.
    assert client.statistics.messages_received == 100


async def test_next(fake, clock):
    client = await fake.connect()
    subscription = await client.subscribe("a")
    feed(fake, subscription, b"1")
    assert (await subscription.next()).payload == b"1"
    waiting = asyncio.create_task(subscription.next(timeout=2))
    await clock.settle()
    await clock.advance(2)
    with pytest.raises(RequestTimeoutError, match="'a'"):
        await waiting
    await subscription.unsubscribe()
    with pytest.raises(SubscriptionClosedError):
        await subscription.next()


async def test_one_wake_up_for_a_read(fake, clock):
    client = await fake.connect()
    subscription = await client.subscribe("a")

    async def take():
        return [len(batch) async for batch in subscription.batches()]

    task = asyncio.create_task(take())
    await clock.settle()
    feed(fake, subscription, *[b"x"] * 100)
    await clock.settle()
    feed(fake, subscription, *[b"x"] * 7)
    await subscription.unsubscribe()
    assert await task == [100, 7]


async def test_two_tasks_share_a_subscription(fake, clock):
    client = await fake.connect()
    subscription = await client.subscribe("a")
    first, second = (asyncio.create_task(subscription.next()) for _ in range(2))
    await clock.settle()
    feed(fake, subscription, b"1", b"2")
    assert {(await first).payload, (await second).payload} == {b"1", b"2"}


async def test_a_cancelled_task_leaves_the_messages_to_others(fake, clock):
    client = await fake.connect()
    subscription = await client.subscribe("a")
    first, second = (asyncio.create_task(subscription.next()) for _ in range(2))
    await clock.settle()
    first.cancel()
    await clock.settle()
    feed(fake, subscription, b"1")
    assert (await second).payload == b"1"


async def test_a_plain_callback_is_called_when_the_message_is_read(fake, clock):
    client = await fake.connect()
    taken = []
    subscription = await client.subscribe("a", lambda message: taken.append(message.payload))
    feed(fake, subscription, b"1", b"2")
    assert taken == [b"1", b"2"]


async def test_a_coroutine_callback_gets_one_message_at_a_time(fake, clock):
    client = await fake.connect()
    at_work = 0
    taken = []

    async def handle(message):
        nonlocal at_work
        at_work += 1
        assert at_work == 1
        await asyncio.sleep(0)
        taken.append(message.payload)
        at_work -= 1

    subscription = await client.subscribe("a", handle)
    feed(fake, subscription, b"1", b"2", b"3")
    await clock.settle()
    assert taken == [b"1", b"2", b"3"]


async def test_a_plain_function_may_return_a_coroutine(fake, clock):
    client = await fake.connect()
    taken = []

    async def handle(message):
        await asyncio.sleep(0)
        taken.append(message.payload)

    subscription = await client.subscribe("a", lambda message: handle(message))
    feed(fake, subscription, b"1", b"2", b"3")
    await clock.settle()
    assert taken == [b"1", b"2", b"3"]
    assert (subscription.pending_messages, subscription.pending_bytes) == (0, 0)


@pytest.mark.parametrize("is_coroutine", [False, True])
async def test_a_failing_callback_goes_on_and_is_reported(fake, clock, is_coroutine):
    client = await fake.connect()
    taken = []

    def handle(message):
        if message.payload == b"2":
            raise ValueError("bad")
        taken.append(message.payload)

    async def handle_later(message):
        handle(message)

    subscription = await client.subscribe("a", handle_later if is_coroutine else handle)
    feed(fake, subscription, b"1", b"2", b"3")
    await clock.settle()
    assert taken == [b"1", b"3"]
    assert [str(error) for error in fake.errors] == ["bad"]


async def test_a_callback_may_unsubscribe_in_the_middle_of_a_read(fake, clock):
    client = await fake.connect()
    taken = []

    def handle(message):
        taken.append(message.payload)
        subscription._connection.unsubscribe(subscription)
        subscription.ended(None)

    subscription = await client.subscribe("a", handle)
    feed(fake, subscription, b"1", b"2")
    assert taken == [b"1"]


async def test_with_a_callback_nobody_iterates(fake, clock):
    client = await fake.connect()
    subscription = await client.subscribe("a", lambda message: None)
    with pytest.raises(InvalidOptionError, match="callback"):
        await subscription.next()
    with pytest.raises(InvalidOptionError, match="callback"):
        await anext(aiter(subscription))


# Too slow


async def test_new_messages_are_dropped_and_it_is_told(fake, clock):
    client = await fake.connect()
    subscription = await client.subscribe("a", pending_messages_max=3)
    feed(fake, subscription, *[b"%d" % number for number in range(5)])
    feed(fake, subscription, b"5")
    assert subscription.dropped == 3
    assert [(type(error), error.dropped) for error in fake.errors] == [(SlowSubscriberError, 2)]
    taken = [(await subscription.next()).payload for _ in range(3)]
    assert taken == [b"0", b"1", b"2"]
    # It has recovered, so the next time is told again.
    feed(fake, subscription, *[b"x"] * 4)
    assert len(fake.errors) == 2
    assert subscription.dropped == 4


async def test_old_messages_are_dropped(fake, clock):
    client = await fake.connect()
    subscription = await client.subscribe("a", pending_messages_max=3, on_slow="drop_old")
    feed(fake, subscription, *[b"%d" % number for number in range(5)])
    assert [(await subscription.next()).payload for _ in range(3)] == [b"2", b"3", b"4"]
    assert subscription.dropped == 2
    assert len(fake.errors) == 1


async def test_bytes_are_limited_too(fake, clock):
    client = await fake.connect()
    subscription = await client.subscribe("a", pending_bytes_max=10)
    feed(fake, subscription, b"12345", b"12345", b"1")
    assert (subscription.pending_messages, subscription.pending_bytes, subscription.dropped) == (2, 10, 1)
    await subscription.next()
    assert subscription.pending_bytes == 5
    feed(fake, subscription, b"1234")
    assert subscription.pending_bytes == 9


async def test_taking_one_by_one_leaves_no_tasks_behind(fake, clock):
    client = await fake.connect()
    subscription = await client.subscribe("a")
    feed(fake, subscription, b"1", b"2")
    before = asyncio.all_tasks()
    assert [(await subscription.next()).payload for _ in range(2)] == [b"1", b"2"]
    assert asyncio.all_tasks() == before


async def test_the_connection_may_be_paused_instead(fake, clock):
    client = await fake.connect()
    subscription = await client.subscribe("a", pending_messages_max=4, on_slow="pause")
    feed(fake, subscription, *[b"x"] * 6)
    assert not fake.wire.transport.is_reading()
    assert subscription.dropped == 0
    assert len(fake.errors) == 1
    for _ in range(4):
        await subscription.next()
    assert fake.wire.transport.is_reading()


async def test_two_that_paused_a_lost_connection_pause_the_next_one_too(fake, clock):
    client = await fake.connect()
    subscriptions = [await client.subscribe(name, pending_messages_max=1, on_slow="pause") for name in "ab"]
    await clock.settle()
    for name in (b"a", b"b"):
        fake.deliver(name, lambda sid: b"MSG x %b 1\r\nx\r\n" % sid * 2)
    fake.wire.lose()
    await clock.advance(1)
    assert fake.wire.transport.reading
    fake.deliver(b"a", lambda sid: b"MSG x %b 1\r\nx\r\n" % sid)
    assert not fake.wire.transport.reading
    for subscription in subscriptions:
        await subscription.unsubscribe()
    assert fake.wire.transport.reading


async def test_leaving_resumes_a_paused_connection(fake, clock):
    client = await fake.connect()
    subscription = await client.subscribe("a", pending_messages_max=1, on_slow="pause")
    feed(fake, subscription, *[b"x"] * 6)
    assert not fake.wire.transport.is_reading()
    await subscription.unsubscribe()
    assert fake.wire.transport.is_reading()


async def test_or_the_subscription_ends_with_an_error(fake, clock):
    client = await fake.connect()
    subscription = await client.subscribe("a", pending_messages_max=2, on_slow="error")
    feed(fake, subscription, *[b"x"] * 3)
    assert [message.payload for message in [await subscription.next(), await subscription.next()]] == [b"x", b"x"]
    with pytest.raises(SlowSubscriberError, match="1 messages dropped"):
        await subscription.next()


async def test_a_slow_coroutine_callback_has_the_same_limits(fake, clock):
    client = await fake.connect()
    gate = asyncio.Event()
    taken = []

    async def handle(message):
        await gate.wait()
        taken.append(message)

    subscription = await client.subscribe("a", handle, pending_messages_max=3)
    await clock.settle()
    feed(fake, subscription, b"0")
    await clock.settle()
    feed(fake, subscription, *[b"x"] * 5)
    assert subscription.dropped == 2
    gate.set()
    await clock.settle()
    assert len(taken) == 4


@pytest.mark.parametrize("options", [{"pending_messages_max": 0}, {"pending_bytes_max": 0}, {"on_slow": "panic"}])
async def test_bad_limits(fake, clock, options):
    client = await fake.connect()
    with pytest.raises(InvalidOptionError):
        await client.subscribe("a", **options)


# Draining


async def test_drain_takes_what_is_under_way(fake, clock):
    client = await fake.connect()
    fake.answer_pings = False
    subscription = await client.subscribe("a")
    draining = asyncio.create_task(subscription.drain())
    await clock.settle()
    feed(fake, subscription, b"late")
    fake.wire.deliver(b"PONG\r\n")
    await draining
    assert [message.payload async for message in subscription] == [b"late"]


async def test_draining_the_client_lets_callbacks_finish_and_sends_their_answers(fake, clock):
    client = await fake.connect()

    async def handle(message):
        await asyncio.sleep(0)
        await client.publish("done", message.payload)

    subscription = await client.subscribe("a", handle)
    feed(fake, subscription, b"1", b"2")
    await client.drain()
    assert [frame.payload for frame in fake.published("done")] == [b"1", b"2"]
    assert client.is_closed


async def test_draining_gives_up_in_time(fake, clock):
    client = await fake.connect(drain_timeout=5)

    async def handle(message):
        await asyncio.Event().wait()

    subscription = await client.subscribe("a", handle)
    feed(fake, subscription, b"1")
    draining = asyncio.create_task(client.drain())
    await clock.settle()
    await clock.advance(5)
    await clock.advance(5)
    with pytest.raises(DrainTimeoutError):
        await draining
    assert client.is_closed
    await clock.settle()
    assert all(worker.cancelled() for worker in subscription._runner.workers)


async def test_a_paused_connection_is_not_stale(fake, clock):
    client = await fake.connect(ping_interval=10, pings_outstanding_max=2)
    subscription = await client.subscribe("a", pending_messages_max=1, on_slow="pause")
    await clock.settle()
    fake.answer_pings = False  # What is not read is not heard.
    feed(fake, subscription, b"1", b"2", b"3")
    assert not fake.wire.transport.reading
    for _ in range(10):
        await clock.advance(10)
    assert len(fake.wires) == 1 and client.is_connected
    # The server hears of the client all the time.
    assert len([frame for frame in fake.wire.frames if isinstance(frame, Ping)]) == 10
    for _ in range(3):
        await subscription.next()
    assert fake.wire.transport.reading
    for _ in range(3):
        await clock.advance(10)
    await clock.settle()
    assert len(fake.wires) == 2
