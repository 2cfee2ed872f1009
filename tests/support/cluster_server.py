"""The third server of the conformance suite: a nats-server cluster, shared by all tests, and empty for each."""

import asyncio

import jetlake
from tests.support.nats_cluster import Cluster


class ClusterServer:
    """A cluster in the place of a server: clients connect to one of its nodes and know of the others.

    Attributes:
        kind: `cluster`.
        url: the address of the first node.
    """

    kind = "cluster"
    is_embedded = False
    host = "127.0.0.1"

    def __init__(self):
        self._cluster = Cluster(has_proxies=False)
        self.url = self._cluster.urls[0]
        self.port = int(self.url.rpartition(":")[2])

    def start(self):
        """Start the servers; each test has an event loop of its own, so they are cut off from nobody."""
        for node in self._cluster.nodes:
            node.start()

    async def ready(self):
        """Wait until the cluster takes requests."""
        await self._cluster.ready()

    async def clear(self):
        """Delete all streams of the test."""
        async with await jetlake.connect(self._cluster.urls) as client:
            js = client.jetstream(timeout=30)
            for name in await js.stream_names():
                await js.delete_stream(name)

    def discard(self):
        asyncio.run(self._cluster.discard())
