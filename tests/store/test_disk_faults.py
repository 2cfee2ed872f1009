"""A disk that is full, read-only or failing: publishes are refused, what was acknowledged stays, nothing is claimed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from jetlake.errors import StoreError
from jetlake.store.file_store import FileStore
from jetlake.store.interface import StoreLimits
from jetlake.store.log.segment_header import HEADER_SIZE
from jetlake.store.subject_filter import SubjectFilter
from tests.support.faulty_disk import FaultyDisk, PowerCut

FOLDER = Path("/streams/S/msgs")


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk(Random(1))


def open_store(disk: FaultyDisk, segment_bytes: int = 1 << 20) -> FileStore:
    return FileStore(disk, FOLDER, segment_bytes=segment_bytes, random_bytes=Random(7).randbytes)


def failing(number: int, *operations: str) -> Callable[[str, Path], None]:
    def fault(operation: str, path: Path) -> None:
        if operation in operations and path.name != "mark":
            raise OSError(number, os.strerror(number), str(path))

    return fault


def sequences(store: FileStore) -> list[int]:
    return [message.sequence for message in store.read(1, None, 10_000, 1 << 30).messages]


def state(store: FileStore) -> tuple[object, ...]:
    return (
        store.first_sequence,
        store.last_sequence,
        store.last_time_ns,
        store.messages,
        store.bytes,
        store.subjects(),
        sequences(store),
        store.count(3, SubjectFilter([b"s.1"])),
        store.last_sequence_for(b"s.1"),
    )


def append(store: FileStore, count: int, size: int = 10) -> None:
    for number in range(count):
        store.append(b"s.%d" % (number % 3), b"", b"x" * size, number)


def fail_a_sync_and_mend(disk, store):
    disk.fault = failing(errno.EIO, "sync")
    with pytest.raises(StoreError):
        store.sync()
    disk.fault = None
    store.retry()
    store.sync()


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, "no space left on device"),
        (errno.EROFS, "read-only file system"),
        (errno.EIO, "input/output error"),
    ],
)
@pytest.mark.parametrize("segment_bytes", [150, 1 << 20])
def test_a_write_that_fails_is_undone(disk: FaultyDisk, number: int, text: str, segment_bytes: int) -> None:
    store = open_store(disk, segment_bytes)
    append(store, 10)
    store.flush()
    store.sync()
    before = state(store)
    disk.fault = failing(number, "write")
    append(store, 7)
    store.append(b"new.subject", b"", b"", 10**6)
    store.skip(2)
    with pytest.raises(StoreError, match=text) as caught:
        store.flush()
    assert caught.value.errno == number
    assert state(store) == before
    assert not store.needs_flush()
    disk.fault = None
    append(store, 3)
    assert store.last_sequence == 13
    store.flush()
    store.sync()
    after = state(store)
    disk.cut_power()
    assert state(open_store(disk, segment_bytes)) == after


@pytest.mark.parametrize("segment_bytes", [150, 1 << 20])
def test_a_full_disk_takes_more_when_there_is_room_again(disk: FaultyDisk, segment_bytes: int) -> None:
    store = open_store(disk, segment_bytes)
    append(store, 3)
    store.flush()
    store.sync()
    used = sum(len(disk.content(path)) for path in disk.files())
    for room in range(0, 400, 7):
        disk.capacity = used + room
        before = state(store)
        append(store, 8, size=60)
        with pytest.raises(StoreError, match="no space left"):
            store.flush()
        assert state(store) == before
        disk.capacity = None
    append(store, 8)
    store.flush()
    store.sync()
    after = state(store)
    assert store.last_sequence == 11
    disk.cut_power()
    assert state(open_store(disk, segment_bytes)) == after


def fill(disk: FaultyDisk) -> int:
    """Let the disk be full from now on, without room in the last block of the log; how much is on it."""
    disk.block_bytes = 1024
    newest = max(path for path in disk.files() if path.suffix == ".seg")
    disk.capacity = disk.used() - -len(disk.content(newest)) % disk.block_bytes
    return disk.used()


def settle(store: FileStore) -> None:
    """Carry out what follows a removal: the sync, the files that go, and what waits for that."""
    for _ in range(4):
        store.flush()
        store.sync()


@pytest.mark.parametrize("segment_bytes", [20_000, 1 << 20])
@pytest.mark.parametrize("appends", [0, 5])
def test_a_purge_makes_room_on_a_full_disk(disk: FaultyDisk, segment_bytes: int, appends: int) -> None:
    store = open_store(disk, segment_bytes)
    append(store, 60, size=1000)
    store.flush()
    store.sync()
    used = fill(disk)
    store.purge()
    if appends:
        append(store, appends, size=1000)
        with pytest.raises(StoreError, match="no space left"):
            store.flush()
    settle(store)
    assert disk.used() < used // 4
    assert (store.messages, store.last_sequence) == (0, 60)
    append(store, 1)
    settle(store)
    disk.cut_power()
    store = open_store(disk, segment_bytes)
    assert (sequences(store), store.last_sequence, store.lost) == ([61], 61, [])


def test_one_message_can_be_removed_on_a_full_disk(disk: FaultyDisk) -> None:
    store = open_store(disk)
    append(store, 60, size=1000)
    store.flush()
    store.sync()
    fill(disk)
    assert store.remove(7, erase=True)
    assert store.remove(8)
    store.flush()
    store.sync()
    disk.cut_power()
    assert sequences(open_store(disk)) == [1, 2, 3, 4, 5, 6, *range(9, 61)]


def test_an_empty_stream_takes_messages_on_a_full_disk(disk: FaultyDisk) -> None:
    store = open_store(disk)
    append(store, 60, size=1000)
    store.purge()
    settle(store)
    assert fill(disk) > 60_000
    append(store, 1)
    with pytest.raises(StoreError, match="no space left"):
        store.flush()
    settle(store)
    append(store, 30, size=1000)
    settle(store)
    disk.cut_power()
    assert sequences(open_store(disk)) == list(range(61, 91))


def test_a_full_disk_that_takes_no_removal_is_asked_again(disk: FaultyDisk) -> None:
    store = open_store(disk)
    append(store, 60, size=1000)
    store.flush()
    store.sync()
    fill(disk)
    disk.fault = failing(errno.ENOSPC, "write")
    store.purge()
    for _ in range(3):
        with pytest.raises(StoreError, match="no space left"):
            store.flush()
    assert (store.messages, store.last_sequence) == (0, 60)
    disk.fault = None
    settle(store)
    disk.capacity = None
    append(store, 1)
    settle(store)
    disk.cut_power()
    assert sequences(open_store(disk)) == [61]


def test_a_purge_of_a_full_disk_survives_a_power_cut() -> None:
    for cut_at in range(60):
        disk = FaultyDisk(Random(cut_at))
        store = open_store(disk, 20_000)
        append(store, 60, size=1000)
        store.flush()
        store.sync()
        fill(disk)
        is_safe = False
        disk.cut_at = disk.operations + cut_at
        try:
            store.purge()
            store.flush()
            store.sync()
            is_safe = True
            settle(store)
        except PowerCut:
            pass
        disk.cut_power()
        disk.capacity = None
        store = open_store(disk, 20_000)
        assert store.last_sequence == 60
        assert store.lost == []
        assert store.messages == (0 if is_safe else store.messages) and store.messages in (0, 60), cut_at


def test_what_a_full_disk_left_half_written_takes_no_room(disk: FaultyDisk) -> None:
    store = open_store(disk)
    append(store, 60)
    store.flush()
    store.sync()
    fill(disk)
    store.close()
    assert not [path for path in disk.files() if path.suffix == ".tmp"]


def test_nothing_makes_room_for_a_message_that_cannot_be_stored(disk: FaultyDisk) -> None:
    store = open_store(disk)
    append(store, 3)
    store.flush()
    disk.fault = failing(errno.ENOSPC, "write")
    store.append(b"s.0", b"", b"newer", 99)
    with pytest.raises(StoreError, match="no space left"):
        store.enforce(StoreLimits(max_per_subject=1, max_messages=3), 0)
    assert sequences(store) == [1, 2, 3]
    rollup = store.append(b"s.0", b"", b"rollup", 99)
    with pytest.raises(StoreError, match="no space left"):
        store.purge(below=rollup, follows_append=True)
    assert sequences(store) == [1, 2, 3]


def test_removals_wait_for_a_disk_that_takes_them(disk: FaultyDisk) -> None:
    store = open_store(disk)
    append(store, 6)
    store.flush()
    disk.fault = failing(errno.ENOSPC, "write")
    assert store.remove(2)
    store.purge(SubjectFilter([b"s.2"]))
    append(store, 1)
    with pytest.raises(StoreError):
        store.flush()
    assert store.needs_flush()
    disk.fault = None
    store.flush()
    store.sync()
    disk.cut_power()
    assert sequences(open_store(disk)) == [1, 4, 5]


def test_after_a_failed_sync_nothing_more_is_taken_and_all_can_be_read(disk: FaultyDisk) -> None:
    store = open_store(disk)
    append(store, 3)
    store.flush()
    store.sync()
    append(store, 3)
    store.flush()
    disk.fault = failing(errno.EIO, "sync")
    assert store.needs_sync()
    with pytest.raises(StoreError, match="cannot make the stream's log safe: input/output error"):
        store.sync()
    disk.fault = None
    with pytest.raises(StoreError):
        store.append(b"s.0", b"", b"", 1)
    with pytest.raises(StoreError):
        store.skip()
    with pytest.raises(StoreError):
        store.sync()
    store.remove(1)
    with pytest.raises(StoreError):
        store.flush()
    assert sequences(store) == [2, 3, 4, 5, 6]
    store.close()
    disk.cut_power()
    assert sequences(open_store(disk))[:3] == [1, 2, 3]


@pytest.mark.parametrize("segment_bytes", [150, 1 << 20])
def test_what_a_start_adopts_after_a_failed_sync_is_safe(segment_bytes: int) -> None:
    """A failed sync may have dropped what it could not write; readers and the next sync know nothing of it."""
    for seed in range(20):
        disk = FaultyDisk(Random(seed))
        disk.drops_failed_syncs = True
        store = open_store(disk, segment_bytes)
        append(store, 3)
        store.flush()
        store.sync()
        append(store, 3)
        store.remove(2)
        store.flush()
        disk.fault = failing(errno.EIO, "sync")
        with pytest.raises(StoreError):
            store.sync()
        disk.fault = None
        disk.kill()
        adopted = state(open_store(disk, segment_bytes))
        assert adopted[-3] == [1, 3, 4, 5, 6]
        disk.cut_power()
        assert state(open_store(disk, segment_bytes)) == adopted, seed


def test_a_start_writes_again_only_what_no_sync_made_safe(disk: FaultyDisk) -> None:
    store = open_store(disk)
    append(store, 3)
    store.flush()
    store.sync()
    store.append(b"s.0", b"", b"flushed alone", 9)
    store.flush()
    size = store.bytes
    disk.kill()
    writes: list[tuple[int, int]] = []
    write = disk.write

    def watch(handle: int, data: bytes, offset: int) -> None:
        if disk._file(handle)[1].suffix == ".seg":
            writes.append((len(data), offset))
        write(handle, data, offset)

    disk.write = watch  # type: ignore[method-assign]
    store = open_store(disk)
    newest = 30 + len(b"s.0") + len(b"flushed alone")
    assert writes == [(newest, HEADER_SIZE + size - newest)]
    store.close()
    writes.clear()
    open_store(disk)
    assert writes == []


def test_a_segment_that_was_taken_back_and_is_back_after_a_power_cut(disk: FaultyDisk) -> None:
    """A full disk took a part of a new segment; its sequences went to others, and its file comes back."""
    store = open_store(disk, 300)
    append(store, 4)
    store.flush()
    store.sync()
    second = FOLDER / "0000000002.seg"
    contents: list[bytes] = []

    def fault(operation: str, path: Path) -> None:
        if operation == "truncate" and path == second:
            contents.append(disk.content(second))

    disk.fault = fault
    disk.capacity = sum(len(disk.content(path)) for path in disk.files()) + 220
    append(store, 5, size=60)
    with pytest.raises(StoreError):
        store.flush()
    disk.capacity = disk.fault = None
    append(store, 1)
    store.flush()
    taken_back = max(contents, key=len)
    assert len(taken_back) > HEADER_SIZE + 93, "one message and more of what was taken back"
    disk.kill()
    disk.put(second, taken_back)
    store = open_store(disk, 300)
    assert sequences(store) == [1, 2, 3, 4, 5]
    assert (store.messages, store.last_sequence, store.lost) == (5, 5, [])
    assert store.get(5).payload == b"x" * 10  # type: ignore[union-attr]
    append(store, 20)
    store.close()
    assert sequences(open_store(disk, 300)) == list(range(1, 26))


def test_what_cannot_be_cut_off_again_ends_appending(disk: FaultyDisk) -> None:
    """The rest of a failed write could be taken for messages, if their sequences were used again."""
    store = open_store(disk)
    append(store, 3)
    store.flush()
    disk.fault = failing(errno.EIO, "write", "truncate")
    append(store, 1)
    with pytest.raises(StoreError):
        store.flush()
    disk.fault = None
    with pytest.raises(StoreError, match="cannot cut off what a failed write left"):
        store.append(b"s", b"", b"", 1)
    assert sequences(store) == [1, 2, 3]


def test_a_read_only_disk_can_be_read(disk: FaultyDisk) -> None:
    store = open_store(disk, 150)
    append(store, 10)
    store.flush()
    store.sync()
    store.append(b"s.0", b"", b"torn", 10**6)
    store.flush()
    newest = [path for path in disk.files() if path.suffix == ".seg"][-1]
    disk.kill()
    disk.cut(newest, len(disk.content(newest)) - 3)
    disk.fault = failing(
        errno.EROFS, "write", "truncate", "sync", "sync_folder", "create", "replace", "remove", "make_folder"
    )
    store = open_store(disk, 150)
    assert sequences(store) == list(range(1, 11))
    with pytest.raises(StoreError):
        append(store, 1)
        store.flush()
    assert sequences(store) == list(range(1, 11))
    store.compact_step()


def test_a_folder_that_cannot_be_made_is_told(disk: FaultyDisk) -> None:
    disk.fault = failing(errno.EACCES, "make_folder")
    with pytest.raises(StoreError, match=r"cannot make the folder .*msgs: permission denied"):
        open_store(disk)


def test_an_erase_that_fails_is_told_and_the_message_is_gone(disk: FaultyDisk) -> None:
    store = open_store(disk)
    append(store, 3)
    store.flush()
    calls: list[str] = []

    def second_write_fails(operation: str, path: Path) -> None:
        if operation == "write" and path.suffix == ".seg":
            calls.append(operation)
            if len(calls) == 2:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.fault = second_write_fails
    with pytest.raises(StoreError, match="cannot overwrite message 2"):
        store.remove(2, erase=True)
    assert sequences(store) == [1, 3]


def test_erased_bytes_are_no_longer_on_the_disk(disk: FaultyDisk) -> None:
    store = open_store(disk)
    for text in (b"public 1", b"the secret", b"public 2"):
        store.append(b"subject." + text.replace(b" ", b"."), b"", text, 1)
    store.flush()
    assert store.remove(2, erase=True)
    content = b"".join(disk.content(path) for path in disk.files())
    assert b"secret" not in content
    assert b"public 1" in content
    store.flush()
    store.sync()
    disk.cut_power()
    store = open_store(disk)
    assert (sequences(store), store.lost) == ([1, 3], [])
    store.close()
    assert b"secret" not in b"".join(disk.content(path) for path in disk.files())


def test_a_failing_compaction_changes_nothing(disk: FaultyDisk) -> None:
    store = open_store(disk, 2000)
    append(store, 100, size=100)
    store.flush()
    for sequence in range(1, 30):
        if sequence % 4:
            store.remove(sequence)
    store.flush()
    store.sync()
    before = state(store)
    for operation in ("open", "write", "sync", "replace", "truncate"):
        disk.fault = failing(errno.ENOSPC, operation)
        with pytest.raises(StoreError, match="no space left"):
            while store.compact_step():
                pass
        disk.fault = None
        assert state(store) == before
    while store.compact_step():
        pass
    assert state(store) == before
    store.close()
    assert state(open_store(disk, 2000)) == before
    assert disk.open_handles() < 20


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_segment_that_was_damaged_before_keeps_nothing_from_being_mended(disk: FaultyDisk, is_closed: bool) -> None:
    store = open_store(disk)
    for number in range(10):
        store.append(b"s", b"", b"payload %d" % number, 1)
    store.remove(3)
    store.flush()
    segment = store._index.active
    tombstone = segment.offsets[9] + segment.sizes[9]
    store.append(b"s", b"", b"payload 10", 1)
    store.flush()
    store.sync()
    disk.kill()
    disk.flip(segment.file.path, tombstone + 10)
    store = open_store(disk)
    assert store.lost_bytes
    if is_closed:
        store.close()
        store = open_store(disk)
    before = sequences(store)
    store.append(b"s", b"", b"new", 2)
    store.flush()
    fail_a_sync_and_mend(disk, store)
    assert store.failure is None
    disk.cut_power()
    assert sequences(open_store(disk)) == [*before, 12]


def test_a_segment_of_which_the_disk_does_not_give_back_the_rest_stays_until_the_disk_answers(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(disk, 20_000)

    def fill() -> None:
        for _ in range(150):
            store.append(b"s", b"", b"x" * 300, 1)
        store.flush()
        store.sync()

    fill()
    for sequence in range(2, len(store._index.blocks[0].live) + 1):
        store.remove(sequence)
    store.close()
    disk.kill()
    store = open_store(disk, 20_000)

    def read(handle: int, size: int, offset: int) -> bytes:
        if disk._file(handle)[1].name == "0000000001.seg" and offset < 4096 <= offset + size:  # one bad sector
            raise OSError(errno.EIO, "as asked")
        return FaultyDisk.read(disk, handle, size, offset)

    monkeypatch.setattr(disk, "read", read)
    while store.compact_step():
        pass
    assert store.lost == [1]
    fill()
    while store.compact_step():
        pass
    monkeypatch.undo()
    disk.kill()
    store = open_store(disk, 20_000)
    assert (store.lost, store.first_sequence) == ([], 1)


def test_a_store_is_mended_though_a_message_was_half_erased(disk: FaultyDisk) -> None:
    store = open_store(disk)
    for _ in range(3):
        store.append(b"s", b"", b"payload", 1)
    store.flush()
    store.sync()

    def half(operation: str, path: Path) -> None:
        if operation == "write" and path.suffix == ".seg" and not store.needs_flush():
            disk.flip(path, HEADER_SIZE + 60)  # in the second record
            raise OSError(errno.EIO, "as asked")

    store.remove(1)
    store.flush()
    disk.fault = half
    with pytest.raises(StoreError, match="overwrite message 2"):
        store.remove(2, erase=True)
    fail_a_sync_and_mend(disk, store)
    assert store.failure is None and sequences(store) == [3]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_removal_that_is_refused_undoes_nothing_and_keeps_nobody_from_removing_more(disk, number):
    store = open_store(disk)
    append(store, 4)
    store.flush()
    undone = []
    store.hooks.on_rolled_back = undone.append
    disk.fault = failing(number, "write")
    store.remove(1)
    with pytest.raises(StoreError):
        store.flush()
    assert store.purge(SubjectFilter([b"s.1"]), follows_append=True) == 1
    assert store.enforce(StoreLimits(max_messages=1), 0) == 1
    assert undone == [] and sequences(store) == [4]
    append(store, 1)
    with pytest.raises(StoreError):
        store.flush()
    assert len(undone) == 1 and sequences(store) == [4]
    disk.fault = None
    for _ in range(2):
        store.flush()
        store.sync()
    disk.cut_power()
    assert sequences(open_store(disk)) == [4]


@pytest.mark.parametrize("is_emptied", [True, False])
@pytest.mark.parametrize("missing", ["", "segments", "mark"])
@pytest.mark.parametrize("refused", [{"segments"}, {"mark"}, {"segments", "mark"}])
@pytest.mark.parametrize("is_header_refused", [True, False])
def test_a_start_that_cannot_read_uses_no_sequence_again(
    disk: FaultyDisk, refused: set[str], missing: str, is_header_refused: bool, is_emptied: bool
) -> None:
    store = open_store(disk, 1000)
    append(store, 60)
    store.flush()
    store.sync()
    if is_emptied:
        store.purge()
        store.flush()
        store.sync()
    while store.compact_step():
        pass
    kept = sequences(store)
    store.close()
    disk.kill()
    if missing:
        disk.remove(FOLDER / missing)
    left = refused | ({path.name for path in disk.files() if path.suffix == ".seg"} if is_header_refused else set())

    def fault(operation: str, path: Path) -> None:
        if operation == "read" and path.name in left:
            left.remove(path.name)
            raise OSError(errno.EIO, "Input/output error", str(path))

    disk.fault = fault
    for _ in range(2):
        try:
            store = FileStore(disk, FOLDER, segment_bytes=1000, random_bytes=Random(8).randbytes)
        except StoreError:
            store = FileStore(disk, FOLDER, segment_bytes=1000, random_bytes=Random(9).randbytes)
        assert sequences(store) == kept and store.last_sequence >= 60
        disk.fault = None
        disk.kill()
