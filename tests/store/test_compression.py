"""Compressed segments: smaller on disk, read as before, and no worse off after crashes and damage."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from jetlake.errors import StoreError
from jetlake.store.file_store import FileStore
from jetlake.store.interface import StoreLimits
from jetlake.store.log.recovery.segment_files import data_size
from jetlake.store.log.segment import LogFile
from jetlake.store.subject_filter import SubjectFilter
from tests.support.faulty_disk import FaultyDisk, PowerCut

FOLDER = Path("/streams/S/msgs")
SEGMENT_BYTES = 40_000
COUNT = 1000


def payload(number: int) -> bytes:
    return b'{"order": %d, "text": "words that are said again and again"}' % number


def open_store(disk: FaultyDisk, *, compresses: bool = True) -> FileStore:
    store = FileStore(disk, FOLDER, segment_bytes=SEGMENT_BYTES, tail_bytes=0)
    store.compresses = compresses
    store._compressor.block_bytes = 4000
    return store


def fill(store: FileStore, count: int = COUNT) -> None:
    first = store.last_sequence + 1
    for number in range(first, first + count):
        store.append(
            b"s.%d" % (number % 7), b"NATS/1.0\r\nA: b\r\n\r\n" if not number % 9 else b"", payload(number), number
        )
        if not number % 50:
            store.flush()
    store.flush()
    store.sync()


def tidy(store: FileStore) -> None:
    while store.compact_step():
        pass


def check(store: FileStore, sequences: Sequence[int]) -> None:
    """Everything is there, message by message, in runs, and by subject."""
    run = store.read(sequences[0], None, 10 * COUNT, 1 << 30)
    found = list(run.messages)
    while (run := store.read(run.next_sequence, None, 10 * COUNT, 1 << 30)).messages:
        found += run.messages
    assert [message.sequence for message in found] == list(sequences)
    assert all(message.payload == payload(message.sequence) for message in found)
    for sequence in sequences[::37]:
        message = store.get(sequence)
        assert message is not None
        assert (message.payload, message.subject) == (payload(sequence), b"s.%d" % (sequence % 7))
    filtered = store.read(sequences[0], SubjectFilter.of([b"s.3"]), 20, 1 << 20)
    assert all(message.sequence % 7 == 3 for message in filtered.messages)
    assert store.lost == []


def segments(disk: FaultyDisk) -> dict[Path, bytes]:
    return {path: disk.content(path) for path in disk.files() if path.suffix == ".seg"}


def compressed(disk: FaultyDisk) -> list[Path]:
    return [path for path, content in segments(disk).items() if content[48:52] == b"JLCB"]


def new_disk(seed: int = 1) -> FaultyDisk:
    disk = FaultyDisk(Random(seed))
    disk.make_folder(FOLDER)
    return disk


@pytest.fixture
def disk() -> FaultyDisk:
    return new_disk()


def test_bytes_on_disk_shrink_and_everything_is_read_as_before(disk: FaultyDisk) -> None:
    store = open_store(disk)
    fill(store)
    before = sum(map(len, segments(disk).values()))
    counted = store.bytes
    tidy(store)
    after = sum(map(len, segments(disk).values()))
    assert len(compressed(disk)) == len(segments(disk)) - 1, "all but the one that is written to"
    assert after < before / 2
    assert store.bytes == counted, "state.bytes counts the messages, not the files"
    check(store, range(1, COUNT + 1))
    store.close()
    assert disk.open_handles() == 0


@pytest.mark.parametrize("with_index", [True, False])
def test_a_start_reads_compressed_segments(disk: FaultyDisk, with_index: bool) -> None:
    store = open_store(disk)
    fill(store)
    tidy(store)
    store.close()
    if not with_index:
        disk.remove(FOLDER / "index")
    store = open_store(disk)
    check(store, range(1, COUNT + 1))
    fill(store, 100)
    check(store, range(1, COUNT + 101))


def test_without_compression_nothing_changes_and_what_is_compressed_stays_readable(disk: FaultyDisk) -> None:
    store = open_store(disk, compresses=False)
    fill(store)
    tidy(store)
    assert not compressed(disk)
    store.compresses = True
    tidy(store)
    old = compressed(disk)
    assert old
    store.compresses = False
    fill(store)
    tidy(store)
    assert compressed(disk) == old
    check(store, range(1, 2 * COUNT + 1))


def test_noise_is_left_as_it_is(disk: FaultyDisk) -> None:
    noise = Random(2)
    store = open_store(disk)
    for _ in range(100):
        store.append(b"s", b"", noise.randbytes(1000), 1)
    store.flush()
    store.sync()
    tidy(store)
    assert not compressed(disk)


def test_a_power_cut_at_any_write_of_a_compression_loses_nothing() -> None:
    operation = 0
    while True:
        operation += 1
        disk = new_disk(operation)
        store = open_store(disk)
        fill(store)
        disk.cut_at = disk.operations + operation
        try:
            tidy(store)
            is_over = True
        except PowerCut:
            is_over = False
        disk.cut_at = None
        disk.cut_power()
        check(open_store(disk), range(1, COUNT + 1))
        if is_over:
            break
    assert operation > 5


@pytest.mark.parametrize("seed", range(10))
def test_a_damaged_block_costs_its_records_alone_and_is_reported(seed: int) -> None:
    random = Random(seed)
    disk = new_disk(seed)
    store = open_store(disk)
    fill(store)
    tidy(store)
    store.close()
    path = random.choice(compressed(disk))
    disk.flip(path, random.randrange(48, len(disk.content(path))), 1 << random.randrange(8))
    if seed % 2:
        disk.remove(FOLDER / "index")
    store = open_store(disk)
    tidy(store)
    lost = store.lost
    there = [sequence for sequence in range(1, COUNT + 1) if (message := store.get(sequence)) is not None]
    assert sorted([*there, *lost]) == list(range(1, COUNT + 1)), "whatever is not there is said to be lost"
    assert len(lost) < 150, "a block holds some fifty records"
    assert lost == list(range(lost[0], lost[-1] + 1)) if lost else True
    for sequence in there:
        message = store.get(sequence)
        assert message is not None
        assert message.payload == payload(sequence)


def test_either_copy_of_the_table_is_enough(disk: FaultyDisk) -> None:
    store = open_store(disk)
    fill(store)
    tidy(store)
    store.close()
    first, second, *_ = compressed(disk)
    for offset in (48, 60, 75):
        disk.flip(first, offset)
    disk.flip(second, len(disk.content(second)) - 2)
    disk.flip(second, len(disk.content(second)) - 12)
    disk.remove(FOLDER / "index")
    check(open_store(disk), range(1, COUNT + 1))


@pytest.mark.parametrize("seed", range(8))
def test_an_erased_message_is_gone_from_the_disk_for_good(seed: int) -> None:
    disk = new_disk(seed)
    store = open_store(disk)
    fill(store)
    tidy(store)
    path = compressed(disk)[0]
    assert store.remove(5, erase=True)
    store.flush()
    store.sync()
    assert path not in compressed(disk), "it is written anew without compression, and then overwritten"
    assert payload(5) not in disk.content(path)
    disk.cut_power()
    store = open_store(disk)
    assert payload(5) not in disk.content(path)
    assert store.get(5) is None
    assert store.get(6) is not None
    assert store.lost == []


@pytest.mark.parametrize("seed", range(8))
def test_the_last_segment_may_be_compressed_when_a_start_goes_on_with_it(seed: int) -> None:
    """A crash came between the seal of a segment and the first write to the next one."""
    disk = new_disk(seed)
    store = open_store(disk)
    fill(store)
    tidy(store)
    store.close()
    newest = max(segments(disk))
    assert newest not in compressed(disk)
    disk.remove(newest)
    disk.remove(FOLDER / "segments")
    disk.remove(FOLDER / "mark")
    disk.remove(FOLDER / "index")
    store = open_store(disk)
    last = store.last_sequence
    assert 0 < last < COUNT
    store.append(b"s.%d" % ((last + 1) % 7), b"", payload(last + 1), 10**6)
    store.flush()
    store.sync()
    disk.cut_power()
    check(open_store(disk), range(1, last + 2))


def test_a_compressed_segment_that_is_mostly_dead_is_rewritten_and_compressed_again(disk: FaultyDisk) -> None:
    store = open_store(disk)
    fill(store)
    tidy(store)
    for sequence in range(1, COUNT + 1):
        if sequence % 10:
            store.remove(sequence)
    store.flush()
    store.sync()
    tidy(store)
    disk.cut_power()
    store = open_store(disk)
    tidy(store)
    assert [message.sequence for message in store.read(1, None, COUNT, 1 << 30).messages][:3] == [10, 20, 30]
    assert store.messages == COUNT // 10
    assert store.lost == []


def test_a_disk_that_refuses_leaves_the_segment_as_it_was(disk: FaultyDisk) -> None:
    from jetlake.errors import StoreError

    store = open_store(disk)
    fill(store)
    disk.capacity = 0
    with pytest.raises(StoreError):
        tidy(store)
    assert not compressed(disk)
    check(store, range(1, COUNT + 1))
    disk.capacity = None
    tidy(store)
    check(store, range(1, COUNT + 1))


def test_limits_remove_compressed_segments(disk: FaultyDisk) -> None:
    store = open_store(disk)
    fill(store)
    tidy(store)
    store.enforce(StoreLimits(max_messages=100), 0)
    store.flush()
    store.sync()
    tidy(store)
    assert len(segments(disk)) < 4
    check(store, range(COUNT - 99, COUNT + 1))


@pytest.mark.parametrize("seed", range(8))
def test_what_is_written_to_a_compressed_file_and_synced_is_safe(seed: int) -> None:
    disk = new_disk(seed)
    store = open_store(disk)
    fill(store)
    tidy(store)
    store.close()
    path = compressed(disk)[0]
    file = LogFile(disk, path.parent, path.name)
    size = data_size(file)
    file.write(b"more", size)
    disk.sync(file.open())
    disk.cut_power()
    assert LogFile(disk, path.parent, path.name).read(4, size) == b"more"


def refuse(disk: FaultyDisk, *operations: str) -> None:
    def fault(operation: str, path: Path) -> None:
        if operation in operations and path.suffix in (".seg", ".idx"):
            raise OSError(errno.EIO, "as asked", str(path))

    disk.fault = fault


def test_a_file_whose_table_could_not_be_read_is_still_compressed() -> None:
    disk = new_disk()
    store = open_store(disk)
    fill(store)
    tidy(store)
    store._log.close_files()
    refuse(disk, "read")
    with pytest.raises(StoreError):
        store.get(1)
    disk.fault = None
    for sequence in range(1, 400):
        if sequence % 10:
            store.remove(sequence)
    tidy(store)
    assert store._index.blocks[0].generation == 1, "it was rewritten"
    check(store, [*range(10, 400, 10), *range(400, COUNT + 1)])


def test_a_disk_that_answers_nothing_loses_nothing() -> None:
    """A block that is in memory tells nothing of the others."""
    disk = new_disk()
    store = open_store(disk)
    store._compressor.block_bytes = SEGMENT_BYTES // 2
    fill(store)
    tidy(store)
    assert store.get(1) is not None
    refuse(disk, "read")
    for index_file in [path for path in disk.files() if path.suffix == ".idx"]:
        disk.put(index_file, b"")
    with pytest.raises(StoreError):
        store.read(1, None, 10, 1 << 20)
    disk.fault = None
    check(store, range(1, COUNT + 1))
