"""Both stores against a store that is one dictionary: whatever is done to them, they say the same."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from jetlake.protocol.subjects import matches
from jetlake.store.file_store import FileStore
from jetlake.store.files.disk import RealDisk
from jetlake.store.interface import StoreLimits
from jetlake.store.log.segment_index.index_cache import IndexCache
from jetlake.store.memory_store import MemoryStore
from jetlake.store.message_store import MessageStore
from jetlake.store.subject_filter import SubjectFilter

SUBJECTS = [b"a", b"b", b"a.b", b"a.c", b"a.b.c", b"b.b"]
PATTERNS = [b"a", b"a.*", b"*.b", b"a.>", b"b", b"none", b"*", b"none.>"]
FILTERS = st.one_of(
    st.none(),
    st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3).map(SubjectFilter.of),
)


class Naive:
    """The rules, written down in the most direct way."""

    def __init__(self) -> None:
        self.live: dict[int, tuple[int, bytes, bytes, bytes]] = {}
        self.last = 0
        self.time = 0
        self.touched = False

    def passing(self, subject_filter: SubjectFilter | None, first: int = 0) -> list[int]:
        return [
            sequence
            for sequence, (_, subject, _, _) in sorted(self.live.items())
            if sequence >= first
            and (subject_filter is None or any(matches(pattern, subject) for pattern in subject_filter.patterns))
        ]

    def remove(self, sequences: list[int]) -> int:
        for sequence in sequences:
            del self.live[sequence]
        return len(sequences)

    def first(self) -> int:
        if self.live:
            return min(self.live)
        return self.last + 1 if self.last or self.touched else 0

    def newest(self, subjects: dict[bytes, list[int]]) -> list[int]:
        return sorted(sequences[-1] for sequences in subjects.values())

    def by_subject(self, up_to: int | None = None) -> dict[bytes, list[int]]:
        found: dict[bytes, list[int]] = {}
        for sequence, (_, subject, _, _) in sorted(self.live.items()):
            if up_to is None or sequence <= up_to:
                found.setdefault(subject, []).append(sequence)
        return found


class StoreMachine(RuleBasedStateMachine):
    """Random operations on a store in memory and on the naive one."""

    store: MessageStore

    def open(self) -> MessageStore:
        return MemoryStore()

    @initialize()
    def begin(self) -> None:
        self.model = Naive()
        self.told: list[int] = []
        self.purges = 0
        self.store = self.open()
        self.listen()

    def listen(self) -> None:
        self.store.hooks.on_removed = lambda sequence, subject, size: self.told.append(sequence)
        self.store.hooks.on_purged = self.on_purged

    def on_purged(self) -> None:
        self.purges += 1

    def size(self, subject: bytes, header: bytes, payload: bytes) -> int:
        if isinstance(self.store, MemoryStore):
            return 16 + len(subject) + len(header) + len(payload)
        return (34 + len(header) if header else 30) + len(subject) + len(payload)

    # Changes

    @rule(
        subject=st.sampled_from(SUBJECTS),
        header=st.sampled_from([b"", b"NATS/1.0\r\nk: v\r\n\r\n"]),
        payload=st.binary(max_size=40),
        step=st.integers(-5, 10),
        count=st.integers(1, 20),
    )
    def append(self, subject: bytes, header: bytes, payload: bytes, step: int, count: int) -> None:
        for _ in range(count):
            time_ns = max(self.model.time + step, 1)  # 0 says that there is no message
            self.model.last += 1
            self.model.time = max(self.model.time, time_ns)
            self.model.live[self.model.last] = (self.model.time, subject, header, payload)
            assert self.store.append(subject, header, payload, time_ns) == self.model.last

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        sequence = data.draw(st.integers(0, self.model.last + 1))
        erase = data.draw(st.booleans())
        assert self.store.remove(sequence, erase=erase) == (sequence in self.model.live)
        self.model.live.pop(sequence, None)

    @rule(data=st.data())
    def remove_many_out_of_order(self, data: st.DataObject) -> None:
        live = sorted(self.model.live)
        for sequence in data.draw(st.permutations(live[: data.draw(st.integers(0, 30))])):
            assert self.store.remove(sequence)
            del self.model.live[sequence]

    @rule(subject_filter=FILTERS, data=st.data())
    def purge(self, subject_filter: SubjectFilter | None, data: st.DataObject) -> None:
        below = data.draw(st.one_of(st.none(), st.integers(1, self.model.last + 1)))
        keep = data.draw(st.one_of(st.none(), st.integers(1, 10)))
        follows = data.draw(st.booleans())
        found = self.model.passing(subject_filter)
        if keep is not None:
            found = found[: max(len(found) - keep, 0)]
        found = [sequence for sequence in found if below is None or sequence < below]
        assert self.store.purge(subject_filter, below=below, keep=keep, follows_append=follows) == len(found)
        self.model.remove(found)
        self.model.touched |= subject_filter is None

    @rule(ahead=st.sampled_from([2, 3, 10, 6000]))
    def purge_beyond_the_end(self, ahead: int) -> None:
        count = len(self.model.live)
        assert self.store.purge(below=self.model.last + ahead) == count
        self.model.live.clear()
        self.model.last += ahead - 1

    @rule(count=st.sampled_from([1, 2, 5000]))
    def skip(self, count: int) -> None:
        self.store.skip(count)
        self.model.last += count

    @rule(
        messages=st.sampled_from([-1, 0, 1, 10, 50]),
        size=st.sampled_from([-1, 0, 100, 1000]),
        per_subject=st.sampled_from([-1, 0, 1, 5]),
        age=st.sampled_from([0, 1, 20]),
    )
    def enforce(self, messages: int, size: int, per_subject: int, age: int) -> None:
        live = self.model.live
        before = len(live)
        if per_subject > 0:
            for sequences in self.model.by_subject().values():
                self.model.remove(sequences[:-per_subject])
        while 0 < messages < len(live):
            del live[min(live)]
        while 0 < size < sum(self.size(*message[1:]) for message in live.values()):
            del live[min(live)]
        now = self.model.time + 5
        while age and live and live[min(live)][0] <= now - age:
            del live[min(live)]
        limits = StoreLimits(max_messages=messages, max_bytes=size, max_per_subject=per_subject, max_age_ns=age)
        assert self.store.enforce(limits, now) == before - len(live)

    @rule()
    def flush(self) -> None:
        self.store.flush()
        assert self.store.needs_sync() == (self.store.durable and self.store.needs_sync())

    @rule()
    def sync(self) -> None:
        self.store.flush()
        self.store.sync()
        assert not self.store.needs_sync()

    @rule()
    def compact(self) -> None:
        self.store.compact_step()

    # Questions

    @rule(subject_filter=FILTERS, data=st.data())
    def read(self, subject_filter: SubjectFilter | None, data: st.DataObject) -> None:
        first = data.draw(st.integers(0, self.model.last + 2))
        last = data.draw(st.one_of(st.none(), st.integers(0, self.model.last + 2)))
        max_messages = data.draw(st.sampled_from([1, 3, 1000]))
        max_bytes = data.draw(st.sampled_from([1, 200, 1 << 20]))
        wanted = [s for s in self.model.passing(subject_filter, first) if last is None or s <= last]
        expected: list[int] = []
        total = 0
        for sequence in wanted[:max_messages]:
            total += self.size(*self.model.live[sequence][1:])
            if total > max_bytes and expected:
                break
            expected.append(sequence)
        run = self.store.read(first, subject_filter, max_messages, max_bytes, last)
        found = [message.sequence for message in run.messages]
        # A run may end early (at the end of a segment's bytes), but never empty when there is more.
        assert found == expected[: len(found)]
        assert bool(found) == bool(expected)
        for message in run.messages:
            assert self.model.live[message.sequence] == (
                message.time_ns,
                message.subject,
                message.header,
                message.payload,
            )
        between = [s for s in wanted if s > (found[-1] if found else 0) and s < run.next_sequence]
        assert between == []

    @rule(subject_filter=FILTERS, data=st.data())
    def count(self, subject_filter: SubjectFilter | None, data: st.DataObject) -> None:
        first = data.draw(st.integers(0, self.model.last + 2))
        assert self.store.count(first, subject_filter) == len(self.model.passing(subject_filter, first))

    @rule(pattern=st.sampled_from([*PATTERNS, b">"]))
    def subjects(self, pattern: bytes) -> None:
        found = {s: len(n) for s, n in self.model.by_subject().items() if matches(pattern, s)}
        assert self.store.subjects(pattern) == found
        last = max((s for s, m in self.model.live.items() if matches(pattern, m[1])), default=0)
        assert self.store.last_sequence_for(pattern) == last
        message = self.store.last_for(pattern)
        assert (message.sequence if message else 0) == last

    @rule(subject_filter=FILTERS, data=st.data())
    def last_per_subject(self, subject_filter: SubjectFilter | None, data: st.DataObject) -> None:
        up_to = data.draw(st.one_of(st.none(), st.integers(0, self.model.last + 1)))
        found = {
            subject: sequences
            for subject, sequences in self.model.by_subject(up_to).items()
            if subject_filter is None or subject_filter.matches(subject)
        }
        assert self.store.last_per_subject(subject_filter, up_to) == self.model.newest(found)

    @rule(data=st.data())
    def by_time(self, data: st.DataObject) -> None:
        time_ns = data.draw(st.integers(0, self.model.time + 2))
        expected = min((s for s, m in self.model.live.items() if m[0] >= time_ns), default=self.model.last + 1)
        assert self.store.first_at_or_after(time_ns) == expected

    @invariant()
    def state_agrees(self) -> None:
        store, model = self.store, self.model
        live = model.live
        assert store.messages == len(live)
        assert store.last_sequence == model.last
        assert store.first_sequence == model.first()
        assert store.bytes == sum(self.size(*message[1:]) for message in live.values())
        assert store.subject_count == len({message[1] for message in live.values()})
        assert store.first_time_ns == (live[min(live)][0] if live else 0)
        assert store.last_time_ns == model.time
        assert store.deleted_count == (model.last - min(live) + 1 - len(live) if live else 0)
        assert not store.lost
        if self.purges == 0:
            assert len(set(self.told)) == len(self.told), "each removal is told once"
            assert not set(self.told) & live.keys()

    @rule()
    def deleted(self) -> None:
        live = self.model.live
        expected = [s for s in range(min(live), self.model.last + 1) if s not in live] if live else []
        assert (
            not self.store.messages
            or self.store.deleted(self.store.first_sequence, self.store.last_sequence + 1) == expected
        )

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


class FileMachine(StoreMachine):
    segment_bytes = 1 << 20

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="jetlake-store-"))

    def open(self) -> MessageStore:
        return FileStore(
            RealDisk(),
            self.folder / "msgs",
            segment_bytes=self.segment_bytes,
            tail_bytes=500,
            snapshot_bytes=5000,
            index_cache=IndexCache(500),
        )

    @rule()
    def file_segments(self) -> None:
        while self.store.compact_step():
            pass

    @rule()
    def restart(self) -> None:
        self.store.close()
        if not self.model.last:
            self.model.touched = False
        self.store = self.open()
        self.listen()

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder, ignore_errors=True)


class SmallSegmentsMachine(FileMachine):
    segment_bytes = 600


@pytest.mark.parametrize("machine", [StoreMachine, FileMachine, SmallSegmentsMachine])
def test_against_the_naive_store(machine: type[StoreMachine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
