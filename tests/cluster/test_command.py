"""The command against a cluster: it shows the leader, the replicas and how far they are."""

import asyncio
import sys
from pathlib import Path

import jetlake

BIN = Path(sys.executable).parent


async def run(cluster, *arguments):
    command = [str(BIN / "jetlake"), "--server", ",".join(cluster.urls), *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


async def test_the_leader_and_the_replicas_are_shown(cluster):
    async with await jetlake.connect(cluster.urls) as client:
        js = client.jetstream()
        stream = await js.create_stream("S", subjects=["s.>"], num_replicas=3)
        await stream.create_consumer("C")
        leader = await cluster.leader_of(js, "S")
        shown = await run(cluster, "stream", "info", "S")
        assert f"Leader: {leader.name}" in shown
        for node in cluster.nodes:
            assert (f"Replica {node.name}: " in shown) is (node is not leader)
        assert "Leader: n" in await run(cluster, "consumer", "info", "S", "C")
