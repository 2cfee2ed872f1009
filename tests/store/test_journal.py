"""The consumer's journal: what was synced is there, whatever happens to the rest."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random

import pytest

from jetlake.errors import StoreError
from jetlake.store.files.folders import FolderOwner
from jetlake.store.files.own_files import CONSUMER_FILES, foreign_names
from jetlake.store.journal.consumer_journal import MemoryJournal
from jetlake.store.journal.consumer_state import ConsumerState
from jetlake.store.journal.file_journal import FileJournal
from tests.support.faulty_disk import FaultyDisk, PowerCut

FOLDER = Path("/streams/S/consumers/C")
SEEDS = int(os.environ.get("JETLAKE_CRASH_SEEDS", "300"))


@pytest.fixture
def disk() -> FaultyDisk:
    disk = FaultyDisk(Random(1))
    disk.make_folder(FOLDER)
    return disk


def open_journal(disk: FaultyDisk, grown_bytes: int = 1 << 20) -> tuple[FileJournal, ConsumerState]:
    journal = FileJournal(disk, FOLDER, grown_bytes=grown_bytes, random_bytes=Random(7).randbytes)
    return journal, journal.load()


def journals(disk: FaultyDisk) -> list[Path]:
    return [path for path in disk.files() if path.suffix == ".journal"]


def test_a_new_journal_begins_at_nothing(disk: FaultyDisk) -> None:
    journal, state = open_journal(disk)
    assert state == ConsumerState()
    assert not journal.needs_flush()
    journal.flush()
    journal.sync()
    journal.close()
    assert disk.files() == [], "a consumer that never did anything has no file"


def test_a_name_with_the_digits_of_another_script_is_not_the_journals(disk: FaultyDisk) -> None:
    name = "\N{ARABIC-INDIC DIGIT NINE}" * 10 + ".journal"
    disk.put(FOLDER / name, b"somebody's")
    assert open_journal(disk)[1] == ConsumerState()
    assert foreign_names(CONSUMER_FILES, disk.kinds(FOLDER)) == [name]


def test_what_is_told_comes_back(disk: FaultyDisk) -> None:
    journal, _ = open_journal(disk)
    journal.delivered_run(1, [1, 2, 3, 4, 5], 100)
    journal.flush()
    journal.delivered_run(6, [7, 10, 12], 200)
    journal.acked([2])
    journal.acked([1])
    journal.acked([10])
    journal.acked([], (2, 2))
    journal.redelivered(9, 4, 300, 2)
    journal.rescheduled(10, 5, 300, 2)
    journal.exhausted(5)
    assert journal.needs_flush()
    journal.flush()
    assert journal.needs_sync()
    journal.sync()
    assert not journal.needs_sync()
    disk.cut_power()
    _, state = open_journal(disk)
    assert state == ConsumerState(
        delivered_consumer=10,
        delivered_stream=12,
        floor_consumer=2,
        floor_stream=2,
        pending={3: (3, 100, 1), 4: (4, 300, 2), 7: (6, 200, 1), 12: (8, 200, 1)},
        deliveries={4: 2, 5: 2},
        latest_ns=200,
    )


def test_a_consumer_without_acknowledgements_has_only_a_position(disk: FaultyDisk) -> None:
    journal, _ = open_journal(disk)
    for step in range(1, 50):
        journal.position(step, 2 * step)
        journal.acked([], (step, 2 * step))
        journal.flush()
    journal.close()
    _, state = open_journal(disk)
    assert state == ConsumerState(delivered_consumer=49, delivered_stream=98, floor_consumer=49, floor_stream=98)


def test_a_replacement_voids_what_was_told(disk: FaultyDisk) -> None:
    journal, _ = open_journal(disk)
    journal.delivered_run(1, [1, 2, 3], 100)
    journal.flush()
    journal.acked([1])
    state = ConsumerState(delivered_consumer=3, delivered_stream=9, pending={9: (3, 5, 4)}, deliveries={9: 4})
    journal.replace(state)
    journal.acked([9])
    journal.flush()
    journal.close()
    _, found = open_journal(disk)
    assert found == ConsumerState(delivered_consumer=3, delivered_stream=9)


def test_a_journal_that_has_grown_begins_anew(disk: FaultyDisk) -> None:
    journal, state = open_journal(disk, grown_bytes=500)
    journal.state_source = lambda: state
    for sequence in range(1, 400):
        state.deliver_run(sequence, [sequence], sequence)
        journal.delivered_run(sequence, [sequence], sequence)
        if sequence > 5:
            state.acknowledge(sequence - 5, sequence - 5)
            state.raise_floor(sequence - 5, sequence - 5)
            journal.acked([sequence - 5], (sequence - 5, sequence - 5))
        journal.flush()
        if sequence % 10 == 0:
            journal.sync()
        assert sum(len(disk.content(path)) for path in disk.files()) < 8000
    journal.close()
    assert len(journals(disk)) == 1
    assert disk.open_handles() == 0
    _, found = open_journal(disk)
    assert found == state


def test_a_sync_leaves_the_files_of_the_next_consumer_alone(disk: FaultyDisk) -> None:
    journal, state = open_journal(disk, grown_bytes=1)
    journal.state_source = lambda: state
    sequence = 0
    while len(journals(disk)) < 2:
        sequence += 1
        journal.delivered_run(sequence, [sequence], 100)
        journal.flush()
    first = FOLDER / "0000000001.journal"

    def delete_and_create(operation: str, _path: Path) -> None:
        if operation == "sync":
            disk.fault = None
            disk.replace(FOLDER, FOLDER.with_name("C.deleted0"))
            journal.discard()
            disk.make_folder(FOLDER)
            other, _ = open_journal(disk)
            other.delivered_run(1, [1], 100)
            other.flush()

    disk.fault = delete_and_create
    journal.sync()
    assert first in disk.files()


def test_a_big_state_is_not_written_again_and_again(disk: FaultyDisk) -> None:
    journal, state = open_journal(disk, grown_bytes=500)
    journal.state_source = lambda: state
    state.deliver_run(1, range(1, 1001), 5)
    journal.delivered_run(1, list(range(1, 1001)), 5)
    journal.flush()
    before = disk.operations
    for sequence in range(1, 200):
        state.acknowledge(sequence, sequence)
        journal.acked([sequence])
        journal.flush()
    assert disk.operations - before < 220
    journal.close()
    state.latest_ns = 0  # The run is part of the state that the last file began with.
    assert open_journal(disk)[1] == state


def flips(disk: FaultyDisk) -> tuple[list[ConsumerState], bytes]:
    """The states after each flush of a small journal, and its bytes."""
    journal, state = open_journal(disk)
    states = []
    for step in range(1, 6):
        first = 3 * step - 2
        state.deliver_run(first, range(first, first + 3), step)
        journal.delivered_run(first, [first, first + 1, first + 2], step)
        state.acknowledge(first, first)
        journal.acked([first])
        journal.flush()
        states.append(ConsumerState(pending=dict(state.pending)))
    journal.close()
    return states, disk.content(disk.files()[0])


def test_a_torn_tail_costs_only_what_it_held(disk: FaultyDisk) -> None:
    states, whole = flips(disk)
    path = disk.files()[0]
    seen = set()
    for size in range(len(whole) + 1):
        disk.put(path, whole[:size])
        journal, state = open_journal(disk)
        pending = state.pending
        assert any(pending == known.pending for known in states) or not pending
        seen.add(len(pending))
        # It goes on from there, and the rest of the torn record does no harm.
        journal.delivered_run(state.delivered_consumer + 1, [50], 9)
        journal.close()
        assert open_journal(disk)[1].pending == {**pending, 50: (state.delivered_consumer + 1, 9, 1)}
        disk.remove(FOLDER / "0000000002.journal")
        disk.put(path, whole)
    assert seen == {0, 2, 4, 6, 8, 10}


def test_a_flipped_byte_never_lets_a_message_be_forgotten(disk: FaultyDisk) -> None:
    """It may bring back an acknowledged one: that is what the damaged record told. Never fewer than were pending."""
    states, whole = flips(disk)
    path = disk.files()[0]
    pending = set(states[-1].pending)
    for offset in range(len(whole)):
        disk.put(path, whole)
        disk.flip(path, offset, 0x40)
        _, state = open_journal(disk)
        uncertain = {sequence for low, high in state.uncertain for sequence in range(low, high + 1)}
        known = set(state.pending) | uncertain | set(range(state.delivered_stream + 1, 100))
        assert pending <= known, offset


def test_files_that_are_no_journal_are_no_state(disk: FaultyDisk) -> None:
    garbage = Random(5)
    disk.put(FOLDER / "0000000001.journal", garbage.randbytes(300))
    disk.put(FOLDER / "0000000002.journal", b"")
    disk.put(FOLDER / "notes.journal", b"x")
    journal, state = open_journal(disk)
    assert state == ConsumerState()
    journal.delivered_run(1, [1], 1)
    journal.close()
    assert open_journal(disk)[1].pending == {1: (1, 1, 1)}


def test_a_journal_of_a_later_version_is_not_read(disk: FaultyDisk) -> None:
    flips(disk)
    path = disk.files()[0]
    data = disk.content(path)
    disk.put(path, data[:4] + b"\x09\x00" + data[6:36] + b"\x09\x00" + data[38:])
    assert open_journal(disk)[1] == ConsumerState()


def test_a_write_that_fails_is_tried_again(disk: FaultyDisk) -> None:
    journal, _ = open_journal(disk)
    journal.delivered_run(1, [1, 2], 1)
    for operation in ("write", "open"):
        disk.fault = failing(operation)
        journal.acked([1])
        with pytest.raises(StoreError, match="cannot write to the consumer's journal: no space left on device"):
            journal.flush()
        disk.fault = None
        assert journal.needs_flush()
        journal.flush()
        journal.sync()
    journal.close()
    assert open_journal(disk)[1].pending == {2: (2, 1, 1)}
    assert disk.open_handles() == 0


def test_after_a_failed_sync_nothing_is_promised_any_more(disk: FaultyDisk) -> None:
    journal, _ = open_journal(disk)
    journal.delivered_run(1, [1, 2], 1)
    journal.flush()
    disk.fault = failing("sync")
    with pytest.raises(StoreError, match="cannot make the consumer's journal safe"):
        journal.sync()
    disk.fault = None
    journal.acked([1])
    with pytest.raises(StoreError):
        journal.flush()
    with pytest.raises(StoreError):
        journal.sync()
    journal.close()
    assert disk.open_handles() == 0


def test_what_a_start_adopts_after_a_failed_sync_is_safe() -> None:
    for seed in range(20):
        disk = FaultyDisk(Random(seed))
        disk.make_folder(FOLDER)
        disk.drops_failed_syncs = True
        journal, _ = open_journal(disk)
        journal.delivered_run(1, [1, 2, 3], 5)
        journal.flush()
        journal.sync()
        journal.acked([2])
        journal.flush()
        disk.fault = failing("sync")
        with pytest.raises(StoreError):
            journal.sync()
        disk.fault = None
        disk.kill()
        journal, adopted = open_journal(disk)
        assert list(adopted.pending) == [1, 3]
        disk.cut_power()
        assert open_journal(disk)[1] == adopted, seed


def test_a_journal_that_was_closed_is_known_to_be_safe(disk: FaultyDisk) -> None:
    journal, _ = open_journal(disk)
    journal.delivered_run(1, [1, 2, 3], 5)
    journal.close()
    before = disk.operations
    journal, state = open_journal(disk)
    assert disk.operations == before, "nothing to write, nothing to sync"
    journal.acked([1])
    journal.flush()
    disk.kill()
    journal, state = open_journal(disk)
    assert list(state.pending) == [2, 3]
    assert disk.operations > before + 1, "nobody knows whether the acknowledgement is safe"


@pytest.mark.parametrize("clean", [True, False])
def test_a_journal_that_is_gone_is_missed(disk: FaultyDisk, clean: bool) -> None:
    journal, _ = open_journal(disk)
    journal.delivered_run(1, [1, 2, 3], 5)
    journal.flush()
    journal.sync()
    if clean:
        journal.close()
    disk.kill()
    disk.remove(FOLDER / "0000000001.journal")
    notes: list[str] = []
    journal = FileJournal(disk, FOLDER, owner=FolderOwner(note=notes.append))
    assert journal.load() == ConsumerState()
    assert journal.is_lost
    assert notes == [f"The journal in {FOLDER} is gone: the consumer starts over, and messages are redelivered"]
    journal.delivered_run(1, [1], 5)
    journal.close()
    journal, state = open_journal(disk)
    assert (list(state.pending), journal.is_lost) == ([1], False)


def failing(operation: str) -> object:
    def fault(name: str, path: Path) -> None:
        if name == operation:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    return fault


def test_a_journal_in_memory_remembers_nothing() -> None:
    journal = MemoryJournal()
    journal.delivered_run(1, [1], 1)
    journal.redelivered(2, 1, 1, 2)
    journal.exhausted(1)
    journal.acked([1], (1, 1))
    journal.position(1, 1)
    journal.replace(ConsumerState(delivered_consumer=1))
    journal.flush()
    journal.sync()
    assert not journal.durable and not journal.needs_flush() and not journal.needs_sync()
    assert journal.load() == ConsumerState()
    journal.close()


@pytest.mark.parametrize("block", range(5))
def test_power_cuts_lose_no_synced_acknowledgement(block: int) -> None:
    for seed in range(block * SEEDS // 5, (block + 1) * SEEDS // 5):
        try:
            run_day(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def run_day(seed: int) -> None:
    random = Random(seed)
    disk = FaultyDisk(Random(seed + 1))
    disk.make_folder(FOLDER)
    acked: set[int] = set()
    sure: set[int] = set()
    delivered = 0
    for _ in range(4):
        journal = FileJournal(disk, FOLDER, grown_bytes=400, random_bytes=random.randbytes)
        state = journal.load()
        uncertain = {sequence for low, high in state.uncertain for sequence in range(low, high + 1)}
        held = set(state.pending) | uncertain
        assert not sure & held, f"confirmed and pending again: {sorted(sure & held)}"
        assert not set(state.deliveries) & sure
        done = set(range(1, state.delivered_stream + 1)) - held
        assert done <= acked, f"never acknowledged and not pending: {sorted(done - acked)}"
        assert state.delivered_stream >= max(sure, default=0)
        # The consumer delivers again what it is not sure of.
        for sequence in sorted(uncertain):
            state.deliver_again(state.delivered_consumer + 1, sequence, 0, 1)
        journal.replace(state)
        acked = set(done)
        sure = set()
        delivered = state.delivered_stream
        journal.state_source = lambda state=state: state
        disk.cut_at = disk.operations + random.randint(1, 40)
        try:
            for _ in range(60):
                action = random.random()
                if action < 0.3:
                    sequences = [delivered + 1 + place for place in range(random.randint(1, 5))]
                    journal.delivered_run(state.delivered_consumer + 1, sequences, 7)
                    state.deliver_run(state.delivered_consumer + 1, sequences, 7)
                    delivered = sequences[-1]
                elif action < 0.4 and state.pending:
                    again = random.choice(list(state.pending))
                    count = state.pending[again][2] + 1
                    journal.redelivered(state.delivered_consumer + 1, again, 8, count)
                    state.deliver_again(state.delivered_consumer + 1, again, 8, count)
                elif action < 0.7 and state.pending:
                    sequence = random.choice(list(state.pending))
                    acked.add(sequence)
                    journal.acked([sequence])
                    state.acknowledge(sequence, sequence)
                elif action < 0.85:
                    journal.flush()
                else:
                    journal.flush()
                    promised = set(acked)
                    journal.sync()
                    sure = promised
        except PowerCut:
            pass
        if random.random() < 0.2:
            disk.kill()
        else:
            disk.cut_power()
