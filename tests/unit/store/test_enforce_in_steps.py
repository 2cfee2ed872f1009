"""Tighter limits are enforced in steps, and hold at the end, whatever is stored and removed between two steps."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from jetlake.store.file_store import FileStore
from jetlake.store.interface import StoreLimits
from jetlake.store.memory_store import MemoryStore
from tests.support.faulty_disk import FaultyDisk


class World:
    """A store, and all messages that it ever had: sequence -> (subject, size)."""

    def __init__(self, kind: str, seed: int) -> None:
        self.random = Random(seed)
        disk = FaultyDisk(Random(seed))
        self.store = MemoryStore() if kind == "memory" else FileStore(disk, Path("/msgs"), segment_bytes=3000)
        self.store.removals_per_step = self.random.choice((1, 3, 20))
        self.ever: dict[int, tuple[bytes, int]] = {}
        self.removed: set[int] = set()

    def publish(self, count: int = 3) -> None:
        for _ in range(count):
            subject = b"s.%d" % self.random.randrange(25)
            before = self.store.bytes
            sequence = self.store.append(subject, b"", b"x" * self.random.randint(0, 30), 1)
            self.ever[sequence] = (subject, self.store.bytes - before)
        self.store.flush()
        self.store.sync()

    def remove(self) -> None:
        sequence = self.random.choice(list(self.ever))
        if self.store.remove(sequence):
            self.removed.add(sequence)

    def purge_oldest(self) -> None:
        below = self.store.first_sequence + self.random.randint(1, 10)
        self.removed.update(each for each in self.stored() if each < below)
        self.store.purge(below=below)

    def keep_house(self) -> None:
        self.store.compact_step()

    def stored(self) -> dict[int, bytes]:
        return {message.sequence: message.subject for message in self.store.read(1, None, 10_000, 1 << 30).messages}

    def check_that_limits_hold(self, limits: StoreLimits) -> None:
        stored = self.stored()
        assert self.store.messages == len(stored)
        assert self.store.bytes == sum(self.ever[each][1] for each in stored)
        assert self.store.subjects() == Counter(stored.values())
        assert limits.max_messages < 0 or len(stored) <= limits.max_messages
        assert limits.max_bytes < 0 or self.store.bytes <= limits.max_bytes
        assert limits.max_per_subject < 0 or max(Counter(stored.values()).values(), default=0) <= limits.max_per_subject

    def check_that_nothing_else_went(self, before: dict[int, bytes], limits: StoreLimits) -> None:
        """A message has gone because newer ones of its subject, or all from it on, are more than a limit allows."""
        stored = self.stored()
        newer: Counter[bytes] = Counter()
        count = size = 0
        for sequence in sorted(self.ever, reverse=True):
            subject, its_size = self.ever[sequence]
            newer[subject] += 1
            count, size = count + 1, size + its_size
            may_go = 0 < limits.max_per_subject < newer[subject]
            may_go |= 0 < limits.max_messages < count or 0 < limits.max_bytes < size
            if sequence in before and sequence not in stored and sequence not in self.removed:
                assert may_go, sequence


@pytest.mark.parametrize("kind", ["memory", "file"])
@pytest.mark.parametrize("seed", range(20))
def test_the_limits_hold_and_nothing_else_goes(kind: str, seed: int) -> None:
    world = World(kind, seed)
    random, store = world.random, world.store
    between = [world.publish, world.keep_house, world.remove, world.purge_oldest]
    for _ in range(3):
        world.publish(random.randint(100, 200))
        for _ in range(random.randint(0, 40)):
            world.keep_house()
        limits = StoreLimits(
            max_messages=random.choice((-1, 50, 120)),
            max_bytes=random.choice((-1, 1000, 4000)),
            max_per_subject=random.choice((-1, 1, 2, 8)),
        )
        before = world.stored()
        for _ in store.enforce_in_steps(limits):
            if random.random() < 0.3:
                random.choice(between)()
        store.enforce(limits, 0)
        world.check_that_limits_hold(limits)
        world.check_that_nothing_else_went(before, limits)
