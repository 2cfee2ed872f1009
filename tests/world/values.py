"""Work with values that change: key-value buckets and counters, checked for linearizability; deduplication by id."""

import asyncio
import contextlib
from functools import partial

from jetlake.errors import (
    JetlakeError,
    KeyExistsError,
    KeyNotFoundError,
    WrongLastSequenceError,
)
from tests.world.book import BrokenPromiseError, none
from tests.world.linearizable import UNKNOWN, Call, find_order

__all__ = ["OPERATIONS", "Values"]

_MISSING = (0, None)


class Values:
    """What happened to keys, counters and ids."""

    def __init__(self, setup):
        self.setup = setup
        self.world = setup.history.world
        self.keys = {}
        self.counters = {}
        self.ids = {}
        self.watched = []

    async def create(self, js):
        if self.setup.has("keys"):
            await js.create_key_value("B", history=5)
        if self.setup.has("counters"):
            await js.create_counters("COUNT", subjects=["count.>"])
        if self.setup.has("ids"):
            await js.create_stream("IDS", subjects=["ids.>"], duplicate_window=3600)

    async def call(self, history, action, work, refused=()):
        """Carry out a call and keep what came of it."""
        call = Call(self.world.scheduler.now_ns, None, action, UNKNOWN)
        history.append(call)
        try:
            outcome = await work
        except refused as error:
            outcome = error
        call.outcome, call.end = outcome, self.world.scheduler.now_ns
        return outcome

    # The checks

    async def verify(self, js):
        for key, calls in self.keys.items():
            entry = await (await js.key_value("B")).get(key, default=None)
            outcome = _MISSING if entry is None else (entry.revision, entry.value)
            now_ns = self.world.scheduler.now_ns
            calls = [*calls, Call(now_ns, now_ns, ("get",), outcome)]
            revisions = {
                call.outcome[1]: call.outcome[0]
                for call in calls
                if call.action[0] == "get" and call.outcome is not UNKNOWN
            }
            self.check_order(f"key {key}", calls, _MISSING, partial(_step, revisions))
        for name, calls in self.counters.items():
            counters = await js.counters("COUNT")
            total = await counters.get(name)
            now_ns = self.world.scheduler.now_ns
            calls = [*calls, Call(now_ns, now_ns, ("get",), total)]
            self.check_order(f"counter {name}", calls, 0, _count)
        if self.setup.has("ids"):
            await self._verify_ids(js)
        for entries in self.watched:
            revisions = [entry.revision for entry in entries]
            if revisions != sorted(set(revisions)):
                raise BrokenPromiseError(f"a watch gave revisions {revisions}")

    def check_order(self, what, calls, state, step):
        """Check that concurrent calls could have happened one after the other."""
        order = find_order(calls, state, step)
        if order is None:
            raise BrokenPromiseError(f"no order explains {what}: {[_told(call) for call in calls]}")
        is_whole = sum(call.end is not None for call in order) == sum(call.end is not None for call in calls)
        self.world.count("histories put in order" if is_whole else "histories too long to put in order")

    async def _verify_ids(self, js):
        stream = await js.stream("IDS")
        stored = await self.setup.read_all(stream, (await stream.info()).state.messages)
        places = {}
        for sequence, payload in stored:
            places.setdefault(payload, []).append(sequence)
        none("ids are stored more than once", [payload for payload, found in places.items() if len(found) > 1])
        for name, sequences in self.ids.items():
            if sequences and sequences != set(places.get(name, ())):
                raise BrokenPromiseError(f"id {name!r} was acknowledged as {sequences} and is at {places.get(name)}")


def _told(call):
    return (call.begin // 1000, call.end and call.end // 1000, call.action, call.outcome)


def _step(revisions, state, action, outcome):
    """A key of a bucket: (revision, value); None for a revision that nobody was told, and for no value."""
    revision, value = state
    kind = action[0]
    if kind == "get":
        if outcome is UNKNOWN:
            return state
        if outcome == _MISSING:
            return state if value is None else None
        return outcome if value == outcome[1] and revision in (None, outcome[0]) else None
    refused = isinstance(outcome, JetlakeError)
    if kind == "update" and refused:
        return state if revision is None or revision != action[2] else None
    if refused:
        return state if value is not None else None
    if kind == "update" and revision is not None and revision != action[2]:
        return None
    if kind == "create" and value is not None:
        return None
    if kind == "delete":
        return (None, None)
    if outcome is UNKNOWN:
        return (revisions.get(action[1]), action[1])
    return None if revision is not None and outcome <= revision else (outcome, action[1])


def _count(state, action, outcome):
    if action[0] == "get":
        return state if outcome is UNKNOWN or outcome == state else None
    after = state + action[1]
    return after if outcome is UNKNOWN or outcome == after else None


# Operations of a worker


async def change_key(worker, random):
    values = worker.setup.values
    bucket = await worker.js.key_value("B")
    key = f"k{random.randrange(3)}"
    calls = values.keys.setdefault(key, [])
    for _ in range(random.randrange(1, 5)):
        value = b"v%d" % next(worker.setup.numbers)
        kind = random.choice(("put", "create", "get", "get", "delete", "update", "update"))
        if kind == "put":
            await values.call(calls, (kind, value), bucket.put(key, value))
        elif kind == "create":
            await values.call(calls, (kind, value), bucket.create(key, value), (KeyExistsError,))
        elif kind == "delete":
            await values.call(calls, (kind,), bucket.delete(key))
        else:
            entry = await values.call(calls, ("get",), _get(bucket, key))
            if kind == "update":
                await values.call(
                    calls, (kind, value, entry[0]), bucket.update(key, value, entry[0]), (WrongLastSequenceError,)
                )


async def _get(bucket, key):
    try:
        entry = await bucket.get(key)
    except KeyNotFoundError:
        return _MISSING
    return entry.revision, entry.value


async def add_to_counter(worker, random):
    values = worker.setup.values
    counters = await worker.js.counters("COUNT")
    name = f"count.{random.randrange(2)}"
    calls = values.counters.setdefault(name, [])
    for _ in range(random.randrange(1, 6)):
        increment = random.choice((1, 2, 5, -3))
        await values.call(calls, ("add", increment), counters.add(name, increment))


async def publish_ids(worker, random):
    ids = worker.setup.values.ids
    for _ in range(random.randrange(1, 10)):
        name = b"id%d" % random.randrange(40)
        ack = await worker.js.publish(
            f"ids.{random.randrange(3)}", name, msg_id=name.decode(), timeout=random.choice((0.1, 3))
        )
        ids.setdefault(name, set()).add(ack.seq)


async def watch_keys(worker, random):
    bucket = await worker.js.key_value("B")
    entries = []
    worker.setup.values.watched.append(entries)
    async with bucket.watch() as watch:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(random.choice((0.1, 1, 4))):
                async for entry in watch:
                    entries.append(entry)  # noqa: PERF401  # What came before the time was over stays.


OPERATIONS = [
    (change_key, 6, "keys"),
    (add_to_counter, 3, "counters"),
    (publish_ids, 4, "ids"),
    (watch_keys, 1, "keys"),
]
