"""The cases of the client benchmark in nats-py, in the best way that it has."""

from __future__ import annotations

import asyncio
import io
import random

import nats
import nats.js.api
import pyarrow as pa

from _client_setup import (
    CORE,
    OBJECT_UNIT,
    PUBLISHER,
    RESPONDER,
    SERVICE,
    STREAM,
    SUBJECT,
    WINDOW_MESSAGES,
    Run,
    Seconds,
    Stopwatch,
    empty,
    go,
    neighbour,
)

_HEADERS = pa.map_(pa.string(), pa.string())


async def publish(url: str, count: int, size: int) -> Seconds:
    payload = b"x" * size
    nc = await nats.connect(url, max_reconnect_attempts=0)
    with Stopwatch() as watch:
        for _ in range(count):
            await nc.publish(CORE, payload)
        await nc.flush(60)
    await nc.close()
    return watch.seconds


async def subscribe(url: str, count: int, size: int) -> Seconds:
    nc = await nats.connect(url, max_reconnect_attempts=0)
    done = asyncio.get_running_loop().create_future()
    received = 0

    async def take(message: object) -> None:
        nonlocal received
        received += 1
        if received == count:
            done.set_result(None)

    await nc.subscribe(CORE, cb=take, pending_msgs_limit=-1, pending_bytes_limit=-1)
    await nc.flush()
    with neighbour(PUBLISHER, url, CORE, count, size) as publisher, Stopwatch() as watch:
        go(publisher)
        await done
    await nc.close()
    return watch.seconds


async def subscribe_iterator(url: str, count: int, size: int) -> Seconds:
    nc = await nats.connect(url, max_reconnect_attempts=0)
    subscription = await nc.subscribe(CORE, pending_msgs_limit=-1, pending_bytes_limit=-1)
    await nc.flush()
    with neighbour(PUBLISHER, url, CORE, count, size) as publisher, Stopwatch() as watch:
        go(publisher)
        received = 0
        async for _ in subscription.messages:
            received += 1
            if received == count:
                break
    await nc.close()
    return watch.seconds


async def publish_ack(url: str, count: int, size: int) -> Seconds:
    empty(url)
    payload = b"x" * size
    nc = await nats.connect(url, max_reconnect_attempts=0)
    js = nc.jetstream()
    await js.publish(SUBJECT, payload)
    with Stopwatch() as watch:
        for _ in range(count):
            await js.publish(SUBJECT, payload)
    await nc.close()
    return watch.seconds


async def publish_pipelined(url: str, count: int, size: int) -> Seconds:
    empty(url)
    payload = b"x" * size
    nc = await nats.connect(url, max_reconnect_attempts=0)
    js = nc.jetstream(publish_async_max_pending=WINDOW_MESSAGES)
    with Stopwatch() as watch:
        for _ in range(count):
            await js.publish_async(SUBJECT, payload)  # without wait_stall, which costs a task each
        await js.publish_async_completed()
    await nc.close()
    return watch.seconds


def fetch(batch: int) -> Run:
    async def run(url: str, count: int, size: int) -> Seconds:
        nc = await nats.connect(url, max_reconnect_attempts=0)
        js = nc.jetstream()
        config = nats.js.api.ConsumerConfig(max_ack_pending=100_000)
        subscription = await js.pull_subscribe(
            SUBJECT, "fetch", stream=STREAM, config=config, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        with Stopwatch() as watch:
            received = 0
            while received < count:
                messages = await subscription.fetch(batch)
                for message in messages:
                    await message.ack()
                received += len(messages)
            await nc.flush(60)
        await nc.close()
        return watch.seconds

    return run


async def table(url: str, count: int, size: int) -> Seconds:
    nc = await nats.connect(url, max_reconnect_attempts=0)
    js = nc.jetstream()
    config = nats.js.api.ConsumerConfig(ack_policy=nats.js.api.AckPolicy.NONE)
    subscription = await js.pull_subscribe(
        SUBJECT, stream=STREAM, config=config, pending_msgs_limit=-1, pending_bytes_limit=-1
    )
    with Stopwatch() as watch:
        batches, received = [], 0
        while received < count:
            messages = await subscription.fetch(10_000)
            metadata = [message.metadata for message in messages]
            columns = {
                "sequence": pa.array([one.sequence.stream for one in metadata], pa.int64()),
                "subject": pa.array([message.subject for message in messages], pa.string()),
                "timestamp": pa.array([one.timestamp for one in metadata], pa.timestamp("us", tz="UTC")),
                "headers": pa.array([list((message.headers or {}).items()) for message in messages], _HEADERS),
                "data": pa.array([message.data for message in messages], pa.binary()),
            }
            batches.append(pa.RecordBatch.from_pydict(columns))
            received += len(messages)
        assert pa.Table.from_batches(batches).num_rows == count
    await nc.close()
    return watch.seconds


async def consume(url: str, count: int, size: int) -> Seconds:
    nc = await nats.connect(url, max_reconnect_attempts=0)
    js = nc.jetstream()
    done = asyncio.get_running_loop().create_future()
    received = 0

    async def take(message: nats.aio.msg.Msg) -> None:
        nonlocal received
        await message.ack()
        received += 1
        if received == count:
            done.set_result(None)

    config = nats.js.api.ConsumerConfig(max_ack_pending=100_000)
    with Stopwatch() as watch:
        await js.subscribe(
            SUBJECT,
            stream=STREAM,
            cb=take,
            manual_ack=True,
            config=config,
            pending_msgs_limit=-1,
            pending_bytes_limit=-1,
        )
        await done
        await nc.flush(60)
    await nc.close()
    return watch.seconds


async def ordered(url: str, count: int, size: int) -> Seconds:
    nc = await nats.connect(url, max_reconnect_attempts=0)
    js = nc.jetstream()
    done = asyncio.get_running_loop().create_future()
    received = 0

    async def take(message: object) -> None:
        nonlocal received
        received += 1
        if received == count:
            done.set_result(None)

    with Stopwatch() as watch:
        await js.subscribe(
            SUBJECT, stream=STREAM, cb=take, ordered_consumer=True, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        await done
    await nc.close()
    return watch.seconds


async def request(url: str, count: int, size: int) -> Seconds:
    payload = b"x" * size
    nc = await nats.connect(url, max_reconnect_attempts=0)
    with neighbour(RESPONDER, url, SERVICE):
        await nc.request(SERVICE, payload)
        with Stopwatch() as watch:
            for _ in range(count):
                await nc.request(SERVICE, payload)
    await nc.close()
    return watch.seconds


async def object_put(url: str, count: int, size: int) -> Seconds:
    content = random.Random(1).randbytes(count * OBJECT_UNIT)
    nc = await nats.connect(url, max_reconnect_attempts=0)
    store = await nc.jetstream().object_store("BENCH")
    with Stopwatch() as watch:
        await store.put("content", content)
    await store.delete("content")
    await nc.close()
    return watch.seconds


async def object_get(url: str, count: int, size: int) -> Seconds:
    content = random.Random(1).randbytes(count * OBJECT_UNIT)
    nc = await nats.connect(url, max_reconnect_attempts=0)
    store = await nc.jetstream().object_store("BENCH")
    await store.put("content", content)
    # Without a file it adds bytes to bytes, which takes longer the more there are.
    target = io.BytesIO()
    with Stopwatch() as watch:
        await store.get("content", writeinto=target)
    assert len(target.getvalue()) == len(content)
    await store.delete("content")
    await nc.close()
    return watch.seconds
