"""The log of message ids: what a failed sync leaves in doubt is written again."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from jetlake.errors import StoreError
from jetlake.store.journal.id_log import IdLog
from tests.support.faulty_disk import FaultyDisk

FOLDER = Path("/stream")


def test_all_that_failed_syncs_left_in_doubt_is_written_again() -> None:
    disk = FaultyDisk(Random(1))
    disk.make_folder(FOLDER)
    log = IdLog(disk, FOLDER, key=5)
    log.append([(b"first", 1, 10)])
    log.flush()
    syncs = []

    def refuse(operation: str, _path: Path) -> None:
        if operation == "sync":
            syncs.append(operation)
            if len(syncs) == 1:  # flushed while a thread syncs
                log.append([(b"second", 2, 11)])
                log.flush()
            raise OSError(errno.EIO, "broken")

    disk.fault = refuse
    for _ in range(2):
        with pytest.raises(StoreError):
            log.sync()
    disk.fault = lambda _operation, _path: None
    log.flush()
    log.sync()
    disk.remove(FOLDER / "ids.0000000001")  # What a refused sync was for may be gone.
    assert IdLog(disk, FOLDER, key=5).load() == [(b"first", 1, 10), (b"second", 2, 11)]
