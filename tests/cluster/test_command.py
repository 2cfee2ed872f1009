"""The command and the dashboard against a cluster: they show the leader, the replicas and how far they are."""

import asyncio
import sys
from pathlib import Path

import jetlake
from jetlake.dashboard.watching.collector import Collector
from jetlake.dashboard.watching.listing import Listing
from jetlake.dashboard.watching.server_api import ServerApi

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
        await _dashboard_shows_replicas(client, cluster)
        for name in ("D", "E", "F"):
            await stream.create_consumer(name)
        for line in ("stream", "consumer"):
            names = ["S"] if line == "consumer" else []
            assert "Moved the leaders of" in await run(cluster, line, "cluster", "balance", *names, "--force")
        none = await run(cluster, "stream", "cluster", "balance", "--leader", "nobody", "--force")
        assert none == "Moved the leaders of 0 streams\n"
        none = await run(cluster, "consumer", "cluster", "balance", "S", "--push", "--force")
        assert none == "Moved the leaders of 0 consumers\n"


async def _dashboard_shows_replicas(client, cluster):
    """The dashboard's pages of a stream and a consumer name leader and replicas too, with their lag."""
    collector = Collector(ServerApi(client))
    async with asyncio.timeout(60):
        while True:  # a replica is current when it has heard of the leader
            await collector.sample()
            board = collector.board
            pages = (board.stream("S", Listing(), 0.0), board.consumer("S", "C", Listing(), 0.0))
            shown = [page["cluster"] for page in pages if page is not None]
            if len(shown) == 2 and all(one["current"] for group in shown for one in group["replicas"]):
                break
            await asyncio.sleep(0.05)
    for group in shown:
        names = {group["leader"], *(one["name"] for one in group["replicas"])}
        assert names == {node.name for node in cluster.nodes}
        assert all(one["lag"] >= 0 and not one["offline"] for one in group["replicas"])
