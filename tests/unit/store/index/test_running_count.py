"""A count in steps is right when its last step is taken, whatever was stored and removed between two steps."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from jetlake.store.file_store import FileStore
from jetlake.store.index.running_count import RunningCount
from jetlake.store.memory_store import MemoryStore
from jetlake.store.subject_filter import SubjectFilter
from tests.support.faulty_disk import FaultyDisk

FILTER = SubjectFilter([b"s.*.a", b"s.1.>"])


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jetlake.store.index.running_count._SUBJECTS_PER_STEP", 2)
    monkeypatch.setattr("jetlake.store.index.running_count._ROWS_PER_STEP", 3)
    monkeypatch.setattr("jetlake.store.index.message_remover.BULK_REMOVAL", 20)


class World:
    """A store that changes at random, and tells a count of it."""

    def __init__(self, kind: str, seed: int) -> None:
        self.random = Random(seed)
        disk = FaultyDisk(Random(seed))
        self.store = MemoryStore() if kind == "memory" else FileStore(disk, Path("/msgs"), segment_bytes=2000)
        self.publish(200)

    def tell(self, count: RunningCount) -> None:
        self.store.hooks.on_removed = lambda sequence, subject, _size: count.on_removed(sequence, subject)
        self.store.hooks.on_purged = count.restart

    def publish(self, number: int = 4) -> None:
        for _ in range(number):
            subject = b"s.%d.%b" % (self.random.randrange(30), self.random.choice([b"a", b"b"]))
            self.store.append(subject, b"", b"payload", 1)
        self.store.flush()
        self.store.sync()

    def remove(self) -> None:
        for _ in range(3):
            self.store.remove(self.random.randint(1, self.store.last_sequence))

    def remove_a_subject(self) -> None:
        """The subject's number goes to the next new one."""
        self.store.purge(SubjectFilter([b"s.%d.a" % self.random.randrange(30)]))

    def purge(self) -> None:
        self.store.purge(below=self.store.first_sequence + self.random.choice([5, 60]))

    def keep_house(self) -> None:
        self.store.compact_step()


@pytest.mark.parametrize("kind", ["memory", "file"])
@pytest.mark.parametrize("seed", range(20))
def test_a_count_in_steps_knows_what_changed_meanwhile(kind: str, seed: int) -> None:
    world = World(kind, seed)
    store, random = world.store, world.random
    changes = [world.publish, world.publish, world.remove, world.remove_a_subject, world.keep_house]
    steps = 0
    for _ in range(8):
        first = random.choice([1, store.first_sequence + 30, store.last_sequence - 5])
        count = store.running_count(first, FILTER)
        world.tell(count)
        run = count.run()
        while True:
            try:
                next(run)
            except StopIteration as end:
                assert end.value == store.count(first, FILTER)
                break
            steps += 1
            if random.random() < 0.5:
                random.choice(changes if random.random() < 0.97 else [world.purge])()
        messages = store.read(first, None, 10_000, 1 << 30).messages
        assert store.count(first, FILTER) == sum(FILTER.matches(message.subject) for message in messages)
    assert steps > 50
