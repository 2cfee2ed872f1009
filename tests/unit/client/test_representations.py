"""What the client's objects look like at a prompt and in a log."""

import asyncio

import pytest

from jetlake.client.streams.stream import stream_handle
from jetlake.errors import AckRefusedError, ConsumerNotFoundError, NoRespondersError, RequestTimeoutError, StaleAckError
from tests.support.fake_server import delivery


async def test_handles(fake):
    fake.serve_consumer()
    client = await fake.connect()
    assert repr(client) == "<Client connected nats://fake:4222>"
    js = client.jetstream(domain="hub")
    assert repr(js) == "<JetStream $JS.hub.API of connected nats://fake:4222>"
    consumer = await client.jetstream().consumer("S", "C")
    assert repr(consumer) == "<Consumer 'C' of 'S'>"
    fetch = consumer.fetch(1)
    assert repr(fetch) == "<Fetch of 'C' of 'S': await it, or iterate over it>"
    reading = consumer.consume()
    assert repr(reading) == "<Consume of 'C' of 'S' not started 0 waiting>"
    async with reading:
        assert repr(reading) == "<Consume of 'C' of 'S' reading 0 waiting>"
    assert repr(reading) == "<Consume of 'C' of 'S' ended 0 waiting>"
    ordered = stream_handle(client.jetstream().api, "S").ordered()
    assert repr(ordered) == "<OrderedConsumer of 'S' after sequence 0>"
    assert repr(ordered.consume()) == "<OrderedConsume of 'S' not started 0 waiting>"
    assert repr(ordered.fetch(1)) == "<OrderedFetch of 'S': await it, or iterate over it>"


async def test_batches(fake):
    batch = (await fake.connect()).jetstream().batch()
    assert repr(batch) == "<AtomicBatch of 0 messages not committed>"
    await batch.publish("a", b"1")
    batch.publish("a", b"2")
    assert repr(batch) == "<AtomicBatch of 2 messages not committed>"
    batch.discard()
    assert repr(batch) == "<AtomicBatch of 0 messages over>"


async def test_subscriptions(fake):
    client = await fake.connect()
    js = client.jetstream()
    subscription = await client.subscribe("a.>", queue="q")
    assert repr(subscription) == "<Subscription 'a.>' queue 'q' 0 waiting>"
    await subscription.unsubscribe()
    assert repr(subscription) == "<Subscription 'a.>' queue 'q' 0 waiting ended>"
    fake.serve_consumer("S", "P", deliver_subject="there")
    assert repr(await js.subscribe(stream="S", consumer="P")) == "<PushSubscription of 'P' of 'S' 0 waiting>"
    fake.serve_consumer("S", "C")
    assert repr(await js.pull_subscribe(stream="S", consumer="C")) == "<PullSubscription of 'C' of 'S'>"


async def test_acknowledgements_under_way(fake, clock):
    client = await fake.connect()
    js = client.jetstream()
    pending = await js.publish_async("s.1", b"x")
    assert repr(pending) == "<PendingAck on 's.1' under way>"
    await clock.settle()
    fake.reply(fake.wire, fake.published("s.1")[0].reply, b'{"stream":"S","seq":1}')
    assert repr(pending) == "<PendingAck on 's.1' acknowledged>"
    late = await js.publish_async("s.1", b"x")
    await clock.advance(3)
    await clock.advance(3)
    assert repr(late) == "<PendingAck on 's.1' failed: no acknowledgement within 5 s>"


async def test_a_refused_acknowledgement_says_why(fake, clock):
    client = await fake.connect()
    subscription = await client.subscribe("inbox")
    await clock.settle()
    fake.deliver(b"inbox", delivery(1))
    message = await subscription.next()
    for reason, kind in (
        ("", NoRespondersError),
        (" disk full", AckRefusedError),
        (" Message Was Delivered Again", StaleAckError),
    ):
        ack = asyncio.create_task(message.ack_sync())
        await clock.settle()
        fake.reply(fake.wire, fake.published(message.reply)[-1].reply, b"", f"NATS/1.0 503{reason}\r\n\r\n".encode())
        with pytest.raises(NoRespondersError, match=reason or "no responders") as caught:
            await ack
        assert type(caught.value) is kind
        assert not message.is_settled


async def test_errors_say_what_they_are_about(fake, clock):
    fake.remove_consumer()
    client = await fake.connect()
    with pytest.raises(ConsumerNotFoundError, match=r"err_code 10014, on CONSUMER\.INFO\.S\.C\)"):
        await client.jetstream().consumer("S", "C")
    request = asyncio.ensure_future(client.request("slow", timeout=3))
    await clock.settle()
    await clock.advance(3)
    with pytest.raises(RequestTimeoutError, match="no answer on 'slow' within 3 s"):
        await request
