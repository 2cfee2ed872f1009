"""What clients do in a history: actors with weighted operations on streams that the history knows by name."""

import asyncio
import contextlib
import itertools

import jetlake
from jetlake.errors import (
    ConsumerNotFoundError,
    InvalidOptionError,
    JetlakeError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from jetlake.model.enums import PriorityPolicy
from tests.world import changes, jobs, values
from tests.world.book import BrokenPromiseError, Publishes, Reads, none

__all__ = ["Setup", "Worker"]

OPERATION_S = 400
"""How long an operation may take from its begin, faults and all."""
_LASTING = {
    "add_to_counter", "change_consumer", "change_key", "change_stream", "consume", "consume_by_priority", "fetch",
    "consume_pinned", "fetch_across", "get_object", "put_object", "read_across", "read_ordered", "watch_keys", "work",
}  # fmt: skip
"""Operations on streams and consumers that are there as long as the world."""


class Setup:
    """The streams and consumers of a history, and the book of what became of them."""

    def __init__(self, history):
        self.history = history
        self.numbers = itertools.count(1)
        self.plain = Publishes()
        self.workers = Reads()
        self.ordered = []
        self.values = values.Values(self)
        self.changes = changes.Changes(self)
        self.jobs = jobs.Jobs(self)
        self.edge = None
        self.followed = {}
        self.stored = []

    def has(self, part):
        """Return whether the world has a part; None is there always."""
        return part is None or part in self.history.parts

    async def run(self):
        async with jetlake.connect(self.history.hub.url) as nc:
            js = nc.jetstream()
            compression = "s2" if self.has("compression") else "none"
            stream = await js.create_stream("PLAIN", subjects=["plain.>"], compression=compression)
            await stream.create_consumer("workers", ack_wait=2, max_ack_pending=10_000)
            if self.has("followers"):
                await stream.create_consumer("followed", ack_wait=2)
            await self.values.create(js)
            await self.changes.create(js)
            await self.jobs.create(js)
            if self.edge is not None:
                await self.edge.create(js)

    async def verify(self):
        async with jetlake.connect(self.history.hub.url) as nc:
            js = nc.jetstream()
            stream = await js.stream("PLAIN")
            info = await stream.info()
            stored = self.stored = await self.read_all(stream, info.state.messages)
            self.plain.check([(sequence, int(payload)) for sequence, payload in stored])
            self.history.world.count("stored", len(stored))
            again = await self.drain(stream, "workers")
            self.workers.check_again(again)
            missing = {sequence for sequence, _ in stored} - set(self.workers.seen) - set(again)
            if missing:
                raise BrokenPromiseError(f"{len(missing)} messages were never delivered, such as {sorted(missing)[:5]}")
            if self.has("followers"):
                none("messages were not handled", set(stored) ^ set(self.followed.items()))
            for name, read in self.ordered:
                expected = stored[: len(read)]
                if read != expected:
                    at = next(i for i, (one, other) in enumerate(itertools.zip_longest(read, expected)) if one != other)
                    raise BrokenPromiseError(
                        f"ordered read {name} gave {read[at : at + 1]} for {expected[at : at + 1]}"
                    )
            await self.values.verify(js)
            await self.changes.verify(js)
            await self.jobs.verify(js)
            if self.edge is not None:
                await self.edge.verify(js)

    async def read_all(self, stream, count):
        """Return (sequence, payload) of everything in a stream."""
        read = []
        ordered = stream.ordered()
        while len(read) < count:
            read += [
                (message.metadata.stream_seq, bytes(message.payload))
                for message in await ordered.fetch(min(count - len(read), 500), expires=5)
            ]
        await ordered.delete()
        return read

    async def drain(self, stream, name, **options):
        """Take everything that a consumer still gives, acknowledge it, and return its sequences."""
        consumer = await stream.consumer(name)
        again = []
        deadline_s = asyncio.get_running_loop().time() + 100
        while (info := await consumer.info()).num_pending or info.num_ack_pending:
            if consumer.config.priority_policy is PriorityPolicy.PINNED_CLIENT:
                again += await self._drain_pinned(consumer)
                continue
            for message in await consumer.fetch(500, expires=1, **options):
                again.append(message.metadata.stream_seq)
                await message.ack()
            if asyncio.get_running_loop().time() > deadline_s:
                raise BrokenPromiseError(f"{name} makes no progress: {info}")
        return again

    async def _drain_pinned(self, consumer):
        again = []
        async with consumer.consume(group="g", max_messages=500, expires=5, idle_heartbeat=2) as messages:
            with contextlib.suppress(RequestTimeoutError):
                while True:
                    message = await messages.next(8)
                    again.append(message.metadata.stream_seq)
                    await message.ack()
        return again


class Worker:
    """A client whose actors publish to and read from the plain stream."""

    def __init__(self, history, name):
        self.history = history
        self.setup = history.setup
        self.name = name
        self.random = history.chance(name)
        self.errors = []
        self.promised = []

    @property
    def url(self):
        return self.history.hub.url

    @property
    def operations(self):
        return OPERATIONS

    async def connect(self):
        """Connect, as often as it takes."""
        random = self.random
        self.nc = None
        while self.nc is None:
            try:
                self.nc = await jetlake.connect(
                    self.url, name=self.name, request_timeout=random.choice((0.5, 2, 5)),
                    reconnect_wait=0.05, reconnect_wait_max=1, ping_interval=random.choice((1, 5, 30)),
                    connect_timeout=random.choice((0.5, 2)), on_error=self.errors.append,
                )  # fmt: skip
            except JetlakeError:
                await asyncio.sleep(0.1)

    async def run(self):
        random = self.random
        await self.connect()
        self.js = self.nc.jetstream(publish_window=random.choice((1, 10, 1000)))
        known = [(operation, weight) for operation, weight, part in self.operations if self.setup.has(part)]
        operations = [each for each in known if random.random() < 0.7] or known
        actors = [
            asyncio.create_task(self._act(f"{self.name}.{number}", operations))
            for number in range(random.randrange(1, 4))
        ]
        try:
            await asyncio.gather(*actors)
        finally:
            for actor in actors:
                actor.cancel()
        await (self.nc.drain() if random.random() < 0.5 else self.nc.close())
        none("promised acknowledgements are still open", [ack for ack in self.promised if not ack.is_done])

    async def _act(self, name, operations):
        number = 0
        loop = asyncio.get_running_loop()
        while not self.history.is_calm:
            step = f"{name}.{number}"
            number += 1
            chance = self.history.chance(step)
            operation = chance.choices([each for each, _ in operations], [weight for _, weight in operations])[0]
            self.history.steps.append(step)
            if step in self.history.skip:
                await asyncio.sleep(chance.choice((0, 0.001, 0.05)))
                continue
            self.history.world.trace(f"{name} begins {operation.__name__} ({step})")
            self.history.world.count(operation.__name__)
            began_s = loop.time()
            task = asyncio.create_task(operation(self, chance))
            if chance.random() < 0.1:
                await asyncio.wait([task], timeout=chance.choice((0, 0.001, 0.01, 0.3)))
                task.cancel()
            await asyncio.wait([task], timeout=OPERATION_S)
            if not task.done():
                from tests.world.history import waits_at

                raise BrokenPromiseError(f"{step} {operation.__name__} has not ended: {waits_at(task)}")
            outcome = "cancelled" if task.cancelled() else task.exception()
            self.history.world.trace(
                f"{name} ends {operation.__name__}: {outcome!r} after {loop.time() - began_s:.3f} s"
            )
            if outcome not in (None, "cancelled"):
                if operation.__name__ in _LASTING:
                    self.check_is_there(outcome)
                self.history.world.count(f"error {type(outcome).__name__}")
                if not isinstance(outcome, JetlakeError) or isinstance(outcome, InvalidOptionError):
                    raise outcome
            await asyncio.sleep(chance.choice((0, 0.001, 0.05)))

    def check_is_there(self, error):
        """Raise when a stream or consumer was not found that nobody ever deletes."""
        if isinstance(error, (StreamNotFoundError, ConsumerNotFoundError)) and not self.history.has_unreadable:
            raise BrokenPromiseError(f"{self.name} was told {error!r}")

    # Operations

    async def publish(self, random):
        book = self.setup.plain
        number = next(self.setup.numbers)
        book.begin(number)
        options = {"msg_id": f"m{number}"} if random.random() < 0.5 else {}
        with book.may_refuse(number):
            ack = await self.js.publish(
                f"plain.{number % 5}", b"%d" % number, timeout=random.choice((0.05, 1, 5)), **options
            )
            book.acked(number, ack.seq)

    async def publish_window(self, random):
        book = self.setup.plain
        pending = []
        for _ in range(random.randrange(1, 60)):
            number = next(self.setup.numbers)
            book.begin(number)
            options = {"msg_id": f"m{number}"} if random.random() < 0.5 else {}
            ack = await self.js.publish_async(f"plain.{number % 5}", b"%d" % number, **options)
            pending.append((number, ack))
            self.promised.append(ack)
        for number, ack in pending:
            with contextlib.suppress(JetlakeError), book.may_refuse(number):
                book.acked(number, (await ack).seq)

    async def publish_plainly(self, random):
        """Publish without asking for acknowledgements: nothing is promised, but that nothing is stored twice."""
        for _ in range(random.randrange(1, 80)):
            number = next(self.setup.numbers)
            self.setup.plain.begin(number)
            await self.nc.publish(f"plain.{number % 5}", b"%d" % number)
        await self.nc.flush(random.choice((0.1, 2)))

    async def talk(self, random):
        """Publish to a subscription: some messages may be lost, but none overtakes another."""
        count, subject = random.randrange(1, 80), f"talk.{next(self.setup.numbers)}"
        subscription = await self.nc.subscribe(subject)
        got = []
        try:
            for number in range(count):
                await self.nc.publish(subject, b"%d %s" % (number, bytes(random.choice((0, 0, 500)))))
            while len(got) < count:
                got.append(int((await subscription.next(1)).payload.split()[0]))
        finally:
            await subscription.unsubscribe()
            if got != sorted(set(got)):
                raise BrokenPromiseError(f"a subscription to {subject} gave {got}")

    async def fetch(self, random):
        consumer = await self.js.consumer("PLAIN", "workers")
        asked_ns = self.history.world.scheduler.now_ns
        async for message in consumer.fetch(random.randrange(1, 50), expires=random.choice((0.1, 1, 3))):
            await self._handle(message, random, asked_ns)

    async def consume(self, random):
        consumer = await self.js.consumer("PLAIN", "workers")
        left = random.randrange(1, 100)
        asked_ns = self.history.world.scheduler.now_ns
        async with consumer.consume(max_messages=random.choice((1, 10, 500)), expires=5, idle_heartbeat=2) as messages:
            while left and not self.history.is_calm:
                left -= 1
                await self._handle(await messages.next(2), random, asked_ns)

    async def _handle(self, message, random, asked_ns):
        reads = self.setup.workers
        sequence = message.metadata.stream_seq
        reads.saw(sequence, bytes(message.payload), asked_ns)
        kind = random.random()
        if kind < 0.5:
            await message.ack()
        elif kind < 0.8:
            await message.ack_sync(random.choice((0.5, 3)))
            reads.confirm(sequence, self.history.world.scheduler.now_ns)
        elif kind < 0.9:
            await message.nak(random.choice((None, 0.1)))
        elif kind < 0.95:
            await message.in_progress()

    async def read_ordered(self, random):
        stream = await self.js.stream("PLAIN")
        read = []
        self.setup.ordered.append((f"{self.name} ordered", read))
        count = random.randrange(1, 200)
        async with stream.ordered().consume(
            max_messages=random.choice((5, 100)), expires=5, idle_heartbeat=2
        ) as messages:
            while len(read) < count and not self.history.is_calm:
                message = await messages.next(2)
                read.append((message.metadata.stream_seq, bytes(message.payload)))


OPERATIONS = [
    (Worker.publish, 10, None),
    (Worker.publish_window, 4, None),
    (Worker.publish_plainly, 1.5, None),
    (Worker.talk, 1, None),
    (Worker.fetch, 4, None),
    (Worker.consume, 2, None),
    (Worker.read_ordered, 1, None),
    *values.OPERATIONS,
    *changes.OPERATIONS,
    *jobs.OPERATIONS,
]
