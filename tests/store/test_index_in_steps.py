"""The index written down in steps, while the store goes on: a start by it finds what a start by the log finds."""

import errno
from pathlib import Path
from random import Random

import pytest

from jetlake.store.file_store import FileStore
from jetlake.store.interface import StoreLimits
from jetlake.store.log.segment_index.index_cache import IndexCache
from jetlake.store.log.snapshot.index_snapshot import read_snapshot
from jetlake.store.steps import finish
from jetlake.store.subject_filter import SubjectFilter
from tests.support.faulty_disk import FaultyDisk

FOLDER = Path("/data/msgs")
INDEX = FOLDER / "index"


def open_store(disk):
    return FileStore(disk, FOLDER, segment_bytes=900, tail_bytes=100, snapshot_bytes=3000, index_cache=IndexCache(300))


def fill(store, random, count=60):
    for _ in range(count):
        subject = b"s.%d" % random.randint(0, 9)
        header = b"NATS/1.0\r\nk: v\r\n\r\n" if random.random() < 0.2 else b""
        store.append(subject, header, b"x" * random.randint(0, 90), store.last_time_ns + 1)
    store.flush()
    store.sync()


def change(store, random):
    """Something that happens between two steps."""
    action = random.randint(0, 9)
    if action <= 1:
        fill(store, random, random.randint(1, 8))
    elif action == 2 and store.messages:
        store.remove(random.randint(store.first_sequence, store.last_sequence), erase=random.random() < 0.3)
    elif action == 3:
        store.purge(SubjectFilter([b"s.%d" % random.randint(0, 9)]))
    elif action == 4:
        store.purge(below=store.first_sequence + random.randint(0, 10))
    elif action == 5:
        store.enforce(StoreLimits(max_messages=max(store.messages - 3, 1)), store.last_time_ns)
    elif action == 6:
        store.skip(random.randint(1, 3))
    elif store.messages:
        # Whole segments in the middle go, and with luck those that tell of it.
        first = random.randint(store.first_sequence, store.last_sequence)
        for sequence in range(first, first + 40):
            store.remove(sequence)
    store.flush()
    store.sync()
    store.flush()
    store.sync()


def content(store):
    messages = store.read(0, None, 10_000, 10_000_000).messages
    subjects = store.subjects()
    return (
        [(message.sequence, message.subject, message.payload) for message in messages],
        store.first_sequence,
        store.last_sequence,
        store.messages,
        store.bytes,
        subjects,
        {subject: store.last_sequence_for(subject) for subject in subjects},
        store.lost,
    )


@pytest.mark.parametrize("seed", range(30))
def test_a_start_by_the_index_is_a_start_by_the_log(seed):
    random = Random(seed)
    disk = FaultyDisk(Random(seed))
    store = open_store(disk)
    finished = 0
    for _ in range(6):
        fill(store, random)
        steps = 0
        while store.compact_step() and steps < 500:
            steps += 1
            if random.random() < 0.15:
                change(store, random)
        finished += INDEX in disk.files()
        for _ in range(random.randint(0, 4)):
            change(store, random)
        expected = content(store)
        disk.cut_power() if random.random() < 0.5 else disk.kill()
        if random.random() < 0.3:
            disk.remove(INDEX)
        store = open_store(disk)
        assert content(store) == expected
    assert finished, "no index was ever written"


def test_steps_are_small_and_change_nothing_until_the_last():
    disk = FaultyDisk(Random(0))
    store = open_store(disk)
    random = Random(0)
    fill(store, random, 200)
    writes = []
    disk.fault = lambda operation, path: writes.append(path.name) if operation == "write" else None
    steps = 0
    while INDEX not in disk.files():
        assert store.compact_step()
        steps += 1
        assert len(writes) <= 3, "one segment index at a time, or a part of the index and the hash"
        writes.clear()
    assert steps > 20
    assert finish(read_snapshot(disk, FOLDER, "index").packed_names.unpack())[0] == store._index.subjects.numbers.names
    while store.compact_step():
        pass


@pytest.mark.parametrize("operation", ["create", "write", "replace", "remove"])
def test_a_disk_that_refuses_costs_the_index_and_nothing_else(operation):
    disk = FaultyDisk(Random(0))
    store = open_store(disk)
    fill(store, Random(0), 200)

    def fault(what, path):
        if what == operation and path.name.startswith("index"):
            raise OSError(errno.ENOSPC, "as asked", str(path))

    disk.fault = fault
    while store.compact_step():
        pass
    disk.fault = None
    expected = content(store)
    assert all(path.name != "index.tmp" for _, path in disk._handles.values()), "its handle is given back"
    disk.kill()
    assert content(open_store(disk)) == expected


def test_a_clean_stop_in_the_middle_writes_the_whole_index():
    disk = FaultyDisk(Random(0))
    store = open_store(disk)
    fill(store, Random(0), 200)
    assert store.compact_step() and store.compact_step()
    expected = content(store)
    store.close()
    assert disk._handles == {}
    assert content(open_store(disk)) == expected


def test_an_index_that_lost_its_tombstones_is_begun_anew():
    disk = FaultyDisk(Random(0))
    store = open_store(disk)
    fill(store, Random(0), 200)
    assert store.compact_step() and store.compact_step()
    store._index_file.drop()  # as whoever removes tombstones does
    fill(store, Random(1), 200)
    while INDEX not in disk.files():
        assert store.compact_step()
    assert read_snapshot(disk, FOLDER, "index").last_sequence == store.last_sequence == 400
