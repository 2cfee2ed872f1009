"""The sync on the loop's own thread: it promises what a sync promises, and is refused where it could take long."""

import errno
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest

from jetlake.errors import StoreError
from jetlake.store.file_store import FileStore
from jetlake.store.files.folders import FolderOwner
from tests.support.faulty_disk import FaultyDisk

FOLDER = Path("/data/msgs")


class Disk(FaultyDisk):
    """Refuses syncs, or holds them up, when it is told to."""

    def __init__(self):
        super().__init__(Random(0))
        self.refusal = None
        self.gate = Event()
        self.gate.set()
        self.is_syncing = Event()

    def sync(self, handle):
        self.is_syncing.set()
        self.gate.wait(10)
        if self.refusal is not None:
            raise self.refusal
        super().sync(handle)


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def store(disk):
    store = FileStore(disk, FOLDER)
    append(store)
    assert not store.sync_if_short(), "the file's name has to be synced as well"
    store.sync()
    return store


def append(store, payload=b"payload"):
    store.append(b"subject", b"", payload, 1)
    store.flush()


def test_what_was_flushed_before_is_durable(store, disk):
    for _ in range(3):
        append(store)
        assert store.sync_if_short() and not store.needs_sync()
    assert store._log.durability.synced_sequence == 4
    append(store)
    disk.cut_power()
    assert FileStore(disk, FOLDER).last_sequence >= 4


def test_nothing_to_sync_is_no_short_sync(store):
    assert not store.sync_if_short()


def test_a_long_append_is_left_to_a_thread(store):
    append(store, bytes(100_000))
    assert not store.sync_if_short()
    store.sync()
    append(store)
    assert store.sync_if_short()


def test_it_does_not_wait_for_a_sync_of_another_thread(store, disk):
    append(store)
    disk.gate.clear()
    disk.is_syncing.clear()
    thread = Thread(target=store.sync)
    thread.start()
    assert disk.is_syncing.wait(10)
    append(store)
    assert not store.sync_if_short()
    disk.gate.set()
    thread.join()
    assert store._log.durability.synced_sequence == 2
    assert store.sync_if_short() and store._log.durability.synced_sequence == 3


def test_one_that_fails_stops_the_store_until_what_is_in_doubt_is_written_again(store, disk):
    append(store)
    disk.refusal = OSError(errno.EIO, "broken")
    with pytest.raises(StoreError):
        store.sync_if_short()
    disk.refusal = None
    assert store.failure is not None and store._log.durability.synced_sequence == 1
    with pytest.raises(StoreError):
        append(store)
    assert not store.sync_if_short()
    store.retry()
    assert not store.sync_if_short(), "only a sync writes again"
    store.sync()
    assert store.failure is None and store._log.durability.synced_sequence == 2


def test_one_whose_folder_went_meanwhile_changes_nothing(store, disk):
    append(store)
    store.discard()
    disk.refusal = OSError(errno.EIO, "gone")
    store.sync_if_short()
    assert store.failure is None and store._log.durability.synced_sequence == 1


def test_nothing_is_left_out_that_comes_before_the_first_sync(disk):
    prepared = []
    store = FileStore(disk, FOLDER, owner=FolderOwner(before_sync=lambda: prepared.append(1)))
    append(store)
    store.sync()
    append(store)
    assert store.sync_if_short() and prepared == [1]
    store.prepare_again()
    append(store)
    assert not store.sync_if_short()
    store.sync()
    assert prepared == [1, 1]


def test_what_has_to_be_prepared_is_tried_again_when_it_failed(disk):
    attempts = []

    def refuse():
        attempts.append(1)
        if len(attempts) == 1:
            raise StoreError("make the folder", "no")

    store = FileStore(disk, FOLDER, owner=FolderOwner(before_sync=refuse))
    append(store)
    with pytest.raises(StoreError):
        store.sync()
    store.sync()
    assert len(attempts) == 2 and not store.needs_sync()


def test_a_new_segment_has_a_name_to_be_synced_and_is_left_to_the_store(disk):
    store = FileStore(disk, FOLDER, segment_bytes=200)
    seen = set()
    for _ in range(20):
        append(store)
        number = store._index.active.number
        assert store.sync_if_short() == (number in seen)
        seen.add(number)
        store.sync()
    assert len(seen) > 2
    disk.cut_power()
    assert FileStore(disk, FOLDER).messages == 20


def test_a_message_that_is_erased_in_an_older_segment_is_left_to_the_store(disk):
    store = FileStore(disk, FOLDER, segment_bytes=200)
    for _ in range(10):
        append(store)
    store.sync()
    store.remove(1, erase=True)
    store.flush()
    assert store.needs_sync() and not store.sync_if_short()
