"""The sync of one open file, carried out by somebody else: it promises what a sync promises, and no more."""

import errno
from pathlib import Path
from queue import Queue
from random import Random
from threading import Event, Thread

import pytest

from jetlake.errors import StoreError
from jetlake.store.file_store import FileStore
from jetlake.store.files.folders import FolderOwner
from tests.support.faulty_disk import FaultyDisk

FOLDER = Path("/data/msgs")


@pytest.fixture
def disk():
    return FaultyDisk(Random(0))


@pytest.fixture
def store(disk):
    store = FileStore(disk, FOLDER)
    append(store)
    assert store.begin_file_sync() is None, "the file's name has to be synced as well"
    store.sync()
    return store


def append(store):
    store.append(b"subject", b"", b"payload", 1)
    store.flush()


def carry_out(disk, file_sync):
    disk.sync(file_sync.handle)
    return file_sync.end(None)


def test_what_was_flushed_before_is_durable_and_what_came_after_is_not(store, disk):
    append(store)
    file_sync = store.begin_file_sync()
    disk.sync(file_sync.handle)
    append(store)
    assert file_sync.end(None) is None
    assert store._log.durability.synced_sequence == 2 and store.needs_sync()
    assert carry_out(disk, store.begin_file_sync()) is None
    assert not store.needs_sync() and store.begin_file_sync() is None
    disk.cut_power()
    assert FileStore(disk, FOLDER).last_sequence == 3


def test_a_sync_waits_for_the_one_under_way(store, disk):
    append(store)
    file_sync = store.begin_file_sync()
    waited = []

    def wait(sync):
        waited.append(carry_out(disk, sync))

    file_sync.wait = wait
    assert store.begin_file_sync() is None
    append(store)
    store.sync()
    assert waited == [None] and file_sync.has_ended and not store.needs_sync()


def test_one_that_fails_stops_the_store_until_what_is_in_doubt_is_written_again(store, disk):
    append(store)
    file_sync = store.begin_file_sync()
    assert isinstance(file_sync.end(OSError(errno.EIO, "broken")), StoreError)
    assert store.failure is not None and store._log.durability.synced_sequence == 1
    with pytest.raises(StoreError):
        append(store)
    assert store.begin_file_sync() is None
    store.retry()
    assert store.begin_file_sync() is None, "only a sync writes again"
    store.sync()
    assert store.failure is None and store._log.durability.synced_sequence == 2


def test_a_sync_of_another_thread_waits_until_the_failure_is_known(disk):
    outcomes = Queue()
    threads = []
    may_go_on = Event()

    def sync():
        try:
            store.sync()
            outcomes.put("synced")
        except StoreError:
            outcomes.put("failed")

    def wait(_file_sync):
        outcomes.put("waits")
        may_go_on.wait()

    def is_gone():
        # Asked while the failure is about to be noted.
        if is_failing and not threads:
            threads.append(Thread(target=sync))
            threads[0].start()
            assert (outcomes.get(), file_sync.has_ended) == ("waits", False)
        return False

    is_failing = False
    store = FileStore(disk, FOLDER, owner=FolderOwner(is_gone=is_gone))
    append(store)
    store.sync()
    append(store)
    file_sync = store.begin_file_sync()
    file_sync.wait = wait
    is_failing = True
    assert isinstance(file_sync.end(OSError(errno.EIO, "broken")), StoreError)
    may_go_on.set()
    assert outcomes.get() == "failed" and store._log.durability.synced_sequence == 1
    threads[0].join()


def test_one_that_ends_after_its_folder_went_changes_nothing(store, disk):
    append(store)
    file_sync = store.begin_file_sync()
    store.discard()
    assert file_sync.end(OSError(errno.EIO, "gone")) is None and file_sync.end(None) is None
    assert store.failure is None and store._log.durability.synced_sequence == 1


def test_nothing_is_left_out_that_comes_before_the_first_sync(disk):
    prepared = []
    store = FileStore(disk, FOLDER, owner=FolderOwner(before_sync=lambda: prepared.append(1)))
    append(store)
    store.sync()
    append(store)
    assert carry_out(disk, store.begin_file_sync()) is None and prepared == [1]
    store.prepare_again()
    append(store)
    assert store.begin_file_sync() is None
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
        file_sync = store.begin_file_sync()
        assert (file_sync is None) == (number not in seen)
        seen.add(number)
        if file_sync is None:
            store.sync()
        else:
            assert carry_out(disk, file_sync) is None
    assert len(seen) > 2
    disk.cut_power()
    assert FileStore(disk, FOLDER).messages == 20
