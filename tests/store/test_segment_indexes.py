"""Segment indexes: a start and a running store find by them what the log holds, whatever becomes of their files."""

import errno
import gc
import tracemalloc
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from jetlake.errors import StoreError
from jetlake.store.file_store import FileStore
from jetlake.store.files.disk import RealDisk
from jetlake.store.files.folders import FolderOwner
from jetlake.store.interface import StoreLimits
from jetlake.store.log.scan import scan
from jetlake.store.log.segment_index.index_cache import IndexCache
from jetlake.store.steps import finish
from jetlake.store.subject_filter import SubjectFilter
from tests.support.faulty_disk import FaultyDisk

FOLDER = Path("/data/msgs")


def open_store(disk, cache_bytes=0, segment_bytes=1500):
    return FileStore(disk, FOLDER, segment_bytes=segment_bytes, tail_bytes=100, index_cache=IndexCache(cache_bytes))


def fill(store, count, start=0):
    for number in range(start, start + count):
        store.append(b"s.%d" % (number % 7), b"", b"%d" % number * 5, 1000 + number)
    store.flush()
    store.sync()


def file_all(store):
    while store._spiller.step():
        pass


def content(store):
    messages = store.read(1, None, 10_000, 1 << 30).messages
    by_filter = store.read(1, SubjectFilter([b"s.3"]), 10_000, 1 << 30).messages
    return (
        [(message.sequence, message.subject, message.payload) for message in messages],
        [message.sequence for message in by_filter],
        [store.count(sequence, SubjectFilter([b"s.2", b"s.5"])) for sequence in range(1, store.last_sequence, 17)],
        {subject: (count, store.last_sequence_for(subject)) for subject, count in store.subjects().items()},
        store.first_sequence,
        store.messages,
        store.bytes,
        store.deleted(store.first_sequence, store.last_sequence + 1),
        store.lost,
    )


def segment_index(disk):
    return sorted(path for path in disk.files() if path.suffix == ".idx")


@pytest.fixture
def disk():
    return FaultyDisk(Random(1))


@pytest.fixture
def world(disk):
    """A store with a dozen spilled segments, with removals from some of them, killed."""
    store = open_store(disk)
    fill(store, 300)
    for sequence in (3, 50, 51, 52, 120):
        store.remove(sequence)
    store.flush()
    store.sync()
    file_all(store)
    for sequence in (7, 90, 91):
        store.remove(sequence)
    store.flush()
    store.sync()
    expected = content(store)
    assert len(segment_index(disk)) > 8
    disk.kill()
    return disk, expected


def count_scans(monkeypatch):
    """The number of segments that are read record by record."""
    scanned = []

    def counted(*arguments):
        scanned.append(1)
        return scan(*arguments)

    monkeypatch.setattr("jetlake.store.log.recovery.recovery.scan", counted)
    monkeypatch.setattr("jetlake.store.log.segment_index.rows_from_log.scan", counted)
    return scanned


def test_a_start_after_a_kill_reads_only_what_has_no_segment_index(world, monkeypatch):
    disk, expected = world
    scanned = count_scans(monkeypatch)
    store = open_store(disk)
    assert len(scanned) <= 2
    assert content(store) == expected
    assert len(scanned) <= 2


@pytest.mark.parametrize("how", ["missing", "cut", "flipped", "of another stream", "of a neighbour", "stale", "empty"])
@pytest.mark.parametrize("when", ["before the start", "after the start"])
@pytest.mark.parametrize("stop", ["killed", "clean"])
def test_a_segment_index_that_is_wrong_costs_time_and_nothing_else(world, how, when, stop):
    disk, expected = world
    if stop == "clean":
        open_store(disk).close()
    store = open_store(disk) if when == "after the start" else None
    random = Random(3)
    found = segment_index(disk)
    files = {path: disk.content(path) for path in found}
    for place, path in enumerate(found):
        data = files[path]
        if how == "missing":
            disk.remove(path)
        elif how == "cut":
            disk.put(path, data[: random.randrange(len(data))])
        elif how == "flipped":
            at = random.randrange(len(data))
            disk.put(path, data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        elif how == "of another stream":
            disk.put(path, data[:8] + bytes(8) + data[16:])
        elif how == "of a neighbour":
            disk.put(path, files[found[place - 1]])
        elif how == "stale":
            disk.put(path, data[:20] + b"\x09\x00\x00\x00" + data[24:])
        else:
            disk.put(path, b"")
    store = store or open_store(disk)
    assert content(store) == expected
    file_all(store)
    assert len(segment_index(disk)) >= len(found), "they are written anew"
    assert content(store) == expected
    disk.kill()
    assert content(open_store(disk)) == expected


def test_a_damaged_segment_index_and_a_damaged_record_lose_that_record_alone(world):
    disk, expected = world
    store = open_store(disk)
    segment = store._index.blocks[4]
    sequence = segment.first + 2
    record = disk.content(segment.file.path).index(b"%d" % (sequence - 1) * 5)
    handle = disk.open(segment.file.path)
    disk.write(handle, b"!", record)
    disk.close(handle)
    disk.remove(segment.file.path.with_suffix(".idx"))
    subject = b"s.%d" % ((sequence - 1) % 7)
    before = store.count_on(subject)
    assert store.read(segment.first, None, 1000, 1 << 20).messages
    assert store.lost == [sequence]
    assert (store.messages, store.count_on(subject)) == (expected[5] - 1, before - 1)
    assert store.get(sequence) is None
    disk.kill()
    again = open_store(disk)
    assert (again.lost, again.messages, again.count_on(subject)) == ([sequence], expected[5] - 1, before - 1)


@pytest.mark.parametrize("below", [None, 200, 301])
def test_a_disk_that_gives_nothing_back_is_reported_and_removals_are_kept(world, below):
    disk, expected = world
    store = open_store(disk)

    def fault(operation, path):
        if operation in ("open", "read"):
            raise OSError(errno.EIO, "as asked", str(path))

    disk.fault = fault
    with pytest.raises(StoreError):
        store.get(150)
    assert store.remove(150)
    assert not store.has(150)
    if below is not None:
        store.purge(below=below)
    assert store.messages == len([each for each in expected[0] if each[0] != 150 and each[0] >= (below or 0)])
    disk.fault = None
    file_all(store)
    store.flush()
    store.sync()
    left = content(store)
    assert left[0] == [each for each in expected[0] if each[0] != 150 and each[0] >= (below or 0)]
    disk.kill()
    assert content(open_store(disk)) == left, "sizes and subjects were counted when the disk told them"


def test_a_segment_index_that_the_disk_refuses_leaves_the_rows_in_memory(disk):
    store = open_store(disk)

    def fault(operation, path):
        if operation in ("create", "write") and path.suffix == ".idx":
            raise OSError(errno.ENOSPC, "as asked", str(path))

    disk.fault = fault
    fill(store, 200)
    file_all(store)
    assert segment_index(disk) == []
    expected = content(store)
    disk.fault = None
    fill(store, 1, 200)
    file_all(store)
    assert segment_index(disk)
    assert content(store)[0][:-1] == expected[0]


def test_a_segment_that_goes_takes_its_segment_index_along(disk):
    store = open_store(disk)
    fill(store, 300)
    file_all(store)
    count = len(segment_index(disk))
    store.purge(below=200)
    for _ in range(20):
        store.flush()
        store.sync()
    assert len(segment_index(disk)) < count // 2
    assert {path.with_suffix(".seg") for path in segment_index(disk)} <= set(disk.files())


@pytest.mark.parametrize("seed", range(12))
def test_a_tiny_cache_tells_what_a_large_one_tells(seed):
    """Parts come and go in the middle of whatever is asked."""
    random = Random(seed)
    stores = [open_store(FaultyDisk(Random(seed)), cache_bytes) for cache_bytes in (0, 1 << 30)]
    for _ in range(6):
        for store in stores:
            fill(store, 60, store.last_sequence)
            if random.random() < 0.8:
                file_all(store)
            random.seed(seed)
        for _ in range(8):
            action, sequence = random.randint(0, 5), random.randint(1, stores[0].last_sequence)
            name = SubjectFilter([b"s.%d" % random.randint(0, 6)])
            for store in stores:
                if action == 0:
                    store.purge(name, keep=5)
                elif action == 1:
                    store.purge(below=min(sequence, store.first_sequence + 15))
                else:
                    store.remove(sequence, erase=action == 2)
                store.flush()
                store.sync()
                store.compact_step()
        assert content(stores[0]) == content(stores[1])


def test_memory_does_not_grow_with_the_stream(tmp_path):
    """Of a spilled segment a small thing stays in memory, however it is read: less than four bytes a message."""
    cache = IndexCache(100_000)
    store = FileStore(RealDisk(), tmp_path / "msgs", segment_bytes=200_000, tail_bytes=1000, index_cache=cache)
    held = []
    tracemalloc.start()
    try:
        for _ in range(4):
            for number in range(10_000):
                store.append(b"s.%d" % (number % 50), b"", b"x" * 20, number)
                if number % 500 == 0:
                    store.flush()
            store.flush()
            store.sync()
            file_all(store)
            for sequence in range(1, store.last_sequence, 997):
                store.read(sequence, None, 10, 1 << 20)
                store.read(sequence, SubjectFilter([b"s.7"]), 10, 1 << 20)
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert cache.bytes <= cache.bytes_max
    assert held[-1] - held[0] < 4 * 30_000, held


def test_a_removed_message_whose_record_and_segment_index_are_damaged_is_no_loss(world):
    disk, expected = world
    segment = next(block for block in reversed(open_store(disk)._index.blocks) if block.first <= 90)
    path = segment.file.path
    log, index_file = disk.content(path), disk.content(path.with_suffix(".idx"))
    at = log.index(b"%d" % 89 * 5)
    disk.kill()
    for place in range(0, len(index_file), 5):
        reports = []
        disk.put(path, log[:at] + b"!" + log[at + 1 :])
        disk.put(
            path.with_suffix(".idx"), index_file[:place] + bytes([index_file[place] ^ 4]) + index_file[place + 1 :]
        )
        store = FileStore(
            disk, FOLDER, segment_bytes=1500, index_cache=IndexCache(0), owner=FolderOwner(report=reports.append)
        )
        assert (content(store)[0], store.lost, reports) == (expected[0], [], []), place
        disk.kill()


@pytest.mark.parametrize("part", ["columns", "subjects"])
def test_a_segment_index_written_anew_tells_of_removals_from_other_segments(disk, part):
    """A tombstone lies far behind its message, in a segment whose segment index is damaged and written anew."""
    store = open_store(disk)
    fill(store, 200)
    file_all(store)
    store.remove(7)
    store.flush()
    fill(store, 100, 200)
    file_all(store)
    segment = next(block for block in store._index.blocks if block.tombstones.low == 7)
    at = segment.index_parts.columns_at if part == "columns" else segment.index_parts.subjects_at
    disk.flip(segment.file.path.with_suffix(".idx"), at)
    expected = content(store)
    file_all(store)
    assert segment.index_parts is not None
    disk.kill()
    assert content(open_store(disk)) == expected


def test_a_sequence_that_a_full_disk_did_not_skip_keeps_its_message(disk):
    store = open_store(disk)
    fill(store, 20)

    def fault(operation, path):
        if operation == "write":
            raise OSError(errno.ENOSPC, "as asked", str(path))

    store.skip()
    disk.fault = fault
    with pytest.raises(StoreError):
        store.flush()
    disk.fault = None
    fill(store, 200, 20)
    file_all(store)
    expected = content(store)
    disk.kill()
    again = open_store(disk)
    assert again.has(21)
    assert content(again) == expected


def damage(disk, segment, sequence):
    """Damage the record of a message that `fill` wrote, and remove its segment's segment index."""
    path = segment.file.path
    disk.flip(path, disk.content(path).index(b"%d" % (sequence - 1) * 5))
    disk.remove(path.with_suffix(".idx"))


def test_segments_that_turn_out_damaged_while_others_are_counted_are_counted_once(world):
    disk, expected = world
    store = open_store(disk)
    damaged = store._index.blocks[2:9:3]
    for segment in damaged:
        damage(disk, segment, segment.first + 2)
    assert store.get(damaged[0].first) is not None
    lost = [segment.first + 2 for segment in damaged]
    left = [sequence for sequence, _, _ in expected[0] if sequence not in lost]
    assert store.lost == lost
    assert store.messages == len(left)
    assert store.subjects() == Counter(b"s.%d" % ((sequence - 1) % 7) for sequence in left)


def test_a_purge_that_finds_the_last_message_of_a_segment_lost(disk, monkeypatch):
    monkeypatch.setattr("jetlake.store.index.message_remover.BULK_REMOVAL", 10)
    store = open_store(disk)
    fill(store, 300)
    segment = store._index.blocks[2]
    only = segment.first + 1
    for sequence in range(segment.first, store._index.blocks[3].first):
        if sequence != only:
            store.remove(sequence)
    store.flush()
    store.sync()
    file_all(store)
    damage(disk, segment, only)
    store.purge(below=segment.first + 100)
    assert store.lost == []
    assert len(segment.live) == segment.row_count, "as the next snapshot of the index says"
    expected = content(store)
    store.close()
    assert content(open_store(disk)) == expected


@pytest.mark.parametrize("spiller", [False, True])
@pytest.mark.parametrize("stop", [False, True])
def test_messages_are_counted_when_the_disk_answers_again(world, spiller, stop):
    """A record of one segment is damaged and its index gone; another's is gone, and the disk refuses its log."""
    disk, expected = world
    store = open_store(disk)
    damaged, refused = store._index.blocks[2], store._index.blocks[5]
    lost = damaged.first + 2
    damage(disk, damaged, lost)
    disk.remove(refused.file.path.with_suffix(".idx"))

    def fault(operation, path):
        if operation in ("open", "read") and path == refused.file.path:
            raise OSError(errno.EIO, "as asked", str(path))

    disk.fault = fault
    assert store.get(damaged.first) is not None, "the disk gives this one back"
    assert store.lost == [lost]
    left = Counter(b"s.%d" % ((sequence - 1) % 7) for sequence, _, _ in expected[0])
    assert store.subjects() == left, "nobody can tell yet which subject lost one"
    removed = [damaged.first, store._index.blocks[0].first, store._index.blocks[8].first]
    for sequence in removed:
        store.remove(sequence)
    if spiller:
        fill(store, 70, 300)
        file_all(store)
    store.flush()
    store.sync()
    if stop:
        store.close()
    disk.fault = None
    if stop:
        store = open_store(disk)
        assert store.lost == [lost]
    file_all(store)
    left.subtract(b"s.%d" % ((sequence - 1) % 7) for sequence in [*removed, lost])
    left.update(b"s.%d" % (number % 7) for number in range(300, 300 + 70 * spiller))
    assert store.subjects() == left


def test_a_recount_goes_on_while_messages_come_and_go(world, monkeypatch):
    disk, expected = world
    monkeypatch.setattr("jetlake.store.index.index._RECOUNTED_AT_ONCE", 2)
    store = open_store(disk)
    damaged = store._index.blocks[3]
    lost = damaged.first + 2
    damage(disk, damaged, lost)
    assert store.get(damaged.first) is not None
    assert not store._index.is_counted
    left = {sequence: b"s.%d" % ((sequence - 1) % 7) for sequence, _, _ in expected[0] if sequence != lost}
    random = Random(5)
    while not store._index.is_counted:
        for sequence in random.sample(sorted(left), 3):
            store.remove(sequence)
            del left[sequence]
        fill(store, 20, store.last_sequence)
        left.update(
            (each, b"s.%d" % ((each - 1) % 7)) for each in range(store.last_sequence - 19, store.last_sequence + 1)
        )
        store._spiller.step()
    assert store.subjects() == Counter(left.values())
    file_all(store)
    assert store.subjects() == Counter(left.values())


def test_a_limit_of_subjects_takes_no_message_for_one_that_is_lost_and_still_counts(world, monkeypatch):
    disk, _ = world
    monkeypatch.setattr("jetlake.store.index.index._RECOUNTED_AT_ONCE", 0)
    store = open_store(disk)
    damaged = store._index.blocks[3]
    lost = damaged.first + 2
    subject = b"s.%d" % ((lost - 1) % 7)
    damage(disk, damaged, lost)
    assert store.get(damaged.first) is not None
    assert not store._index.is_counted
    left = store.read(0, SubjectFilter([subject]), 1000, 1 << 20).messages
    for limit in (len(left), len(left) - 1):
        store.enforce(StoreLimits(max_per_subject=limit), 0)
        assert store.read(0, SubjectFilter([subject]), 1000, 1 << 20).messages == left[-limit:]


@pytest.mark.parametrize("later", ["kill", "close"])
def test_a_loss_that_the_snapshot_does_not_know_is_told_after_a_kill(world, later):
    disk, expected = world
    open_store(disk).close()
    store = open_store(disk)
    segment = store._index.blocks[4]
    damage(disk, segment, segment.first + 2)
    store.read(segment.first, None, 100, 1 << 20)
    assert store.lost == [segment.first + 2]
    fill(store, 1, 300)
    if later == "close":
        store.close()
    disk.kill()
    store = open_store(disk)
    assert store.lost == [segment.first + 2]
    counts = Counter(b"s.%d" % ((sequence - 1) % 7) for sequence, _, _ in expected[0] if sequence != segment.first + 2)
    assert store.subjects() == counts + Counter([b"s.6"])


def test_a_single_message_is_read_without_the_columns(world, monkeypatch):
    disk, expected = world
    store = open_store(disk)

    def no_columns(*_):
        raise AssertionError("the columns were read")

    monkeypatch.setattr("jetlake.store.log.spiller.read_columns", no_columns)
    for sequence, subject, payload in expected[0][::7]:
        message = store.get(sequence)
        assert (message.subject, message.payload) == (subject, payload)
    following = next(sequence for sequence in expected[1] if sequence > 40)
    assert [each.sequence for each in store.read(41, SubjectFilter([b"s.3"]), 1, 1 << 20).messages] == [following]


def test_a_segment_index_that_tells_a_wrong_place_costs_time_and_nothing_else(world):
    disk, expected = world
    store = open_store(disk, cache_bytes=1)
    segment = store._index.blocks[3]
    path = segment.file.path.with_suffix(".idx")
    whole = disk.content(path)
    rows = [each for each in expected[0] if segment.first <= each[0] < store._index.blocks[4].first]
    for at in range(segment.index_parts.columns_at, segment.index_parts.subjects_at, 3):
        for bloom in (0x01, 0x80):
            disk.put(path, whole[:at] + bytes([whole[at] ^ bloom]) + whole[at + 1 :])
            store = open_store(disk, cache_bytes=1)
            for sequence, subject, payload in rows[::5]:
                message = store.get(sequence)
                assert (message.subject, message.payload) == (subject, payload)
            assert store.lost == []
            disk.kill()


def test_a_get_finds_out_that_a_message_is_lost(world):
    disk, expected = world
    store = open_store(disk)
    segment = store._index.blocks[4]
    damage(disk, segment, segment.first + 2)
    assert store.get(segment.first + 2) is None
    assert (store.lost, store.messages) == ([segment.first + 2], expected[5] - 1)
    assert store.get(segment.first + 3) is not None


def test_a_purge_that_keeps_some_passes_by_segments_that_go_between_its_steps(world):
    disk, _expected = world
    store = open_store(disk)
    purge = store.purge_in_steps(SubjectFilter([b"s.3"]), keep=200)
    last = store._index.subjects.spilled.blocks[-1].first
    while not store._index.subjects.spilled.blocks[-1].lookups:
        next(purge)
    for sequence in range(1, last):
        store.remove(sequence)
    for _ in range(30):
        store.flush()
        store.sync()
    assert len(store._index.blocks) < 5, "the files are gone"
    assert finish(purge) == 0


def refuse_reads(disk):
    def fault(operation, path):
        if operation in ("open", "read") and path.suffix in (".seg", ".idx"):
            raise OSError(errno.EIO, "as asked", str(path))

    disk.fault = fault


def test_a_segment_is_emptied_once_though_the_disk_did_not_tell_all_of_its_rows(world, monkeypatch):
    monkeypatch.setattr("jetlake.store.index.message_remover.BULK_REMOVAL", 10)
    disk, _ = world
    store = open_store(disk)
    refuse_reads(disk)
    assert store.remove(2)
    assert store._index.unread
    store.purge()
    disk.fault = None
    fill(store, 1)
    for _ in range(30):
        store.flush()
        store.sync()
    assert [message.sequence for message in store.read(0, None, 10, 1 << 20).messages] == [301]
    assert len(store._index.blocks) < 5, "the files are gone"


def test_a_segment_is_emptied_once_though_its_last_row_was_told_before_the_others(world):
    disk, _ = world
    store = open_store(disk)
    for sequence in range(3, store._index.blocks[1].first):
        store.remove(sequence)
    store.flush()
    store.sync()
    disk.kill()
    store = open_store(disk)
    first, second = store._index.blocks[:2]
    refuse_reads(disk)
    assert store.remove(2)
    disk.fault = None
    assert store.remove(1)
    assert not first.live_count
    for _ in range(5):
        store.compact_step(sync_here=False)
    assert not store._index.unread
    fill(store, 1)
    for _ in range(30):
        store.flush()
        store.sync()
        while store.compact_step():
            pass
    assert store.first_sequence == second.first and first not in store._index.blocks
    assert store.bytes == sum(block.live_bytes for block in store._index.blocks)


def test_a_limit_of_bytes_counts_no_message_that_was_removed_while_the_disk_did_not_tell_its_size(world):
    disk, expected = world
    store = open_store(disk)
    sizes = store._index.blocks[0].sizes
    refuse_reads(disk)
    for row in (1, 3, 4):
        assert store.remove(row + 1)
    assert store._index.unread
    disk.fault = None
    left = expected[6] - sizes[1] - sizes[3] - sizes[4]
    assert store.enforce(StoreLimits(max_bytes=left), 0) == 0
    assert store.bytes == left


def test_a_removal_that_only_a_segment_index_tells_of_is_written_to_the_log(disk):
    store = open_store(disk)
    fill(store, 300)
    active = store._index.active
    size = active.size
    assert store.remove(3)
    store.flush()
    assert store._index.active is active
    file_all(store)
    disk.kill()
    # As a power cut leaves it that takes what was not synced, but for the segment index.
    disk.cut(active.file.path, size)
    store = open_store(disk)
    assert not store.has(3)
    store.close()
    disk.remove(FOLDER / "index")
    for index_file in segment_index(disk):
        disk.remove(index_file)
    store = open_store(disk)
    assert not store.has(3)
    assert store.lost == []


@pytest.mark.parametrize("stop", ["clean", "kill"])
def test_one_message_of_a_cold_segment_takes_few_small_reads(disk, monkeypatch, stop):
    """By sequence, as the next of a subject, or to be removed: no part of the index is read whole, nor kept."""
    cache = IndexCache(1 << 30)
    store = FileStore(disk, FOLDER, segment_bytes=300_000, tail_bytes=100, index_cache=cache)
    for number in range(3):
        store.append(b"rare.%d" % number, b"", b"once", number)
        fill(store, 10_000, store.last_sequence)
    file_all(store)
    assert len(store._index.subjects.spilled.blocks) > 3
    if stop == "clean":
        store.close()
    else:
        disk.kill()
    store = FileStore(disk, FOLDER, segment_bytes=300_000, tail_bytes=100, index_cache=cache)
    read = []

    def counted(handle, size, offset):
        data = FaultyDisk.read(disk, handle, size, offset)
        read.append(len(data))
        return data

    monkeypatch.setattr(disk, "read", counted)
    for number, first in enumerate((1, 10_002, 20_003)):
        assert store.get(first).sequence == first
        assert len(read) <= 2 + 20 * number, "where the record is, and the record"
        assert store.read(first + 1, SubjectFilter([b"s.3"]), 1, 1 << 20).messages
        assert store.remove(first + 2)
        assert store.purge(SubjectFilter([b"rare.%d" % number])) == 1
        assert store.count(first, SubjectFilter([b"s.2"]))
    assert sum(read) / len(read) < 4096
    assert max(read) < 20_000, "a page of the directory, pages of one subject's sequences"
    assert cache.bytes < 5 * 10_000, "which rows live, and no more"


@pytest.mark.parametrize("answers", range(6))
@pytest.mark.parametrize("count", [100, 2500])
def test_what_a_purge_removes_is_logged_though_the_disk_stops_answering_in_its_middle(count, answers):
    disk = FaultyDisk(Random(1))
    store = open_store(disk, segment_bytes=count * 10)
    fill(store, count)
    while store.compact_step():
        pass
    reads = []

    def fault(operation, path):
        if operation in ("read", "open") and path.suffix in (".idx", ".seg"):
            reads.append(path)
            if len(reads) > answers:
                raise OSError(errno.EIO, "as asked", str(path))

    disk.fault = fault
    assert store.purge(below=count // 2) == count // 2 - 1
    disk.fault = None
    store.flush()
    store.sync()
    disk.kill()
    assert open_store(disk, segment_bytes=count * 10).first_sequence == count // 2
