"""A stream that moves to a cluster, where it has three copies, and back; more in `full_migrate.py`."""

import pytest
from moving import check_moved, filled_stream

import jetlake
from jetlake.client.moving.migration import Migration


@pytest.mark.parametrize("whole_max_bytes", [None, 10**9], ids=["bulk first", "whole"])
async def test_a_stream_moves_to_the_cluster_and_back(cluster, whole_max_bytes):
    async with (
        jetlake.Server() as server,
        jetlake.connect(server.url) as client,
        jetlake.connect(cluster.urls) as cluster_client,
    ):
        alone, replicated = client.jetstream(), cluster_client.jetstream(timeout=30)
        await filled_stream(alone)
        options = {"whole_max_bytes": whole_max_bytes, "drain_s": 0}
        moved = await Migration(alone, replicated, "S", num_replicas=3, **options).run()
        await check_moved(alone, replicated, moved)
        assert len((await (await replicated.stream("S")).info()).cluster.replicas) == 2
        await alone.delete_stream("S")
        moved = await Migration(replicated, alone, "S", **options).run()
        await check_moved(replicated, alone, moved)
        assert (await alone.stream("S")).config.num_replicas == 1
