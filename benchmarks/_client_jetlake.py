"""The cases of the client benchmark in jetlake."""

from __future__ import annotations

import asyncio
import random

import jetlake
from _client_setup import (
    CONSUME_MESSAGES,
    CORE,
    OBJECT_UNIT,
    PUBLISHER,
    RESPONDER,
    SERVICE,
    STREAM,
    SUBJECT,
    Run,
    Seconds,
    Stopwatch,
    empty,
    go,
    neighbour,
)


async def publish(url: str, count: int, size: int) -> Seconds:
    payload = b"x" * size
    async with await jetlake.connect(url) as nc:
        publish = nc.publish
        with Stopwatch() as watch:
            for _ in range(count):
                await publish(CORE, payload)
            await nc.flush(60)
    return watch.seconds


async def subscribe(url: str, count: int, size: int) -> Seconds:
    async with await jetlake.connect(url) as nc:
        done = asyncio.get_running_loop().create_future()
        received = 0

        def take(message: jetlake.client.Message) -> None:
            nonlocal received
            received += 1
            if received == count:
                done.set_result(None)

        await nc.subscribe(CORE, take)
        await nc.flush()
        with neighbour(PUBLISHER, url, CORE, count, size) as publisher, Stopwatch() as watch:
            go(publisher)
            await done
    return watch.seconds


async def subscribe_iterator(url: str, count: int, size: int) -> Seconds:
    async with await jetlake.connect(url) as nc:
        subscription = await nc.subscribe(CORE)
        await nc.flush()
        with neighbour(PUBLISHER, url, CORE, count, size) as publisher, Stopwatch() as watch:
            go(publisher)
            received = 0
            async for _ in subscription:
                received += 1
                if received == count:
                    break
    return watch.seconds


async def publish_ack(url: str, count: int, size: int) -> Seconds:
    empty(url)
    payload = b"x" * size
    async with await jetlake.connect(url) as nc:
        js = nc.jetstream()
        await js.publish(SUBJECT, payload)
        with Stopwatch() as watch:
            for _ in range(count):
                await js.publish(SUBJECT, payload)
    return watch.seconds


async def publish_pipelined(url: str, count: int, size: int) -> Seconds:
    empty(url)
    payload = b"x" * size
    async with await jetlake.connect(url) as nc:
        js = nc.jetstream()
        publish = js.publish_async
        with Stopwatch() as watch:
            for _ in range(count):
                await publish(SUBJECT, payload)
            await js.publish_async_complete()
    return watch.seconds


async def publish_many(url: str, count: int, size: int) -> Seconds:
    empty(url)
    payload = b"x" * size
    async with await jetlake.connect(url) as nc:
        js = nc.jetstream()
        with Stopwatch() as watch:
            await js.publish_many((SUBJECT, payload) for _ in range(count))
    return watch.seconds


def fetch(batch: int, *, is_acked_together: bool = False) -> Run:
    async def run(url: str, count: int, size: int) -> Seconds:
        async with await jetlake.connect(url) as nc:
            consumer = await nc.jetstream().create_consumer(STREAM, "fetch", max_ack_pending=100_000)
            with Stopwatch() as watch:
                received = 0
                while received < count:
                    messages = await consumer.fetch(batch)
                    if is_acked_together:
                        await messages.ack()
                    else:
                        for message in messages:
                            await message.ack()
                    received += len(messages)
                await nc.flush(60)
        return watch.seconds

    return run


async def consume(url: str, count: int, size: int) -> Seconds:
    async with await jetlake.connect(url) as nc:
        consumer = await nc.jetstream().create_consumer(STREAM, "consume", max_ack_pending=100_000)
        with Stopwatch() as watch:
            received = 0
            async with consumer.consume(max_messages=CONSUME_MESSAGES) as messages:
                async for message in messages:
                    await message.ack()
                    received += 1
                    if received == count:
                        break
                await nc.flush(60)
    return watch.seconds


async def ordered(url: str, count: int, size: int) -> Seconds:
    async with await jetlake.connect(url) as nc:
        stream = await nc.jetstream().stream(STREAM)
        with Stopwatch() as watch:
            received = 0
            async with stream.ordered().consume(max_messages=CONSUME_MESSAGES) as messages:
                async for _ in messages:
                    received += 1
                    if received == count:
                        break
    return watch.seconds


async def table(url: str, count: int, size: int) -> Seconds:
    async with await jetlake.connect(url) as nc:
        stream = await nc.jetstream().stream(STREAM)
        with Stopwatch() as watch:
            assert (await stream.to_arrow()).num_rows == count
    return watch.seconds


async def request(url: str, count: int, size: int) -> Seconds:
    payload = b"x" * size
    async with await jetlake.connect(url) as nc:
        with neighbour(RESPONDER, url, SERVICE):
            await nc.request(SERVICE, payload)
            with Stopwatch() as watch:
                for _ in range(count):
                    await nc.request(SERVICE, payload)
    return watch.seconds


async def object_put(url: str, count: int, size: int) -> Seconds:
    content = random.Random(1).randbytes(count * OBJECT_UNIT)
    async with await jetlake.connect(url) as nc:
        store = await nc.jetstream().create_object_store("BENCH", storage="memory")
        with Stopwatch() as watch:
            await store.put("content", content)
        await store.delete("content")
    return watch.seconds


async def object_get(url: str, count: int, size: int) -> Seconds:
    content = random.Random(1).randbytes(count * OBJECT_UNIT)
    async with await jetlake.connect(url) as nc:
        store = await nc.jetstream().create_object_store("BENCH", storage="memory")
        await store.put("content", content)
        with Stopwatch() as watch:
            assert len(await store.get("content")) == len(content)
        await store.delete("content")
    return watch.seconds
