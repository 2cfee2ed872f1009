"""Consumers through nats-py, an independent client: subscriptions, groups, ordered reads, KV, objects, acks, pause."""

import asyncio

import nats
import pytest
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js import api
from nats.js.errors import KeyNotFoundError, NotFoundError, ObjectNotFoundError

from tests.support.clients import until


@pytest.fixture
async def client(server):
    client = await nats.connect(server.url)
    yield client
    await client.close()


@pytest.fixture
async def js(client):
    js = client.jetstream()
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    return js


async def fill(js, count, subject="orders.new"):
    for number in range(1, count + 1):
        await js.publish(subject, b"order %d" % number)


# Pull


async def test_fetch_and_ack(js):
    await fill(js, 10)
    subscription = await js.pull_subscribe("orders.new", durable="worker")
    messages = await subscription.fetch(4, timeout=5)
    assert [message.data for message in messages] == [b"order %d" % number for number in range(1, 5)]
    for message in messages:
        await message.ack_sync(timeout=5)
    info = await subscription.consumer_info()
    assert (info.num_ack_pending, info.num_pending, info.ack_floor.stream_seq) == (0, 6, 4)
    (single,) = await subscription.fetch(1, timeout=5)
    assert (single.metadata.sequence.stream, single.metadata.num_pending, single.metadata.stream) == (5, 5, "ORDERS")
    await single.ack()


async def test_fetch_waits_and_gives_up(js):
    subscription = await js.pull_subscribe("orders.new", durable="worker")
    with pytest.raises(NatsTimeoutError):
        await subscription.fetch(1, timeout=0.1)
    waiting = asyncio.ensure_future(subscription.fetch(5, timeout=5))
    await asyncio.sleep(0)
    await js.publish("orders.new", b"late")
    assert [message.data for message in await waiting] == [b"late"]


async def test_fetch_with_heartbeats(js, clock):
    subscription = await js.pull_subscribe("orders.new", durable="worker")
    waiting = asyncio.ensure_future(subscription.fetch(1, timeout=20, heartbeat=1))

    async def is_waiting():
        return (await subscription.consumer_info()).num_waiting == 1

    await until(is_waiting)
    await clock.passes(1.2)
    await js.publish("orders.new", b"late")
    assert [message.data for message in await waiting] == [b"late"]


async def test_every_kind_of_ack(js):
    await fill(js, 4)
    config = api.ConsumerConfig(ack_wait=30)
    subscription = await js.pull_subscribe("orders.new", durable="worker", config=config)
    first, second, third, fourth = await subscription.fetch(4, timeout=5)
    await first.ack()
    await second.nak()
    await third.term()
    await fourth.in_progress()
    (again,) = await subscription.fetch(1, timeout=5)
    assert (again.data, again.metadata.num_delivered) == (b"order 2", 2)
    await again.nak(delay=0.05)
    (again,) = await subscription.fetch(1, timeout=5)
    assert (again.data, again.metadata.num_delivered) == (b"order 2", 3)
    await again.ack_sync(timeout=5)
    await fourth.ack_sync(timeout=5)
    info = await subscription.consumer_info()
    assert (info.num_ack_pending, info.num_redelivered) == (0, 0)


async def test_bind_to_what_is_there(js):
    await fill(js, 2)
    await js.add_consumer("ORDERS", durable_name="made", ack_policy="explicit")
    subscription = await js.pull_subscribe_bind("made", stream="ORDERS")
    assert len(await subscription.fetch(2, timeout=5)) == 2


# Push


async def test_a_callback_gets_everything(js):
    await fill(js, 3)
    got = asyncio.Queue()
    await js.subscribe("orders.>", cb=got.put)
    assert [(await asyncio.wait_for(got.get(), 5)).data for _ in range(3)] == [b"order 1", b"order 2", b"order 3"]
    await js.publish("orders.more", b"order 4")
    assert (await asyncio.wait_for(got.get(), 5)).subject == "orders.more"


async def test_a_durable_goes_on_where_it_was(js):
    await fill(js, 3)
    subscription = await js.subscribe("orders.new", durable="monitor")
    for _ in range(2):
        await (await subscription.next_msg(timeout=5)).ack_sync(timeout=5)
    await (await subscription.next_msg(timeout=5)).ack_sync(timeout=5)
    await subscription.unsubscribe()
    await js.publish("orders.new", b"order 4")
    again = await js.subscribe("orders.new", durable="monitor")
    assert (await again.next_msg(timeout=5)).data == b"order 4"


async def test_a_queue_group_shares(js):
    counts = {"a": [], "b": []}
    done = asyncio.Event()

    def member(name):
        async def take(message):
            counts[name].append(message.metadata.sequence.stream)
            await message.ack()
            if sum(map(len, counts.values())) == 40:
                done.set()

        return take

    await js.subscribe("orders.new", "workers", cb=member("a"), manual_ack=True)
    await js.subscribe("orders.new", "workers", cb=member("b"), manual_ack=True)
    await fill(js, 40)
    await asyncio.wait_for(done.wait(), 10)
    assert sorted(counts["a"] + counts["b"]) == list(range(1, 41))
    assert counts["a"] and counts["b"]


async def test_an_ordered_consumer(js):
    await fill(js, 300)
    subscription = await js.subscribe("orders.new", ordered_consumer=True)
    got = [(await subscription.next_msg(timeout=5)).metadata.sequence.stream for _ in range(300)]
    assert got == list(range(1, 301))
    await subscription.unsubscribe()


async def test_an_ordered_consumer_under_flow_control(js):
    for _ in range(60):
        await js.publish("orders.new", b"x" * 100_000)
    subscription = await js.subscribe("orders.new", ordered_consumer=True, idle_heartbeat=0.5)
    got = [(await subscription.next_msg(timeout=10)).metadata.sequence.stream for _ in range(60)]
    assert got == list(range(1, 61))


@pytest.mark.parametrize(
    ("config", "first"),
    [
        ({"deliver_policy": api.DeliverPolicy.LAST}, 5),
        ({"deliver_policy": api.DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": 3}, 3),
        ({"deliver_policy": api.DeliverPolicy.ALL}, 1),
    ],
)
async def test_starting_positions(js, config, first):
    await fill(js, 5)
    subscription = await js.subscribe("orders.new", config=api.ConsumerConfig(**config))
    assert (await subscription.next_msg(timeout=5)).metadata.sequence.stream == first


# Management


async def test_consumers_are_managed(js):
    created = await js.add_consumer("ORDERS", durable_name="d", ack_policy="explicit", description="first")
    assert (created.name, created.config.ack_policy, created.config.description) == ("d", "explicit", "first")
    assert [info.name for info in await js.consumers_info("ORDERS")] == ["d"]
    assert (await js.consumer_info("ORDERS", "d")).num_pending == 0
    assert await js.delete_consumer("ORDERS", "d")
    with pytest.raises(NotFoundError):
        await js.consumer_info("ORDERS", "d")


async def test_pause_and_resume(js):
    await fill(js, 1)
    await js.add_consumer("ORDERS", durable_name="d", ack_policy="explicit")
    paused = await js.pause_consumer("ORDERS", "d", "2099-01-01T00:00:00Z")
    assert paused.paused
    assert (await js.consumer_info("ORDERS", "d")).paused
    subscription = await js.pull_subscribe_bind("d", stream="ORDERS")
    with pytest.raises(NatsTimeoutError):
        await subscription.fetch(1, timeout=0.1)
    assert not (await js.resume_consumer("ORDERS", "d")).paused
    assert len(await subscription.fetch(1, timeout=5)) == 1


# Key-value and objects


async def test_key_value(js):
    bucket = await js.create_key_value(bucket="CONFIG", history=3)
    await bucket.put("color", b"red")
    revision = await bucket.put("color", b"blue")
    assert (await bucket.get("color")).value == b"blue"
    assert await bucket.update("color", b"green", last=revision) == revision + 1
    await bucket.create("size", b"10")
    assert sorted(await bucket.keys()) == ["color", "size"]
    assert [entry.value for entry in await bucket.history("color")] == [b"red", b"blue", b"green"]
    await bucket.delete("size")
    with pytest.raises(KeyNotFoundError):
        await bucket.get("size")
    await bucket.purge("color")
    assert (await bucket.status()).bucket == "CONFIG"


async def test_key_value_watch(js):
    bucket = await js.create_key_value(bucket="CONFIG")
    await bucket.put("a.x", b"1")
    await bucket.put("a.y", b"2")
    await bucket.put("a.x", b"3")
    watcher = await bucket.watch("a.*")
    first, second = await watcher.updates(timeout=5), await watcher.updates(timeout=5)
    assert [(entry.key, entry.value) for entry in (first, second)] == [("a.y", b"2"), ("a.x", b"3")]
    assert await watcher.updates(timeout=5) is None
    await bucket.put("b.z", b"4")
    await bucket.put("a.z", b"5")
    entry = await watcher.updates(timeout=5)
    assert (entry.key, entry.value) == ("a.z", b"5")
    await bucket.delete("a.z")
    assert (await watcher.updates(timeout=5)).operation == "DEL"
    await watcher.stop()


async def test_object_store(js):
    store = await js.create_object_store(bucket="FILES")
    data = bytes(range(256)) * 2000
    await store.put("big", data)
    await store.put("small", b"tiny")
    assert (await store.get("big")).data == data
    assert sorted(info.name for info in await store.list()) == ["big", "small"]
    await store.delete("small")
    with pytest.raises(ObjectNotFoundError):
        await store.get("small")
