"""The client off the beaten path on both servers: drained at once, denied, cut off, given up."""

import asyncio
from datetime import timedelta

import pytest

import jetlake
from jetlake.errors import (
    BadSubjectError,
    ConnectionClosedError,
    DisconnectedError,
    InvalidOptionError,
    JetlakeError,
    PermissionsError,
    PublishTimeoutError,
    RequestTimeoutError,
)
from jetlake.model.encoding.durations import nanoseconds, parse_duration
from tests.support.clients import filled, until, until_value

NO_INBOX = (
    "authorization { users: [ { user: u, password: p, permissions: "
    '{ publish: { deny: ["secret.>", "$JS.API.CONSUMER.MSG.NEXT.>"] }, subscribe: { deny: "hidden.>" } } } ] }'
)


@pytest.fixture
async def restrictive(start):
    """A server with a user who may neither pull, nor publish to `secret`, nor have inboxes under `hidden`."""
    return await start(NO_INBOX)


# Publishing


async def test_leaving_waits_for_the_acknowledgements(server, clients):
    errors = []
    js = (await clients(server)).jetstream()
    stream = await js.create_stream("S", subjects=["s.>"])
    async with await jetlake.connect(server.url, on_error=errors.append) as client:
        publisher = client.jetstream()
        pending = [await publisher.publish_async("s.1", b"%d" % number) for number in range(3000)]
    assert errors == []
    assert {(await one).seq for one in pending} == set(range(1, 3001))
    assert (await stream.info()).state.messages == 3000


async def test_an_outage_neither_doubles_nor_sends_what_failed(start, clients):
    server = await start(process=True)
    client = await clients(server, reconnect_wait=0.05, reconnect_wait_max=0.1)
    js = client.jetstream()
    stream = await js.create_stream("S", subjects=["s.>"])
    await server.kill()
    await until(lambda: not client.is_connected)
    pending = [await js.publish_async("s.1", b"%d" % number) for number in range(100)]
    for _ in range(3):
        with pytest.raises(PublishTimeoutError):
            await js.publish("s.2", timeout=0.01)
    await client.publish("s.3", b"kept")
    await server.start()
    await until(lambda: client.is_connected)
    assert len({(await one).seq for one in pending}) == 100
    await client.flush()
    assert (await stream.info()).state.messages == 101


# Denied


async def test_a_denied_publish_is_told_at_once(restrictive, clients):
    client = await clients(restrictive, user="u", password="p", on_error=lambda error: None)
    js = client.jetstream(timeout=60)
    pending = await js.publish_async("secret.x")
    with pytest.raises(PermissionsError, match=r"secret\.x"):
        async with asyncio.timeout(10):
            await pending


async def test_a_denied_inbox_is_told_every_time(restrictive, clients):
    client = await clients(restrictive, user="u", password="p", inbox_prefix="hidden", on_error=lambda error: None)
    for _ in range(3):
        with pytest.raises(PermissionsError):
            async with asyncio.timeout(10):
                await client.request("anything", timeout=60)
    js = client.jetstream(timeout=60)
    with pytest.raises(PermissionsError):
        async with asyncio.timeout(10):
            await (await js.publish_async("s.1"))
    with pytest.raises(PermissionsError):
        await js.publish_async("s.1")


async def test_a_denied_pull_is_told(start, clients):
    server = await start(
        "authorization { users: [ { user: admin, password: p }, { user: u, password: p, "
        'permissions: { publish: { deny: "$JS.API.CONSUMER.MSG.NEXT.>" } } } ] }'
    )
    stream = await (await clients(server, user="admin", password="p")).jetstream().create_stream("S", subjects=["s.>"])
    await stream.create_consumer("c")
    client = await clients(server, user="u", password="p", on_error=lambda error: None)
    consumer = await client.jetstream().consumer("S", "c")
    older = await client.jetstream().pull_subscribe("s.>", stream="S", consumer="c")
    async with asyncio.timeout(10):
        for pull in (
            lambda: consumer.fetch(5, expires=60),
            lambda: consumer.next(60),
            lambda: older.fetch(1, timeout=60),
            lambda: older.fetch(5, timeout=60),
            lambda: consumer.consume().next(),
            lambda: consumer.consume(lambda message: None).wait(),
        ):
            with pytest.raises(PermissionsError, match=r"MSG\.NEXT"):
                await pull()


async def test_a_fetch_without_a_server_is_told(start, clients):
    server = await start(process=True)
    client = await clients(server)
    stream = await client.jetstream().create_stream("S", subjects=["s.>"])
    consumer = await stream.create_consumer("c")
    older = await client.jetstream().pull_subscribe("s.>", stream="S", consumer="c")
    await server.kill()
    await until(lambda: not client.is_connected)

    async def raised(fetch):
        with pytest.raises(DisconnectedError):
            await fetch

    fetches = (consumer.fetch(5, expires=1), consumer.next(1), older.fetch(timeout=1), older.fetch(5, timeout=1))
    await asyncio.gather(*map(raised, fetches))
    await client.close()
    for pull in (lambda: consumer.fetch(5), older.fetch):
        with pytest.raises(ConnectionClosedError):
            await pull()


# Endings


async def test_a_paused_connection_stays(core, clients):
    client = await clients(core, ping_interval=0.02, pings_outstanding_max=1)
    subscription = await client.subscribe("a", pending_messages_max=10, on_slow="pause")
    await client.flush()
    other = await clients(core)
    for number in range(1000):
        await other.publish("a", b"%d" % number)
    await other.flush()
    await until(lambda: len(client._connection._pings._waiting) > 10)
    assert [int((await subscription.next(5)).payload) for _ in range(1000)] == list(range(1000))
    await client.flush()
    assert client.reconnects == 0


async def test_a_paused_subscription_drains(core, clients):
    client, other = await clients(core), await clients(core)
    subscription = await client.subscribe("a", pending_messages_max=10, on_slow="pause")
    await client.flush()
    for number in range(1000):
        await other.publish("a", b"%d" % number * 100)
    await other.flush()
    await until(lambda: subscription.pending_messages > 10)
    await subscription.drain(timeout=10)
    assert len([message async for message in subscription]) == 1000


@pytest.mark.parametrize("ending", ["stop", "drain", "client drain", "client close"])
async def test_handlers_may_all_end_what_they_belong_to(js, server, clients, ending):
    stream = await filled(js, 4)
    await stream.create_consumer("c")
    client = await clients(server)
    consumer = await client.jetstream().consumer("S", "c")
    everybody, left = asyncio.Barrier(4), []

    async def handle(message):
        message.ack()
        await everybody.wait()
        await getattr(client if "client" in ending else read, ending.split()[-1])()
        left.append(message)

    async with asyncio.timeout(10):
        read = consumer.consume(handle, concurrency=4).start()
        await read.wait()
        await until(lambda: len(left) >= 4)


async def test_cancelled_endings_and_cancellations_inside_handlers(server, clients):
    errors = []
    stream = await filled((await clients(server, on_error=errors.append)).jetstream(), 20)
    consumer = await stream.create_consumer("c")

    async def handle(message):
        inner = asyncio.ensure_future(asyncio.sleep(100))
        inner.cancel()
        await inner

    read = consumer.consume(handle, concurrency=2).start()
    await until(lambda: len(errors) == 20)
    waiting = asyncio.create_task(read.wait())
    stopping = asyncio.create_task(read.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    async with asyncio.timeout(10):
        await waiting
    assert read.is_stopped


# Deliveries


@pytest.mark.parametrize("max_deliver", [1, 2, 3])
async def test_taking_one_and_leaving_shows_every_message(js, max_deliver):
    stream = await filled(js, 25)
    consumer = await stream.create_consumer("c", max_deliver=max_deliver)
    seen = []
    for _ in range(25):
        async with asyncio.timeout(10):
            async for message in consumer.consume():
                seen.append(int(message.payload))
                await message.ack_sync()
                break
    assert sorted(seen) == list(range(25))


async def test_a_read_with_few_deliveries_left_reads_all(js):
    stream = await filled(js, 300)
    consumer = await stream.create_consumer("c", max_deliver=3)
    async with consumer.consume() as messages:
        await messages.next(5)  # The rest goes back unseen.
    seen = set()

    async def handle(message):
        seen.add(int(message.payload))
        message.ack()

    async with consumer.consume(handle, concurrency=4):
        await until(lambda: len(seen) == 299)


# Limits


async def test_what_the_server_would_not_take_is_refused_before_it_is_sent(start, clients):
    server = await start("max_payload: 1024", ["no_jetstream"])
    client = await clients(server)
    subscription = await client.subscribe("a")
    await client.publish("a", reply="b")
    message = await subscription.next(5)
    for call in (
        lambda: message.respond(b"x" * 1025),
        lambda: message.respond(b"x" * 1000, headers={"A": "b" * 20}),
        lambda: client.publish("s" * 5000),
        lambda: client.publish("s" * 3000, reply="r" * 3000),
        lambda: client.request("s" * 5000),
        lambda: client.subscribe("s" * 5000),
        lambda: client.subscribe("s", queue="q" * 5000),
    ):
        with pytest.raises((InvalidOptionError, BadSubjectError)):
            await call()
    # What is just below goes through, with whatever the client adds.
    longest = "s" * 3584
    subscription = await client.subscribe(longest, queue="q" * 400)
    await client.publish(longest, reply="r" * 400)
    assert (await subscription.next(5)).reply == "r" * 400
    with pytest.raises(RequestTimeoutError):
        await client.request(longest, timeout=0.01)
    assert client.reconnects == 0


async def test_requests_that_no_control_line_holds_are_refused_before_they_are_sent(server, clients):
    client = await clients(server)
    js = client.jetstream()
    stream, bucket = await js.create_stream("S", subjects=["s.>"]), await js.create_key_value("B")
    for call in (
        lambda: js.object_store("b" * 5000),
        lambda: js.create_key_value("b" * 5000),
        lambda: stream.create_consumer("c", filter_subject="s." + "f" * 5000),
        lambda: bucket.keys("k" * 5000),
    ):
        with pytest.raises((InvalidOptionError, BadSubjectError)):
            await call()
    await stream.create_consumer("c", filter_subject="s." + "f" * 3900)
    assert client.reconnects == 0


@pytest.mark.parametrize("ttl", [1_000_000, 2_592_000.5, 1.5, timedelta(days=400)])
async def test_lives_of_any_length(js, ttl):
    stream = await js.create_stream("S", subjects=["s.>"], allow_msg_ttl=True)
    await js.publish("s.1", ttl=ttl)
    header = (await stream.get(1)).headers.get("Nats-TTL")
    assert parse_duration(header) == nanoseconds(ttl)


async def test_other_event_loops_are_refused(core, clients):
    client = await clients(core)
    subscription = await client.subscribe("a")
    await client.publish("a", reply="b")
    message = await subscription.next(5)

    async def elsewhere():
        for call in (
            lambda: client.publish("a"),
            lambda: client.request("a"),
            lambda: client.subscribe("a"),
            client.flush,
            client.drain,
            client.close,
            message.respond,
        ):
            with pytest.raises(JetlakeError, match="event loop"):
                await call()

    await asyncio.to_thread(asyncio.run, elsewhere())
    assert client.is_connected


# Leftovers


async def test_handles_leave_no_subscriptions(js, clients, server):
    stream = await filled(js, 50)
    await stream.create_consumer("c")
    client = await clients(server)
    for _ in range(30):
        mine = client.jetstream()
        consumer = await mine.consumer("S", "c")
        await (await consumer.fetch(1))[0].ack()
        await (await mine.publish_async("s.1"))
        await (await mine.pull_subscribe("s.>", stream="S", consumer="c")).fetch(1)
    mine = consumer = None
    await client.flush()
    # That of requests, and one of fetches.
    assert len(client._connection.receivers()) <= 2


# Key-value buckets


async def test_entries_that_vanish_while_they_are_read(js):
    bucket = await js.create_key_value("B")
    for number in range(2500):
        await js.publish_async(f"$KV.B.k{number}", b"v")
    await js.publish_async_complete()
    async with bucket.watch() as watch:
        assert await watch._reading.pending_at_start() == 2500
        await bucket.stream.purge()
        async with asyncio.timeout(20):
            assert len(await watch.current()) < 2500
        await bucket.put("new", b"1")
        while (await watch.next(5)).key != "new":
            pass


async def test_a_mirrored_bucket_reads_as_its_origin(js):
    origin = await js.create_key_value("B")
    await origin.put("a", b"1")
    mirror = await js.create_key_value("M", mirror={"name": "B"})

    async def has(key):
        return key in await mirror.keys()

    await until(lambda: has("a"))
    assert (await mirror.get("a")).value == b"1"
    await mirror.put("b", b"2")
    await until_value(origin, "b", b"2")
    await until(lambda: has("b"))
