"""Power cuts and kills at every moment: what was promised is there afterwards, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from jetlake.model.encoding.fields import SEQUENCE_MAX
from jetlake.store.file_store import FileStore
from jetlake.store.files.folders import FolderOwner
from jetlake.store.interface import StoreLimits
from jetlake.store.log.segment_index.index_cache import IndexCache
from jetlake.store.subject_filter import SubjectFilter
from tests.support.faulty_disk import FaultyDisk, PowerCut

FOLDER = Path("/streams/S/msgs")
SEEDS = int(os.environ.get("JETLAKE_CRASH_SEEDS", "200"))
STEPS = 60

Message = tuple[bytes, bytes, bytes]


class Day:
    """A store on a faulty disk, and what it has promised so far."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.compresses = not seed % 2
        """Every other day segments are compressed, whatever that saves."""
        self.disk = FaultyDisk(Random(seed + 1))
        self.written: dict[int, Message] = {}
        """Everything that was ever appended and may be there."""
        self.promised: set[int] = set()
        """Synced, and nobody asked for its removal since."""
        self.gone: set[int] = set()
        """Its removal was asked for and synced."""
        self.removed: set[int] = set()
        """Its removal was asked for, not yet synced."""
        self.trimmed: dict[int, int] = {}
        """Promised, then removed to make room: for the newest message at that time, which must then be there."""
        self.dropped: set[int] = set()
        """All that was removed to make room, promised or not."""
        self.groups: list[range] = []
        """The sequences of messages that are kept all together or not at all."""
        self.once_lost: set[int] = set()
        """Reported as lost at some time: an erased record that was torn, and that a limit has passed since."""
        self.safe_sequence = 0
        self.limits = StoreLimits(
            max_messages=self.random.choice([-1, 10, 40]),
            max_per_subject=self.random.choice([-1, 1, 3]),
            max_bytes=self.random.choice([-1, 2000]),
        )
        self.open()

    def open(self) -> None:
        self.store = FileStore(
            self.disk,
            FOLDER,
            segment_bytes=self.random.choice([300, 1500, 6000]),
            tail_bytes=200,
            snapshot_bytes=3000,
            index_cache=IndexCache(self.random.choice([100, 3000])),
            random_bytes=self.random.randbytes,
        )
        self.store.compresses = self.compresses
        self.store._compressor.block_bytes = 200
        self.store._compressor.worth_it = 10

    # What happens

    def step(self) -> None:
        action = self.random.choices(
            [
                self.append,
                self.append_group,
                self.flush,
                self.sync,
                self.remove,
                self.purge,
                self.enforce,
                self.skip,
                self.read,
                self.tidy,
            ],
            [40, 12, 15, 20, 12, 3, 12, 3, 10, 10],
        )[0]
        action()

    def append_group(self) -> None:
        count = self.random.randint(2, 8)
        first = self.store.last_sequence + 1
        self.groups.append(range(first, first + count))
        self.store.begin_group(count)
        self.append(count)

    def append(self, count: int = 0) -> None:
        for _ in range(count or self.random.randint(1, 6)):
            subject = b"s.%d" % self.random.randint(0, 5)
            header = self.random.choice([b"", b"NATS/1.0\r\na: b\r\n\r\n"])
            payload = self.random.randbytes(self.random.choice([0, 5, 30, 700]))
            # The content is noted first: the power may go before the sequence is told.
            self.written[self.store.last_sequence + 1] = (subject, header, payload)
            self.store.append(subject, header, payload, self.random.randint(0, 10**6))

    def flush(self) -> None:
        self.store.flush()

    def sync(self) -> None:
        self.store.flush()
        live = self.live()
        removed = set(self.removed)
        last = self.store.last_sequence
        self.store.sync()
        self.promised = live
        self.gone |= removed
        self.removed -= removed
        self.safe_sequence = max(self.safe_sequence, last)

    def remove(self) -> None:
        live = sorted(self.live())
        if live:
            sequence = self.random.choice(live)
            self.removed.add(sequence)
            self.promised.discard(sequence)
            self.store.remove(sequence, erase=self.random.random() < 0.3)

    def purge(self) -> None:
        before = self.live()
        pattern = self.random.choice(
            [None, SubjectFilter([b"s.1"]), SubjectFilter([b"s.*"]), SubjectFilter([b"s.2", b"s.3"])]
        )
        below = self.random.choice([None, self.random.randint(1, self.store.last_sequence + 3)])
        # Any of them may be gone as soon as it was asked for.
        doubtful = self.promised & before
        self.promised -= doubtful
        self.store.purge(pattern, below=below)
        after = self.live()
        self.removed |= before - after
        self.promised |= doubtful & after

    def enforce(self) -> None:
        self.store.flush()
        before = self.live()
        last = max(before, default=0)
        doubtful = set(self.promised)
        for sequence in doubtful:
            self.trimmed.setdefault(sequence, last)
        self.promised.clear()
        self.store.enforce(self.limits, 0)
        after = self.live()
        for sequence in doubtful & after:
            del self.trimmed[sequence]
        self.promised = doubtful & after
        self.dropped |= before - after

    def skip(self) -> None:
        if self.random.random() < 0.1:
            self.removed |= self.live()
            self.promised.clear()
            self.store.advance_to(self.store.last_sequence + self.random.randint(1, 10000))
        else:
            self.store.skip(self.random.choice([1, 1, 3, 5000]))

    def read(self) -> None:
        run = self.store.read(self.random.randint(1, self.store.last_sequence + 1), None, 20, 2000)
        for message in run.messages:
            assert self.written[message.sequence] == (message.subject, message.header, message.payload)

    def tidy(self) -> None:
        # Compressing takes several steps.
        for _ in range(5 if self.compresses else 1):
            self.store.compact_step()

    def restart(self) -> None:
        state = self.state()
        live = self.live()
        lost = set(self.store.lost)
        self.store.close()
        assert self.disk.open_handles() == 0
        self.open()
        assert self.state() == state
        assert self.live() == live
        assert set(self.store.lost) <= lost

    def state(self) -> tuple[object, ...]:
        store = self.store
        return (
            # A purge of a store that was never used is not worth a record.
            store.first_sequence if store.last_sequence else 0,
            store.last_sequence,
            store.messages,
            store.bytes,
            store.subjects(),
            store.deleted_count,
        )

    def live(self) -> set[int]:
        return set(sequences(self.store))

    # What must hold after a crash

    def check(self) -> None:
        store = self.store
        there = self.live()
        # A segment that the index knows is looked at when it is first read.
        self.once_lost |= set(store.lost)
        for sequence in there:
            message = store.get(sequence)
            assert message is not None
            assert self.written[sequence] == (message.subject, message.header, message.payload)
        assert self.promised <= there, f"acknowledged and lost: {sorted(self.promised - there)}"
        assert not self.gone & there, f"removed and back: {sorted(self.gone & there)}"
        for sequence, cause in self.trimmed.items():
            if sequence not in there and cause in self.written and cause not in there:
                assert cause in self.removed | self.gone | self.dropped, (
                    f"{sequence} made room for {cause}, which is not there"
                )
        for group in self.groups:
            kept = [sequence for sequence in group if sequence in there]
            missing = set(group) - there - self.removed - self.gone - self.dropped - self.once_lost
            assert not kept or not missing, f"of the group {group} only {kept} are there"
        assert store.last_sequence >= self.safe_sequence
        assert not set(store.lost) & there
        assert not set(store.lost) & (self.promised | self.gone)
        assert store.messages == len(there)
        assert store.bytes == sum(
            (34 + len(header) if header else 30) + len(subject) + len(payload)
            for subject, header, payload in (self.written[sequence] for sequence in there)
        )
        by_subject: dict[bytes, int] = {}
        for sequence in there:
            subject = self.written[sequence][0]
            by_subject[subject] = by_subject.get(subject, 0) + 1
        assert store.subjects() == by_subject
        assert store.first_sequence == (min(there) if there else store.last_sequence + 1 if store.last_sequence else 0)

    def recover(self) -> None:
        """Open the store after a crash and believe what it says from now on."""
        self.open()
        self.check()
        there = self.live()
        # What recovery shows is as good as acknowledged, and it is synced.
        self.promised = set(there)
        self.removed.clear()
        self.trimmed.clear()
        self.groups = [group for group in self.groups if group[0] in there or group[-1] in there]
        for sequence in [sequence for sequence in self.written if sequence not in there]:
            if sequence <= self.store.last_sequence:
                # A hole in what was not synced is reported as lost, now and later.
                if sequence not in self.store.lost:
                    self.gone.add(sequence)
            else:
                del self.written[sequence]
        self.safe_sequence = self.store.last_sequence


def sequences(store: FileStore) -> list[int]:
    found: list[int] = []
    first = 1
    while True:
        run = store.read(first, None, 1000, 1 << 30)
        if not run.messages:
            return found
        found += [message.sequence for message in run.messages]
        first = run.next_sequence


@pytest.mark.parametrize("block", range(10))
def test_power_cuts_lose_nothing_that_was_promised(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    if block % 2:  # Segment indexes and rewritten segments are long, and written in parts.
        monkeypatch.setattr("jetlake.store.log.segment_index.format._PART", 128)
        monkeypatch.setattr("jetlake.store.log.segment_index.postings_part._PART", 128)
        monkeypatch.setattr("jetlake.store.log.compaction.rewrite._PART_BYTES", 64)
        monkeypatch.setattr("jetlake.store.log.compaction.rewrite._RECORDS_PER_STEP", 2)
    for seed in range(block * SEEDS // 10, (block + 1) * SEEDS // 10):
        try:
            run_day(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_an_erased_member_that_a_power_cut_tears_costs_no_other_of_its_group() -> None:
    run_day(376)


def test_a_tombstone_over_rows_that_are_dead_already() -> None:
    run_day(7391)


def test_an_erased_last_message_that_a_power_cut_tears_gives_its_sequence_to_no_other() -> None:
    run_day(17451)


def test_a_message_with_the_flipped_mark_of_an_erased_one_is_told_as_lost() -> None:
    disk = FaultyDisk(Random(1))
    store = FileStore(disk, FOLDER)
    for number in range(3):
        store.append(b"s", b"", b"payload %d" % number, 1000)
    store.flush()
    store.sync()
    segment = store._index.active
    path, head = segment.file.path, segment.offsets[1]
    store.close()
    disk.flip(path, head + 11, 0x80)
    assert FileStore(disk, FOLDER).lost == [2]


@pytest.mark.parametrize("has_tombstone", [False, True])
def test_an_erasure_that_a_power_cut_tears_casts_no_doubt_on_removals(has_tombstone: bool) -> None:
    disk = FaultyDisk(Random(1))
    store = FileStore(disk, FOLDER)
    for number in range(6):
        store.append(b"s", b"", b"payload %d" % number, 1000)
    store.flush()
    store.sync()
    path, end = store._index.active.file.path, store._index.active.end
    before = disk.content(path)
    store.remove(3, erase=True)
    store.flush()
    after = disk.content(path)
    disk.kill()
    marked, *torn = (place for place in range(end) if before[place] != after[place])
    # With nothing but the mark on disk it may be one bit of a good message that has flipped.
    for place in (marked, *torn[1:]):
        told: list[str] = []
        disk.put(path, after[:place] + before[place:end] + (after if has_tombstone else before)[end:])
        for _ in range(2):
            store = FileStore(disk, FOLDER, owner=FolderOwner(report=told.append))
            assert told == [] and store.lost == [], f"torn at {place}"
            assert set(sequences(store)) - {3} == {1, 2, 4, 5, 6}
            store.close()


@pytest.mark.parametrize("seed", [7998, 14743])
def test_days_that_went_wrong_once(seed: int) -> None:
    run_day(seed)


def test_a_group_purged_in_part_before_its_sync_is_kept_or_lost_as_a_whole() -> None:
    for seed in range(40):
        disk = FaultyDisk(Random(seed))
        store = FileStore(disk, FOLDER, segment_bytes=6000)
        store.begin_group(6)
        for number in range(6):
            store.append(b"s.%d" % (number % 3), b"", bytes(700), 0)
        store.flush()
        if seed % 2:
            store.purge(SubjectFilter([b"s.1"]))
        else:
            store.remove(2)
        store.flush()
        disk.cut_power()
        purged = {2, 5} if seed % 2 else {2}
        assert set(sequences(FileStore(disk, FOLDER))) | purged in (purged, set(range(1, 7))), f"seed {seed}"


def run_day(seed: int) -> None:
    day = Day(seed)
    for _ in range(4):
        day.disk.cut_at = day.disk.operations + day.random.randint(1, 60)
        try:
            for _ in range(STEPS):
                day.step()
                if day.random.random() < 0.03:
                    day.restart()
        except PowerCut:
            pass
        if day.random.random() < 0.2:
            day.disk.kill()
        else:
            day.disk.cut_power()
        day.recover()


def test_the_highest_sequences_are_there_after_a_kill() -> None:
    disk = FaultyDisk(Random(1))
    store = FileStore(disk, FOLDER, random_bytes=Random(7).randbytes)
    store.advance_to(SEQUENCE_MAX)
    store.append(b"a", b"", b"1", 1)
    store.append_run([(b"b", b"", b"", b"2"), (b"c", b"", b"", b"3")], 2)
    store.flush()
    store.sync()
    disk.kill()
    store = FileStore(disk, FOLDER, random_bytes=Random(7).randbytes)
    found = [(message.sequence, message.payload) for message in store.read(1, None, 10, 1 << 20).messages]
    assert found == [(SEQUENCE_MAX + place, b"%d" % (place + 1)) for place in range(3)]
    assert not store.lost
