"""Work on streams of other kinds: batches, work queues, removals, copies, priority groups, push reads, objects."""

import asyncio
import zlib

from jetlake.errors import NotFoundError
from tests.world.book import BrokenPromiseError, Publishes, Reads, none

__all__ = ["OPERATIONS", "Changes"]


class Changes:
    """What was promised about these streams."""

    def __init__(self, setup):
        self.setup = setup
        self.batches = {}
        self.queued = Publishes()
        self.queue_reads = Reads()
        self.removed = set()
        self.shrinking = Publishes()
        self.released = Publishes()
        self.objects = {}
        self.pushed = []

    async def create(self, js):
        await js.create_stream("BATCH", subjects=["batch.>"], allow_atomic=True)
        queue = await js.create_stream("QUEUE", subjects=["queue.>"], retention="workqueue")
        await queue.create_consumer("pool", ack_wait=2)
        await js.create_stream("RELEASE", subjects=["release.>"], retention="workqueue", allow_direct=True)
        await js.create_stream("SINK", subjects=["sink.>"], duplicate_window=3600)
        await js.create_stream("SHRINK", subjects=["shrink.>"])
        await js.create_stream("COPY", mirror="PLAIN")
        await js.create_stream("SUM", sources=["PLAIN", "SHRINK"])
        await js.create_object_store("OBJECTS")
        plain = await js.stream("PLAIN")
        await plain.create_consumer(
            "pinned", ack_wait=2, priority_policy="pinned_client", priority_groups=["g"], priority_timeout=5
        )

    # Checks

    async def verify(self, js):
        await self._verify_batches(js)
        await self._verify_queue(js)
        await self._verify_removals(js)
        await self._verify_copies(js)
        await self._verify_objects(js)
        await self._verify_queries(js)

    async def _read(self, js, name):
        stream = await js.stream(name)
        return await self.setup.read_all(stream, (await stream.info()).state.messages)

    async def _verify_batches(self, js):
        found = {}
        for _, payload in await self._read(js, "BATCH"):
            batch, position = map(int, payload.split())
            found.setdefault(batch, []).append(position)
        for batch, positions in found.items():
            size, _ = self.batches[batch]
            if positions != list(range(size)):
                raise BrokenPromiseError(f"of batch {batch} with {size} messages {positions} are stored")
        committed = {batch for batch, (_, is_committed) in self.batches.items() if is_committed}
        none("committed batches are not there", committed - set(found))

    async def _verify_queue(self, js):
        stream = await js.stream("QUEUE")
        stored = dict(await self._read_queue(stream))
        self.queued.check([(sequence, int(payload)) for sequence, payload in stored.items()], kept=False)
        none("messages of a work queue were confirmed and are there", self.queue_reads.confirmed & set(stored))
        acked = set(self.queued.acknowledged.values())
        none("messages of a work queue are gone unread", acked - set(stored) - set(self.queue_reads.seen))
        again = await self.setup.drain(stream, "pool")
        self.queue_reads.check_again(again)
        none("messages of a work queue are not delivered", set(stored) - set(again))

    async def _verify_queries(self, js):
        """What Spark read and released, and what it wrote."""
        released = await self._read_queue(await js.stream("RELEASE"))
        self.released.check([(sequence, int(payload)) for sequence, payload in released], kept=False)
        sunk = [int(payload) for _, payload in await self._read(js, "SINK")]
        read = set()
        for query in self.setup.history.queries:
            stored = [sequence for sequence, _ in (released if query.stream == "RELEASE" else self.setup.stored)]
            query.check(stored, sunk)
            read.update(query.read if query.stream == "RELEASE" else ())
        unread = set(self.released.acknowledged.values()) - read - {sequence for sequence, _ in released}
        none("messages of a work queue were released unread", unread)

    async def _read_queue(self, stream):
        state = (await stream.info(deleted_details=True)).state
        stored = []
        for sequence in range(max(state.first_seq, 1), state.last_seq + 1):
            try:
                stored.append((sequence, bytes((await stream.get(sequence)).payload)))
            except NotFoundError:
                pass
        return stored

    async def _verify_removals(self, js):
        stored = await self._read(js, "SHRINK")
        none("confirmed removals came back", self.removed & {sequence for sequence, _ in stored})
        self.shrinking.check([(sequence, int(payload)) for sequence, payload in stored], kept=False)

    async def _verify_copies(self, js):
        origin = await self._read(js, "PLAIN")
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + 100
        while True:
            copy = await self._read(js, "COPY")
            # What a power cut took out of the middle of what was not synced yet is told as lost.
            lost = (await (await js.stream("COPY")).info()).state.lost
            told = set(lost.msgs or ()) if lost is not None else set()
            if copy == [message for message in origin if message[0] not in told]:
                break
            if loop.time() > deadline_s:
                raise BrokenPromiseError(
                    f"the mirror has {len(copy)} of {len(origin)} messages, the last {copy[-1:]} of {origin[-1:]}"
                )
            await asyncio.sleep(1)
        expected = [payload for _, payload in origin]
        while True:
            summed = [payload for _, payload in await self._read(js, "SUM")]
            of_plain = [payload for payload in summed if int(payload) not in self.shrinking_numbers()]
            if of_plain == expected:
                break
            if loop.time() > deadline_s:
                raise BrokenPromiseError(f"the source has {len(of_plain)} of {len(expected)} messages")
            await asyncio.sleep(1)
        none("messages were sourced twice", {payload for payload in summed if summed.count(payload) > 1})

    def shrinking_numbers(self):
        return self.shrinking.unknown | set(self.shrinking.acknowledged) | self.shrinking.refused

    async def _verify_objects(self, js):
        store = await js.object_store("OBJECTS")
        for name, puts in self.objects.items():
            try:
                content = await store.get(name)
            except NotFoundError:
                content = None
            known = {zlib.crc32(content)} if content is not None else set()
            if not known <= {checksum for checksum, _ in puts}:
                raise BrokenPromiseError(f"object {name} has a content that nobody put")
            if content is None and puts and puts[-1][1]:
                raise BrokenPromiseError(f"object {name} was put, and is gone")


# Operations of a worker


async def commit_batch(worker, random):
    batches = worker.setup.changes.batches
    batch = next(worker.setup.numbers)
    size = random.randrange(1, 12)
    batches[batch] = (size, False)
    async with worker.js.batch() as transaction:
        for position in range(size):
            await transaction.publish(f"batch.{position % 3}", b"%d %d" % (batch, position))
        ack = await transaction.commit()
    if ack.seq:
        batches[batch] = (size, True)


async def queue_work(worker, random):
    book = worker.setup.changes.queued
    for _ in range(random.randrange(1, 10)):
        number = next(worker.setup.numbers)
        book.begin(number)
        ack = await worker.js.publish(f"queue.{number % 3}", b"%d" % number, msg_id=f"q{number}")
        book.acked(number, ack.seq)


async def publish_to_release(worker, random):
    book = worker.setup.changes.released
    for _ in range(random.randrange(1, 10)):
        number = next(worker.setup.numbers)
        book.begin(number)
        ack = await worker.js.publish(f"release.{number % 3}", b"%d" % number, msg_id=f"r{number}")
        book.acked(number, ack.seq)


async def work(worker, random):
    reads = worker.setup.changes.queue_reads
    consumer = await worker.js.consumer("QUEUE", "pool")
    for message in await consumer.fetch(random.randrange(1, 10), expires=random.choice((0.2, 1))):
        sequence = message.metadata.stream_seq
        reads.saw(sequence, bytes(message.payload))
        kind = random.random()
        if kind < 0.6:
            await message.ack_sync()
            reads.confirmed.add(sequence)
        elif kind < 0.8:
            await message.ack()
        elif kind < 0.9:
            await message.nak()


async def shrink(worker, random):
    changes = worker.setup.changes
    book = changes.shrinking
    stream = await worker.js.stream("SHRINK")
    sequences = []
    for _ in range(random.randrange(1, 8)):
        number = next(worker.setup.numbers)
        book.begin(number)
        ack = await worker.js.publish(f"shrink.{number % 3}", b"%d" % number)
        book.acked(number, ack.seq)
        sequences.append(ack.seq)
    if random.random() < 0.7:
        sequence = random.choice(sequences)
        await stream.delete_message(sequence, erase=random.random() < 0.5)
        changes.removed.add(sequence)
    else:
        before = max(sequences)
        await stream.purge(before=before)
        changes.removed.update(sequence for sequence in range(1, before))


async def consume_pinned(worker, random):
    consumer = await worker.js.consumer("PLAIN", "pinned")
    async with consumer.consume(
        group="g", max_messages=random.choice((1, 20)), expires=5, idle_heartbeat=2
    ) as messages:
        for _ in range(random.randrange(1, 50)):
            if worker.history.is_calm:
                break
            await (await messages.next(3)).ack()
            if random.random() < 0.02:
                await consumer.unpin("g")


async def read_pushed(worker, random):
    read = []
    worker.setup.ordered.append((f"{worker.name} pushed", read))
    subscription = await worker.js.subscribe("plain.>", ordered=True)
    try:
        for _ in range(random.randrange(1, 100)):
            message = await subscription.next(1)
            read.append((message.metadata.stream_seq, bytes(message.payload)))
    finally:
        await subscription.unsubscribe()


async def put_object(worker, random):
    puts = worker.setup.changes.objects.setdefault(name := f"o{random.randrange(2)}", [])
    content = random.randbytes(random.choice((0, 10, 3000)))
    puts.append((zlib.crc32(content), False))
    store = await worker.js.object_store("OBJECTS")
    await store.put(name, content, chunk_size=512)
    puts.append((zlib.crc32(content), True))


async def get_object(worker, random):
    name = f"o{random.randrange(2)}"
    puts = worker.setup.changes.objects.setdefault(name, [])
    store = await worker.js.object_store("OBJECTS")
    content = await store.get(name)
    if zlib.crc32(content) not in {checksum for checksum, _ in puts}:
        raise BrokenPromiseError(f"object {name} has a content that nobody put")


async def change_stream(worker, random):
    stream = await worker.js.stream("PLAIN")
    await stream.update(description=f"d{random.randrange(100)}", max_msgs=random.choice((-1, 1_000_000)))


async def temporary_consumer(worker, random):
    stream = await worker.js.stream("PLAIN")
    consumer = await stream.create_consumer(deliver_policy="last", inactive_threshold=5)
    try:
        for message in await consumer.fetch(3, expires=0.5):
            await message.ack()
    finally:
        if random.random() < 0.8:
            await consumer.delete()


async def publish_everywhere(worker, random):
    """Keep all streams busy at once, so that they share the redo log."""
    setup = worker.setup
    books = {"plain": setup.plain, "queue": setup.changes.queued, "shrink": setup.changes.shrinking}

    async def publish(name, book):
        number = next(setup.numbers)
        book.begin(number)
        ack = await worker.js.publish(f"{name}.1", b"%d" % number, msg_id=f"e{number}", timeout=3)
        book.acked(number, ack.seq)

    async def put(key):
        await (await worker.js.key_value("B")).put(key, b"busy")

    for _ in range(random.randrange(5, 40)):
        work = [publish(name, book) for name, book in books.items() for _ in range(2)]
        work += [put("busy"), put("busy"), add_busy(worker)]
        await asyncio.gather(*work)


async def add_busy(worker):
    await (await worker.js.counters("COUNT")).add("count.busy", 1)


async def force_reconnect(worker, random):
    await worker.nc.force_reconnect(3)


OPERATIONS = [
    (commit_batch, 3),
    (queue_work, 4),
    (work, 4),
    (publish_to_release, 2),
    (shrink, 3),
    (consume_pinned, 2),
    (read_pushed, 1),
    (put_object, 1),
    (get_object, 1),
    (change_stream, 0.5),
    (temporary_consumer, 1),
    (force_reconnect, 0.5),
    (publish_everywhere, 1.5),
]
