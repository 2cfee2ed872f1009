"""Many stores and few handles: whoever was idle longest gives its own back, and nothing is lost by that."""

import errno
import threading
from pathlib import Path
from random import Random

import pytest

from jetlake.errors import StoreError
from jetlake.store.file_store import FileStore
from jetlake.store.log.open_files import OpenFiles
from tests.support.faulty_disk import FaultyDisk

LIMIT = 4
STORES = 12


class CountingDisk(FaultyDisk):
    """Knows how many files are open, and which were closed before what was written to them was synced."""

    def __init__(self):
        super().__init__(Random(0))
        self.most_open = 0
        self.unsynced = set()
        self.closed_unsynced = []

    def open(self, path, *, create=False):
        handle = super().open(path, create=create)
        self.most_open = max(self.most_open, len(self._handles))
        return handle

    def write(self, handle, data, offset):
        super().write(handle, data, offset)
        self.unsynced.add(handle)

    def sync(self, handle):
        super().sync(handle)
        self.unsynced.discard(handle)

    def close(self, handle):
        path = self._handles[handle][1]
        super().close(handle)
        if handle in self.unsynced and path.suffix == ".seg":
            self.closed_unsynced.append(path)


@pytest.fixture
def disk():
    return CountingDisk()


def open_stores(disk, **options):
    shared = OpenFiles(LIMIT)
    return [FileStore(disk, Path(f"/data/{number}"), open_files=shared, **options) for number in range(STORES)]


def write(store, payload):
    store.append(b"s", b"", payload, 1)
    store.flush()


@pytest.mark.parametrize("syncs", [True, False])
def test_stores_that_are_used_in_turns_share_the_handles(disk, syncs):
    stores = open_stores(disk)
    for turn in range(3):
        for store in stores:
            write(store, b"%d" % turn)
            if syncs:
                store.sync()
    # Each that is open has its mark beside it; one more is open for the folders and files of a moment.
    assert disk.most_open <= 2 * (LIMIT + 1)
    assert disk.closed_unsynced == [], "a failed write would be told to nobody"
    disk.cut_power()
    kept = [store.last_sequence for store in open_stores(disk)]
    assert kept == [3] * STORES if syncs else min(kept) >= 2, "what was not synced had to be, for its handle"


def test_the_redo_log_takes_nothing_of_a_store_that_will_soon_give_its_handle_back(disk):
    stores = open_stores(disk, redo_name="A/streams/S/msgs")
    for _ in range(10):
        for store in stores:
            write(store, b"in turns")
            assert store.take_redo() is None, "whoever needs the handle would wait for the sync"
            store.sync()
    busy = stores[0]
    taken = []
    for _ in range(10):
        write(busy, b"busy")
        if (index_file := busy.take_redo()) is None:
            busy.sync()
        taken.append(index_file is not None)
    assert not taken[0] and taken[-1]


def test_a_start_leaves_nothing_open(disk):
    for store in open_stores(disk):
        write(store, b"x")
    disk.kill()
    stores = open_stores(disk)
    assert disk._handles == {}
    assert [store.get(1).payload for store in stores] == [b"x"] * STORES
    assert len(disk._handles) <= LIMIT


def test_readers_of_old_segments_share_the_handles_with_writers(disk):
    stores = open_stores(disk, segment_bytes=200, tail_bytes=10)
    for number in range(10):
        for store in stores:
            write(store, b"%d" % number * 100)
            store.sync()
    for store in stores:
        for number in range(10):
            assert store.get(number + 1).payload == b"%d" % number * 100
    assert disk.most_open <= 2 * (LIMIT + 2)
    assert disk.closed_unsynced == []
    for store in stores:
        store.close()
    assert disk._handles == {}


def test_an_idle_store_that_cannot_be_made_safe_says_so_itself(disk):
    first, *others = open_stores(disk)
    write(first, b"unsure")

    def fault(operation, path):
        if operation == "sync" and "/data/0/" in str(path):
            raise OSError(errno.EIO, "as asked", str(path))

    disk.fault = fault
    for store in others:
        write(store, b"x")
        store.sync()
    assert first.failure is not None
    with pytest.raises(StoreError, match="as asked"):
        first.sync()
    with pytest.raises(StoreError, match="as asked"):
        first.append(b"s", b"", b"more", 1)
    assert first.get(1).payload == b"unsure"


def test_a_handle_that_another_thread_syncs_is_not_taken_from_it(disk):
    first, *others = open_stores(disk)
    entered, step = threading.Event(), threading.Event()

    def fault(operation, path):
        if operation == "sync" and "/data/0/" in str(path):
            entered.set()
            assert step.wait(10)

    disk.fault = fault
    write(first, b"x")
    thread = threading.Thread(target=first.sync)
    thread.start()
    assert entered.wait(10)
    for store in others[: LIMIT - 1]:
        write(store, b"x")
    writer = threading.Thread(target=write, args=(others[LIMIT - 1], b"x"))
    writer.start()
    step.set()
    thread.join(10)
    writer.join(10)
    assert first.failure is None and not first.needs_sync()
    assert disk.closed_unsynced == []
