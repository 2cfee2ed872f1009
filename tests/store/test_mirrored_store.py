"""The store of a mirror after a crash: sequences that were never safe are free again, holes in between are told."""

from pathlib import Path

import pytest

from jetlake.store.file_store import FileStore
from jetlake.store.files.disk import RealDisk


def open_store(folder, **options):
    return FileStore(RealDisk(), folder, **options)


@pytest.fixture
def crashed(tmp_path: Path):
    """A folder with three safe messages and three that were written and not synced, and where each record ends."""
    folder = tmp_path / "msgs"
    store = open_store(folder)
    (segment,) = store._index.blocks
    ends = []
    for number in range(1, 7):
        store.append(b"s", b"NATS/1.0\r\nk: v\r\n\r\n", b"m%d" % number, number)
        store.flush()
        ends.append(segment.size)
        if number == 3:
            store.sync()
    path = segment.file.path
    for opened in (segment.file, store._log.durability._mark):
        opened.close()
    return folder, path, ends


def contents(store):
    found = [store.get(sequence) for sequence in range(1, store.last_sequence + 1)]
    return [message and message.payload for message in found]


def test_a_lost_tail_is_taken_again(crashed):
    folder, path, ends = crashed
    with path.open("r+b") as file:
        file.truncate(ends[3])
    store = open_store(folder, reuses_sequences=True)
    assert (store.last_sequence, store.torn_sequence, store.lost) == (4, 0, [])
    assert store.append(b"s", b"", b"again", 9) == 5
    store.flush()
    store.close()
    store = open_store(folder, reuses_sequences=True)
    assert contents(store) == [b"m1", b"m2", b"m3", b"m4", b"again"]
    store.close()


def test_a_torn_tail_is_taken_again_without_the_mark(crashed):
    folder, path, ends = crashed
    with path.open("r+b") as file:
        file.truncate(ends[4] - 1)
    (folder / "mark").unlink()
    store = open_store(folder, reuses_sequences=True)
    # A mirror that stood behind its origin would never get what lies in between.
    assert (store.last_sequence, store.torn_sequence, store.lost) == (4, 0, [])
    assert store.append(b"s", b"", b"again", 9) == 5
    store.close()
    store = open_store(folder, reuses_sequences=True)
    assert contents(store) == [b"m1", b"m2", b"m3", b"m4", b"again"]
    store.close()


def test_another_stream_never_uses_the_lost_sequences(crashed):
    folder, path, ends = crashed
    with path.open("r+b") as file:
        file.truncate(ends[3])
    store = open_store(folder)
    assert store.append(b"s", b"", b"next", 9) == 7
    store.close()


@pytest.mark.parametrize("is_mirror", [True, False])
def test_a_torn_message_is_told(crashed, is_mirror):
    folder, path, ends = crashed
    with path.open("r+b") as file:
        file.seek(ends[3] + 10)
        file.write(b"torn")
    store = open_store(folder, reuses_sequences=is_mirror)
    assert contents(store)[3:] == [b"m4", None, b"m6"]
    # A mirror cannot take it again; a source can, under another sequence.
    assert (store.lost, store.torn_sequence) == (([5], 0) if is_mirror else ([], 5))
    store.close()


@pytest.mark.parametrize("is_mirror", [True, False])
def test_a_segment_that_left_nothing_but_its_name_is_told_by_a_mirror(tmp_path, is_mirror):
    folder = tmp_path / "msgs"
    store = open_store(folder, segment_bytes=200)
    for number in range(1, 13):
        store.append(b"s", b"", b"m%d" % number, number)
        store.flush()
        if number == 3:
            store.sync()
    first, second, third = store._index.blocks[:3]
    gone = list(range(second.first, third.first))
    for opened in (*(segment.file for segment in store._index.blocks), store._log.durability._mark):
        opened.close()
    assert first.number < second.number
    # The disk had taken what was written later, and of this file the name.
    with second.file.path.open("r+b") as file:
        file.truncate(0)
    store = open_store(folder, segment_bytes=200, reuses_sequences=is_mirror)
    assert [number for number, payload in enumerate(contents(store), 1) if payload is None] == gone
    assert store.lost == (gone if is_mirror else [])
    store.close()
