"""Work that goes on by itself or takes long: schedules, partitioned groups, backups and restores, fast batches."""

import asyncio
import io
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

from jetlake.errors import JetlakeError, NotFoundError
from tests.world.book import BrokenPromiseError, none

__all__ = ["OPERATIONS", "Jobs"]

_WAIT_S = 120
_BACKUPS_MAX = 3
_MEMBERS = ("a", "b")
_LAST_DELIVERIES_S = 2
"""How long after a server's start members may begin with what the one before had delivered."""


class Jobs:
    """What was promised about such work.

    Attributes:
        once: numbers of schedules for one time: None, or whether they were acknowledged.
        every: subjects of repeating schedules that were acknowledged.
        handled: what members of the group began to handle, in order, by subject: the life of the server, the sequence;
            life 0 right after a start.
        backups: (name, whether it was restored, what the stream had before it was backed up).
        fast: numbers of fast batches by whether they were acknowledged.
    """

    def __init__(self, setup):
        self.setup = setup
        self.once = {}
        self.handled = {}
        self.backups = []
        self.fast = {}

    async def create(self, js):
        if self.setup.has("fast"):
            await js.create_stream("FAST", subjects=["fast.>"], allow_batched=True)
        if self.setup.has("groups"):
            await js.consumer_groups("PLAIN").create_elastic("G", max_members=3, members=["a"])
        if self.setup.has("schedules"):
            await js.create_stream("SCHED", subjects=["sched.>"], allow_msg_schedules=True)
            await js.schedule("sched.plan.every", b"tick", target="sched.tick", every=timedelta(seconds=1))

    def began(self, message):
        """Note that a member begins to handle a message."""
        sequence = int(message.headers["Nats-Stream-Source"].split()[1])
        hub, now_ns = self.setup.history.hub, self.setup.history.world.scheduler.now_ns
        # What a member begins with right after a start may have come from the server before.
        life = hub.starts if now_ns - hub.started_ns > _LAST_DELIVERIES_S * 1e9 else 0
        self.handled.setdefault(message.subject, []).append((life, sequence))

    # Checks

    async def verify(self, js):
        await self._verify_backups(js)
        if self.setup.has("fast"):
            await self._verify_fast(js)
        if self.setup.has("schedules"):
            await self._verify_schedules(js)
        if self.setup.has("groups"):
            await self._verify_group(js)

    async def _content(self, js, name):
        stream = await js.stream(name)
        return await self.setup.read_all(stream, (await stream.info()).state.messages)

    async def _verify_fast(self, js):
        times = Counter(int(payload) for _, payload in await self._content(js, "FAST"))
        none("messages of fast batches are stored twice", [number for number, count in times.items() if count > 1])
        none("messages of fast batches were never published", set(times) - set(self.fast))
        none(
            "acknowledged messages of fast batches are gone",
            {n for n, acked in self.fast.items() if acked} - set(times),
        )

    async def _verify_backups(self, js):
        for name, is_restored, before in self.backups:
            try:
                restored = await self._content(js, name)
            except NotFoundError:
                if is_restored:
                    raise BrokenPromiseError(f"the restored stream {name} is gone") from None
                continue
            last = (await (await js.stream(name)).info()).state.last_seq
            if restored != [message for message in self.setup.stored if message[0] <= last]:
                raise BrokenPromiseError(f"the restored stream {name} is not the one that was backed up: {restored}")
            none(f"acknowledged messages are not in the backup {name}", before - {sequence for sequence, _ in restored})

    async def _verify_schedules(self, js):
        deadline_s = asyncio.get_running_loop().time() + _WAIT_S
        await (await js.stream("SCHED")).purge(subject="sched.plan.every")
        stream = await js.stream("SCHED")
        found = {}
        while True:
            for sequence, _ in await self._content(js, "SCHED"):
                found[sequence] = found.get(sequence) or await stream.get(sequence)
            stored = list(found.values())
            times = Counter(int(message.payload) for message in stored if message.subject == "sched.run")
            none("schedules were carried out twice", [number for number, count in times.items() if count > 1])
            missing = {number for number, is_acked in self.once.items() if is_acked} - set(times)
            if not missing:
                break
            if asyncio.get_running_loop().time() > deadline_s:
                raise BrokenPromiseError(f"schedules were not carried out: {sorted(missing)}")
            await asyncio.sleep(1)
        ticks = [message for message in stored if message.subject == "sched.tick"]
        times = Counter(message.headers["Nats-Schedule-Next"] for message in ticks)
        none("times of a schedule were repeated", [time for time, count in times.items() if count > 1])
        await asyncio.sleep(2)
        counts = (await stream.info(subjects_filter="sched.tick")).state.subjects or {}
        if counts.get("sched.tick", 0) != len(ticks):
            raise BrokenPromiseError("a schedule that was purged goes on")

    async def _verify_group(self, js):
        group = await js.consumer_groups("PLAIN").get("G")
        expected = {sequence for sequence, _ in self.setup.stored}
        deadline_s = asyncio.get_running_loop().time() + _WAIT_S
        async with group.consume("a", self.began), group.consume("b", self.began):
            while left := expected - {sequence for found in self.handled.values() for _, sequence in found}:
                if asyncio.get_running_loop().time() > deadline_s:
                    raise BrokenPromiseError(
                        f"a group does not handle {len(left)} messages, such as {sorted(left)[:5]}"
                    )
                await asyncio.sleep(0.5)
        for subject, handled in self.handled.items():
            first = list(dict.fromkeys(sequence for _, sequence in handled))
            # A server that dies may forget the last acknowledgement, and the message comes again.
            in_life = [(life, sequence) for life, sequence in handled if life]
            if first != sorted(first) or in_life != sorted(in_life):
                raise BrokenPromiseError(f"a group handled {subject} out of order: {handled}")


# Operations of a worker


async def schedule_once(worker, random):
    jobs = worker.setup.jobs
    number = next(worker.setup.numbers)
    jobs.once[number] = False
    at = datetime.fromtimestamp(time.time() + random.choice((-1, 0.2, 2)), UTC)
    await worker.js.schedule(f"sched.plan.{number}", b"%d" % number, target="sched.run", at=at)
    jobs.once[number] = True


async def work_in_group(worker, random):
    jobs = worker.setup.jobs
    group = await worker.js.consumer_groups("PLAIN").get("G")
    if random.random() < 0.2:
        change = random.choice((group.add_members, group.remove_members))
        await change("b")
    wait_s = random.choice((0, 0, 0.001, 0.3, 0.8))

    async def handle(message):
        jobs.began(message)
        if wait_s:
            await asyncio.sleep(wait_s)

    async with group.consume(random.choice(_MEMBERS), handle, ack_wait=1, on_error=worker.errors.append):
        await asyncio.sleep(random.choice((0.1, 1, 4)))


async def back_up_and_restore(worker, random):
    backups = worker.setup.jobs.backups
    if len(backups) >= _BACKUPS_MAX:
        return
    name = f"BACK{next(worker.setup.numbers)}"
    place = len(backups)
    before = set(worker.setup.plain.acknowledged.values())
    backups.append((name, False, before))
    archive = io.BytesIO()
    backup = await (await worker.js.stream("PLAIN")).backup(archive, consumers=random.random() < 0.5)
    archive.seek(0)
    await worker.js.restore(archive, backup.config, name=name, subjects=[f"{name}.>"])
    backups[place] = (name, True, before)


async def publish_fast(worker, random):
    book = worker.setup.jobs.fast
    numbers = [next(worker.setup.numbers) for _ in range(random.randrange(1, 40))]
    book.update(dict.fromkeys(numbers, False))
    publisher = worker.js.fast_publisher(flow=random.choice((1, 5, 100)))
    try:
        async with publisher:
            for number in numbers:
                await publisher.publish(f"fast.{number % 3}", b"%d" % number)
            await publisher.commit()
        book.update(dict.fromkeys(numbers, True))
    finally:
        book.update(dict.fromkeys(numbers[: publisher.acknowledged], True))


async def publish_many(worker, random):
    book = worker.setup.plain
    numbers = [next(worker.setup.numbers) for _ in range(random.randrange(1, 80))]
    for number in numbers:
        book.begin(number)
    await worker.js.publish_many([(f"plain.{number % 5}", b"%d" % number) for number in numbers])


async def change_consumer(worker, random):
    stream = await worker.js.stream("PLAIN")
    if random.random() < 0.5:
        await stream.update_consumer("workers", ack_wait=random.choice((1, 2, 3)), max_ack_pending=10_000)
        return
    consumer = await stream.consumer("workers")
    await consumer.pause(random.choice((0.2, 1)))
    if random.random() < 0.5:
        await consumer.resume()


async def consume_by_priority(worker, random):
    policy = random.choice(("overflow", "prioritized"))
    consumer = await worker.js.consumer("PLAIN", policy)
    options = {"priority": random.randrange(10)}
    if policy == "overflow":
        options = random.choice(({"min_pending": 10}, {"min_ack_pending": 2}, {}))
    try:
        for message in await consumer.fetch(random.randrange(1, 30), expires=1, group="g", **options):
            await message.ack()
    except JetlakeError:
        if policy == "prioritized":
            raise


OPERATIONS = [
    (schedule_once, 1.5, "schedules"),
    (work_in_group, 1.5, "groups"),
    (back_up_and_restore, 0.5, "backups"),
    (publish_fast, 1.5, "fast"),
    (publish_many, 1, None),
    (change_consumer, 0.5, None),
    (consume_by_priority, 1.5, "priorities"),
]
