"""The replay: a start writes to segments what they lack, and leaves alone what is none of the redo log's business."""

import errno
import os
import struct
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from xxhash import xxh3_64_intdigest

from jetlake.errors import StoreError
from jetlake.store.file_store import FileStore
from jetlake.store.interface import StoreLimits
from jetlake.store.redo.redo_format import FIRST_ENTRY, FORMAT_VERSION, find_entries, find_header
from jetlake.store.redo.redo_log import FILE_BYTES, FILE_NAMES, RedoLog
from jetlake.store.redo.replay import replay
from jetlake.store.store_folder import StoreFolder
from tests.support.faulty_disk import FaultyDisk, PowerCut

ROOT = Path("/data/jetstream")
NAME = "A/streams/S/msgs"
FOLDER = ROOT / NAME
SEGMENT = FOLDER / "0000000001.seg"
FIRST_FILE = ROOT / FILE_NAMES[0]


@pytest.fixture
def disk():
    return FaultyDisk(Random(0))


@pytest.fixture
def store(disk):
    store = open_store(disk)
    append(store)
    assert store.take_redo() is None, "the file's name has to be synced as well"
    store.sync()
    return store


@pytest.fixture
def log(disk, store):
    log = RedoLog(disk, ROOT, random_bytes=Random(0).randbytes, file_bytes=64 * 1024, entry_bytes_max=4096)
    log.make()
    return log


def open_store(disk, **options):
    return FileStore(disk, FOLDER, redo_name=NAME, **options)


def append(store, payload=b"payload"):
    store.append(b"subject", b"", payload, 1)
    store.flush()


def commit(disk, log, store):
    log.append([store], [store.take_redo()])()


def start(disk):
    """Replay the redo log, and return what was reported and the store."""
    reports = []
    replay(disk, ROOT, reports.append)
    assert not set(FILE_NAMES) & set(disk.names(ROOT))
    return reports, open_store(disk)


def lose_unsynced(disk, path):
    """Let the power go, in the way that costs most: nothing that was not synced is left of a file."""
    disk._file_at(path).writes.clear()
    disk.cut_power()


def refusing(number, *operations, on=None):
    """Return a fault of the disk: these operations fail with that error, on every file or on one."""

    def refuse(operation, path):
        if operation in operations and on in (None, path):
            raise OSError(number, os.strerror(number))

    return refuse


def test_what_one_entry_has_of_many_messages_is_there_after_a_power_cut(disk, store, log):
    for _ in range(3):
        append(store)
        commit(disk, log, store)
    assert store.needs_sync() and store.needs_checkpoint()
    lose_unsynced(disk, SEGMENT)
    reports, store = start(disk)
    assert (store.messages, store.last_sequence, store.lost, reports) == (4, 4, [], [])


def append_to_limit(store):
    """Append a message that makes the oldest one go."""
    store.append(b"subject", b"", b"payload", 1)
    store.enforce(StoreLimits(max_messages=store.messages - 1), 1)
    store.flush()


def test_what_a_limit_removes_is_written_when_the_redo_log_has_its_cause(disk, store, log):
    for _ in range(3):
        append(store)
        commit(disk, log, store)
    append_to_limit(store)
    sync = log.append([store], [store.take_redo()])
    assert not store.needs_flush(), "its cause may go with the power"
    sync()
    store.redo_synced()
    assert store.needs_flush()
    store.flush()
    commit(disk, log, store)
    lose_unsynced(disk, SEGMENT)
    reports, store = start(disk)
    assert (store.first_sequence, store.last_sequence, store.lost, reports) == (2, 5, [], [])


def test_what_a_limit_removes_is_there_if_its_cause_is_not(disk, store, log):
    for _ in range(3):
        append(store)
        commit(disk, log, store)
        store.redo_synced()
    append_to_limit(store)
    store.flush()
    lose_unsynced(disk, SEGMENT)
    reports, store = start(disk)
    assert (store.first_sequence, store.last_sequence, store.lost, reports) == (1, 4, [], [])


def test_streams_at_their_limit_stay_in_the_redo_log(disk, store, log):
    for _ in range(3):
        append(store)
        commit(disk, log, store)
    for _ in range(100):
        append_to_limit(store)
        commit(disk, log, store)
        store.redo_synced()
    assert not store._log.removals.held_back or len(store._log.removals.held_back) == 1
    assert store._log.durability.synced_sequence == 1, "never synced by itself"


def test_a_file_that_was_shortened_is_reported(disk, store, log):
    for _ in range(3):
        append(store)
        commit(disk, log, store)
    lose_unsynced(disk, SEGMENT)
    disk.cut(FIRST_FILE, len(disk.content(FIRST_FILE).rstrip(b"\0")) - 1)
    reports, store = start(disk)
    assert store.messages == 3
    (report,) = reports
    assert "acknowledged messages may be lost, the redo log is shorter than it was made" in report
    assert disk.is_file(ROOT / (FILE_NAMES[0] + ".damaged"))


@pytest.mark.parametrize(("uses", "is_told"), [(0, False), (1, True)])
def test_a_short_file_without_entries_is_reported_if_it_was_used(disk, store, log, uses, is_told):
    for _ in range(uses):
        append(store)
        commit(disk, log, store)
        file = log.rotate(wipes=True)
        log.checkpoint(file, wipes=True)
    disk.kill()
    disk.cut(FIRST_FILE, FIRST_ENTRY + 5000)
    reports, _ = start(disk)
    assert bool(reports) is is_told


def test_a_file_that_nobody_needs_makes_room_on_a_full_disk(disk, store, log):
    for _ in range(3):
        append(store)
        commit(disk, log, store)
    lose_unsynced(disk, SEGMENT)
    disk.cut(SEGMENT, len(disk.content(SEGMENT).rstrip(b"\0")))
    disk.capacity = disk.used()
    reports, store = start(disk)
    assert (store.messages, store.lost, reports) == (4, [], [])


def test_without_the_replay_they_would_be_gone(disk, store, log):
    append(store)
    commit(disk, log, store)
    lose_unsynced(disk, SEGMENT)
    assert open_store(disk).messages == 1


def test_only_what_the_log_lacks_is_taken(disk, store, log):
    append(store)
    first = store.take_redo()
    assert store.take_redo() == b""
    append(store)
    assert 0 < len(store.take_redo()) == len(first)
    store.sync()
    assert store.take_redo() is None and not store.needs_checkpoint()
    append(store)
    assert len(store.take_redo()) == len(first)


def test_a_message_that_is_too_long_is_synced_where_it_is(disk, store, log):
    append(store, bytes(70_000))
    assert store.take_redo() is None
    store.sync()
    append(store)
    assert store.take_redo()


def test_an_overwritten_message_waits_for_a_sync_and_stays_overwritten(disk, store, log):
    append(store, b"secret secret secret")
    commit(disk, log, store)
    store.remove(2, erase=True)
    store.flush()
    assert store.take_redo() is None
    store.sync()
    (FOLDER / "mark") in disk.files() and disk.cut(FOLDER / "mark", 0)  # which says how far the log is synced
    disk.cut_power()
    reports, store = start(disk)
    assert store.get(2) is None and reports == []
    assert b"secret" not in disk.content(SEGMENT)


def test_a_failed_write_waits_for_a_sync(disk, store, log):
    append(store)
    commit(disk, log, store)
    disk.fault = refusing(errno.ENOSPC, "write")
    with pytest.raises(StoreError):
        append(store)
    disk.fault = None
    append(store)
    assert store.take_redo() is None, "what the write left must be cut off for good"
    store.sync()
    append(store)
    assert store.take_redo()


def test_what_a_failed_sync_dropped_is_written_again(disk, store, log):
    append(store)
    commit(disk, log, store)
    disk.fault = refusing(errno.EIO, "sync")
    file = log.rotate(wipes=False)
    assert [refused for refused, _ in log.checkpoint(file, wipes=False)] == [store]
    disk.fault = None
    disk._file_at(SEGMENT).writes.clear()  # though it can still be read
    disk.kill()
    replay(disk, ROOT, [].append)
    disk.cut_power()
    assert open_store(disk).messages == 2


@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_entry_is_reported_and_its_message_as_lost(disk, store, log, seed):
    for _ in range(3):
        append(store)
        commit(disk, log, store)
    data = disk.content(FIRST_FILE)
    bodies, _ = find_entries(data, find_header(data).salt)
    disk.flip(FIRST_FILE, FIRST_ENTRY + 16 + len(bodies[0]) + 60)
    disk._random.seed(seed)  # The power cut may take the mark, or leave it.
    lose_unsynced(disk, SEGMENT)
    reports, store = start(disk)
    assert store.lost == [3] and store.messages == 3 and store.last_sequence == 4
    assert len(reports) == 1 and "may be lost" in reports[0]
    assert f"{FILE_NAMES[0]}.damaged" in disk.names(ROOT)


@pytest.mark.parametrize("content", [b"something else", b"JLRH" + b"x" * 5000, bytes(FILE_BYTES + 1)])
def test_a_foreign_file_is_set_aside_and_reported(disk, store, content):
    disk.put(FIRST_FILE, content)
    reports, store = start(disk)
    assert len(reports) == 1 and store.messages == 1
    assert disk.content(ROOT / f"{FILE_NAMES[0]}.damaged") == content


@pytest.mark.parametrize("content", [b"", bytes(5000)])
def test_files_that_were_being_made_are_removed(disk, store, content):
    disk.put(FIRST_FILE, content)
    assert start(disk)[0] == []


def test_a_file_that_cannot_be_read_fails_no_start(disk, store, log):
    disk.bad_sectors.add((FIRST_FILE, 3))
    reports, store = start(disk)
    assert len(reports) == 1 and store.messages == 1


def test_what_a_segment_cannot_take_waits_for_the_next_start(disk, store, log):
    other = FileStore(disk, ROOT / "A/streams/T/msgs", redo_name="A/streams/T/msgs")
    append(other)
    other.sync()
    for each in (store, other):
        append(each)
    log.append([store, other], [store.take_redo(), other.take_redo()])()
    lose_unsynced(disk, SEGMENT)
    disk.fault = refusing(errno.EIO, "write", on=SEGMENT)
    reports = []
    assert replay(disk, ROOT, reports.append) == {NAME}, "it would give the sequence of an acknowledged message again"
    disk.fault = None
    assert len(reports) == 1 and NAME in reports[0]
    other = FileStore(disk, ROOT / "A/streams/T/msgs")
    assert other.messages == 2
    with pytest.raises(OSError, match="could not be replayed"):
        RedoLog(disk, ROOT).make()
    other.remove(2)
    other.flush()
    other.sync()
    disk.kill()
    reports, store = start(disk)
    assert reports == [] and store.messages == 2
    assert FileStore(disk, ROOT / "A/streams/T/msgs").messages == 1, "replayed twice"


def test_a_stream_that_lacks_what_only_the_redo_log_has_is_not_opened(disk, store):
    disk.kill()
    folder = StoreFolder(disk, ROOT.parent, behind_redo=frozenset({NAME}))
    (stream,) = folder.streams("A")
    with pytest.raises(StoreError, match="redo log"):
        stream.open_store()
    disk.replace(FOLDER.parent, FOLDER.parent.with_name("moved-away"))
    new = folder.stream("A", "S")
    new.stage_new(b"{}")
    assert new.open_store().messages == 0, "the name is free"


def test_a_disk_that_nobody_can_write_to_is_read_as_it_is(disk, store, log):
    append(store)
    commit(disk, log, store)
    disk.fault = refusing(errno.EROFS, "write", "remove", "replace")
    reports = []
    assert replay(disk, ROOT, reports.append) == frozenset() and reports
    disk.fault = None
    disk.kill()
    assert start(disk)[1].messages == 2


@pytest.mark.parametrize("folder", ["../../etc/x/y", "A/streams/S/..", "/etc/x/y/z", "A//S/msgs", "A/streams/S", ""])
def test_nothing_is_written_outside_the_folders_of_stores(disk, store, log, folder):
    append(store)
    store._redo_name = folder.encode() or b"?"
    commit(disk, log, store)
    before = {path: disk.content(path) for path in disk.files() if path.parent != ROOT}
    replay(disk, ROOT, [].append)
    assert {path: disk.content(path) for path in disk.files()} == before


def test_a_stream_that_was_made_again_gets_nothing_of_the_old_one(disk, store, log):
    append(store)
    commit(disk, log, store)
    store.discard()
    disk.replace(FOLDER, FOLDER.with_name("old"))
    disk.sync_folder(FOLDER.parent)
    open_store(disk).close()
    other = open_store(disk)
    append(other, b"other")
    other.sync()
    disk.kill()
    _, store = start(disk)
    assert store.messages == 1 and store.get(1).payload == b"other"
    assert not other.needs_checkpoint()


def test_a_log_that_went_on_without_its_redo_log_is_left_alone(disk, store, log):
    """An older version knows nothing of the redo log, and gives the sequences to other messages."""
    append(store, b"lost by the older version")
    commit(disk, log, store)
    lose_unsynced(disk, SEGMENT)
    older = open_store(disk)
    append(older, b"other")
    last = older.last_sequence
    older.sync()
    disk.cut(FOLDER / "mark", 0)
    disk.kill()
    _, store = start(disk)
    assert store.get(last).payload == b"other" and store.messages == 2


@pytest.mark.parametrize("gone", [FILE_NAMES[:1], FILE_NAMES[1:], FILE_NAMES])
def test_files_that_were_taken_away_are_told_once(disk, store, log, gone):
    append(store)
    commit(disk, log, store)
    disk.kill()
    for name in gone:
        disk.remove(ROOT / name)
    reports, _ = start(disk)
    assert reports == [
        f"{ROOT / name}: acknowledged messages may be lost, the file of the redo log is gone" for name in gone
    ]
    assert start(disk)[0] == []


@pytest.mark.parametrize("by_replay", [False, True])
@pytest.mark.parametrize("cut", range(1, 40))
def test_a_crash_that_meets_the_files_made_or_removed_is_no_loss(disk, store, cut, by_replay):
    """Files are missed only where both had been made, and none was to be removed."""
    disk._random.seed(cut)
    disk.cut_at = disk.operations + cut
    with suppress(PowerCut):
        log = RedoLog(disk, ROOT, random_bytes=Random(0).randbytes, file_bytes=64 * 1024, entry_bytes_max=4096)
        log.make()
        append(store)
        commit(disk, log, store)
        store.checkpoint()
        if by_replay:
            replay(disk, ROOT, [].append)
        else:
            log.close()
        assert disk.names(ROOT) == ["A"]
    disk.cut_power()
    assert start(disk)[0] == []


@pytest.mark.parametrize("name", FILE_NAMES)
@pytest.mark.parametrize("place", [0, 512])
def test_what_a_later_release_wrote_is_refused_and_stays_as_it_is(disk, store, log, name, place):
    append(store)
    commit(disk, log, store)
    content = bytearray(disk.content(ROOT / name))
    body = struct.pack("<4sHHQQ", b"JLRH", FORMAT_VERSION + 1, 1, 99, 7)
    content[place : place + len(body) + 8] = body + struct.pack("<Q", xxh3_64_intdigest(body))
    disk.put(ROOT / name, bytes(content))
    before = {path: disk.content(path) for path in disk.files()}
    with pytest.raises(StoreError, match=f"{name}.*it has version {FORMAT_VERSION + 1}.*start the release"):
        replay(disk, ROOT, pytest.fail)
    assert {path: disk.content(path) for path in disk.files()} == before


@pytest.mark.parametrize("operation", ["create", "write", "sync", "sync_folder"])
def test_a_redo_log_that_can_not_be_made_is_made_later(disk, operation):
    disk.make_folder(ROOT)
    disk.fault = refusing(errno.ENOSPC, operation)
    log = RedoLog(disk, ROOT)
    with pytest.raises(OSError, match="No space"):
        log.make()
    assert not log.is_made
    assert not disk.open_handles()
    disk.fault = None
    log.make()
    assert log.is_made and log.is_clean
    log.close()
    assert not disk.names(ROOT)
