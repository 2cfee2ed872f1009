"""Streams to move, and what must be equal when they have moved."""

import asyncio

import jetlake
from jetlake.client.migration.migration import Migration
from jetlake.errors import MessageNotFoundError


async def filled_stream(js, count=300, **options):
    """A stream with a consumer that is done with twenty messages."""
    stream = await js.create_stream("S", subjects=["s.>"], allow_direct=True, **options)
    for number in range(count):
        await js.publish_async(f"s.{number % 3}", b"%d" % number, msg_id=f"first-{number}")
    await js.publish_async_complete()
    worker = await stream.create_consumer("worker", filter_subject="s.0", ack_wait=5)
    for message in await worker.fetch(20, expires=10):
        await message.ack_sync()
    return stream


async def content(js):
    """All messages of the stream with their sequences, as its leader has them."""
    stream = await js.stream("S")
    state = stream.cached_info.state

    async def get(sequence):
        try:
            message = await stream.get(sequence, direct=False)
        except MessageNotFoundError:
            return None
        return message.sequence, message.subject, message.header, message.payload

    found = []
    for begin in range(state.first_seq, state.last_seq + 1, 100):
        part = range(begin, min(begin + 100, state.last_seq + 1))
        found += [message for message in await asyncio.gather(*map(get, part)) if message is not None]
    return found


async def check_moved(source, target, moved):
    """Both ends hold the same, and the consumer goes on where it stood."""
    assert moved.before.messages == moved.after.messages
    assert await content(source) == await content(target)
    here, there = [await (await js.stream("S")).consumer_info("worker") for js in (source, target)]
    assert here.num_pending + here.num_ack_pending == there.num_pending + there.num_ack_pending
    worker = await (await target.stream("S")).consumer("worker")
    message = await worker.next(timeout=30)
    assert message.metadata.stream_seq == here.ack_floor.stream_seq + 3
    await message.ack_sync()


async def moved_there_and_back(cluster, **options):
    """Move a stream from one server to the cluster, and back."""
    async with (
        jetlake.Server() as server,
        jetlake.connect(server.url) as client,
        jetlake.connect(cluster.urls) as cluster_client,
    ):
        alone, replicated = client.jetstream(), cluster_client.jetstream(timeout=30)
        await filled_stream(alone)
        moved = await Migration(alone, replicated, "S", num_replicas=3, drain_s=0, **options).run()
        await check_moved(alone, replicated, moved)
        assert len((await (await replicated.stream("S")).info()).cluster.replicas) == 2
        await alone.delete_stream("S")
        moved = await Migration(replicated, alone, "S", drain_s=0, **options).run()
        await check_moved(replicated, alone, moved)
        assert (await alone.stream("S")).config.num_replicas == 1
