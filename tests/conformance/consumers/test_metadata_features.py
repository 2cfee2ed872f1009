"""What only jetlake's own server does for consumers, asked for by metadata; nats-server is known to lack it."""

import asyncio

import pytest

from jetlake.errors import InvalidOptionError, StaleAckError
from tests.support.clients import filled, numbers, until

only_ours = pytest.mark.parametrize("kind", ["embedded"])


async def test_a_server_without_a_feature_says_so(js, kind):
    stream = await filled(js, 1)
    if kind == "nats-server":
        for feature in ("strict_acks", "redeliver_lost"):
            with pytest.raises(InvalidOptionError, match=f"{feature}: the server .* does not support this"):
                await stream.create_consumer("c", **{feature: True})
        await stream.create_consumer("c", strict_acks=False)
        with pytest.raises(InvalidOptionError, match="does not support this"):
            await stream.update_consumer("c", strict_acks=True)
    else:
        consumer = await stream.create_consumer("c", strict_acks=True, redeliver_lost=True, metadata={"mine": "1"})
        metadata = consumer.config.metadata
        assert (metadata["jetlake.strict_acks"], metadata["jetlake.redeliver_lost"]) == ("true", "true")
        changed = await stream.update_consumer("c", strict_acks=False)
        assert "jetlake.strict_acks" not in changed.config.metadata
        assert (changed.config.metadata["mine"], changed.config.metadata["jetlake.redeliver_lost"]) == ("1", "true")
        with pytest.raises(InvalidOptionError, match="explicit"):
            await stream.create_consumer("d", strict_acks=True, ack_policy="all")
    with pytest.raises(InvalidOptionError, match="True or False"):
        await stream.create_consumer("e", strict_acks="yes")


@pytest.mark.parametrize("ack_policy", ["strict", "lenient"])
async def test_a_late_acknowledgement(js, kind, ack_policy):
    """Ours with strict acks refuses it; without, both servers let it settle the later delivery."""
    is_strict = ack_policy == "strict" and kind == "embedded"
    stream = await filled(js, 2)
    consumer = await stream.create_consumer("c", **({"strict_acks": True} if is_strict else {}))
    first, other = await consumer.fetch(2)
    first.nak()
    again = await consumer.next()
    assert again.metadata.delivered == 2
    late = type(first)(first.raw_subject, b"", first.raw_reply, b"", b"", first._outlet)
    late.nak()
    late.in_progress()
    if is_strict:
        late = type(first)(first.raw_subject, b"", first.raw_reply, b"", b"", first._outlet)
        with pytest.raises(StaleAckError, match="Delivered Again"):
            await late.ack_sync()
        assert (await consumer.info()).num_ack_pending == 2
        assert await consumer.fetch(1, no_wait=True) == []
        await again.ack_sync()
        # What is settled is settled, whichever delivery says so again.
        await type(first)(first.raw_subject, b"", again.raw_reply, b"", b"", first._outlet).ack_sync()
    else:
        await type(first)(first.raw_subject, b"", first.raw_reply, b"", b"", first._outlet).ack_sync()
    await other.ack_sync()
    assert (await consumer.info()).num_ack_pending == 0


@only_ours
async def test_strict_acks_last_over_restarts(start, clients):
    server = await start(process=True)
    nc = await clients(server, reconnect_wait=0.01)
    stream = await filled(nc.jetstream(), 1)
    consumer = await stream.create_consumer("c", strict_acks=True)
    first = await consumer.next()
    first.nak()
    again = await consumer.next()
    # The journal has the second delivery when a later confirmed request of the consumer is durable.
    await again.in_progress_sync()
    await server.kill()
    await server.start()
    await until(lambda: nc.reconnects and nc.is_connected)
    late = type(first)(first.raw_subject, b"", first.raw_reply, b"", b"", first._outlet)
    with pytest.raises(StaleAckError):
        await late.ack_sync()
    assert (await consumer.info()).num_ack_pending == 1
    await again.ack_sync()
    assert (await consumer.info()).num_ack_pending == 0


@only_ours
@pytest.mark.parametrize("how", ["fetch", "consume", "bytes"])
async def test_messages_of_a_lost_client_come_again_at_once(server, js, clients, how):
    stream = await filled(js, 30)
    consumer = await stream.create_consumer("c", redeliver_lost=True, ack_wait=3600)
    worker, lives = await clients(server), await clients(server)
    kept = await (await lives.jetstream().consumer("S", "c")).fetch(5)
    theirs = await worker.jetstream().consumer("S", "c")
    if how == "consume":
        reading = theirs.consume(max_messages=10).start()
        await until(lambda: reading.pending_messages == 10)
    else:
        taken = await (theirs.fetch(10) if how == "fetch" else theirs.fetch(max_bytes=10 * 75, expires=10))
        taken[0].ack()
        taken[1].nak(delay=3600)
        await worker.flush()
    before = (await consumer.info()).delivered.stream_seq
    worker._connection._link.abort(ConnectionError("cut"))
    await worker.close()
    again = []
    while len(again) < before - 5 - (0 if how == "consume" else 2):
        again += [message for message in await consumer.fetch(5) if message.metadata.delivered > 1]
    first = 5 if how == "consume" else 7
    assert sorted(numbers(again)) == list(range(first, before))
    assert numbers(kept) == [0, 1, 2, 3, 4]
    assert (await consumer.info()).num_redelivered == len(again)


@only_ours
async def test_a_waiting_pull_gets_the_messages_of_a_lost_client(server, js, clients):
    stream = await filled(js, 1)
    consumer = await stream.create_consumer("c", redeliver_lost=True, ack_wait=3600)
    worker = await clients(server)
    await (await worker.jetstream().consumer("S", "c")).next()
    waiting = asyncio.ensure_future(consumer.next(30))
    await until(lambda: _has_waiting(consumer))
    await worker.close()
    message = await waiting
    assert message.metadata.delivered == 2


async def _has_waiting(consumer):
    return (await consumer.info()).num_waiting == 1
