"""What a person can do who may write to the disk of an encrypted store, knows every text in it, and lacks the key.

The forger here has more than such a person: the whole cipher, so that any text can be put anywhere, with the hashes of
a plain store. Only the key of the hashes is missing. The same files are believed where hashes are plain.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from xxhash import xxh3_64_digest

from jetlake.errors import StoreError
from jetlake.store.file_store import FileStore
from jetlake.store.files.checksum import PLAIN_HASHING, KeyedHashing
from jetlake.store.files.encrypted_disk import HEADER_BYTES
from jetlake.store.files.folders import FolderOwner
from jetlake.store.files.name_list import NameList
from jetlake.store.journal.file_journal import FileJournal
from jetlake.store.journal.id_log import IdLog
from jetlake.store.log.record import HASH_SIZE, HEAD_SIZE
from jetlake.store.log.segment_index.index_cache import IndexCache
from jetlake.store.stream_folder import StreamFolder
from tests.support.encrypted_disk import EncryptedFaultyDisk

ACCOUNT = Path("/data/jetstream/A")
STREAM = ACCOUNT / "streams/S"
CONSUMER = STREAM / "consumers/C"
MESSAGES = STREAM / "msgs"
COUNT = 300
GENUINE, FORGED = b"pay 100 to alice", b"pay 900 to mallo"


class ForgersDisk(EncryptedFaultyDisk):
    def __init__(self, random):
        super().__init__(random)
        self.hashing = PLAIN_HASHING


def open_store(disk, folder=STREAM, lost=None, key=7):
    return FileStore(
        disk,
        folder / "msgs",
        segment_bytes=4000,
        tail_bytes=100,
        index_cache=IndexCache(0),
        random_bytes=Random(key).randbytes,
        segment_list=folder / "segments",
        owner=FolderOwner(report=lost.append if lost is not None else lambda text: None),
    )


def write_all(disk, text, *, stop=True):
    """Write a file of every kind; the same random numbers make the same keys in all of them."""
    disk.make_folder(STREAM)
    streams = NameList(disk, ACCOUNT / "streams.list")
    streams.add("S")
    streams.add(text.decode()[4:7])
    folder = StreamFolder(disk, STREAM)
    folder.write_meta(b'{"config":"%b"}' % text)
    consumer = folder.consumer("C")
    consumer.write_meta(b'{"config":"%b"}' % text)
    fill(disk, text, stop=stop)
    journal = FileJournal(
        disk, CONSUMER, random_bytes=Random(8).randbytes, tag=consumer.owner, identity=consumer.identity
    )
    journal.load()
    journal.delivered_run(1, list(range(1, 21)), 10)
    journal.acked((), (1 + text.count(b"9"), 1 + text.count(b"9")))
    journal.close()
    ids = IdLog(disk, STREAM, key=5)
    ids.append([(text, 1, 10)])
    ids.flush()
    ids.sync()


def fill(disk, text, folder=STREAM, key=7, *, stop=True, compresses=True):
    disk.make_folder(folder / "msgs")
    store = open_store(disk, folder, key=key)
    store.compresses = compresses
    for number in range(1, COUNT + 1):
        store.append(b"s.%d" % (number % 7), b"", b"%b %d" % (text, number), number)
    store.flush()
    store.sync()
    while store._spiller.step():
        pass
    while store.compact_step():
        pass
    if stop:
        store.close()


def everything(disk):
    """Return what the files say, and what was reported as lost."""
    lost: list[str] = []
    folder = StreamFolder(disk, STREAM)
    consumer = folder.consumer("C")
    store = open_store(disk, lost=lost)
    found = [message.payload for message in store.read(1, None, COUNT * 2, 1 << 30).messages]
    singles = [message.payload for number in range(1, COUNT + 1) if (message := store.get(number)) is not None]
    journal = FileJournal(disk, CONSUMER, tag=consumer.owner, identity=consumer.identity)
    listed = NameList(disk, ACCOUNT / "streams.list")
    return {
        "messages": [*found, *singles],
        "stream": folder.read_meta(),
        "consumer": consumer.read_meta(),
        "acked": journal.load().floor_stream,
        "ids": [name for name, _, _ in IdLog(disk, STREAM, key=5).load()],
        "streams": listed.read(),
        "damaged lines": listed.damaged_lines,
        "lost": len(lost) + len(store.lost),
    }


def disks(kind, *, stop=True):
    """Return an encrypted disk with the genuine files, and one with the forged ones."""
    genuine, forged = kind(Random(1)), ForgersDisk(Random(2))
    write_all(genuine, GENUINE, stop=stop)
    write_all(forged, FORGED, stop=stop)
    for disk in (genuine, forged):
        disk.kill()
    return genuine, forged


def put(disk, path, other, source=None):
    disk.platter.put(path, other.platter.content(source or path))
    disk._forget()


def kinds(disk):
    return {path.suffix or path.name.split(".")[0] for path in disk.files()}


@pytest.mark.parametrize("stop", [True, False])
def test_no_forged_file_is_believed(stop):
    genuine, forged = disks(EncryptedFaultyDisk, stop=stop)
    before = everything(genuine)
    assert before["lost"] == 0
    assert before["damaged lines"] == 0
    assert len(before["messages"]) == 2 * COUNT
    assert genuine.files() == forged.files()
    assert {".seg", ".idx", ".json", ".journal", ".list", ".0000000001"} | {"mark", "segments"} <= (
        kinds(genuine) | {path.suffix for path in genuine.files()}
    )
    seen = 0
    for path in genuine.files():
        genuine, forged = disks(EncryptedFaultyDisk, stop=stop)
        put(genuine, path, forged)
        after = everything(genuine)
        assert b"900" not in repr(after).encode(), path
        assert after["acked"] in (before["acked"], 0), path
        if path.suffix == ".seg":
            lost = before["messages"][:COUNT] != after["messages"][:COUNT]
            assert lost, path
            assert after["lost"] > 0, path
            seen += 1
        elif path.suffix == ".list":
            assert after["damaged lines"] == 2
        elif path.name not in ("0000000001.journal", "ids.0000000001"):
            assert {**after, "lost": 0} == before, path
    assert seen > 2


def test_the_same_files_are_believed_where_hashes_are_plain():
    """What the forger writes is right but for the key."""
    believed = set()
    for path in disks(ForgersDisk)[0].files():
        genuine, forged = disks(ForgersDisk)
        for copy in (path, path.with_name("meta.copy.json")) if path.name == "meta.json" else (path,):
            put(genuine, copy, forged)
        after = everything(genuine)
        if "900" in repr(after) or after["acked"] > 1:
            believed.add(path.suffix if path.suffix != ".0000000001" else "ids")
    assert believed == {".seg", ".json", ".journal", ".list", "ids"}


@pytest.mark.parametrize("stop", [True, False])
def test_one_message_is_changed_through_the_cipher(stop):
    """The hash moves along with the text, as far as it can be computed: only this message is lost, and reported."""
    for kind, is_believed in ((EncryptedFaultyDisk, False), (ForgersDisk, True)):
        disk = kind(Random(1))
        disk.make_folder(MESSAGES)
        store = open_store(disk)
        for number in range(1, 31):
            store.append(b"s", b"", b"%b %d" % (GENUINE, number), number)
        store.flush()
        store.sync()
        if stop:
            store.close()
        disk.kill()
        segment = min(path for path in disk.files() if path.suffix == ".seg")
        text = disk.content(segment)
        at = text.index(b"100 to alice 17")
        start, end = at - len(b"pay ") - len(b"s") - HEAD_SIZE, at + len(b"100 to alice 17")
        record = text[start:end]
        changed = record.replace(b"100", b"900")
        seed = store._log._index.blocks[0].checksum.seed if kind is ForgersDisk else 0
        hashes = zip(xxh3_64_digest(record, seed), xxh3_64_digest(changed, seed), strict=True)
        for offset, (old, new) in enumerate([*zip(record, changed, strict=True), *hashes]):
            if old != new:
                disk.flip(segment, start + offset, old ^ new)
        disk._forget()
        lost: list[str] = []
        reopened = open_store(disk, lost=lost)
        found = {message.sequence: message.payload for message in reopened.read(1, None, 100, 1 << 30).messages}
        if is_believed:
            assert found[17] == b"pay 900 to alice 17"
            continue
        assert 17 not in found
        assert len(found) == 29
        assert list(reopened.lost) == [17]
        assert lost


def test_a_message_that_is_changed_under_a_running_store_is_not_delivered():
    disk = EncryptedFaultyDisk(Random(1))
    fill(disk, GENUINE, stop=False, compresses=False)
    lost: list[str] = []
    store = open_store(disk, lost=lost)
    assert len(store.read(1, None, COUNT, 1 << 30).messages) == COUNT
    segment = min(path for path in disk.files() if path.suffix == ".seg")
    disk.flip(segment, 60, 8)
    found = store.read(1, None, COUNT, 1 << 30).messages
    assert len(found) < COUNT
    assert lost


def test_files_of_two_streams_are_exchanged():
    disk = EncryptedFaultyDisk(Random(1))
    other = ACCOUNT / "streams/T"
    fill(disk, GENUINE)
    fill(disk, FORGED, other, key=9)
    for folder, text in ((STREAM, GENUINE), (other, FORGED)):
        StreamFolder(disk, folder).write_meta(text)
    disk.kill()
    files = {path: disk.platter.content(path) for path in disk.files()}
    for path in files:
        for each, data in files.items():
            disk.platter.put(each, data)
        twin = Path(str(path).replace("/S/", "/T/") if "/S/" in str(path) else str(path).replace("/T/", "/S/"))
        if twin not in files:
            continue
        disk.platter.put(path, files[twin])
        disk.platter.put(twin, files[path])
        disk._forget()
        for folder, text in ((STREAM, GENUINE), (other, FORGED)):
            meta = StreamFolder(disk, folder).read_meta()
            assert meta in (text, None)
            try:
                store = open_store(disk, folder)
            except StoreError as error:
                assert "stream" in str(error)
                continue
            run = store.read(1, None, COUNT, 1 << 30).messages
            assert all(message.payload.startswith(text) for message in run), path


def test_files_of_consumers_with_one_name_are_exchanged():
    """Two streams, and two accounts with a stream of that name: the hashes have the whole path."""
    paths = [STREAM, ACCOUNT / "streams/T", ACCOUNT.with_name("B") / "streams/S"]
    disk = EncryptedFaultyDisk(Random(1))
    consumers = [StreamFolder(disk, path).consumer("C") for path in paths]

    def journal_of(consumer, key=8):
        return FileJournal(
            disk, consumer.path, random_bytes=Random(key).randbytes, tag=consumer.owner, identity=consumer.identity
        )

    for number, consumer in enumerate(consumers, 1):
        disk.make_folder(consumer.path)
        consumer.write_meta(b'{"number":%d}' % number)
        journal = journal_of(consumer)
        journal.load()
        journal.delivered_run(1, list(range(1, 21)), 10)
        journal.acked((), (number, number))
        journal.close()
    disk.kill()
    files = {path: disk.platter.content(path) for path in disk.files()}
    for number, consumer in enumerate(consumers, 1):
        assert (consumer.read_meta(), journal_of(consumer).load().floor_stream) == (b'{"number":%d}' % number, number)
        for other in consumers:
            if other is not consumer:
                for path, data in files.items():
                    if path.parent == other.path:
                        disk.platter.put(consumer.path / path.name, data)
                disk._forget()
                assert consumer.read_meta() is None
                with suppress(StoreError):
                    assert journal_of(consumer).load().floor_stream == 0
        for path, data in files.items():
            disk.platter.put(path, data)
        disk._forget()


def test_a_record_that_is_moved_is_none():
    """Every place has a keystream of its own; and the hash binds segment, stream and sequence besides."""
    disk = EncryptedFaultyDisk(Random(1))
    fill(disk, GENUINE, stop=False, compresses=False)
    disk.kill()
    before = everything_read(disk)
    segments = sorted(path for path in disk.files() if path.suffix == ".seg")
    raw = bytearray(disk.platter.content(segments[0]))
    size = 30 + len(b"s.1") + len(GENUINE) + 2
    first, second = HEADER_BYTES + 48, HEADER_BYTES + 48 + size
    raw[first : first + size], raw[second : second + size] = raw[second : second + size], raw[first : first + size]
    disk.platter.put(segments[0], bytes(raw))
    disk._forget()
    after = everything_read(disk)
    assert set(after.items()) < set(before.items())
    assert len(before) - len(after) == 2


def everything_read(disk):
    store = open_store(disk)
    return {message.sequence: message.payload for message in store.read(1, None, COUNT, 1 << 30).messages}


def test_a_hash_has_one_purpose_one_seed_and_one_owner():
    hashing = KeyedHashing(bytes(32))
    checksums = [
        KeyedHashing(bytes(31) + b"\1").checksum(b"a"),
        *(hashing.checksum(*each) for each in ((b"a",), (b"b",), (b"a", 1), (b"a", 1, "x"), (b"a", 0, "x"))),
    ]
    assert len({checksum.of(b"data") for checksum in checksums}) == len(checksums)
    for checksum in (*checksums, PLAIN_HASHING.checksum(b"a", 5)):
        hasher = checksum.hasher()
        hasher.update(b"da")
        hasher.update(b"ta")
        assert hasher.intdigest() == checksum.number(b"data") == int.from_bytes(checksum.of(b"data"), "big")
        assert len(checksum.of(b"")) == HASH_SIZE


@pytest.mark.parametrize("what", ["end of the last segment", "last segment", "list", "mark", "index"])
def test_what_is_cut_off_or_removed_after_a_stop_is_missed(what):
    """The mark and the list, which are authenticated, tell how far the log went: at a stop, to its end."""
    disk = EncryptedFaultyDisk(Random(1))
    fill(disk, GENUINE, compresses=False)
    disk.kill()
    segment = max(path for path in disk.files() if path.suffix == ".seg")
    names = {
        "last segment": segment,
        "list": STREAM / "segments",
        "mark": MESSAGES / "mark",
        "index": MESSAGES / "index",
    }
    if what in names:
        disk.remove(names[what])
    else:
        size = len(disk.content(segment))
        disk.cut(segment, size - 30 - len(b"s.6") - len(GENUINE) - 4)
        disk._forget()
    lost: list[str] = []
    store = open_store(disk, lost=lost)
    assert store.last_sequence == COUNT
    if "segment" in what:
        assert lost
        assert COUNT in store.lost
    else:
        assert len(everything_read(disk)) == COUNT
