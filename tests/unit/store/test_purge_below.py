"""A purge below a sequence leaves that sequence alone, however few messages its subject has."""

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from jetlake.errors import StoreError
from jetlake.store.file_store import FileStore
from jetlake.store.memory_store import MemoryStore
from jetlake.store.steps import finish
from jetlake.store.subject_filter import SubjectFilter
from tests.support.faulty_disk import FaultyDisk


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


@pytest.mark.parametrize("steps_before", range(1, 6))
def test_a_purge_in_steps_spares_what_takes_the_place_of_undone_appends(steps_before):
    disk = FaultyDisk(Random(1))
    store = FileStore(disk, Path("/data/msgs"))
    store.append(b"old.1", b"", b"", 1)
    store.flush()
    store.append(b"old.2", b"", b"undone", 1)
    store.removals_per_step = 1
    disk.capacity = 0
    steps = store.purge_in_steps(SubjectFilter([b"old.*"]))
    for _ in range(steps_before):
        next(steps, None)
    with suppress(StoreError):
        store.flush()
    disk.capacity = None
    new = store.append(b"new", b"", b"", 1)
    store.flush()
    finish(steps)
    assert new == 2
    assert store.has(new)
    assert not store.has(1)
