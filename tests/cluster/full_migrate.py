"""Streams that move to a cluster whose leaders die, and away from it, under load: `make test-cluster` runs it."""

import asyncio

import jetlake
from jetlake import JetlakeError
from jetlake.client.migration.migration import Migration
from tests.support.moving import check_moved, filled_stream, moved_there_and_back


async def move(source, target, **options):
    """Move until it is done, as a user would who runs the command again."""
    while True:
        try:
            return await Migration(source, target, "S", whole_max_bytes=0, drain_s=0, **options).run()
        except JetlakeError:
            await asyncio.sleep(0.2)


async def publish(js, acknowledged):
    """Publish until there is no stream any more; what was acknowledged is written down."""
    while True:
        try:
            number = len(acknowledged)
            acknowledged.append((await js.publish("s.1", b"later", msg_id=f"later-{number}", retries=1000)).seq)
        except JetlakeError:
            await asyncio.sleep(0.05)  # The message may be stored; the next attempt has the same id.


async def kill_leaders(cluster, js, kills):
    for _ in range(kills):
        await cluster.kill_leader(js, "S")


async def moved_under_kills(cluster, source, target, replicated, **options):
    acknowledged = []
    publisher = asyncio.create_task(publish(source, acknowledged))
    killer = asyncio.create_task(kill_leaders(cluster, replicated, 3))
    try:
        moved = await move(source, target, **options)
        await killer
    finally:
        publisher.cancel()
        killer.cancel()
        await asyncio.gather(publisher, killer, return_exceptions=True)
    await check_moved(source, target, moved)
    assert max(acknowledged, default=0) <= moved.after.last_seq


async def test_leaders_are_killed_while_a_stream_moves_to_the_cluster(cluster):
    async with (
        jetlake.Server() as server,
        jetlake.connect(server.url) as client,
        jetlake.connect(cluster.urls) as cluster_client,
    ):
        alone, replicated = client.jetstream(), cluster_client.jetstream(timeout=30)
        await filled_stream(alone, 5_000)
        await moved_under_kills(cluster, alone, replicated, replicated, num_replicas=3)


async def test_leaders_are_killed_while_a_stream_moves_away_from_the_cluster(cluster):
    async with (
        jetlake.Server() as server,
        jetlake.connect(server.url) as client,
        jetlake.connect(cluster.urls) as cluster_client,
    ):
        alone, replicated = client.jetstream(), cluster_client.jetstream(timeout=30)
        await filled_stream(replicated, 5_000, num_replicas=3)
        await moved_under_kills(cluster, replicated, alone, replicated)


async def test_a_stream_moves_whole_to_the_cluster_and_back(cluster):
    await moved_there_and_back(cluster, whole_max_bytes=10**9)
