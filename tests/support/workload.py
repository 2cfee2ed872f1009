"""Publishers and readers of every kind on one replicated stream, which account for each message while servers die."""

import asyncio
from collections import Counter

import jetlake
from jetlake import JetlakeError
from jetlake.errors import PublishTimeoutError, RequestTimeoutError

STREAM = "S"
BUCKET = "B"
PROGRESS_S = 120


async def created(create):
    """Create something that may be created twice; a cluster that has just come up may leave a request unanswered."""
    for _ in range(6):
        try:
            return await create()
        except RequestTimeoutError:
            pass
    return await create()


class Workload:
    """Publishers and readers, each on a connection of its own.

    Args:
        urls: the servers.
        timeout: seconds that calls wait. Default: as the client does.
        on_missed_heartbeat: whether reading stops or goes on when a server falls silent.
        options: of the connections.

    Attributes:
        acknowledged: the sequences of the acknowledged messages, by their ids.
        errors: what reached a user, with the place; nothing may.
        seen: how often each reader got each message, by the reader's name.
        ordered: the sequences of the ordered read.
        watched: the revisions of the watched key.
    """

    def __init__(self, urls, timeout=None, on_missed_heartbeat="stop", **options):
        self._urls = urls
        self._timeout = timeout
        self._reading_options = {"on_missed_heartbeat": on_missed_heartbeat}
        self._options = options
        self._clients = []
        self._publishers = []
        self._readers = []
        self._is_publishing = True
        self._revision = 0
        self.acknowledged = {}
        self.errors = []
        self.seen = {}
        self.ordered = []
        self.watched = []

    async def connect(self, **options):
        client = await jetlake.connect(self._urls, **self._options, **options)
        self._clients.append(client)
        return client

    async def start(self):
        js = (await self.connect()).jetstream(timeout=10)
        await created(lambda: js.create_stream(STREAM, subjects=["s.>"], num_replicas=3))
        await created(lambda: js.create_key_value(BUCKET, num_replicas=3))
        publishers = [self._publish("a"), self._publish("b"), self._publish_windowed(), self._put()]
        readers = [self._consume(), self._consume_in_group("g1"), self._consume_in_group("g2"), self._fetch()]
        readers += [self._read_in_order(), self._subscribe(), self._watch()]
        self._publishers = [asyncio.create_task(each) for each in publishers]
        self._readers = [asyncio.create_task(each) for each in readers]

    async def stop(self):
        for task in (*self._publishers, *self._readers):
            task.cancel()
        await asyncio.gather(*self._publishers, *self._readers, return_exceptions=True)
        for client in self._clients:
            await client.close()

    # Publishers

    async def _publish(self, name):
        js = (await self.connect()).jetstream(timeout=self._timeout)
        number = 0
        while self._is_publishing:
            number += 1
            await self._acknowledge(js.publish(f"s.{name}", b"%d" % number, msg_id=f"{name}-{number}"), name, number)
            await asyncio.sleep(0.01)

    async def _publish_windowed(self):
        js = (await self.connect(on_error=lambda error: self._tell("window", error))).jetstream(timeout=self._timeout)
        number = 0
        while self._is_publishing:
            numbers = range(number + 1, number + 51)
            pending = [await js.publish_async("s.w", b"%d" % each, msg_id=f"w-{each}") for each in numbers]
            for each, ack in zip(numbers, pending, strict=True):
                await self._acknowledge(ack, "w", each)
            number += 50
            await asyncio.sleep(0.1)

    async def _acknowledge(self, ack, name, number):
        try:
            self.acknowledged[f"{name}-{number}"] = (await ack).seq
        except JetlakeError as error:
            self._tell(f"publish {name}", error)

    async def _put(self):
        bucket = await (await self.connect()).jetstream(timeout=self._timeout).key_value(BUCKET)
        number = 0
        while self._is_publishing:
            number += 1
            try:
                self._revision = await bucket.put("key", b"%d" % number)
            except JetlakeError as error:
                # Without an id nobody knows whether it is stored, so it is not sent again, and the user is told.
                if not isinstance(error, (jetlake.DisconnectedError, PublishTimeoutError)):
                    self._tell("put", error)
            await asyncio.sleep(0.05)

    # Readers

    async def _stream(self):
        client = await self.connect(on_error=lambda error: self._tell("on_error", error))
        return await client.jetstream(timeout=self._timeout).stream(STREAM)

    def _take(self, reader, message):
        self.seen.setdefault(reader, Counter())[message.metadata.stream_seq] += 1

    async def _consume(self):
        consumer = await (await self._stream()).create_consumer("consumed", ack_wait=5)
        await self._reading("consume", consumer.consume(**self._reading_options), "consumed")

    async def _consume_in_group(self, client):
        consumer = await (await self._stream()).create_consumer(
            "grouped", ack_wait=5, priority_groups=["G"], priority_policy="pinned_client", priority_timeout=5
        )
        await self._reading(
            client, consumer.consume(group="G", expires=10, idle_heartbeat=4, **self._reading_options), "grouped"
        )

    async def _reading(self, place, reading, reader):
        try:
            async with reading as messages:
                async for message in messages:
                    self._take(reader, message)
                    await message.ack()
        except JetlakeError as error:
            self._tell(place, error)

    async def _fetch(self):
        consumer = await (await self._stream()).create_consumer("fetched", ack_wait=5)
        while True:
            try:
                for place, message in enumerate(await consumer.fetch(100, expires=20)):
                    self._take("fetched", message)
                    await (message.ack() if place else message.ack_sync(timeout=60))
            except JetlakeError as error:
                self._tell("fetch", error)

    async def _read_in_order(self):
        try:
            async for message in (await self._stream()).ordered():
                self.ordered.append(message.metadata.stream_seq)
                self._take("ordered", message)
        except JetlakeError as error:
            self._tell("ordered", error)

    async def _subscribe(self):
        js = (await self.connect()).jetstream(timeout=self._timeout)
        try:
            async with await js.subscribe("s.>", durable="pushed", ack_wait=5, idle_heartbeat=2) as messages:
                async for message in messages:
                    self._take("pushed", message)
                    await message.ack()
        except JetlakeError as error:
            self._tell("push", error)

    async def _watch(self):
        bucket = await (await self.connect()).jetstream(timeout=self._timeout).key_value(BUCKET)
        try:
            async with bucket.watch("key") as entries:
                async for entry in entries:
                    self.watched.append(entry.revision)
        except JetlakeError as error:
            self._tell("watch", error)

    def _tell(self, place, error):
        self.errors.append(f"{place}: {type(error).__name__}: {error}")

    # What must hold

    async def progress(self):
        """Wait until more was acknowledged, and every reader has seen all that was; nobody may stay silent."""
        before = len(self.acknowledged)
        revision = self._revision
        await self._until(lambda: len(self.acknowledged) >= before + 100 and self._revision > revision)
        await self._caught_up()

    async def progress_elsewhere(self):
        """Wait until more was acknowledged: those who are connected to the servers that can be reached go on."""
        before = len(self.acknowledged)
        await self._until(lambda: len(self.acknowledged) >= before + 100)

    async def _caught_up(self):
        wanted = set(self.acknowledged.values())
        for reader in ("consumed", "grouped", "fetched", "ordered", "pushed"):
            await self._until(lambda reader=reader: wanted <= self.seen.get(reader, Counter()).keys(), reader)
        revision = self._revision
        await self._until(lambda: bool(self.watched) and self.watched[-1] >= revision, "watch")

    async def _until(self, condition, reader="publishers"):
        try:
            async with asyncio.timeout(PROGRESS_S):
                while not condition():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{reader} stay silent; errors so far: {self.errors}") from None

    async def finish(self):
        """Stop publishing, let everybody catch up, and compare with what the stream holds."""
        self._is_publishing = False
        await asyncio.gather(*self._publishers)
        await self._caught_up()
        js = (await self.connect()).jetstream(timeout=30)
        stream = await js.stream(STREAM)
        state = (await stream.info()).state
        stored = {}
        async with stream.ordered().consume(stop_after=state.messages) as messages:
            async for message in messages:
                stored.setdefault(message.headers["Nats-Msg-Id"], []).append(message.metadata.stream_seq)
        assert all(len(sequences) == 1 for sequences in stored.values())
        assert {key: [sequence] for key, sequence in self.acknowledged.items()}.items() <= stored.items()
        assert self.ordered == list(range(1, len(self.ordered) + 1))
        assert self.watched == sorted(set(self.watched))
