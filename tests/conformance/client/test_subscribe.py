"""The older workflow on both servers: subscribe, queue_subscribe, pull_subscribe (NATS ADR-13, ADR-15)."""

import asyncio

import pytest

from jetlake.errors import (
    ConsumerNotFoundError,
    HeartbeatMissedError,
    NoRespondersError,
    StreamNotFoundError,
    SubscribeMismatchError,
)
from jetlake.model.replies import ConsumerInfoReply
from tests.support.clients import cancelled_in_first_turn, filled, numbers, until


@pytest.fixture
async def errors():
    return []


@pytest.fixture
async def js(server, clients, errors):
    return (await clients(server, on_error=errors.append)).jetstream()


async def has_consumers(stream, names):
    """Say whether these are the stream's consumers; a cluster lists a removed one for a moment."""
    return sorted(await stream.consumer_names()) == names


async def test_an_ephemeral_consumer_lives_as_long_as_its_subscription(js):
    stream = await filled(js, 10)
    subscription = await js.subscribe("s.>")
    messages = [await subscription.next(5) for _ in range(10)]
    assert numbers(messages) == list(range(10))
    for message in messages:
        await message.ack_sync()
    info = await subscription.consumer_info()
    assert (info.num_ack_pending, info.push_bound) == (0, True)
    await until(lambda: has_consumers(stream, [subscription.consumer_name]))
    await subscription.unsubscribe()
    await until(lambda: has_consumers(stream, []))


@pytest.mark.parametrize("ending", ["drain", "unsubscribe", "pull_unsubscribe"])
async def test_a_cancelled_end_deletes_the_consumer_all_the_same(js, ending):
    stream = await filled(js, 1)
    if ending == "pull_unsubscribe":
        subscription = await js.pull_subscribe("s.>", durable="d")
        await cancelled_in_first_turn(subscription.unsubscribe())
    else:
        subscription = await js.subscribe("s.>", durable="d")
        await cancelled_in_first_turn(getattr(subscription, ending)())
    await until(lambda: has_consumers(stream, []))


async def test_callbacks_acknowledge(js):
    await filled(js, 50)
    seen = []
    subscription = await js.subscribe("s.>", lambda message: seen.append(int(message.payload)))
    await until(lambda: len(seen) == 50)

    async def acknowledged():
        return (await subscription.consumer_info()).num_ack_pending == 0

    await until(acknowledged)
    await subscription.drain()


async def test_a_durable_consumer_of_others_stays(js):
    stream = await filled(js, 10)
    first = await js.subscribe("s.>", durable="d")
    for _ in range(4):
        await (await first.next(5)).ack_sync()
    with pytest.raises(SubscribeMismatchError, match="duplicate subscription"):
        await js.subscribe("s.>", durable="d")
    await first.unsubscribe()
    await until(lambda: has_consumers(stream, []))
    await stream._api.connection.flush(5)
    # Made by hand, it outlives its subscriptions and keeps its place. What the first one leaves comes again when its
    # ack wait is over; a nak could bring it to the subscription that is about to go.
    config = b'{"durable_name":"mine","deliver_subject":"d.here","ack_policy":"explicit","ack_wait":1000000000}'
    await js.api.connection.request_raw(
        b"$JS.API.CONSUMER.DURABLE.CREATE.S.mine", b"", b'{"stream_name":"S","config":%b}' % config, 5
    )
    for expected in (0, 1):
        subscription = await js.subscribe(stream="S", consumer="mine")
        assert not subscription.owns_consumer
        message = await subscription.next(5)
        assert int(message.payload) == expected
        await message.ack_sync()
        await subscription.unsubscribe()
        await js.api.connection.flush(5)
    await until(lambda: has_consumers(stream, ["mine"]))


async def test_queues_share(js, server, clients):
    await filled(js, 300)
    counts = [0, 0, 0]
    members = []

    def counter(number):
        def count(message):
            counts[number] += 1

        return count

    for number in range(3):
        other = (await clients(server)).jetstream()
        members.append(await other.queue_subscribe("s.>", "workers", counter(number)))
    assert [member.owns_consumer for member in members] == [True, False, False]
    assert {member.consumer_name for member in members} == {"workers"}
    for number in range(300):
        await js.publish("s.1", b"%d" % number)
    await until(lambda: sum(counts) == 600)
    assert all(counts)
    with pytest.raises(SubscribeMismatchError, match="without a queue"):
        await js.subscribe("s.>", durable="workers")
    with pytest.raises(SubscribeMismatchError, match="queue group 'workers'"):
        await js.queue_subscribe("s.>", "others", durable="workers")


async def test_mismatches(js):
    stream = await filled(js, 3)
    plain = await js.subscribe("s.1", durable="push")
    with pytest.raises(SubscribeMismatchError, match="without a deliver group"):
        await js.queue_subscribe("s.1", "q", durable="push")
    with pytest.raises(SubscribeMismatchError, match="push based"):
        await js.pull_subscribe("s.1", "push")
    await plain.unsubscribe()
    await stream.create_consumer("pull", filter_subject="s.2", ack_wait=10)
    with pytest.raises(SubscribeMismatchError, match="pull subscription is required"):
        await js.subscribe("s.2", durable="pull")
    with pytest.raises(SubscribeMismatchError, match=r"not the subject 's\.1'"):
        await js.pull_subscribe("s.1", "pull")
    with pytest.raises(SubscribeMismatchError, match="ack_wait"):
        await js.pull_subscribe("s.2", "pull", ack_wait=5)
    assert numbers(await (await js.pull_subscribe("s.2", "pull", ack_wait=10)).fetch(1)) == [2]
    with pytest.raises(ConsumerNotFoundError):
        await js.subscribe("s.1", consumer="nobody")
    with pytest.raises(StreamNotFoundError, match="no stream has the subject"):
        await js.subscribe("elsewhere")
    await js.create_stream("T", subjects=["t.>"])
    with pytest.raises(StreamNotFoundError, match="2 streams have the subject"):
        await js.subscribe(">")


async def test_flow_control_and_heartbeats(js, server, clients, errors):
    stream = await js.create_stream("S", subjects=["s.>"], storage="memory")
    payload = b"x" * 10_000
    for _ in range(1000):
        await js.publish_async("s.1", payload)
    await js.publish_async_complete()
    subscription = await js.subscribe("s.1", ack_policy="none", flow_control=True, idle_heartbeat=0.5)
    received = 0
    async for message in subscription:
        assert len(message.payload) == 10_000
        received += 1
        if received == 1000:
            break
    # Ten megabytes are more than the server sends without an answer. Now it is idle, and heartbeats come.
    deliver_subject = (await subscription.consumer_info()).config.deliver_subject
    beats = await (await clients(server)).subscribe(deliver_subject)
    for _ in range(2):
        assert "Idle Heartbeat" in str((await beats.next(10)).headers)
    assert subscription.pending_messages == 0
    # A machine that stands still for a moment misses some.
    assert all(isinstance(error, HeartbeatMissedError) for error in errors)
    assert (await stream.info()).state.consumer_count == 1


async def test_an_ordered_subscription(js):
    await filled(js, 100)
    subscription = await js.subscribe("s.>", ordered=True)
    assert numbers([await subscription.next(5) for _ in range(100)]) == list(range(100))
    await subscription.unsubscribe()
    seen = []
    subscription = await js.subscribe("s.3", lambda message: seen.append(int(message.payload)), ordered=True)
    await until(lambda: len(seen) == 10)
    assert seen == list(range(3, 100, 10))
    await subscription.unsubscribe()


async def test_pull_subscribe(js):
    stream = await filled(js, 20)
    subscription = await js.pull_subscribe("s.>", "worker")
    assert subscription.owns_consumer
    assert numbers(await subscription.fetch(5)) == [0, 1, 2, 3, 4]
    assert numbers(await subscription.fetch()) == [5]
    assert numbers(await subscription.fetch(100, timeout=2)) == list(range(6, 20))
    assert await subscription.fetch(1, timeout=0.2) == []
    assert await subscription.fetch(3, timeout=0.2) == []
    waiting = asyncio.create_task(subscription.fetch(3, timeout=5))
    single = asyncio.create_task(subscription.fetch(1, timeout=5))
    await asyncio.sleep(0.05)
    for number in range(20, 24):
        await js.publish("s.1", b"%d" % number)
    assert sorted(numbers(await waiting) + numbers(await single)) == [20, 21, 22, 23]
    other = await js.pull_subscribe(stream="S", consumer="worker")
    assert not other.owns_consumer
    await subscription.unsubscribe()
    await until(lambda: has_consumers(stream, []))
    with pytest.raises(NoRespondersError):
        await other.fetch(1, timeout=0.5)


async def test_an_ephemeral_pull_subscription(js):
    stream = await filled(js, 3)
    async with await js.pull_subscribe("s.>") as subscription:
        assert len(await subscription.fetch(3)) == 3
        await until(lambda: has_consumers(stream, [subscription.consumer_name]))
    await until(lambda: has_consumers(stream, []))


async def test_a_durable_outlives_the_client_that_created_it(js, server, clients):
    stream = await filled(js, 10)
    for leave in ("drain", "close"):
        other = await clients(server)
        subscription = await other.jetstream().subscribe("s.>", durable=f"d-{leave}")
        assert subscription.owns_consumer
        for _ in range(4):
            await (await subscription.next(5)).ack_sync()
        await getattr(other, leave)()
        info = await js.api.call(ConsumerInfoReply, "CONSUMER.INFO", "S", f"d-{leave}")
        assert info.ack_floor.stream_seq == 4
    ephemeral = await clients(server)
    await ephemeral.jetstream().subscribe("s.>")
    await ephemeral.drain()
    await until(lambda: has_consumers(stream, ["d-close", "d-drain"]))


async def test_a_queue_goes_on_when_its_creator_leaves(js, server, clients):
    stream = await filled(js, 0)
    others = [(await clients(server)).jetstream() for _ in range(2)]
    for leave in ("unsubscribe", "drain"):
        first = await js.queue_subscribe("s.>", "q")
        assert first.owns_consumer
        second = await others[0].queue_subscribe("s.>", "q")
        assert not second.owns_consumer
        await getattr(first, leave)()
        await js.publish("s.1", b"7")
        message = await second.next(5)
        assert message.payload == b"7"
        await message.ack_sync()
        await second.unsubscribe()
        await until(lambda: has_consumers(stream, ["q"]))
        await stream.delete_consumer("q")
    last = await js.queue_subscribe("s.>", "q")
    await last.unsubscribe(after=1)
    await js.publish("s.1", b"8")
    await last.next(5)
    await until(lambda: has_consumers(stream, []))


async def test_an_argument_keeps_the_consumer(js):
    stream = await filled(js, 3)
    push = await js.subscribe("s.>", durable="push", keep_consumer=True)
    assert not push.owns_consumer
    await (await push.next(5)).ack_sync()
    await push.unsubscribe()
    queue = await js.queue_subscribe("s.>", "queue", keep_consumer=True)
    await queue.drain()
    pull = await js.pull_subscribe("s.>", "pull", keep_consumer=True)
    await pull.unsubscribe()
    await until(lambda: has_consumers(stream, ["pull", "push", "queue"]))
    await (await js.pull_subscribe("s.>", "gone")).unsubscribe()
    await until(lambda: has_consumers(stream, ["pull", "push", "queue"]))
