"""One client with readers of every form, for a cluster that is lost for a while and comes back."""

import asyncio
from contextlib import asynccontextmanager

import jetlake

WAIT_S = 90


class PatientClient:
    """Readers that nobody starts again.

    Attributes:
        js: JetStream, of the same client.
        errors: what `on_error` heard.
        seen: the payloads that each reader got.
    """

    def __init__(self):
        self.errors = []
        self.seen = {form: [] for form in ("iterated", "handled", "continued", "ordered", "watched")}
        self.js = None
        self._reading = []
        self._number = 0

    @asynccontextmanager
    async def reading(self, urls, **options):
        """Read with the options of `consume`."""
        async with jetlake.connect(urls, on_error=self.errors.append) as client:
            self.js = client.jetstream(timeout=10)
            stream = await self.js.create_stream("S", subjects=["s.>"], num_replicas=3, allow_atomic=True)
            bucket = await self.js.create_key_value("B", num_replicas=3)
            durables = [await stream.create_consumer(name, num_replicas=3) for name in ("a", "b", "c")]
            handled = durables[1].consume(lambda message: self._take("handled", message.data), **options).start()
            self._reading = [
                asyncio.create_task(self._collect("iterated", durables[0].consume(**options))),
                asyncio.create_task(handled.wait()),
                asyncio.create_task(
                    self._collect("continued", durables[2].consume(on_missed_heartbeat="continue", **options))
                ),
                asyncio.create_task(self._collect("ordered", stream.ordered().consume(**options))),
                asyncio.create_task(self._collect("watched", bucket.watch("k"))),
            ]
            try:
                yield self
            finally:
                for task in self._reading:
                    task.cancel()
                await asyncio.gather(*self._reading, return_exceptions=True)

    async def _collect(self, form, reader):
        async with reader as messages:
            async for message in messages:
                self._take(form, message.value if form == "watched" else message.data)

    def _take(self, form, data):
        if data not in self.seen[form]:  # An acknowledgement, which none of these wait for, may be lost.
            self.seen[form].append(data)

    def check_alive(self):
        """Make sure that no read has ended."""
        for task in self._reading:
            assert not task.done(), task

    async def publish(self):
        """Publish, once the cluster takes it, and wait until every reader has it."""
        self._number += 1
        text = b"%d" % self._number
        bucket = await self.js.key_value("B")
        await self._until_taken(lambda: self.js.publish("s.1", text, msg_id=text.decode()))
        await self._until_taken(lambda: bucket.put("k", text))
        async with asyncio.timeout(WAIT_S):
            while not all(text in seen for seen in self.seen.values()):
                self.check_alive()
                await asyncio.sleep(0.05)

    async def _until_taken(self, call):
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    return await call()
                except jetlake.JetlakeError:
                    await asyncio.sleep(0.2)


async def lose_quorum(cluster, client, down_s):
    """Kill two of the three servers, and start them again after a while; the readers go on by themselves."""
    others = [node for node in cluster.nodes if node is not await cluster.leader_of(client.js, "S")]
    for node in others:
        await node.kill()
    try:
        await asyncio.sleep(down_s)
        client.check_alive()
    finally:
        for node in others:
            node.start()
    await cluster.ready()
    await client.publish()
