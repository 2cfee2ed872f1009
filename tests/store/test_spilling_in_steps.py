"""Spilling in small steps: whatever is asked, removed, or crashes between two steps finds what a model finds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Self

import pytest

from jetlake.store.file_store import FileStore
from jetlake.store.index import spilled_subjects
from jetlake.store.index.postings import Postings
from jetlake.store.index.subject_index import SubjectIndex
from jetlake.store.interface import StoreLimits
from jetlake.store.log.segment import Segment
from jetlake.store.log.segment_index.draft import IndexDraft
from jetlake.store.log.segment_index.index_cache import IndexCache
from jetlake.store.log.segment_index.postings_part import PostingsPart
from jetlake.store.subject_filter import SubjectFilter
from tests.support.faulty_disk import FaultyDisk

FOLDER = Path("/data/msgs")


class World:
    """A store whose full segments are spilled a few subjects at a time, and what it should hold."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = FaultyDisk(Random(seed))
        self.subjects: dict[int, bytes] = {}
        self.last = 0
        self.half_spilled = 0
        self.store = self.open()
        self.names = self.random.choice((3, 12, 60))

    @classmethod
    def filled(cls, *, segments: int, names: int | None = None) -> Self:
        """Return a world whose store has so many segments, with messages of so many subjects."""
        world = cls(1)
        world.names = names or world.names
        while len(world.store._index.blocks) < segments:
            world.publish()
            world.flush()
        return world

    def open(self) -> FileStore:
        cache = IndexCache(self.random.choice((0, 1 << 20)))
        return FileStore(self.disk, FOLDER, segment_bytes=1500, tail_bytes=100, index_cache=cache)

    def name(self) -> bytes:
        return b"s.%d" % self.random.randrange(self.names)

    def publish(self) -> None:
        for _ in range(self.random.randint(1, 40)):
            subject = self.name()
            self.last = self.store.append(subject, b"", b"x" * self.random.randint(0, 40), 1000 + self.last)
            self.subjects[self.last] = subject

    def pick(self) -> int:
        return self.random.randint(1, max(self.last, 1))

    def remove(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            sequence = self.pick()
            assert self.store.remove(sequence) == (sequence in self.subjects)
            self.subjects.pop(sequence, None)

    def remove_all_of_a_subject(self) -> None:
        subject = self.name()
        for sequence in [each for each, name in self.subjects.items() if name == subject]:
            self.store.remove(sequence)
            del self.subjects[sequence]

    def purge(self) -> None:
        subjects = {self.name() for _ in range(self.random.choice((1, 2, 3, 20, 60)))}
        keep = self.random.choice((None, 1, 5, 20))
        below = self.random.choice((None, self.pick()))
        if keep:
            below = None
        end = self.last
        purge = self.store._remover.purge_in_steps(SubjectFilter(sorted(subjects)), below, keep, 3)
        next(purge, None)
        if not self.random.randrange(3):
            self.publish()
            self.flush()
        self.between(purge, removes=keep is None)
        matching = [each for each, name in self.subjects.items() if name in subjects and each <= end]
        kept = set(matching[-keep:]) if keep else {each for each in matching if below is not None and each >= below}
        for sequence in set(matching) - kept:
            del self.subjects[sequence]

    def between(self, steps: object, removes: bool) -> None:
        """Take the steps of a purge, with house-keeping and removals in between."""
        for _ in steps:  # type: ignore[attr-defined]
            if removes and not self.random.randrange(10):
                sequence = self.pick()
                self.store.remove(sequence)
                self.subjects.pop(sequence, None)
            for _ in range(self.random.randint(0, 3)):
                self.keep_house()

    def purge_below(self) -> None:
        sequence = min(self.pick(), self.store.first_sequence + self.random.choice((5, 60)))
        if self.random.randrange(2):
            self.store.purge(below=sequence)
        else:
            self.between(self.store._remover.purge_in_steps(None, sequence, None, 1), removes=True)
        self.subjects = {each: name for each, name in self.subjects.items() if each >= sequence}

    def purge_everything(self) -> None:
        if not self.random.randrange(4):
            self.store.purge()
            self.subjects.clear()

    def enforce(self) -> None:
        limit = self.random.choice((4, 30))
        self.flush()
        self.store.enforce(StoreLimits(max_per_subject=limit), 0)
        left: Counter[bytes] = Counter()
        for sequence in sorted(self.subjects, reverse=True):
            left[self.subjects[sequence]] += 1
            if left[self.subjects[sequence]] > limit:
                del self.subjects[sequence]

    def flush(self) -> None:
        self.store.flush()
        self.store.sync()
        self.store.flush()
        self.store.sync()

    def keep_house(self) -> None:
        self.store.compact_step()
        self.half_spilled += self.store._index.subjects._spill is not None

    def rewrite(self, segment: Segment) -> None:
        """Remove every second message of a segment, and compact until it is rewritten."""
        for sequence in range(segment.first, segment.first + segment.row_count, 2):
            self.store.remove(sequence)
            del self.subjects[sequence]
        while not segment.generation:
            assert self.store.compact_step()

    def reopen(self) -> None:
        self.flush()
        if self.random.randrange(2):
            self.store.close()
        self.disk.kill()
        self.store = self.open()

    def check(self, times: int = 1) -> None:
        for _ in range(times):
            self._check_some()

    def _check_some(self) -> None:
        store, random = self.store, self.random
        assert store.subjects() == Counter(self.subjects.values())
        assert (store.messages, store.last_sequence, store.lost) == (len(self.subjects), self.last, [])
        by_subject: dict[bytes, list[int]] = {}
        for sequence in sorted(self.subjects):
            by_subject.setdefault(self.subjects[sequence], []).append(sequence)
        for subject, mine in random.sample(sorted(by_subject.items()), min(4, len(by_subject))):
            at = self.pick()
            one = SubjectFilter([subject])
            assert store.last_sequence_for(subject) == mine[-1]
            assert store.count(at, one) == sum(each >= at for each in mine)
            following = [each for each in mine if each >= at][:3]
            assert [message.sequence for message in store.read(at, one, 3, 1 << 20).messages] == following
            other = random.choice(sorted(by_subject))
            both = sorted({*mine, *by_subject[other]})
            two = SubjectFilter([subject, other])
            assert store.count(at, two) == sum(each >= at for each in both)
            found = store.read(at, two, 5, 1 << 20).messages
            assert [message.sequence for message in found] == [each for each in both if each >= at][:5]
            last = max((each for each in mine if each <= at), default=0)
            assert store.last_per_subject(one, at) == ([last] if last else [])
        sequence = self.pick()
        message = store.get(sequence)
        assert (message.subject if message is not None else None) == self.subjects.get(sequence)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jetlake.store.log.segment_index.draft._SUBJECTS_PER_STEP", 2)
    monkeypatch.setattr("jetlake.store.index.subject_index._SPILLED_AT_ONCE", 2)
    monkeypatch.setattr("jetlake.store.index.message_remover._STEP_SUBJECTS", 1)
    monkeypatch.setattr("jetlake.store.index.spilled_subjects._SUBJECTS_PER_STEP", 1)
    monkeypatch.setattr("jetlake.store.index.spilled_subjects._LOOKED_UP_MAX", 2)
    monkeypatch.setattr("jetlake.store.index.message_remover.BULK_REMOVAL", 10)
    monkeypatch.setattr("jetlake.store.index.message_remover._ONE_BY_ONE_MAX", 3)
    monkeypatch.setattr("jetlake.store.index.index._NEIGHBOURS_MAX", 7)
    monkeypatch.setattr("jetlake.store.log.segment_index.draft._ROWS_PER_STEP", 5)
    monkeypatch.setattr("jetlake.store.index.postings._ROWS_PER_STEP", 5)
    monkeypatch.setattr("jetlake.store.index.postings._POSTED_PER_STEP", 3)
    monkeypatch.setattr("jetlake.store.index.subject_numbers._UNPACKED_AT_ONCE", 0)
    monkeypatch.setattr("jetlake.store.index.packed_names._NAMES_PER_STEP", 2)
    monkeypatch.setattr("jetlake.store.log.segment_index.format._PART", 256)
    monkeypatch.setattr("jetlake.store.log.segment_index.postings_part._PART", 256)
    monkeypatch.setattr("jetlake.store.index.packed_rows._BYTES_PER_STEP", 10)
    monkeypatch.setattr("jetlake.store.index.packed_rows._SEQUENCES_PER_STEP", 5)
    monkeypatch.setattr("jetlake.store.log.compaction.rewrite._ROWS_PER_STEP", 5)
    monkeypatch.setattr("jetlake.store.log.compaction.rewrite._PART_BYTES", 100)
    monkeypatch.setattr("jetlake.store.steps._RUN", 2)
    monkeypatch.setattr("jetlake.store.steps._RUN_MAX", 4)


@pytest.mark.parametrize("seed", range(24))
def test_a_half_spilled_segment_answers_as_a_whole_one(seed: int) -> None:
    world = World(seed)
    removals = [world.remove, world.remove_all_of_a_subject, world.purge, world.purge_below, world.enforce]
    for _ in range(60):
        world.publish()
        if not world.random.randrange(3):
            world.random.choice([*removals, world.purge_everything])()
        world.flush()
        for _ in range(world.random.randint(0, 12)):
            world.keep_house()
            if not world.random.randrange(6):
                world.random.choice(removals[:2])()
                world.flush()
        world.check()
        if not world.random.randrange(12):
            world.reopen()
            if world.random.randrange(2):
                world.check()
    assert world.half_spilled or world.names == 3


@pytest.mark.parametrize("steps", [1, 5, 10, 40])
def test_a_segment_that_is_rewritten_while_it_is_gathered_is_spilled_whole(steps: int) -> None:
    world = World.filled(segments=5, names=5)
    store = world.store
    segment = store._index.blocks[0]
    store._spiller._draft = draft = IndexDraft(segment, store._index)
    for _ in range(steps):
        draft.step()
    for sequence in range(segment.first, segment.first + segment.row_count):
        if sequence % 4:
            store.remove(sequence)
            del world.subjects[sequence]
    world.flush()
    # The disk has refused another segment index: until more is written, rewrites go on and spilling does not.
    store._spiller._refused_at = store._log.written_bytes
    while not segment.generation:
        store._spiller._refused_at = store._log.written_bytes
        store.compact_step()
    store._spiller._refused_at = -1
    while store.compact_step():
        pass
    assert segment.index_parts is not None
    world.check(times=10)
    store.close()
    world.disk.remove(FOLDER / "index")
    world.disk.kill()
    world.store = world.open()
    world.check(times=10)


def test_a_segment_of_few_subjects_is_gathered_a_few_rows_at_a_time() -> None:
    world = World.filled(segments=3, names=2)
    rows = world.store._index.blocks[0].row_count
    steps = 0
    while not world.store._index.subjects.spilled.blocks:
        assert world.store._spiller.step()
        steps += 1
    assert steps > rows / 5 + 6, "rows, subjects, and each part of the segment index by itself"
    world.check()


def test_a_rewritten_segment_gets_its_segment_index_a_few_rows_at_a_time() -> None:
    world = World.filled(segments=3, names=60)
    store = world.store
    segment = store._index.blocks[0]
    world.rewrite(segment)
    assert segment.spilled is not None
    assert segment.index_parts is None
    steps = 0
    while segment.index_parts is None:
        assert store._spiller.step()
        steps += 1
        if steps == 5:  # The subject's rows are gathered, or not yet.
            world.remove_all_of_a_subject()
            world.flush()
    assert steps > 2 * segment.row_count / 5, "rows, subjects, and each part of the segment index by itself"
    world.check(times=10)
    world.reopen()
    world.check(times=10)


def test_a_purge_looks_at_few_rows_at_a_time_of_a_rewritten_segment_that_has_no_segment_index_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World.filled(segments=3, names=60)
    store = world.store
    segment = store._index.blocks[0]
    world.rewrite(segment)
    assert segment.spilled is not None and segment.index_parts is None
    rows = segment.row_count
    monkeypatch.setattr(Postings, "of_rows", lambda _rows: pytest.fail("all rows at once"))
    steps = list(store._remover.purge_in_steps(SubjectFilter([b"s.*"]), segment.first + 20, None, 1000))
    assert len(steps) > rows / 5 + rows / 3
    world.subjects = {each: name for each, name in world.subjects.items() if each >= segment.first + 20}
    monkeypatch.undo()
    world.check(times=10)


def test_a_purge_of_the_oldest_lets_a_segment_be_spilled_first_a_few_subjects_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World.filled(segments=3, names=60)
    store, subjects = world.store, world.store._index.subjects
    while subjects._spill is None:
        world.keep_house()
    steps = store._remover.purge_in_steps(None, None, 1, 1)
    spilled = [0]
    spill_step = SubjectIndex.spill_step

    def file_some(subjects: SubjectIndex) -> bool:
        spilled[-1] += subjects._spill is not None
        return spill_step(subjects)

    monkeypatch.setattr(SubjectIndex, "spill_step", file_some)
    while next(steps, steps) is None:
        spilled.append(0)
    assert sum(spilled) > 5
    assert max(spilled) == 1
    world.subjects = {world.last: world.subjects[world.last]}
    world.check(times=10)


@pytest.mark.parametrize("what", ["keep", "max_msgs", "max_bytes"])
def test_the_columns_of_the_oldest_segment_are_read_in_a_step_of_their_own(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    store = FileStore(FaultyDisk(Random(1)), FOLDER, segment_bytes=1500, tail_bytes=100, index_cache=IndexCache(10_000))
    for number in range(200):
        store.append(b"s.%d" % (number % 3), b"", b"x", number)
    store.flush()
    store.sync()
    while store.compact_step():
        pass
    loads: list[int] = []
    load = store._spiller.load_columns

    def load_alone(segment: Segment) -> None:
        loads.append(store.messages)
        load(segment)

    monkeypatch.setattr(store._spiller, "load_columns", load_alone)
    limits = StoreLimits(max_messages=5) if what == "max_msgs" else StoreLimits(max_bytes=5 * 35)
    steps = store.purge_in_steps(keep=5) if what == "keep" else store.enforce_in_steps(limits)
    before, loaded = store.messages, 0
    for _ in steps:
        assert store.messages == before or len(loads) == loaded, "removed in the step that read"
        before, loaded = store.messages, len(loads)
    assert 0 < store.messages <= 5
    assert len(loads) > 2


def test_a_segment_index_is_written_in_parts_and_removals_between_them_are_found_after_a_kill() -> None:
    world = World.filled(segments=3, names=60)
    store, disk = world.store, world.disk
    segment = store._index.blocks[0]
    writes: list[list[int]] = []
    write = disk.write

    def write_part(handle: int, data: bytes, offset: int) -> None:
        writes[-1].append(len(data))
        write(handle, data, offset)

    while segment.index_parts is None:
        writes.append([])
        disk.write = write_part  # type: ignore[method-assign]
        assert store._spiller.step()
        disk.write = write  # type: ignore[method-assign]
        if segment.index_parts is None and writes[-1]:
            sequence = segment.first + len(writes)
            store.remove(sequence)
            del world.subjects[sequence]
            world.flush()
    parts = [step for step in writes if step]
    assert len(parts) > 5
    assert all(len(step) == 1 for step in parts)
    assert sum(step[0] > 2 * 256 for step in parts) <= 2, "the head, and the postings, which are in whole pages"
    world.check(times=10)
    disk.kill()
    world.store = world.open()
    assert world.store._index.blocks[0].index_parts is not None
    world.check(times=10)


@pytest.mark.parametrize("fault", ["dropped", "refused"])
def test_a_segment_index_that_is_not_written_to_its_end_is_no_segment_index(fault: str) -> None:
    world = World.filled(segments=3)
    store, disk = world.store, world.disk
    segment = store._index.blocks[0]
    index_file = segment.file.path.with_suffix(".idx")
    while index_file not in disk.files():
        assert store._spiller.step()
    if fault == "dropped":
        store.purge(below=store._index.blocks[1].first)
        world.subjects = {each: name for each, name in world.subjects.items() if each >= store.first_sequence}
        while segment in store._index.blocks:
            world.flush()
    else:
        disk.capacity = 0
        assert store._spiller.step()
        assert not store._spiller.step(), "tried again only when more was written"
        disk.capacity = None
        assert segment.spilled is None
    assert index_file not in disk.files()
    world.publish()
    world.flush()
    for _ in range(200):
        world.keep_house()
    assert (index_file in disk.files()) == (fault == "refused")
    world.check(times=10)


def test_a_segment_in_which_nothing_lives_is_spilled_and_holds_up_nobody():
    store = FileStore(FaultyDisk(Random(1)), FOLDER, segment_bytes=1500)
    store.hooks.may_forget = lambda _first, _last: False  # so that it stays
    for number in range(200):
        store.append(b"s.%d" % (number % 5), b"", b"payload", number)
    for sequence in range(1, len(store._index.blocks[0].live) + 1):
        store.remove(sequence)
    store.flush()
    store.sync()
    steps = 0
    while store._spiller.step():
        steps += 1
        assert steps < 1000, "a draft is begun anew with every step"
    assert [block.spilled is None for block in store._index.blocks] == [False] * (len(store._index.blocks) - 1) + [True]


@pytest.mark.parametrize("others", [0, 40])
def test_a_purge_looks_at_few_subjects_of_a_spilled_segment_at_a_time(
    monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    monkeypatch.setattr("jetlake.store.index.spilled_subjects._SUBJECTS_PER_STEP", 4)
    store = FileStore(FaultyDisk(Random(1)), FOLDER, segment_bytes=4000, tail_bytes=100)
    for number in range(200):
        store.append(b"s.%d" % number, b"", b"x", number)
        store.append(b"o.%d" % number if others else b"s.%d" % number, b"", b"x", number)
    store.sync()
    while store.compact_step():
        pass
    assert store._index.subjects.spilled.count(0)
    looked_at: list[int] = []
    living = spilled_subjects._living

    def look(*arguments: Any) -> list[int]:
        looked_at[-1] += 1
        return living(*arguments)

    read = PostingsPart._pages

    def read_alone(*arguments: Any) -> bytes | None:
        looked_at[-1] += 4  # so that nothing else may be looked at in the same step
        return read(*arguments)

    monkeypatch.setattr(spilled_subjects, "_living", look)
    monkeypatch.setattr(PostingsPart, "_pages", read_alone)
    steps = store._remover.purge_in_steps(SubjectFilter([b"s.>"]), None, None, 1000)
    looked_at.append(0)
    while next(steps, steps) is None:
        looked_at.append(0)
    assert store.messages == (200 if others else 0)
    assert 0 < max(looked_at) <= 4
