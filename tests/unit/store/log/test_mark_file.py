"""The file of the high-water marks, written by the thread that flushes and by the one that syncs."""

import threading
from pathlib import Path
from random import Random

from jetlake.store.log.durability import Mark, MarkFile
from tests.support.faulty_disk import FaultyDisk


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
