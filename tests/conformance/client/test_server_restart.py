"""A server that is killed and started again under a client that reads and publishes: nothing lost, nothing twice."""

import asyncio

import pytest

from jetlake.errors import ClientConnectionError, ConsumerDeletedError, DisconnectedError, PublishWindowError
from tests.support.clients import filled, numbers, until


@pytest.fixture
async def server(start):
    """One that can be killed."""
    return await start(process=True)


@pytest.fixture
async def client(server, clients):
    return await clients(server, on_error=lambda error: None)


async def kill_and_start(server, client):
    reconnects = client.reconnects
    await server.kill()
    await until(lambda: not client.is_connected)
    await server.start()
    await until(lambda: client.reconnects > reconnects)


async def test_consume_goes_on(server, client):
    js = client.jetstream()
    stream = await filled(js, 500)
    consumer = await stream.create_consumer("c", ack_wait=1, max_ack_pending=-1)
    received = []
    async with consumer.consume(max_messages=50) as messages:
        async for message in messages:
            received.append(int(message.payload))
            message.ack()
            if len(received) == 200:
                await kill_and_start(server, client)
            if len(set(received)) == 500:
                break
    # Some acknowledgements may have died with the server; then their messages come again. None is missing.
    assert sorted(set(received)) == list(range(500))


async def test_consume_of_new_messages_goes_on(server, client):
    js = client.jetstream()
    stream = await js.create_stream("S", subjects=["s.>"])
    consumer = await stream.create_consumer("c")
    async with consumer.consume() as messages:
        for round_ in range(3):
            await js.publish("s.1", b"%d" % round_)
            message = await messages.next(10)
            while not server.is_embedded and int(message.payload) < round_:
                # nats-server may forget a confirmed acknowledgement when it is killed.
                await message.ack_sync()
                message = await messages.next(10)
            assert int(message.payload) == round_
            await message.ack_sync()
            if round_ < 2:
                await kill_and_start(server, client)


async def test_ordered_goes_on_exactly(server, client):
    """A known trap of the peers: an ordered read that never recovers after a restart."""
    js = client.jetstream()
    stream = await filled(js, 1000)
    received = []
    async with stream.ordered().consume(max_messages=50) as messages:
        async for message in messages:
            received.append(int(message.payload))
            if len(received) in (300, 700):
                await kill_and_start(server, client)
            if len(received) == 1000:
                break
        assert messages.resets >= 2
    assert received == list(range(1000))


async def test_an_ordered_read_that_waits_goes_on(server, client):
    js = client.jetstream()
    stream = await filled(js, 3)
    async with stream.ordered().consume() as messages:
        assert numbers([await messages.next(5) for _ in range(3)]) == [0, 1, 2]
        await kill_and_start(server, client)
        await js.publish("s.1", b"3")
        assert numbers([await messages.next(10)]) == [3]


async def test_fetches_go_on(server, client):
    js = client.jetstream()
    stream = await filled(js, 10)
    consumer = await stream.create_consumer("c", ack_wait=1)
    assert len(await consumer.fetch(3)) == 3
    waiting = asyncio.ensure_future(asyncio.wait_for(consumer.fetch(100, expires=2), 40))
    await asyncio.sleep(0)
    await server.kill()
    try:
        early = numbers(await waiting)
    except DisconnectedError:
        early = []
    assert set(early) <= set(range(10))
    await server.start()
    await until(lambda: client.is_connected)
    received = set()
    while received != set(range(10)):
        for message in await consumer.fetch(10, expires=3):
            received.add(int(message.payload))
            await message.ack_sync()


async def test_push_subscriptions_go_on(server, client):
    js = client.jetstream()
    await filled(js, 100)
    received = []
    subscription = await js.subscribe("s.>", durable="d", ack_wait=1)
    async for message in subscription:
        received.append(int(message.payload))
        message.ack()
        if len(received) == 50:
            await kill_and_start(server, client)
        if len(set(received)) == 100:
            break
    assert sorted(set(received)) == list(range(100))


async def test_a_publish_window_loses_nothing_and_doubles_nothing(server, client):
    js = client.jetstream()
    stream = await js.create_stream("S", subjects=["s.>"])
    killed = False
    for number in range(3000):
        await js.publish_async("s.1", b"%d" % number, msg_id=str(number))
        if number == 1500:
            killing = asyncio.ensure_future(kill_and_start(server, client))
            killed = True
        if number % 100 == 0:
            await asyncio.sleep(0)
    assert killed
    await killing
    await js.publish_async_complete(timeout=30)
    received = []
    async for message in stream.ordered():
        received.append(int(message.payload))
        if len(received) == 3000:
            break
    assert received == list(range(3000))
    assert (await stream.info()).state.messages == 3000


async def test_without_ids_the_window_says_what_is_unknown(server, client):
    js = client.jetstream()
    stream = await js.create_stream("S", subjects=["s.>"])
    pending = [await js.publish_async("s.1", b"%d" % number) for number in range(2000)]
    await server.kill()
    await until(lambda: not client.is_connected)
    with pytest.raises(PublishWindowError):
        await js.publish_async_complete()
    acknowledged = unknown = 0
    for one in pending:
        try:
            await one
            acknowledged += 1
        except DisconnectedError:
            unknown += 1
    assert acknowledged + unknown == 2000
    assert unknown > 0
    await server.start()
    await until(lambda: client.is_connected)
    stored = (await stream.info()).state.messages
    # On nats-server an acknowledged message may still be lost with the process; on ours none is.
    assert stored <= 2000
    if server.is_embedded:
        assert stored >= acknowledged


async def test_publish_with_an_id_can_be_repeated(server, client):
    js = client.jetstream()
    stream = await js.create_stream("S", subjects=["s.>"])

    async def publish(number):
        while True:
            try:
                return await js.publish("s.1", b"%d" % number, msg_id=str(number), timeout=2)
            except (ClientConnectionError, TimeoutError):
                await asyncio.sleep(0.02)

    for number in range(60):
        if number == 30:
            killing = asyncio.ensure_future(kill_and_start(server, client))
        await publish(number)
    await killing
    assert (await stream.info()).state.messages == 60


async def test_a_consumer_in_memory_is_gone_and_that_is_told(server, client):
    js = client.jetstream()
    stream = await filled(js, 3)
    consumer = await stream.create_consumer("c", mem_storage=True, durable=False, inactive_threshold=3600)
    async with consumer.consume() as messages:
        for _ in range(3):
            await messages.next(5)
        await kill_and_start(server, client)
        with pytest.raises(ConsumerDeletedError):
            await messages.next(10)


async def test_a_push_consumer_in_memory_is_gone_and_that_is_told(server, client):
    js = client.jetstream()
    await filled(js, 3)
    subscription = await js.subscribe("s.>", mem_storage=True, inactive_threshold=3600)
    for _ in range(3):
        await (await subscription.next(5)).ack()
    await kill_and_start(server, client)
    with pytest.raises(ConsumerDeletedError):
        await subscription.next(10)


async def test_a_server_that_stops_politely(server, client):
    js = client.jetstream()
    stream = await filled(js, 3)
    consumer = await stream.create_consumer("c")
    async with consumer.consume() as messages:
        for _ in range(3):
            await (await messages.next(5)).ack_sync()
        reconnects = client.reconnects
        await server.stop()
        await until(lambda: not client.is_connected)
        await server.start()
        await until(lambda: client.reconnects > reconnects)
        await js.publish("s.1", b"3")
        assert numbers([await messages.next(10)]) == [3]
