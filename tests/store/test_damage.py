"""Cut, torn and flipped bytes: one bad record costs one record, and the store says which."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from jetlake.errors import StoreError
from jetlake.store.file_store import FileStore
from jetlake.store.files.folders import FolderOwner
from jetlake.store.log.record import OVERHEAD
from jetlake.store.log.segment_header import HEADER_SIZE
from jetlake.store.message import StoredMessage
from jetlake.store.subject_filter import SubjectFilter
from tests.support.faulty_disk import FaultyDisk

FOLDER = Path("/streams/S/msgs")
FIRST_SEGMENT = FOLDER / "0000000001.seg"
INDEX = FOLDER / "index"
MARK = FOLDER / "mark"


def open_store(disk: FaultyDisk, segment_bytes: int = 1 << 20) -> FileStore:
    return FileStore(disk, FOLDER, segment_bytes=segment_bytes, random_bytes=Random(7).randbytes)


def fill(store: FileStore, count: int = 8) -> None:
    for number in range(count):
        header = b"NATS/1.0\r\nn: %d\r\n\r\n" % number if number % 3 == 0 else b""
        store.append(b"s.%d" % (number % 3), header, b"payload %d" % number, 1000 + number)
        store.flush()
    store.sync()


def sequences(store: FileStore) -> list[int]:
    return [message.sequence for message in store.read(1, None, 10_000, 1 << 30).messages]


def copy_of(disk: FaultyDisk) -> FaultyDisk:
    copy = FaultyDisk(Random(1))
    copy.make_folder(FOLDER)
    for path in disk.files():
        copy.put(path, disk.content(path))
    return copy


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk(Random(1))


@pytest.fixture(params=["killed", "stopped"])
def stored(request: pytest.FixtureRequest, disk: FaultyDisk) -> FaultyDisk:
    """Eight messages in one segment, left by a kill (no index) or a clean stop (with one)."""
    store = open_store(disk)
    fill(store)
    if request.param == "stopped":
        store.close()
    disk.kill()
    return disk


def test_a_record_written_over_another_costs_that_one(stored: FaultyDisk) -> None:
    """A disk may put good bytes into the wrong place; the hash alone does not tell."""
    offsets = record_offsets(stored)
    whole = stored.content(FIRST_SEGMENT)
    tried = 0
    for source, (start, end) in offsets.items():
        for target, (there, behind) in offsets.items():
            if source == target or end - start != behind - there:
                continue
            disk = copy_of(stored)
            disk.put(FIRST_SEGMENT, whole[:there] + whole[start:end] + whole[behind:])
            store = open_store(disk)
            while store.compact_step():
                pass
            assert sequences(store) == [sequence for sequence in range(1, 9) if sequence != target], (source, target)
            assert store.lost == [target], (source, target)
            assert store.append(b"s.0", b"", b"next", 2000) == 9
            tried += 1
    assert tried > 20


def test_a_flipped_byte_costs_one_record(stored: FaultyDisk) -> None:
    offsets = record_offsets(stored)
    size = len(stored.content(FIRST_SEGMENT))
    for offset in range(size):
        for bloom in (0x01, 0x80):
            disk = copy_of(stored)
            disk.flip(FIRST_SEGMENT, offset, bloom)
            store = open_store(disk)
            while store.compact_step():
                pass
            hit = [sequence for sequence, (start, end) in offsets.items() if start <= offset < end]
            expected = [sequence for sequence in range(1, 9) if sequence not in hit]
            assert sequences(store) == expected, (offset, bloom)
            assert store.lost == hit, (offset, bloom)
            assert store.messages == len(expected)
            assert store.last_sequence == 8
            assert store.append(b"s.0", b"", b"next", 2000) == 9
            store.flush()
            assert sequences(store) == [*expected, 9]


def record_offsets(disk: FaultyDisk) -> dict[int, tuple[int, int]]:
    """Where each message's record lies, by its own lengths."""
    data = disk.content(FIRST_SEGMENT)
    found: dict[int, tuple[int, int]] = {}
    at = HEADER_SIZE
    sequence = 1
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "little") & 0x7FFFFFFF
        found[sequence] = (at, at + length)
        sequence += 1
        at += length
    return found


def test_a_cut_file_costs_what_was_cut_off_and_no_sequence_is_used_again(stored: FaultyDisk) -> None:
    offsets = record_offsets(stored)
    for size in range(len(stored.content(FIRST_SEGMENT))):
        disk = copy_of(stored)
        disk.cut(FIRST_SEGMENT, size)
        store = open_store(disk)
        expected = [sequence for sequence, (_, end) in offsets.items() if end <= size]
        assert sequences(store) == expected, size
        assert store.lost == list(range(len(expected) + 1, 9)), size
        assert store.last_sequence == 8
        assert store.append(b"s.0", b"", b"next", 2000) == 9


def test_a_tail_that_was_never_synced_is_dropped_silently(disk: FaultyDisk) -> None:
    store = open_store(disk)
    fill(store)
    size = len(disk.content(FIRST_SEGMENT))
    store.append(b"s.0", b"", b"not acknowledged", 2000)
    store.append(b"s.0", b"", b"nor this", 2000)
    store.flush()
    whole = disk.content(FIRST_SEGMENT)
    disk.kill()
    for cut in range(size, len(whole)):
        copy = copy_of(disk)
        copy.put(FIRST_SEGMENT, whole[:cut])
        store = open_store(copy)
        assert sequences(store) in (list(range(1, 9)), list(range(1, 10)))
        assert store.lost == []
        assert store.append(b"s.0", b"", b"", 3000) == 11, "what was handed out is not handed out again"
        store.close()
        assert open_store(copy).lost == []


def test_without_the_mark_a_torn_tail_still_uses_up_its_sequences(stored: FaultyDisk) -> None:
    offsets = record_offsets(stored)
    disk = copy_of(stored)
    disk.remove(INDEX)
    disk.remove(MARK)
    disk.cut(FIRST_SEGMENT, offsets[8][1] - 5)
    store = open_store(disk)
    assert sequences(store) == [1, 2, 3, 4, 5, 6, 7]
    assert store.append(b"s.0", b"", b"", 2000) > 8


@pytest.mark.parametrize("name", ["mark", "index", "segments"])
def test_a_flipped_byte_in_the_other_files_costs_nothing(disk: FaultyDisk, name: str) -> None:
    store = open_store(disk, segment_bytes=200)
    fill(store)
    store.remove(3)
    store.close()
    for offset in range(len(disk.content(FOLDER / name))):
        copy = copy_of(disk)
        copy.flip(FOLDER / name, offset, 0x10)
        store = open_store(copy, segment_bytes=200)
        assert sequences(store) == [1, 2, 4, 5, 6, 7, 8], offset
        assert store.lost == []
        assert store.last_sequence == 8
        assert store.subjects() == {b"s.0": 3, b"s.1": 3, b"s.2": 1}


def test_damage_while_it_runs_is_found_when_the_message_is_read(disk: FaultyDisk) -> None:
    store = open_store(disk, segment_bytes=200)
    fill(store, 30)
    removed: list[int] = []
    store.hooks.on_removed = lambda sequence, subject, size: removed.append(sequence)
    disk.flip(FIRST_SEGMENT, HEADER_SIZE + 30)
    assert store.get(1) is None
    assert store.get(2) is not None
    assert store.lost == removed == [1]
    assert (store.messages, store.first_sequence) == (29, 2)
    disk.cut(FOLDER / "0000000003.seg", 0)
    before = store.messages
    left = [message.sequence for message in store.read(1, SubjectFilter([b"s.*"]), 100, 1 << 30).messages]
    assert len(left) == store.messages < before
    assert sorted(left + store.lost) == list(range(1, 31))


def test_an_unreadable_sector_costs_the_records_in_it(disk: FaultyDisk) -> None:
    store = open_store(disk)
    for number in range(100):
        store.append(b"s", b"", b"x" * 200, number)
    store.close()
    disk.bad_sectors.add((FIRST_SEGMENT, 20))

    store = open_store(disk)
    assert 1 <= len(store.lost) <= 30, "the disk is read in segment indexes where it fails"
    left = [sequence for sequence in range(1, 101) if sequence not in store.lost]
    assert [message.sequence for message in read_all(store)] == left

    # While the server runs, an error may pass: nothing is given up.
    disk.bad_sectors.clear()
    store = open_store(disk)
    assert store.lost == []
    disk.bad_sectors.add((FIRST_SEGMENT, 20))
    run = store.read(1, None, 1000, 1 << 30)
    first_bad = run.next_sequence
    assert 1 < first_bad < 60
    with pytest.raises(StoreError, match="input/output error"):
        store.read(first_bad, None, 1000, 1 << 30)
    with pytest.raises(StoreError, match=f"cannot read message {first_bad}: input/output error"):
        store.get(first_bad)
    assert store.get(100) is not None
    assert store.append(b"s", b"", b"", 1) == 101
    disk.bad_sectors.clear()
    assert len(read_all(store)) == 101


def read_all(store: FileStore) -> list[StoredMessage]:
    """Everything, run by run."""
    found: list[StoredMessage] = []
    while messages := store.read(found[-1].sequence + 1 if found else 1, None, 1000, 1 << 30).messages:
        found += messages
    return found


def test_a_segment_from_another_stream_is_not_taken_in(disk: FaultyDisk) -> None:
    store = open_store(disk)
    fill(store)
    store.close()
    other = FaultyDisk(Random(2))
    stranger = FileStore(other, FOLDER, random_bytes=Random(99).randbytes)
    stranger.append(b"secret", b"", b"of another stream", 1)
    stranger.close()
    disk.put(FOLDER / "0000000002.seg", other.content(FIRST_SEGMENT))
    # Also under the first stream's header: the records themselves are keyed.
    own_header = disk.content(FIRST_SEGMENT)[:HEADER_SIZE]
    disk.put(FOLDER / "0000000003.seg", own_header + other.content(FIRST_SEGMENT)[HEADER_SIZE:])
    for with_index in (True, False):
        if not with_index:
            disk.remove(INDEX)
        store = open_store(disk)
        assert sequences(store) == list(range(1, 9))
        assert store.subjects().keys() == {b"s.0", b"s.1", b"s.2"}
        disk.kill()


def test_a_record_copied_within_the_stream_is_not_taken_for_a_new_one(disk: FaultyDisk) -> None:
    store = open_store(disk, segment_bytes=200)
    fill(store)
    store.close()
    first = disk.content(FIRST_SEGMENT)
    newest = [path for path in disk.files() if path.suffix == ".seg"][-1]
    disk.put(newest, disk.content(newest) + first[HEADER_SIZE:])
    store = open_store(disk, segment_bytes=200)
    assert sequences(store) == list(range(1, 9))


def test_a_missing_segment_is_told(disk: FaultyDisk) -> None:
    store = open_store(disk, segment_bytes=200)
    fill(store, 20)
    inside = [message.sequence for message in store.read(1, None, 100, 1 << 30).messages]
    store.close()
    disk.remove(FOLDER / "0000000003.seg")
    store = open_store(disk, segment_bytes=200)
    left = [message.sequence for message in store.read(1, None, 100, 1 << 30).messages]
    assert store.lost and sorted(left + store.lost) == inside


def test_files_of_another_version_are_left_alone(disk: FaultyDisk) -> None:
    """A newer version of the software wrote them: its messages are not ours to read, nor to overwrite."""
    store = open_store(disk)
    fill(store)
    store.close()
    header = bytearray(disk.content(FIRST_SEGMENT)[:HEADER_SIZE])
    newer = bytes(header[:4]) + (2).to_bytes(2, "little") + bytes(header[6:])
    path = FOLDER / "0000000007.seg"
    disk.put(path, newer + b"what a later version writes")
    store = open_store(disk)
    assert sequences(store) == list(range(1, 9))
    assert store.append(b"s.0", b"", b"", 2000) == 9
    store.close()
    assert disk.content(path) == newer + b"what a later version writes"
    assert sequences(open_store(disk)) == list(range(1, 10))


def test_nothing_but_garbage_is_an_empty_store(disk: FaultyDisk) -> None:
    disk.make_folder(FOLDER)
    garbage = Random(3)
    for name in ("0000000001.seg", "0000000002.seg", "mark", "index", "0000000003.seg.tmp", "unrelated.txt"):
        disk.put(FOLDER / name, garbage.randbytes(5000))
    store = open_store(disk)
    assert (store.messages, sequences(store)) == (0, [])
    sequence = store.append(b"a", b"", b"works", 1)
    store.close()
    store = open_store(disk)
    message = store.get(sequence)
    assert message is not None and message.payload == b"works"


def raw_size(disk: FaultyDisk, path: Path = FIRST_SEGMENT) -> int:
    """The length of a file, zeros at its end included."""
    handle = disk.open(path)
    try:
        return disk.size(handle)
    finally:
        disk.close(handle)


@pytest.mark.parametrize("without_mark", [False, True])
@pytest.mark.parametrize("has_holes", [False, True])
def test_zeros_behind_the_records_are_the_end_of_the_log(disk: FaultyDisk, has_holes: bool, without_mark: bool) -> None:
    store = open_store(disk)
    fill(store)
    size = len(disk.content(FIRST_SEGMENT))
    assert raw_size(disk) > size, "the length is ahead of the records"
    disk.kill()
    if not has_holes:
        disk.put(FIRST_SEGMENT, disk.content(FIRST_SEGMENT) + bytes(raw_size(disk) - size))
    if without_mark:
        disk.remove(MARK)
    store = open_store(disk)
    assert (sequences(store), store.lost, store.lost_bytes) == (list(range(1, 9)), [], 0)
    assert store.append(b"s.0", b"", b"next", 2000) == 9
    store.close()
    assert raw_size(disk) == len(disk.content(FIRST_SEGMENT)) > size, "a clean stop cuts them off"
    assert sequences(open_store(disk)) == list(range(1, 10))


def test_a_full_segment_ends_with_its_records(disk: FaultyDisk) -> None:
    store = open_store(disk, segment_bytes=300)
    fill(store, 20)
    paths = [path for path in disk.files() if path.suffix == ".seg"]
    assert len(paths) > 3
    assert all(raw_size(disk, path) == len(disk.content(path)) for path in paths[:-1])


def test_what_is_torn_behind_zeros_is_no_record_and_no_loss(disk: FaultyDisk) -> None:
    store = open_store(disk)
    fill(store)
    whole = disk.content(FIRST_SEGMENT)
    disk.kill()
    for gap in (1, 29, 30, 5000):
        copy = copy_of(disk)
        copy.put(FIRST_SEGMENT, whole + bytes(gap) + b"torn" + bytes(4096))
        store = open_store(copy)
        assert (sequences(store), store.lost) == (list(range(1, 9)), [])
        assert store.append(b"s.0", b"", b"next", 2000) == 9
        store.close()
        assert copy.content(FIRST_SEGMENT).find(b"torn") < 0
        assert sequences(open_store(copy)) == list(range(1, 10))


@pytest.mark.parametrize("left", [0, 3, 20, 47])
def test_a_new_segment_of_which_a_power_cut_left_zeros_is_removed(disk: FaultyDisk, left: int) -> None:
    store = open_store(disk, segment_bytes=1 << 20)
    fill(store)
    store.close()
    second = FOLDER / "0000000002.seg"
    header = disk.content(FIRST_SEGMENT)[:left]
    disk.put(second, header + bytes(70_000 - left))
    notes: list[str] = []
    store = FileStore(disk, FOLDER, owner=FolderOwner(note=notes.append))
    assert [str(second) in note and "nothing but the name" in note for note in notes] == [True]
    assert (sequences(store), store.lost, second in disk.files()) == (list(range(1, 9)), [], False)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_long_gap_behind_tombstones_alone_takes_no_memory_and_hides_no_record(
    disk: FaultyDisk, is_restarted: bool
) -> None:
    store = open_store(disk, 4096)
    store.skip(5)
    store.flush()
    store.skip(10**12)
    if is_restarted:
        store.flush()
        disk.kill()
        store = open_store(disk, 4096)
    fill(store)
    disk.kill()
    damaged = copy_of(disk)
    store = open_store(disk, 4096)
    expected = list(range(10**12 + 6, 10**12 + 14))
    assert sequences(store) == expected
    fill(store, 100)
    while store.compact_step():
        pass
    assert store.messages == 108
    damaged.flip(FIRST_SEGMENT, HEADER_SIZE + 2 * OVERHEAD)  # in the second tombstone
    assert sequences(open_store(damaged, 4096)) == expected


@pytest.mark.parametrize("subjects", [(b"s.1",), (b"s.1", b"s.2"), (b"s.*",)])
@pytest.mark.parametrize("asked_bytes", [1 << 30, 150])
def test_a_filtered_read_passes_over_a_message_that_is_damaged_since_the_stop(
    disk: FaultyDisk, subjects: tuple[bytes, ...], asked_bytes: int
) -> None:
    store = open_store(disk, segment_bytes=700)
    fill(store, 40)
    store.close()
    damaged = record_offsets(disk)
    content = bytearray(disk.content(FIRST_SEGMENT))
    lost = [sequence for sequence in damaged if subjects[0] == b"s.*" or (sequence - 1) % 3 == 1][:2]
    for sequence in lost:
        start, end = damaged[sequence]
        content[(start + end) // 2] ^= 1
    disk.put(FIRST_SEGMENT, bytes(content))
    store = open_store(disk, segment_bytes=700)
    wanted = SubjectFilter(subjects)
    numbers = {1, 2} if len(subjects) > 1 else {1} if subjects[0] == b"s.1" else {0, 1, 2}
    found, start = [], 1
    while start <= store.last_sequence:
        run = store.read(start, wanted, 7, asked_bytes)
        found += [message.sequence for message in run.messages]
        assert run.next_sequence > start
        start = run.next_sequence
    expected = [sequence for sequence in range(1, 41) if (sequence - 1) % 3 in numbers and sequence not in lost]
    assert found == expected
    assert set(lost) <= set(store.lost)
