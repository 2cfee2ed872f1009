"""Connections that carry nothing any more and are closed by nobody: readers and publishers come back by themselves."""

import asyncio

import pytest

import jetlake.blocking
from jetlake.client.pull.options import ConsumeOptions
from jetlake.errors import StaleConnectionError
from tests.support.clients import until
from tests.support.relay import Relay

QUICK = {"connect_timeout": 0.5, "request_timeout": 1, "reconnect_wait": 0.05, "on_error": lambda error: None}


@pytest.fixture
async def relay(server):
    async with Relay(server.port) as relay:
        yield relay


@pytest.fixture
async def cut_off(relay):
    """A client whose connection is dropped, and why it lost connections."""
    reasons = []
    async with jetlake.connect(relay.url, on_disconnected=reasons.append, **QUICK) as client:
        yield client, reasons


async def test_publishers_that_get_no_answer_bring_every_reader_back(js, relay, cut_off):
    client, reasons = cut_off
    stream = await js.create_stream("S", subjects=["s.>"])
    bucket = await js.create_key_value("B")
    here = client.jetstream()
    consumer = await stream.create_consumer("c")
    seen = {form: [] for form in ("consume", "handler", "ordered", "watch", "subscribe", "core")}
    mine = await here.consumer("S", "c")
    other = await (await here.stream("S")).create_consumer("d")
    ordered = (await here.stream("S")).ordered()
    watch = (await here.key_value("B")).watch("k")

    async def collect(form, reader):
        async with reader as messages:
            async for message in messages:
                seen[form].append(message.value if form == "watch" else message.data)

    readers = [
        asyncio.create_task(collect(form, reader))
        for form, reader in (("consume", mine.consume()), ("ordered", ordered), ("watch", watch))
    ]
    handled = other.consume(lambda message: seen["handler"].append(message.data)).start()
    await here.subscribe("s.>", callback=lambda message: seen["subscribe"].append(message.data))
    await client.subscribe("s.>", callback=lambda message: seen["core"].append(message.data))
    await client.flush()

    async def publish(number):
        await js.publish("s.1", number)
        await bucket.put("k", number)
        await until(lambda: all(number in got for got in seen.values()), 30)

    await publish(b"1")
    relay.drop()
    ack = await here.publish("s.2", b"2", msg_id="2", timeout=15)
    assert [type(reason) for reason in reasons] == [StaleConnectionError]
    assert (ack.stream, ack.duplicate) == ("S", False)
    await publish(b"3")
    assert not handled.is_stopped and not any(reader.done() for reader in readers)
    assert (await consumer.info()).num_waiting
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    await handled.stop()


async def test_missed_heartbeats_bring_a_reader_back_after_the_cut(js, relay, cut_off):
    client, reasons = cut_off
    stream = await js.create_stream("S", subjects=["s.>"])
    await stream.create_consumer("c")
    seen = []
    options = ConsumeOptions(expires_s=2, idle_heartbeat_s=0.5)
    reading = (await client.jetstream().consumer("S", "c")).consume_with(
        options, lambda message: seen.append(message.data)
    )
    async with reading:
        await js.publish("s.1", b"1")
        await until(lambda: seen == [b"1"])
        relay.is_open.clear()
        relay.drop()
        await until(lambda: reasons, 30)
        await asyncio.sleep(1)
        assert not client.is_connected and not reading.is_stopped
        relay.is_open.set()
        await js.publish("s.1", b"2")
        await until(lambda: b"2" in seen, 30)
    assert isinstance(reasons[0], StaleConnectionError)


async def test_blocking_readers_come_back(js, relay):
    stream = await js.create_stream("S", subjects=["s.>"])
    await stream.create_consumer("c")

    def read(client, results):
        here = client.jetstream()
        with here.consumer("S", "c").consume() as messages, here.stream("S").ordered() as ordered:
            results.append((messages.next(30).data, ordered.next(30).data))
            relay_loop.call_soon_threadsafe(relay.drop)
            here.publish("s.2", b"2", msg_id="2", timeout=15)
            results.append((messages.next(30).data, ordered.next(30).data))

    relay_loop = asyncio.get_running_loop()
    await js.publish("s.1", b"1")
    results = []
    client = await asyncio.to_thread(jetlake.blocking.connect, relay.url, **QUICK)
    try:
        await asyncio.to_thread(read, client, results)
    finally:
        await asyncio.to_thread(client.close)
    assert results == [(b"1", b"1"), (b"2", b"2")]
