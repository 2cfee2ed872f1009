"""A purge below a sequence leaves that sequence alone, however few messages its subject has."""

from pathlib import Path
from random import Random

import pytest

from faulty_disk import FaultyDisk
from jetlake.store.file_store import FileStore
from jetlake.store.memory_store import MemoryStore
from jetlake.store.subject_filter import SubjectFilter


@pytest.mark.parametrize("make", [MemoryStore, lambda: FileStore(FaultyDisk(Random(1)), Path("/data/msgs"))])
@pytest.mark.parametrize("earlier", [0, 1, 2, 200])
def test_a_rollup_keeps_the_message_that_asked_for_it(make, earlier):
    store = make()
    store.append(b"other", b"", b"", 1)
    for _ in range(earlier):
        store.append(b"meta", b"", b"old", 1)
    sequence = store.append(b"meta", b"", b"new", 2)
    assert store.purge(SubjectFilter([b"meta"]), below=sequence, follows_append=True) == earlier
    assert store.get(sequence).payload == b"new"
    assert store.messages == 2
