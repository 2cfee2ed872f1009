"""The dashboard against a cluster: leaders, replicas and how far they are behind."""

import jetlake
from jetlake.dashboard.watching.collector import Collector
from jetlake.dashboard.watching.server_api import ServerApi
from tests.support.dashboard_pages import leader_shown, shown


async def test_leaders_and_replicas_are_shown(cluster):
    async with jetlake.connect(cluster.urls) as client:
        js = client.jetstream(timeout=30)
        stream = await js.create_stream("S", subjects=["s.>"], num_replicas=3)
        await stream.create_consumer("C")
        leader = await cluster.leader_of(js, "S")
        followers = [node for node in cluster.nodes if node is not leader]
        collector = Collector(ServerApi(client), interval_s=0.05)
        await collector.start()
        try:
            names = {node.name for node in followers}
            page = await shown(
                collector,
                lambda page: (
                    page["cluster"]["leader"] == leader.name
                    and {peer["name"] for peer in page["cluster"]["replicas"]} == names
                ),
            )
            assert all({"lag", "current", "offline", "active"} <= set(peer) for peer in page["cluster"]["replicas"])
            assert collector.summary()["server"]["cluster"] == "C"
            await leader_shown(collector)
            # Nobody told where monitoring is, so that the page of connections has nothing rather than an empty list.
            assert collector.board.connections is None
        finally:
            await collector.stop()
