"""A write that fails right after a start: what comes afterwards has its own sequence and can be read."""

import errno
from pathlib import Path
from random import Random

import pytest

from jetlake.errors import StoreError
from jetlake.store.file_store import FileStore
from tests.support.faulty_disk import FaultyDisk

FOLDER = Path("/data/msgs")


def contents(store):
    return {seq: store.get(seq).payload for seq in range(1, store.last_sequence + 1) if store.has(seq)}


def fail_writes(disk):
    def fault(operation, path):
        if operation == "write":
            raise OSError(errno.ENOSPC, "simulated")

    disk.fault = fault


@pytest.mark.parametrize("gap", ["removed", "skipped", "none"])
def test_messages_after_a_failed_flush_are_found(gap):
    disk = FaultyDisk(Random(1))
    store = FileStore(disk, FOLDER)
    for number in range(1, 6):
        store.append(b"s", b"", b"%d" % number, number)
    if gap == "removed":
        store.remove(2)
    elif gap == "skipped":
        store.skip(100_000)
    store.flush()
    store.sync()
    disk.kill()
    store = FileStore(disk, FOLDER)
    before, last = contents(store) if gap != "skipped" else {}, store.last_sequence
    for _ in range(2):
        fail_writes(disk)
        store.append(b"s", b"", b"lost", 10)
        with pytest.raises(StoreError):
            store.flush()
        disk.fault = None
    assert store.last_sequence == last
    sequences = [store.append(b"s", b"", b"new", 11) for _ in range(3)]
    assert sequences == [last + 1, last + 2, last + 3]
    store.flush()
    store.sync()
    assert [store.get(sequence).payload for sequence in sequences] == [b"new"] * 3
    assert [message.sequence for message in store.read(last + 1, None, 9, 1 << 20).messages] == sequences
    disk.kill()
    store = FileStore(disk, FOLDER)
    assert [store.get(sequence).payload for sequence in sequences] == [b"new"] * 3
    if gap != "skipped":
        assert contents(store) == {**before, **dict.fromkeys(sequences, b"new")}
