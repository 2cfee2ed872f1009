"""An edge behind a line to a cluster of three, at length: `make test-cluster` runs it.

A replicated stream sources a thousand messages a second from the edge while the line is cut and restored and both ends
are killed; a mirror at the edge is read offline. Nothing is lost, nothing comes twice.
"""

import asyncio
import os

import jetlake
from tests.support.clients import until
from tests.support.edge_shop import COPY, EdgeShop
from tests.support.leaf import LEAF, Line, report
from tests.support.nats_cluster import Cluster
from tests.support.servers import make_server

CUTS = int(os.environ.get("CLUSTER_KILLS", "20"))


class ClusterEdge:
    """A cluster of three, and a leaf node that may join any of them over a line."""

    def __init__(self):
        self.cluster = Cluster(domain="hub")
        self.lines = []
        self.leaf = None

    async def start(self):
        await self.cluster.start()
        self.lines = [Line(node.leaf_port) for node in self.cluster.nodes]
        for line in self.lines:
            await line.start()
        urls = ", ".join(f'"nats://127.0.0.1:{line.port}"' for line in self.lines)
        remotes = f"remotes [ {{ urls: [{urls}], ignore_discovered_servers: true }} ]"
        self.leaf = make_server("embedded", LEAF + f"leafnodes {{ reconnect: 0.1, {remotes} }}", process=True)
        await self.leaf.start()
        await self.joined()

    async def joined(self):
        await until(self._is_joined, timeout_s=60)

    async def _is_joined(self):
        return (await report(self.leaf, "leafz"))["leafnodes"] == 1

    async def cut(self):
        """Cut the line until the edge has noticed, and restore it."""
        for line in self.lines:
            line.cut()

        async def is_parted():
            return not await self._is_joined()

        await until(is_parted, timeout_s=60)
        await asyncio.sleep(0.2)
        for line in self.lines:
            line.restore()
        await self.joined()

    async def discard(self):
        if self.leaf is not None:
            await self.leaf.discard()
        for line in self.lines:
            await line.stop()
        await self.cluster.discard()


async def test_a_cluster_sources_from_an_edge_through_cuts_and_kills():
    edge = ClusterEdge()
    shop = None
    try:
        await edge.start()
        shop = EdgeShop(edge.leaf.url, edge.cluster.urls, replicas=3)
        await shop.open()
        for number in range(CUTS):
            await edge.cut()
            if number % 5 == 2:
                await edge.cluster.kill_leader(shop.central, COPY, down_s=0.5)
            if number % 5 == 4:
                await edge.leaf.kill()
                await edge.leaf.start()
                await edge.joined()
            if number % 4 == 3:
                await shop.progress(timeout_s=120)
        await shop.count(timeout_s=120)
        await read_offline(edge)
    finally:
        if shop is not None:
            await shop.close()
        await edge.discard()


async def test_an_edge_goes_to_another_server_of_the_cluster():
    """It knows the address of one, and is told those of the others."""
    cluster = Cluster(domain="hub")
    leaf = None
    try:
        await cluster.start()
        first, *others = cluster.nodes
        url = f"nats://127.0.0.1:{first.leaf_port}"
        leaf = make_server("embedded", LEAF + f'leafnodes {{ reconnect: 0.1, remotes [ {{ url: "{url}" }} ] }}')
        await leaf.start()

        async def joined_to():
            rows = (await report(leaf, "leafz"))["leafs"]
            return rows[0]["name"] if rows else ""

        await until(joined_to, timeout_s=60)
        await first.kill()

        async def is_elsewhere():
            return await joined_to() in [node.name for node in others]

        await until(is_elsewhere, timeout_s=60)
    finally:
        if leaf is not None:
            await leaf.discard()
        await cluster.discard()


async def read_offline(edge):
    """Mirror the cluster's stream at the edge, and read the mirror while the line is down."""
    async with await jetlake.connect(edge.leaf.url) as client:
        js = client.jetstream()
        external = {"api": "$JS.hub.API", "deliver": ""}
        central = await client.jetstream(domain="hub", timeout=20).stream(COPY)
        count = (await central.info()).state.messages
        mirror = await js.create_stream("MIRROR", mirror={"name": COPY, "external": external})

        async def is_full():
            return (await mirror.info()).state.messages == count

        await until(is_full, timeout_s=120)
        for line in edge.lines:
            line.cut()
        read = 0
        async for _ in mirror.ordered():
            read += 1
            if read == count:
                break
        assert read == count
