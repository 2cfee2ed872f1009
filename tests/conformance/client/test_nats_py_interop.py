"""What this client writes nats-py reads, and the other way round, for every kind of consumer."""

import asyncio
from datetime import UTC, datetime

import nats
import nats.js.api
import nats.js.errors
import pytest

from tests.support import exchange
from tests.support.clients import filled, flush_nats_py, numbers, until


@pytest.fixture
async def ours(server, clients):
    return await clients(server)


@pytest.fixture
async def theirs(server):
    connection = await nats.connect(server.url)
    yield connection
    await connection.close()


def their_numbers(messages):
    return [int(message.data) for message in messages]


async def test_core_messages(ours, theirs):
    to_us = await ours.subscribe("to.us")
    to_them = await theirs.subscribe("to.them")
    await asyncio.gather(ours.flush(), flush_nats_py(theirs))
    await ours.publish("to.them", b"hello", headers={"A": "1"}, reply="back")
    message = await to_them.next_msg(5)
    assert (message.data, message.headers, message.reply) == (b"hello", {"A": "1"}, "back")
    await theirs.publish("to.us", b"hello", headers={"B": "2"}, reply="back")
    message = await to_us.next(5)
    assert (message.payload, message.headers.items(), message.reply) == (b"hello", [("B", "2")], "back")


async def test_requests(ours, theirs):
    async def answer(message):
        await message.respond(message.data + b"!")

    await theirs.subscribe("their.service", cb=answer)
    await ours.subscribe("our.service", lambda message: message.respond(message.payload + b"?"))
    await asyncio.gather(ours.flush(), flush_nats_py(theirs))
    assert (await ours.request("their.service", b"a")).payload == b"a!"
    assert (await theirs.request("our.service", b"a", timeout=10)).data == b"a?"


async def test_they_read_what_we_write_with_every_kind_of_consumer(ours, theirs):
    await filled(ours.jetstream(), 50)
    js = theirs.jetstream()
    pull = await js.pull_subscribe("s.>", "pull")
    assert their_numbers(await pull.fetch(50)) == list(range(50))
    push = await js.subscribe("s.>")
    assert their_numbers([await push.next_msg(5) for _ in range(50)]) == list(range(50))
    ordered = await js.subscribe("s.>", ordered_consumer=True)
    assert their_numbers([await ordered.next_msg(5) for _ in range(50)]) == list(range(50))
    queue = await js.subscribe("s.>", queue="q", durable="q")
    assert their_numbers([await queue.next_msg(5) for _ in range(50)]) == list(range(50))


async def test_we_read_what_they_write_with_every_kind_of_consumer(ours, theirs):
    their_js = theirs.jetstream()
    await their_js.add_stream(name="S", subjects=["s.>"])
    for number in range(50):
        await their_js.publish(f"s.{number % 10}", b"%d" % number, headers={"N": str(number)})
    js = ours.jetstream()
    stream = await js.stream("S")
    consumer = await stream.create_consumer("pull")
    messages = await consumer.fetch(50)
    assert numbers(messages) == list(range(50))
    assert messages[7].headers["N"] == "7"
    async with (await stream.create_consumer("consume")).consume() as reading:
        assert numbers([await reading.next(5) for _ in range(50)]) == list(range(50))
    async with stream.ordered().consume() as reading:
        assert numbers([await reading.next(5) for _ in range(50)]) == list(range(50))
    push = await js.subscribe("s.>")
    assert numbers([await push.next(5) for _ in range(50)]) == list(range(50))
    queue = await js.queue_subscribe("s.>", "q")
    assert numbers([await queue.next(5) for _ in range(50)]) == list(range(50))
    pull = await js.pull_subscribe("s.>", "older")
    assert numbers(await pull.fetch(50)) == list(range(50))
    await push.unsubscribe()
    await queue.unsubscribe()
    await pull.unsubscribe()


async def test_both_share_a_pull_consumer(ours, theirs):
    await filled(ours.jetstream(), 40)
    consumer = await ours.jetstream().create_consumer("S", "shared")
    pull = await theirs.jetstream().pull_subscribe_bind("shared", stream="S")
    seen = []
    while len(seen) < 40:
        for message in await consumer.fetch(7, no_wait=True):
            seen.append(int(message.payload))
            await message.ack_sync()
        try:
            for message in await pull.fetch(7, timeout=0.5):
                seen.append(int(message.data))
                await message.ack_sync(timeout=10)
        except nats.errors.TimeoutError:
            pass
    assert sorted(seen) == list(range(40))
    assert (await consumer.info()).num_ack_pending == 0


async def test_both_share_a_queue(ours, theirs):
    await filled(ours.jetstream(), 1)
    mine, yours = [], []
    ours_sub = await ours.jetstream().queue_subscribe("s.>", "q", lambda message: mine.append(message))

    async def take(message):
        yours.append(message)
        await message.ack()

    await theirs.jetstream().subscribe("s.>", queue="q", durable="q", cb=take)
    await flush_nats_py(theirs)
    for number in range(200):
        await ours.jetstream().publish("s.1", b"%d" % number)
    await until(lambda: len(mine) + len(yours) == 201)
    assert mine
    assert yours
    await ours_sub.unsubscribe()


async def test_each_manages_what_the_other_made(ours, theirs):
    js, their_js = ours.jetstream(), theirs.jetstream()
    await js.create_stream("OURS", subjects=["o.>"], max_age=60, max_msgs=5, discard="new", retention="workqueue")
    config = (await their_js.stream_info("OURS")).config
    assert (config.max_age, config.max_msgs, str(config.discard), str(config.retention)) == (
        60,
        5,
        "new",
        "workqueue",
    )
    await their_js.add_stream(name="THEIRS", subjects=["t.>"], max_age=30)
    assert (await js.stream("THEIRS")).config.max_age == 30_000_000_000
    await their_js.add_consumer(
        "THEIRS", nats.js.api.ConsumerConfig(durable_name="c", ack_wait=5, ack_policy=nats.js.api.AckPolicy.EXPLICIT)
    )
    assert (await js.consumer("THEIRS", "c")).config.ack_wait == 5_000_000_000
    await js.create_consumer("OURS", "c", ack_wait=7, backoff=[1, 2], max_deliver=5)
    info = await their_js.consumer_info("OURS", "c")
    assert info.config.max_deliver == 5
    assert await js.stream_names() == ["OURS", "THEIRS"]


async def test_acknowledgements_mean_the_same(ours, theirs):
    await filled(ours.jetstream(), 4)
    consumer = await ours.jetstream().create_consumer("S", "c", ack_wait=60)
    pull = await theirs.jetstream().pull_subscribe_bind("c", stream="S")
    first, second, third, fourth = await pull.fetch(4)
    await first.ack()
    await second.nak()
    await third.term()
    await fourth.in_progress()
    (again,) = await consumer.fetch(1)
    assert (int(again.payload), again.metadata.delivered) == (1, 2)
    await again.ack_sync()

    async def has_one_pending():
        return (await consumer.info()).num_ack_pending == 1

    await until(has_one_pending)


async def test_publish_expectations_and_duplicates(ours, theirs):
    js, their_js = ours.jetstream(), theirs.jetstream()
    await js.create_stream("S", subjects=["s.>"])
    assert (await js.publish("s.1", msg_id="same")).seq == 1
    assert (await their_js.publish("s.1", headers={"Nats-Msg-Id": "same"})).duplicate
    assert (await their_js.publish("s.1", headers={"Nats-Expected-Last-Sequence": "1"})).seq == 2
    assert (await js.publish("s.1", expected_last_sequence=2)).seq == 3


async def test_batches_and_schedules_of_one_are_read_by_the_other(ours, theirs):
    js, their_js = ours.jetstream(), theirs.jetstream()
    await exchange.write(js)
    config = nats.js.api.ConsumerConfig(
        filter_subjects=["x.ours", "due.ours"], deliver_policy=nats.js.api.DeliverPolicy.ALL
    )
    reader = await their_js.pull_subscribe("", "reader", stream="X", config=config)
    seen = []
    while len(seen) < 4:
        seen += await reader.fetch(4 - len(seen), timeout=exchange.TIMEOUT_S)
    assert [message.data.decode() for message in seen] == ["0", "1", "2", "tea"]
    assert seen[3].headers["Nats-Scheduler"] == "x.plan.ours"
    for number, payload in enumerate((b"a", b"b"), 1):
        headers = {"Nats-Batch-Id": "theirs", "Nats-Batch-Sequence": str(number)}
        if number == 2:
            headers["Nats-Batch-Commit"] = "1"
        await theirs.request("x.theirs", payload, headers=headers, timeout=10)
    soon = f"@at {datetime.now(UTC) + exchange.SOON:%Y-%m-%dT%H:%M:%S.%fZ}"
    await their_js.publish(
        "x.plan.theirs", b"coffee", headers={"Nats-Schedule": soon, "Nats-Schedule-Target": "due.theirs"}
    )
    assert await exchange.read(js) == exchange.READ
