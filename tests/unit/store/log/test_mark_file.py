"""The file of the high-water marks, written by the thread that flushes and by the one that syncs."""

import threading
from pathlib import Path
from random import Random

import pytest

from jetlake.store.file_store import FileStore
from jetlake.store.log.durability import Mark, MarkFile
from jetlake.store.log.segment_header import segment_name
from tests.support.faulty_disk import FaultyDisk


def tear_last_record(disk):
    handle = disk.open(Path("/s", segment_name(1)))
    disk.truncate(handle, disk.data_size(handle) - 1)
    disk.close(handle)


def test_two_threads_that_write_first_open_the_file_once():
    disk = FaultyDisk(Random(1))
    disk.make_folder(Path("/s"))
    mark = MarkFile(disk, Path("/s/mark"), 7)
    other = threading.Thread(target=mark.synced, args=(1, (1, 10)))

    def begin_the_other(operation, path):
        disk.fault = None
        other.start()
        other.join(0.05)

    disk.fault = begin_the_other
    mark.flushed(2)
    other.join()
    mark.close()
    assert disk.open_handles() == 0
    assert mark.read(7) == Mark(7, 2, 1, (1, 10))


@pytest.mark.parametrize("marks_flushes", [True, False])
def test_a_sequence_whose_record_a_crash_took_is_used_again_only_if_nobody_saw_it(marks_flushes):
    disk = FaultyDisk(Random(1))
    store = FileStore(disk, Path("/s"), marks_flushes=marks_flushes)
    store.append(b"s", b"", b"durable", 1)
    store.flush()
    store.sync()
    store.append(b"s", b"", b"written", 1)
    store.flush()
    tear_last_record(disk)
    opened = FileStore(disk, Path("/s"), marks_flushes=marks_flushes)
    assert opened.messages == 1 and not opened.lost
    assert opened.append(b"s", b"", b"next", 1) == (3 if marks_flushes else 2)


def test_a_message_that_was_synced_is_missed_without_a_mark_of_its_flush():
    disk = FaultyDisk(Random(1))
    store = FileStore(disk, Path("/s"), marks_flushes=False)
    for payload in (b"one", b"two"):
        store.append(b"s", b"", payload, 1)
        store.flush()
        store.sync()
    tear_last_record(disk)
    opened = FileStore(disk, Path("/s"), marks_flushes=False)
    assert opened.messages == 1 and opened.lost == [2]
    assert opened.append(b"s", b"", b"next", 1) == 3
