"""Readers that live as long as the world: all that there is must reach them, and nobody starts them again."""

import asyncio

from jetlake.errors import JetlakeError
from tests.world.book import BrokenPromiseError
from tests.world.workload import Worker

__all__ = ["Follower", "Instance"]

_BEHIND_S = 100
"""How long a reader may need to the end of a calm world."""


class Follower(Worker):
    """A client that reads a stream, and watches keys, from the beginning of the world to its end.

    A read that raises an error has done its duty, and is started again; one that just stops has not.
    """

    def __init__(self, history, name):
        super().__init__(history, name)
        self.is_across = "edge" in history.parts and self.random.random() < 0.5
        self.read = []
        self.pushed = []
        self.handled = {}
        self.watched = {}

    @property
    def url(self):
        return self.history.servers[1].url if self.is_across else super().url

    async def run(self):
        await self.connect()
        self.js = self.nc.jetstream(domain="hub") if self.is_across else self.nc.jetstream()
        reads = [self._read_ordered, self._consume]
        reads += [self._read_pushed] if self.setup.has("pushes") else []
        reads += [self._watch] if self.setup.has("keys") else []
        tasks = [asyncio.create_task(self._go_on(read)) for read in reads]
        try:
            while not self.history.is_calm or self.history.working():
                await asyncio.sleep(0.1)
            await self._reach_the_end(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await (self.nc.drain() if self.random.random() < 0.5 else self.nc.close())
        self.setup.followed = self.handled

    async def _go_on(self, read):
        while True:
            try:
                await read()
            except JetlakeError as error:
                self.history.world.trace(f"{self.name} {read.__name__} {error!r}")
                self.history.world.count(f"error {type(error).__name__} of a follower")
                if read != self._read_pushed:
                    self.check_is_there(error)
            else:
                raise BrokenPromiseError(f"{self.name} {read.__name__} ended without a word")
            await asyncio.sleep(0.1)

    # What is read

    async def _read_ordered(self):
        stream = await self.js.stream("PLAIN")
        self.read = read = []
        self.setup.ordered.append((f"{self.name} ordered", read))
        fetched_max = self.random.choice((5, 100, 1000))
        async with stream.ordered().consume(max_messages=fetched_max, expires=5, idle_heartbeat=2) as messages:
            async for message in messages:
                read.append((message.metadata.stream_seq, bytes(message.payload)))  # noqa: PERF401

    async def _read_pushed(self):
        self.pushed = read = []
        self.setup.ordered.append((f"{self.name} pushed", read))
        subscription = await self.js.subscribe("plain.>", ordered=True)
        try:
            async for message in subscription:
                read.append((message.metadata.stream_seq, bytes(message.payload)))  # noqa: PERF401
        finally:
            await subscription.unsubscribe()

    async def _consume(self):
        consumer = await self.js.consumer("PLAIN", "followed")
        fetched_max = self.random.choice((1, 10, 500))
        async with consumer.consume(max_messages=fetched_max, expires=5, idle_heartbeat=2) as messages:
            async for message in messages:
                self.handled[message.metadata.stream_seq] = bytes(message.payload)
                await message.ack()

    async def _watch(self):
        bucket = await self.js.key_value("B")
        self.watched = seen = {}
        entries = []
        self.setup.values.watched.append(entries)
        async with bucket.watch() as watch:
            async for entry in watch:
                entries.append(entry)
                seen[entry.key] = entry

    # The end

    async def _reach_the_end(self, tasks):
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _BEHIND_S
        while behind := await self._behind():
            for task in tasks:
                if task.done():
                    task.result()
            if loop.time() > deadline_s:
                raise BrokenPromiseError(f"{self.name} does not reach the end: {behind}")
            await asyncio.sleep(0.5)

    async def _behind(self):
        """Return what has not reached its end."""
        try:
            count = (await (await self.js.stream("PLAIN")).info()).state.messages
            consumer = await (await self.js.consumer("PLAIN", "followed")).info()
            keys = await self._keys_behind() if self.setup.has("keys") else []
        except JetlakeError as error:
            return [error]
        reads = [self.read, self.pushed] if self.setup.has("pushes") else [self.read]
        behind = [f"{len(read)} of {count}, to {read[-1:]}" for read in reads if len(read) < count]
        if consumer.num_pending or consumer.num_ack_pending:
            behind.append(consumer)
        return behind + keys

    async def _keys_behind(self):
        bucket = await self.js.key_value("B")
        behind = []
        for key in self.setup.values.keys:
            entry, seen = await bucket.get(key, default=None), self.watched.get(key)
            seen_revision = seen.revision if seen is not None and not seen.is_deleted else None
            if seen_revision != (entry.revision if entry is not None else None):
                behind.append((key, entry, seen))
        return behind


class Instance(Worker):
    """A program that works as a member of the partitioned group until the world is calm, beside others of its name."""

    async def run(self):
        await self.connect()
        js, jobs = self.nc.jetstream(), self.setup.jobs
        wait_s = self.random.choice((0.02, 0.2))

        async def handle(message):
            jobs.began(message)
            await asyncio.sleep(wait_s)

        while not self.history.is_calm:
            try:
                group = await js.consumer_groups("PLAIN").get("G")
                async with group.consume("a", handle, ack_wait=1, on_error=self.errors.append) as member:
                    while not self.history.is_calm:
                        await asyncio.sleep(0.1)
                        if self.random.random() < 0.01:
                            break
                self.history.world.trace(f"{self.name} {member!r}")
            except JetlakeError as error:
                self.history.world.count(f"error {type(error).__name__} of an instance")
                await asyncio.sleep(0.1)
        await self.nc.close()
