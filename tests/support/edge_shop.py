"""A shop at the edge that sells on whatever happens to its line, and the count of what arrives at the hub."""

import asyncio

import jetlake

STREAM = "SALES"
COPY = "ALL"
RATE = 1000
_SLICE_S = 0.05


class EdgeShop:
    """Publishes numbered sales at the edge, a thousand a second, each until it is acknowledged.

    Args:
        edge_url: the leaf node, whose domain is `edge`.
        hub_urls: the servers that source from it.
        replicas: of the stream at the hub.
    """

    def __init__(self, edge_url, hub_urls, replicas=1):
        self.sold = 0
        self._edge_url = edge_url
        self._hub_urls = hub_urls
        self._replicas = replicas
        self._task = None

    async def open(self):
        self._edge = await jetlake.connect(self._edge_url)
        self._hub = await jetlake.connect(self._hub_urls)
        self._js = self._edge.jetstream()
        self.central = self._hub.jetstream(timeout=20)
        await self._js.create_stream(STREAM, subjects=["sales.>"], duplicate_window=120)
        source = {"name": STREAM, "external": {"api": "$JS.edge.API", "deliver": ""}}
        await self.central.create_stream(COPY, sources=[source], num_replicas=self._replicas)
        self._task = asyncio.create_task(self._sell())

    async def _sell(self):
        while True:
            batch = range(self.sold, self.sold + int(RATE * _SLICE_S))
            await asyncio.gather(*(self._sell_one(number) for number in batch))
            self.sold = batch.stop
            await asyncio.sleep(_SLICE_S)

    async def _sell_one(self, number):
        """Publish one sale; a message id makes trying again harmless."""
        while True:
            try:
                await self._js.publish(f"sales.{number % 7}", b"%d" % number, msg_id=str(number))
            except jetlake.JetlakeError:
                await asyncio.sleep(0.02)
            else:
                return

    async def arrived(self):
        """How many messages the hub's stream holds; 0 while nobody answers."""
        try:
            return (await (await self.central.stream(COPY)).info()).state.messages
        except jetlake.JetlakeError:
            return 0

    async def progress(self, timeout_s=120):
        """Wait until the hub has what was sold so far."""
        sold = self.sold
        async with asyncio.timeout(timeout_s):
            while await self.arrived() < sold:
                await asyncio.sleep(0.05)

    async def count(self, timeout_s=120):
        """Stop selling, wait for the hub to catch up, and compare both streams: every sale once, in its order."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        last = (await (await self._js.stream(STREAM)).info()).state.messages
        assert last >= self.sold
        async with asyncio.timeout(timeout_s):
            while await self.arrived() < last:
                await asyncio.sleep(0.05)
        here, there = [
            [message.payload async for message in _all(await js.stream(name), last)]
            for js, name in ((self._js, STREAM), (self.central, COPY))
        ]
        assert there == here
        assert sorted(int(payload) for payload in here) == list(range(last))
        assert await self.arrived() == last
        return last

    async def close(self):
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._edge.close()
            await self._hub.close()


async def _all(stream, count):
    async with asyncio.timeout(60):
        async for message in stream.ordered():
            yield message
            count -= 1
            if not count:
                return
