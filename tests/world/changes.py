"""Work on other streams: batches, queues, removals, copies, priority groups, push reads, objects, in memory."""

import asyncio
import zlib
from collections import Counter

from jetlake.errors import ApiError, NoRespondersError, NotFoundError
from tests.world.book import BrokenPromiseError, Publishes, Reads, none
from tests.world.linearizable import UNKNOWN, Call
from tests.world.servers import MEMORY_BYTES

__all__ = ["OPERATIONS", "SINK_WINDOW_S", "Changes"]

_PAYLOAD_BYTES_MAX = 3000
_IN_MEMORY_BYTES_MAX = 3100
_MIRRORS_MAX = 8
SINK_WINDOW_S = 60
"""How long the stream that Spark writes to remembers ids: for longer than a task may try again."""


class Changes:
    """What was promised about these streams."""

    def __init__(self, setup):
        self.setup = setup
        self.batches = {}
        self.queued = Publishes()
        self.queue_reads = Reads()
        self.removed = set()
        self.deleted = set()
        self.shrinking = Publishes()
        self.released = Publishes()
        self.objects = {}
        self.in_memory = Publishes()
        self.lives = {}
        self.mirrors = {}

    async def create(self, js):
        has = self.setup.has
        if has("batches"):
            await js.create_stream("BATCH", subjects=["batch.>"], allow_atomic=True)
        if has("queue"):
            queue = await js.create_stream("QUEUE", subjects=["queue.>"], retention="workqueue", allow_direct=True)
            await queue.create_consumer("pool", ack_wait=2)
        if has("release"):
            await js.create_stream("RELEASE", subjects=["release.>"], retention="workqueue", allow_direct=True)
        if has("spark"):
            await js.create_stream("SINK", subjects=["sink.>"], duplicate_window=SINK_WINDOW_S)
        if has("removals"):
            await js.create_stream("SHRINK", subjects=["shrink.>"])
        if has("copies"):
            await js.create_stream("COPY", mirror="PLAIN")
            await js.create_stream("SUM", sources=["PLAIN", "SHRINK"] if has("removals") else ["PLAIN"])
        if has("objects"):
            await js.create_object_store("OBJECTS")
        if has("memory"):
            await _create_in_memory(js)
        if has("priorities"):
            plain = await js.stream("PLAIN")
            await plain.create_consumer(
                "pinned", ack_wait=2, priority_policy="pinned_client", priority_groups=["g"], priority_timeout=5
            )
            for policy in ("overflow", "prioritized"):
                await plain.create_consumer(policy, ack_wait=2, priority_policy=policy, priority_groups=["g"])

    # Checks

    async def verify(self, js):
        checks = {
            "batches": self._verify_batches,
            "queue": self._verify_queue,
            "removals": self._verify_removals,
            "copies": self._verify_copies,
            "bursts": self._verify_mirrors,
            "objects": self._verify_objects,
            "memory": self._verify_memory,
            "priorities": self._verify_priorities,
        }
        for part, check in checks.items():
            if self.setup.has(part):
                await check(js)
        await self._verify_queries(js)
        none("deleted streams are back", self.deleted & set(await js.stream_names()))

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
        none("messages of a work queue were confirmed and are there", set(self.queue_reads.confirmed) & set(stored))
        acked = set(self.queued.acknowledged.values())
        none("messages of a work queue are gone unread", acked - set(stored) - set(self.queue_reads.seen))
        again = await self.setup.drain(stream, "pool")
        self.queue_reads.check_again(again)
        none("messages of a work queue are not delivered", set(stored) - set(again))

    async def _verify_queries(self, js):
        """What Spark read and released, and what it wrote."""
        has = self.setup.has
        released = await self._read_queue(await js.stream("RELEASE")) if has("release") else []
        self.released.check([(sequence, int(payload)) for sequence, payload in released], kept=False)
        sunk = [int(payload) for _, payload in await self._read(js, "SINK")] if has("spark") else []
        read = set()
        for query in self.setup.history.queries:
            stored = [sequence for sequence, _ in (released if query.stream == "RELEASE" else self.setup.stored)]
            query.check(stored, sunk)
            read.update(query.read if query.stream == "RELEASE" else ())
        unread = set(self.released.acknowledged.values()) - read - {sequence for sequence, _ in released}
        none("messages of a work queue were released unread", unread)

    async def _read_queue(self, stream):
        count = (await stream.info()).state.messages
        stored = []
        while len(stored) < count:
            after = stored[-1][0] + 1 if stored else 1
            found = [message async for message in stream.get_batch(200, sequence=after)]
            if not found:
                raise BrokenPromiseError(f"{stream.name} has {count} messages and gives {len(stored)}")
            stored += [(message.sequence, bytes(message.payload)) for message in found]
        return stored

    async def _verify_memory(self, js):
        """A stream in memory lives as long as its server, and takes no more than the server's limit."""
        life = self.setup.history.hub.starts
        kept = {number for number in self.in_memory.acknowledged if self.lives[number] == life}
        try:
            info = await (await js.stream("MEM")).info()
        except NotFoundError:
            none("acknowledged messages in memory are gone with their stream", kept)
            return
        # As with nats-server, the message that reaches the limit is the last one that is stored.
        if info.state.bytes > MEMORY_BYTES + _IN_MEMORY_BYTES_MAX:
            raise BrokenPromiseError(f"a stream in memory takes {info.state.bytes} bytes")
        stored = [(sequence, int(payload.split()[0])) for sequence, payload in await self._read(js, "MEM")]
        self.in_memory.check(stored, kept=False)
        none("acknowledged messages in memory are gone", kept - {number for _, number in stored})

    async def _verify_priorities(self, js):
        for policy in ("pinned", "overflow", "prioritized"):
            await self.setup.drain(await js.stream("PLAIN"), policy, group="g")

    async def _verify_removals(self, js):
        stored = await self._read(js, "SHRINK")
        none("confirmed removals came back", self.removed & {sequence for sequence, _ in stored})
        self.shrinking.check([(sequence, int(payload)) for sequence, payload in stored], kept=False)

    async def _verify_mirror(self, js, name, origin, deadline_s):
        while True:
            copy = await self._read(js, name)
            # What a power cut took out of the middle of what was not synced yet is told as lost.
            lost = (await (await js.stream(name)).info()).state.lost
            told = set(lost.msgs or ()) if lost is not None else set()
            if copy == [message for message in origin if message[0] not in told]:
                break
            if asyncio.get_running_loop().time() > deadline_s:
                raise BrokenPromiseError(
                    f"the mirror has {len(copy)} of {len(origin)} messages, the last {copy[-1:]} of {origin[-1:]}"
                )
            await asyncio.sleep(1)

    async def _verify_mirrors(self, js):
        origin = await self._read(js, "PLAIN")
        deadline_s = asyncio.get_running_loop().time() + 100
        for name, is_there in self.mirrors.items():
            try:
                await self._verify_mirror(js, name, origin, deadline_s)
            except NotFoundError:
                if is_there:
                    raise BrokenPromiseError(f"the mirror {name} is gone") from None

    async def _verify_copies(self, js):
        origin = await self._read(js, "PLAIN")
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + 100
        await self._verify_mirror(js, "COPY", origin, deadline_s)
        expected = [payload for _, payload in origin]
        others = self.shrinking.unknown | set(self.shrinking.acknowledged) | self.shrinking.refused
        left = {payload for _, payload in await self._read(js, "SHRINK")} if self.setup.has("removals") else set()
        while True:
            summed = [payload for _, payload in await self._read(js, "SUM")]
            of_plain = [payload for payload in summed if int(payload) not in others]
            # What a power cut took out of the middle of what was not synced yet is told as lost, as by a mirror.
            told = (await (await js.stream("SUM")).info()).state.lost
            missing = len(expected) - len(of_plain) + len(left - set(summed))
            rest = iter(expected)
            if missing <= (len(told.msgs or ()) if told is not None else 0) and all(each in rest for each in of_plain):
                break
            if loop.time() > deadline_s:
                lost = left - set(summed)
                raise BrokenPromiseError(
                    f"the sources gave {len(of_plain)} of {len(expected)} messages, and not {sorted(lost)[:5]}"
                )
            await asyncio.sleep(1)
        none("messages were sourced twice", [payload for payload, count in Counter(summed).items() if count > 1])

    async def _verify_objects(self, js):
        store = await js.object_store("OBJECTS")
        for name, calls in self.objects.items():
            now_ns = self.setup.history.world.scheduler.now_ns
            calls = [*calls, Call(now_ns, now_ns, ("get",), await _checksum(store, name))]
            self.setup.values.check_order(f"object {name}", calls, _NO_OBJECT, _put_or_get)


_NO_OBJECT = ()


async def _checksum(store, name):
    """Return what identifies the content of an object."""
    try:
        return (zlib.crc32(await store.get(name)),)
    except NotFoundError:
        return _NO_OBJECT


def _put_or_get(state, action, outcome):
    if action[0] == "put":
        return action[1]
    return state if outcome is UNKNOWN or outcome == state else None


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
        with book.may_refuse(number):
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
    scheduler = worker.history.world.scheduler
    asked_ns = scheduler.now_ns
    for message in await consumer.fetch(random.randrange(1, 10), expires=random.choice((0.2, 1))):
        sequence = message.metadata.stream_seq
        reads.saw(sequence, bytes(message.payload), asked_ns)
        kind = random.random()
        if kind < 0.6:
            await message.ack_sync()
            reads.confirm(sequence, scheduler.now_ns)
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
    calls = worker.setup.changes.objects.setdefault(name := f"o{random.randrange(2)}", [])
    size, chunk_size = random.choice(((0, 512), (10, 512), (3000, 512), (3000, 512), (180_000, 90_000)))
    content = b"%d " % next(worker.setup.numbers) + random.randbytes(size)
    store = await worker.js.object_store("OBJECTS")
    put = store.put(name, content, chunk_size=chunk_size)
    await worker.setup.values.call(calls, ("put", (zlib.crc32(content),)), put)


async def get_object(worker, random):
    calls = worker.setup.changes.objects.setdefault(name := f"o{random.randrange(2)}", [])
    store = await worker.js.object_store("OBJECTS")
    await worker.setup.values.call(calls, ("get",), _checksum(store, name))


async def _create_in_memory(js):
    await js.create_stream("MEM", subjects=["mem.>"], storage="memory")


async def publish_to_memory(worker, random):
    """Publish more than may be in memory; what is refused is not there."""
    changes = worker.setup.changes
    book, hub = changes.in_memory, worker.history.hub
    for _ in range(random.randrange(1, 10)):
        number = next(worker.setup.numbers)
        book.begin(number)
        changes.lives[number] = hub.starts
        try:
            with book.may_refuse(number):
                ack = await worker.js.publish("mem.x", b"%d %s" % (number, bytes(random.randrange(_PAYLOAD_BYTES_MAX))))
                book.acked(number, ack.seq)
        except ApiError as error:
            worker.history.world.count(f"refusals {error.err_code} of a stream in memory")
        except NoRespondersError:
            await _create_in_memory(worker.js)


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
    books = {"plain": setup.plain}
    if setup.has("queue"):
        books["queue"] = setup.changes.queued
    if setup.has("removals"):
        books["shrink"] = setup.changes.shrinking

    async def publish(name, book):
        number = next(setup.numbers)
        book.begin(number)
        ack = await worker.js.publish(f"{name}.1", b"%d" % number, msg_id=f"e{number}", timeout=3)
        book.acked(number, ack.seq)

    async def put(key):
        await (await worker.js.key_value("B")).put(key, b"busy")

    for _ in range(random.randrange(5, 40)):
        work = [publish(name, book) for name, book in books.items() for _ in range(2)]
        work += [put("busy"), put("busy")] if setup.has("keys") else []
        work += [add_busy(worker)] if setup.has("counters") else []
        await asyncio.gather(*work)


async def add_busy(worker):
    await (await worker.js.counters("COUNT")).add("count.busy", 1)


async def temporary_stream(worker, random):
    name = f"T{next(worker.setup.numbers)}"
    await worker.js.create_stream(name, subjects=[f"{name}.>"])
    sequences = [(await worker.js.publish(f"{name}.x", b"x")).seq for _ in range(random.randrange(5))]
    if sequences != sorted(set(sequences)):
        raise BrokenPromiseError(f"{name} gave the sequences {sequences}")
    if random.random() < 0.8:
        await worker.js.delete_stream(name)
        worker.setup.changes.deleted.add(name)


async def mirror_again(worker, random):
    """Begin a mirror, which gets at once all that is there."""
    mirrors = worker.setup.changes.mirrors
    if len(mirrors) < _MIRRORS_MAX:
        name = f"AGAIN{len(mirrors)}"
        mirrors[name] = False
        await worker.js.create_stream(name, mirror="PLAIN")
        mirrors[name] = True


async def force_reconnect(worker, random):
    await worker.nc.force_reconnect(3)


OPERATIONS = [
    (commit_batch, 3, "batches"),
    (queue_work, 4, "queue"),
    (work, 4, "queue"),
    (publish_to_release, 2, "release"),
    (shrink, 3, "removals"),
    (consume_pinned, 2, "priorities"),
    (read_pushed, 1, "pushes"),
    (put_object, 1, "objects"),
    (get_object, 1, "objects"),
    (publish_to_memory, 2, "memory"),
    (change_stream, 0.5, None),
    (temporary_consumer, 1, None),
    (temporary_stream, 0.7, None),
    (force_reconnect, 0.5, None),
    (publish_everywhere, 1.5, None),
    (mirror_again, 6, "bursts"),
]
