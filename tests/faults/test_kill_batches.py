"""kill -9 of a real process while atomic batches are committed: each batch is there as a whole, or not at all."""

import asyncio
import os
from random import Random

import jetlake
from tests.faults.killable import KillableServer
from tests.faults.load_clients import GONE, STREAM, stored_messages

ROUNDS = int(os.environ.get("JETLAKE_KILL_ROUNDS", "2"))
PUBLISHERS = 4


async def test_a_killed_server_keeps_whole_batches():
    random = Random()
    acknowledged = {}
    """Name of the batch: sequence of its last message, and number of messages."""
    with KillableServer("jetlake") as server:
        for number in range(ROUNDS):
            if number:
                server.start()
            await _round(server, random, number, acknowledged)
        server.start()
        stored, _ = await stored_messages(server.url)
    batches = {}
    for sequence, payload in sorted(stored.items()):
        name, member, size = payload.decode().split(" ")
        batches.setdefault(name, []).append((sequence, int(member), int(size)))
    assert acknowledged
    for name, members in batches.items():
        first, size = members[0][0], members[0][2]
        assert members == [(first + at, at, size) for at in range(size)], name
    for name, (last, size) in acknowledged.items():
        assert (batches[name][-1][0], len(batches[name])) == (last, size), name


async def _round(server, random, number, acknowledged):
    """Publish batches, and kill the server in the middle of them."""
    async with await jetlake.connect(server.url, reconnect=False) as nc:
        js = nc.jetstream()
        await js.create_or_update_stream(STREAM, subjects=["load.>"], allow_atomic=True, allow_direct=True)
        target = len(acknowledged) + random.randrange(5, 60)
        publishers = [
            asyncio.ensure_future(_publish(js, random, f"{number}-{at}", acknowledged)) for at in range(PUBLISHERS)
        ]
        while len(acknowledged) < target:
            await asyncio.sleep(0.001)
        server.kill()
        await asyncio.gather(*publishers)


async def _publish(js, random, prefix, acknowledged):
    for number in range(100_000):
        name, size = f"{prefix}-{number}", random.randrange(1, 40)
        batch = js.batch()
        for at in range(size):
            batch.publish(f"load.{at % 7}", f"{name} {at} {size}".encode())
        try:
            ack = await batch.commit()
        except GONE:
            return
        acknowledged[name] = (ack.seq, ack.count)
