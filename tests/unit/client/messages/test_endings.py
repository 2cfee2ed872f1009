"""Endings from inside and in the middle: handlers that stop their own read, cancelled stops, inner cancellations."""

import asyncio

import pytest

from jetlake.errors import ConsumeError, JetlakeError, SubscriptionClosedError
from tests.support.fake_server import acks, consumer_of, delivery, message


@pytest.fixture
async def consumer(fake):
    return await consumer_of(fake)


def feed(fake, count, first=1):
    fake.deliver(fake.pull_reply(), *[delivery(number) for number in range(first, first + count)])


# Handlers that end what they belong to


@pytest.mark.parametrize("ending", ["stop", "drain", "client drain", "client close", "gathered"])
async def test_handlers_may_all_end_their_own_read(fake, clock, consumer, ending):
    client, left = fake.clients[0], []
    everybody = asyncio.Barrier(4)

    async def handle(message):
        await everybody.wait()
        if ending == "gathered":
            await asyncio.gather(read.stop(), asyncio.sleep(0))
        elif ending.startswith("client"):
            await getattr(client, ending.split()[1])()
        else:
            await getattr(read, ending)()
        left.append(message)

    read = consumer.consume(handle, concurrency=4).start()
    feed(fake, 4)
    for _ in range(4):
        await clock.settle()
    assert len(left) == 4
    await read.wait()
    assert fake.errors == []


async def test_handlers_of_two_reads_may_both_drain_the_client(fake, clock, consumer):
    both, left = asyncio.Barrier(2), []

    async def handle(message):
        await both.wait()
        await fake.clients[0].drain()
        left.append(message)

    for _ in range(2):
        consumer.consume(handle).start()
        feed(fake, 1)
    for _ in range(4):
        await clock.settle()
    assert len(left) == 2
    assert fake.clients[0].is_closed


async def test_a_drain_that_a_handler_only_starts_waits_for_the_handler(fake, clock, consumer):
    tasks, go_on = [], asyncio.Event()

    async def handle(message):
        tasks.append(asyncio.create_task(fake.clients[0].drain()))
        await go_on.wait()
        message.ack()

    consumer.consume(handle).start()
    feed(fake, 1)
    await clock.settle()
    assert not tasks[0].done()
    go_on.set()
    await tasks[0]
    assert acks(fake) == [b"+ACK"]


async def test_callbacks_may_end_their_subscription_and_their_client(fake, clock):
    client, left = await fake.connect(), []

    async def first(message):
        await subscriptions[0].drain()
        left.append("first")

    async def second(message):
        await client.drain()
        left.append("second")

    subscriptions = [await client.subscribe("a", first), await client.subscribe("b", second)]
    await clock.settle()
    for subject, subscription in zip((b"a", b"b"), subscriptions, strict=True):
        fake.wire.deliver(message(subject, subscription.sid, b"", b"x"))
    for _ in range(4):
        await clock.settle()
    assert left == ["first", "second"]
    assert client.is_closed


async def test_event_callbacks_may_all_close_the_client(fake, clock):
    closed = []

    async def close(*_):
        await client.close()
        closed.append(client.is_closed)

    client = await fake.connect(on_error=close, on_disconnected=close, on_closed=close, reconnect=False)
    fake.wire.deliver(b"-ERR 'Something Else'\r\n")
    fake.wire.lose()
    await clock.settle()
    await client.close()
    assert closed == [True, True, True]


# Endings that are cancelled


@pytest.mark.parametrize("ending", ["stop", "drain"])
async def test_a_cancelled_ending_ends_all_the_same(fake, clock, consumer, ending):
    fake.answer_pings = False
    reads = [consumer.consume().start(), consumer.consume(lambda message: None).start()]
    waiting = asyncio.create_task(reads[0].next())
    handlers = asyncio.create_task(reads[1].wait())
    await clock.settle()
    for read in reads:
        stopping = asyncio.create_task(getattr(read, ending)())
        await clock.settle()
        stopping.cancel()
        await clock.settle()
        assert read.is_stopped
    with pytest.raises(SubscriptionClosedError):
        await waiting
    await handlers


async def test_a_cancelled_drain_of_a_subscription_ends_it(fake, clock):
    subscription = await (await fake.connect()).subscribe("a")
    waiting = asyncio.create_task(subscription.next())
    fake.answer_pings = False
    draining = asyncio.create_task(subscription.drain())
    await clock.settle()
    draining.cancel()
    with pytest.raises(SubscriptionClosedError):
        await waiting


# Inner cancellations


async def awaits_something_cancelled(message):
    inner = asyncio.ensure_future(asyncio.sleep(100))
    inner.cancel()
    await inner


async def test_a_handler_survives_what_was_cancelled_inside(fake, clock, consumer):
    read = consumer.consume(awaits_something_cancelled).start()
    feed(fake, 5)
    await clock.settle()
    assert read.pending_messages == 0
    assert len(fake.errors) == 5
    assert all(isinstance(error, JetlakeError) and "cancelled" in str(error) for error in fake.errors)
    await read.stop()


@pytest.mark.parametrize("is_plain", [False, True])
async def test_a_callback_survives_what_was_cancelled_inside(fake, clock, is_plain):
    callback = (lambda message: awaits_something_cancelled(message)) if is_plain else awaits_something_cancelled
    subscription = await (await fake.connect()).subscribe("a", callback)
    await clock.settle()
    fake.wire.deliver(message(b"a", subscription.sid, b"", b"x") * 5)
    await clock.settle()
    assert len(fake.errors) == 5
    await subscription.drain()


async def test_cancelled_handlers_are_told(fake, clock, consumer):
    async def handle(message):
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    read = consumer.consume(handle).start()
    feed(fake, 1)
    await clock.settle()
    with pytest.raises(ConsumeError, match="cancelled"):
        await read.wait()
