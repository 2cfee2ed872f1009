"""Checking segments after a start: a little at a time, and whatever changes meanwhile, damage is found."""

from pathlib import Path
from random import Random

import pytest

from jetlake.store.file_store import FileStore
from tests.support.faulty_disk import FaultyDisk

FOLDER = Path("/data/msgs")
STEP = 100


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    monkeypatch.setattr("jetlake.store.log.segment_checker._CHECKED_BYTES", STEP)
    disk = FaultyDisk(Random(1))
    store = open_store(disk)
    for number in range(200):
        store.append(b"s.%d" % (number % 7), b"", b"%d" % number * 5, 1000 + number)
        store.flush()
    store.sync()
    while store.compact_step():
        pass
    store.close()
    return disk


def open_store(disk: FaultyDisk) -> FileStore:
    return FileStore(disk, FOLDER, segment_bytes=1500, tail_bytes=100)


def damage(disk: FaultyDisk, sequence: int) -> None:
    """Damage the record of a message, wherever it is."""
    for path in disk.files():
        if path.suffix == ".seg" and (at := disk.content(path).find(b"%d" % (sequence - 1) * 5)) >= 0:
            disk.flip(path, at)
            return


def test_a_step_looks_at_few_bytes(disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(disk)
    read: list[int] = []

    def counted(handle: int, size: int, offset: int) -> bytes:
        data = FaultyDisk.read(disk, handle, size, offset)
        read.append(len(data))
        return data

    monkeypatch.setattr(disk, "read", counted)
    full = [segment for segment in store._index.blocks[:-1] if not segment.verified]
    assert len(full) > 5
    while store.compact_step():
        pass
    assert all(segment.verified for segment in full)
    assert max(read) <= STEP
    assert sum(read) >= sum(segment.size for segment in full)


@pytest.mark.parametrize("steps", [0, 1, 7, 20])
def test_damage_is_found_though_segments_change_between_steps(disk: FaultyDisk, steps: int) -> None:
    store = open_store(disk)
    for _ in range(steps):
        store.compact_step()
    store.remove(3, erase=True)
    store.remove(41)
    damage(disk, 150)
    while store.compact_step():
        pass
    store.flush()
    assert store.lost == [150]
    messages = store.read(1, None, 1000, 1 << 20).messages
    assert [message.sequence for message in messages] == [each for each in range(1, 201) if each not in (3, 41, 150)]


def test_a_segment_that_became_shorter_loses_its_end_alone(disk: FaultyDisk) -> None:
    store = open_store(disk)
    segment = store._index.blocks[2]
    disk.put(segment.file.path, disk.content(segment.file.path)[:-10])
    last = segment.last_row_sequence
    while store.compact_step():
        pass
    assert store.lost == [last]


@pytest.mark.parametrize("is_torn", [False, True])
def test_an_erased_message_is_removed_though_a_power_cut_took_its_tombstone(disk: FaultyDisk, is_torn: bool) -> None:
    store = open_store(disk)
    store.append(b"s.1", b"", b"last", 2000)
    store.flush()
    store.sync()
    oldest, newest = store._index.blocks[0].file.path, store._index.active.file.path
    old, before = disk.content(oldest), disk.content(newest)
    store.remove(3, erase=True)
    store.flush()
    disk.kill()
    disk.put(newest, before)
    if is_torn:
        changed = [place for place, byte in enumerate(disk.content(oldest)) if byte != old[place]]
        disk.put(oldest, disk.content(oldest)[: changed[-4]] + old[changed[-4] :])
    store = open_store(disk)
    assert store.get(3) is None
    assert store.messages == 200
    store.close()
    store = open_store(disk)
    assert (store.get(3), store.messages, store.lost) == (None, 200, [])
