"""The store's small parts, each by itself."""

from __future__ import annotations

import errno
import os
import stat
import threading
from array import array
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlake import platform
from jetlake.errors import StoreError
from jetlake.store.file_store import FileStore
from jetlake.store.files.atomic_file import read_file, replace_file
from jetlake.store.files.checksum import PLAIN_HASHING
from jetlake.store.files.disk import RealDisk
from jetlake.store.files.folders import folder_name
from jetlake.store.index.sequence_list import SequenceList
from jetlake.store.index.subject_index import SubjectIndex
from jetlake.store.log.record import (
    checksum_of,
    find_record,
    pack_erased,
    pack_message,
    pack_tombstone,
    tombstone_range,
    unpack,
)
from jetlake.store.log.scan import scan
from jetlake.store.sequence_ranges import merged, without
from jetlake.store.store_folder import StoreFolder
from jetlake.store.stream_folder import StreamFolder
from jetlake.store.subject_filter import SubjectFilter
from tests.support.faulty_disk import FaultyDisk, PowerCut

# Ranges


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda pair: (pair[0], sum(pair)))))
def test_merged_ranges_hold_the_same_sequences_and_do_not_touch(ranges: list[tuple[int, int]]) -> None:
    found = merged(ranges)
    assert members(found) == members(ranges)
    assert all(low[1] + 1 < high[0] for low, high in pairwise(found))


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda pair: (pair[0], sum(pair)))),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda pair: (pair[0], sum(pair)))),
    st.integers(0, 60),
)
def test_what_is_left_of_ranges(ranges: list[tuple[int, int]], gone: list[tuple[int, int]], limit: int) -> None:
    expected = sorted(members(ranges) - members(gone))
    assert without(ranges, merged(gone), limit) == expected[:limit]


def members(ranges: list[tuple[int, int]]) -> set[int]:
    return {sequence for first, last in ranges for sequence in range(first, last + 1)}


# Sequences of a subject


@settings(deadline=None, max_examples=50)
@given(st.randoms(use_true_random=False))
def test_a_sequence_list_is_a_sorted_list(random: Random) -> None:
    sequences = SequenceList()
    naive: list[int] = []
    at = 0
    for _ in range(random.randint(0, 6)):
        chunk = array("Q")
        for _ in range(random.randint(1, 20)):
            at += random.randint(1, 5)
            chunk.append(at)
        naive.extend(chunk)
        sequences.push(chunk)
    for _ in range(40):
        pick = random.randint(0, at + 2)
        action = random.random()
        if action < 0.5:
            sequences.remove(pick)
            naive = [sequence for sequence in naive if sequence != pick]
        elif action < 0.55:
            sequences.remove_below(pick)
            naive = [sequence for sequence in naive if sequence >= pick]
        assert list(sequences) == naive
        assert sequences.count == len(naive)
        assert sequences.at_or_after(pick) == min((s for s in naive if s >= pick), default=0)
        assert sequences.at_or_before(pick) == max((s for s in naive if s <= pick), default=0)
        assert sequences.count_from(pick) == sum(s >= pick for s in naive)
        assert sequences.from_(pick, 7) == [s for s in naive if s >= pick][:7]


def test_a_busy_subject_keeps_all_its_sequences_in_chunks() -> None:
    index = SubjectIndex()
    number = 0
    for sequence in range(1, 5001):
        number = index.append(b"busy", sequence)
    assert (index.count(number), index.first(number), index.last(number)) == (5000, 1, 5000)
    assert index.count_from(number, 2500) == 2501
    assert index.from_(number, 0, 6000) == list(range(1, 5001))
    for sequence in range(5000, 1000, -1):
        index.remove(number, sequence)
    assert (index.count(number), index.last(number)) == (1000, 1000)
    index.remove_below(number, 1000)
    assert (index.count(number), index.first(number)) == (1, 1000)
    index.remove(number, 1000)
    assert len(index) == 0


def test_filters_do_not_hold_on_to_subjects_that_are_gone() -> None:
    index = SubjectIndex()
    wild = SubjectFilter([b"a.*"])
    for round_ in range(20_000):
        number = index.append(b"a.%d" % round_, round_ + 1)
        if round_ % 1000 == 0:
            assert len(index.numbers.matches.passing(wild)) == 1
        index.remove(number, round_ + 1)
    assert len(index.numbers.matches.passing(wild)) == 0
    assert len(index.numbers.names) == 1, "numbers are used again"


# Filters


def test_a_filter_knows_what_it_is() -> None:
    assert SubjectFilter.of([]) is None
    assert SubjectFilter.of([b"a", b">"]) is None
    one = SubjectFilter([b"a.b", b"a.b"])
    assert (one.literal, one.patterns) == (b"a.b", (b"a.b",))
    several = SubjectFilter([b"a", b"b"])
    assert several.literal is None and several.literals == {b"a", b"b"}
    wild = SubjectFilter([b"a", b"b.*"])
    assert wild.literals is None
    assert [wild.matches(subject) for subject in (b"a", b"b.c", b"b", b"c")] == [True, True, False, False]
    assert SubjectFilter([b"a"]) == SubjectFilter([b"a"]) != SubjectFilter([b"b"])
    assert "b.*" in repr(wild)
    with pytest.raises(ValueError, match="at least one pattern"):
        SubjectFilter([])


# Records


@given(st.integers(1, 2**61), st.binary(min_size=1, max_size=30), st.binary(max_size=30), st.binary(max_size=50))
def test_records_come_back(sequence: int, subject: bytes, header: bytes, payload: bytes) -> None:
    checksum = checksum_of(PLAIN_HASHING, 3, 4)
    packed = pack_message(sequence, 5, subject, header, payload, checksum)
    record = unpack(b"xx" + packed + b"yy", 2, checksum)
    assert record is not None
    assert (record.sequence, record.subject, record.header, record.payload) == (sequence, subject, header, payload)
    assert record.end == 2 + len(packed)
    assert unpack(packed, 0, checksum_of(PLAIN_HASHING, 3, 5)) is None, "of another segment"
    assert unpack(packed[:-1], 0, checksum) is None
    assert unpack(packed, 1, checksum) is None


def test_a_scan_gets_past_damage_and_tells_what_it_held() -> None:
    checksum = checksum_of(PLAIN_HASHING, 1, 1)
    records = [pack_message(sequence, sequence, b"s", b"", b"x" * 40, checksum) for sequence in range(1, 7)]
    data = b"".join(records[:2]) + bytes(71) + b"\xff" * 71 + b"".join(records[4:]) + pack_tombstone(2, 5, 9, checksum)
    found = scan(data + b"torn", 0, checksum, 0)
    assert list(found.sequences) == [1, 2, 5, 6]
    assert found.missing == [(3, 4)]
    assert found.tombstones == [(2, 5)]
    assert (found.damaged_bytes, found.torn_bytes, found.end) == (142, 4, len(data))
    assert find_record(b"\0" * 5000, 0, checksum, 10) == -1


def test_an_erased_record_counts_as_gone() -> None:
    checksum = checksum_of(PLAIN_HASHING, 1, 1)
    whole = pack_message(7, 5, b"subject", b"", b"secret", checksum)
    erased = pack_erased(7, 5, 4, Random(1).randbytes(len(whole) - 30), checksum)
    assert len(erased) == len(whole)
    found = scan(erased, 0, checksum, 6)
    assert (list(found.sequences), found.tombstones, found.damaged_bytes) == ([], [(7, 7)], 0)
    record = unpack(pack_tombstone(3, 8, 1, checksum), 0, checksum)
    assert record is not None and record.is_tombstone and tombstone_range(record) == (3, 8)


# Disks


def test_files_and_folders_are_their_owners_alone(tmp_path: Path) -> None:
    disk = RealDisk()
    store = FileStore(disk, tmp_path / "a" / "b" / "msgs")
    store.append(b"s", b"", b"x", 1)
    store.close()
    folder = tmp_path / "a"
    for path in (folder, folder / "b", folder / "b" / "msgs"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    files = list((folder / "b" / "msgs").iterdir())
    assert {path.name for path in files} == {"0000000001.seg", "mark", "index", "segments"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


@pytest.mark.parametrize("kind", ["real", "faulty"])
def test_both_disks_behave_alike(kind: str, tmp_path: Path) -> None:
    disk = RealDisk() if kind == "real" else FaultyDisk(Random(1))
    folder = tmp_path / "deep" / "folder"
    disk.make_folder(folder)
    disk.make_folder(folder)
    assert disk.is_folder(folder) and disk.names(folder) == [] and disk.names(tmp_path / "none") == []
    with pytest.raises(FileNotFoundError):
        disk.open(folder / "x")
    handle = disk.open(folder / "x", create=True)
    disk.write(handle, b"hello", 3)
    assert (disk.size(handle), disk.read(handle, 100, 0), disk.read(handle, 2, 4)) == (8, b"\0\0\0hello", b"el")
    disk.truncate(handle, 5)
    disk.sync(handle)
    disk.sync_folder(folder)
    assert disk.read(handle, 100, 0) == b"\0\0\0he"
    disk.close(handle)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        disk.close(handle)
    replace_file(disk, folder / "x", b"new")
    replace_file(disk, folder / "y", b"other", durable=False)
    assert read_file(disk, folder / "x") == b"new"
    assert disk.names(folder) == ["x", "y"]
    with pytest.raises(OSError, match=os.strerror(errno.ENOTEMPTY)):
        disk.remove_folder(folder)
    disk.replace(folder, tmp_path / "moved")
    assert read_file(disk, tmp_path / "moved" / "x") == b"new"
    disk.remove(tmp_path / "moved" / "x")
    disk.remove(tmp_path / "moved" / "x")
    disk.remove(tmp_path / "moved" / "y")
    disk.remove_folder(tmp_path / "moved")
    assert not disk.is_folder(tmp_path / "moved")


def test_links_and_pipes_are_no_files_of_the_store(tmp_path: Path) -> None:
    disk = RealDisk()
    (tmp_path / "file").write_bytes(b"somebody's")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "folder link").symlink_to("folder")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "loop", "folder link", "pipe", "folder"):
        for create in (True, False):
            with pytest.raises(OSError):
                disk.open(tmp_path / name, create=create)
        assert not disk.is_file(tmp_path / name)
        assert disk.is_folder(tmp_path / name) == (name == "folder")
    assert disk.is_file(tmp_path / "file") and not disk.is_file(tmp_path / "none")
    with pytest.raises(NotADirectoryError, match="symbolic link"):
        disk.make_folder(tmp_path / "folder link")
    assert (tmp_path / "file").read_bytes() == b"somebody's"


def test_a_file_that_can_only_be_read_says_so_when_it_is_written(tmp_path: Path) -> None:
    disk = RealDisk()
    (tmp_path / "file").write_bytes(b"kept")
    handle = os.open(tmp_path / "file", os.O_RDONLY)
    for write in (lambda: disk.write(handle, b"x", 0), lambda: disk.truncate(handle, 0)):
        with pytest.raises(OSError, match="Permission denied"):
            write()
    disk.close(handle)
    with pytest.raises(OSError, match="Bad file descriptor"):
        disk.write(handle, b"x", 0)


def test_a_power_cut_leaves_the_old_file_or_the_new_one() -> None:
    outcomes = set()
    for seed in range(200):
        disk = FaultyDisk(Random(seed))
        disk.make_folder(Path("/f"))
        replace_file(disk, Path("/f/x"), b"old")
        disk.cut_at = disk.operations + 1 + seed % 6
        try:
            replace_file(disk, Path("/f/x"), b"the new one")
        except PowerCut:
            pass
        disk.cut_power()
        outcomes.add(read_file(disk, Path("/f/x")))
    assert outcomes == {b"old", b"the new one"}


# Folders


def test_names_stay_in_their_folder_and_apart() -> None:
    names = ["ORDERS", "a/b", "a%2Fb", "..", ".", "", "a b", "ü", "x" * 300, "x" * 301, "A", "a"]
    folders = [folder_name(name) for name in names]
    assert folders[0] == "ORDERS"
    assert len(set(folders)) == len(names)
    for name in folders:
        assert "/" not in name and not name.startswith(".") and 0 < len(name) < 200


def test_streams_and_consumers_are_found_again() -> None:
    disk = FaultyDisk(Random(1))
    root = StoreFolder(disk, Path("/data"))
    assert root.accounts() == [] and root.streams("$G") == []
    stream = root.stream("$G", "ORDERS")
    assert not stream.exists() and stream.read_meta() is None
    stream.write_meta(b'{"name":"ORDERS"}')
    root.stream("team a", "X").write_meta(b"{}")
    worker = stream.consumer("worker")
    worker.write_meta(b'{"name":"worker"}')
    disk.cut_power()
    assert root.accounts() == ["$G", "team a"]
    (found,) = root.streams("$G")
    assert found.read_meta() == b'{"name":"ORDERS"}'
    assert [consumer.read_meta() for consumer in found.consumers()] == [b'{"name":"worker"}']
    found.write_meta(b'{"name":"ORDERS","new":1}')
    assert found.read_meta() == b'{"name":"ORDERS","new":1}'


def test_a_damaged_configuration_is_read_from_its_copy() -> None:
    disk = FaultyDisk(Random(1))
    stream = StoreFolder(disk, Path("/data")).stream("$G", "S")
    stream.write_meta(b'{"max_age":5}')
    size = len(disk.content(stream.path / "meta.json"))
    for name in ("meta.json", "meta.copy.json"):
        for offset in range(size):
            disk.flip(stream.path / name, offset, 0x02)
            assert stream.read_meta() == b'{"max_age":5}', (name, offset)
            disk.flip(stream.path / name, offset, 0x02)
    disk.flip(stream.path / "meta.json", 60)
    disk.flip(stream.path / "meta.copy.json", 60)
    assert stream.read_meta() is None


def remove(root: StoreFolder, stream: StreamFolder) -> None:
    removal = stream.removal()
    removal.flush()
    removal.sync()
    assert removal.aside is not None
    root.remover.add(removal.aside)
    while root.remover.has_more():
        root.remover.sync()


def test_a_removal_that_is_cut_short_is_finished_at_the_next_start() -> None:
    for step in range(1, 30):
        disk = FaultyDisk(Random(step))
        root = StoreFolder(disk, Path("/data"))
        stream = root.stream("$G", "S")
        stream.write_meta(b"{}")
        stream.consumer("c").write_meta(b"{}")
        store = stream.open_store()
        store.append(b"s", b"", b"x", 1)
        store.close()
        disk.cut_at = disk.operations + step
        try:
            remove(root, stream)
        except PowerCut:
            pass
        disk.kill()
        found = root.streams("$G")
        if found:
            assert found[0].read_meta() == b"{}" and found[0].open_store().messages == 1, "not begun"
        else:
            assert [path for path in disk.files() if "S" in str(path)] == []


def test_a_refused_configuration_leaves_the_old_one() -> None:
    disk = FaultyDisk(Random(1))
    stream = StoreFolder(disk, Path("/data")).stream("$G", "S")
    stream.write_meta(b'{"old":1}')

    def fault(operation: str, path: Path) -> None:
        if operation == "write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk.fault = fault
    with pytest.raises(StoreError, match="no space left on device"):
        stream.write_meta(b'{"new":1}')
    disk.fault = None
    assert stream.read_meta() == b'{"old":1}'


# Two threads


def test_syncs_beside_the_thread_that_appends(tmp_path: Path) -> None:
    """What was flushed before a sync began is in the files when it returns; nobody trips over the other."""
    store = FileStore(RealDisk(), tmp_path / "msgs", segment_bytes=20_000)
    stop = threading.Event()
    errors: list[BaseException] = []

    def sync_all_the_time() -> None:
        try:
            while not stop.is_set():
                store.sync()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=sync_all_the_time)
    thread.start()
    try:
        for number in range(300):
            for _ in range(10):
                store.append(b"s.%d" % (number % 7), b"", b"x" * 100, number)
            store.flush()
            if number % 3 == 0:
                store.purge(below=store.last_sequence - 500)
                store.compact_step()
    finally:
        stop.set()
        thread.join()
    assert errors == []
    store.flush()
    store.sync()
    assert not store.needs_sync()
    expected = [message.sequence for message in store.read(1, None, 10_000, 1 << 30).messages]
    store.close()
    again = FileStore(RealDisk(), tmp_path / "msgs", segment_bytes=20_000)
    assert [message.sequence for message in again.read(1, None, 10_000, 1 << 30).messages] == expected
    again.close()


@pytest.mark.parametrize("at_once", [1, 7])
def test_a_system_that_reads_and_writes_a_part_at_a_time_is_asked_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    read_at, write_at = platform.read_at, platform.write_at
    monkeypatch.setattr(platform, "read_at", lambda handle, size, offset: read_at(handle, min(size, at_once), offset))
    monkeypatch.setattr(platform, "write_at", lambda handle, data, offset: write_at(handle, data[:at_once], offset))
    disk = RealDisk()
    handle = disk.open(tmp_path / "file", create=True)
    disk.write(handle, b"twenty bytes of data", 3)
    assert disk.read(handle, 100, 0) == bytes(3) + b"twenty bytes of data"
    assert disk.read(handle, 9, 10) == b"bytes of "
    disk.close(handle)
