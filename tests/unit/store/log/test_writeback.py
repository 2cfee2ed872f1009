"""A writeback that begins before its sync: it saves time, promises nothing, and its failure is that of the sync."""

import errno
import os
from pathlib import Path
from random import Random

import pytest

from jetlake import platform
from jetlake.errors import StoreError
from jetlake.store.file_store import FileStore
from jetlake.store.files.disk import RealDisk
from tests.support.faulty_disk import FaultyDisk

FOLDER = Path("/data/msgs")


class WatchedDisk(FaultyDisk):
    """A disk that remembers which bytes it was to begin with."""

    def __init__(self):
        super().__init__(Random(0))
        self.begun = []

    def begin_writeback(self, handle, offset, size):
        self.begun.append(bytes(self._file(handle)[0].data[offset : offset + size]))
        super().begin_writeback(handle, offset, size)


@pytest.fixture
def disk():
    return WatchedDisk()


@pytest.fixture
def store(disk):
    store = FileStore(disk, FOLDER)
    append(store, b"first")
    store.sync()
    return store


def append(store, payload):
    store.append(b"subject", b"", payload, 1)
    store.flush()


def refuse_writeback(operation, path):
    if operation == "writeback":
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


def test_the_disk_begins_with_what_no_sync_has_taken(store, disk):
    append(store, b"second")
    append(store, b"third")
    store.begin_writeback()
    (begun,) = disk.begun
    assert b"first" not in begun and b"second" in begun and b"third" in begun
    store.sync()
    store.begin_writeback()
    assert len(disk.begun) == 1, "nothing is left to write"


def test_it_promises_nothing(store, disk):
    append(store, b"second")
    store.begin_writeback()
    assert store.needs_sync() and store._log.durability.synced_sequence == 1
    store.sync()
    disk.cut_power()
    assert FileStore(disk, FOLDER).last_sequence == 2


def test_long_appends_and_new_files_wait_for_their_sync(disk):
    store = FileStore(disk, FOLDER, segment_bytes=200_000)
    append(store, b"new")
    store.begin_writeback()
    store.sync()
    append(store, bytes(70_000))
    store.begin_writeback()
    store.sync()
    append(store, bytes(60_000))
    store.begin_writeback()
    assert len(disk.begun) == 1
    store.sync()
    append(store, bytes(60_000))
    append(store, bytes(60_000))
    store.begin_writeback()
    assert len(store._index.blocks) == 2 and len(disk.begun) == 1


def test_what_the_disk_refuses_fails_the_sync_and_is_written_again(store, disk):
    disk.drops_failed_syncs = True
    disk.fault = refuse_writeback
    for _ in range(8):  # The disk drops what it refused in about half of them.
        append(store, b"second")
        store.begin_writeback()
        assert not store.sync_if_short() and store._log.durability.take_redo() is None
        with pytest.raises(StoreError):
            store.sync()
        assert store.failure is not None
        store.begin_writeback()
        store.retry()
        store.sync()
        assert store.failure is None
    assert len(disk.begun) == 8, "nothing is begun while nobody knows what the disk has"
    disk.cut_power()
    assert FileStore(disk, FOLDER).messages == 9


def test_a_real_disk_begins_and_tells_errors(tmp_path, monkeypatch):
    disk = RealDisk()
    handle = disk.open(tmp_path / "file", create=True)
    disk.write(handle, b"payload", 0)
    disk.begin_writeback(handle, 0, 7)
    disk.sync(handle)
    assert disk.read(handle, 7, 0) == b"payload"
    disk.close(handle)
    if platform._sync_file_range() is not None:
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            disk.begin_writeback(handle, 0, 7)
    monkeypatch.setattr(platform, "_sync_file_range", lambda: None)
    disk.begin_writeback(handle, 0, 7)


def test_a_system_that_has_no_such_call_for_a_file_is_no_error():
    reading, writing = os.pipe()
    RealDisk().begin_writeback(writing, 0, 7)
    os.close(reading)
    os.close(writing)
