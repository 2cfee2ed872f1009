"""House-keeping of a stream: what a start put off is done a moment later."""

from pathlib import Path
from random import Random

from jetlake.server.engine.storage.folder_storage import FolderStorage
from jetlake.store.store_folder import StoreFolder
from jetlake.store.stream_folder import StreamFolder
from tests.support.faulty_disk import FaultyDisk

ROOT = Path("/data")


def test_names_of_subjects_are_unpacked_after_the_start(make_harness, monkeypatch):
    monkeypatch.setattr("jetlake.store.index.subject_numbers._UNPACKED_AT_ONCE", 0)
    disk = FaultyDisk(Random(1))
    disk.make_folder(ROOT)
    server = make_harness(FolderStorage(StoreFolder(disk, ROOT), print))
    server.create()
    for number in range(10):
        assert "seq" in server.store(f"s.{number}")
    server.engine.close()
    server = make_harness(FolderStorage(StoreFolder(disk, ROOT), print))
    numbers = server.jetstream.streams["S"].store._index.subjects.numbers
    assert server.state()["num_subjects"] == 10
    assert numbers.are_packed, "nobody has asked for a name yet"
    for _ in range(10):
        server.advance(0.5)
    assert not numbers.are_packed
    assert server.store("s.3") == {"stream": "S", "seq": 11}
    assert server.state()["num_subjects"] == 10


def test_compaction_waits_for_a_purge_but_not_for_long(make_harness, monkeypatch):
    server = make_harness()
    stream = server.create()
    stream.store.removals_per_step = 1
    for number in range(60):
        server.publish(f"s.{number}")
    server.turn()
    compacted = []
    compact_step = type(stream.store).compact_step
    monkeypatch.setattr(
        type(stream.store), "compact_step", lambda store, **how: compacted.append(1) or compact_step(store, **how)
    )
    server.engine.long_work.slice_ns = 0

    def step(seconds):
        compacted.clear()
        server.clock.advance(seconds)
        server.engine.run_timers()
        server.engine.flush()
        assert stream.is_purging
        return bool(compacted)

    server.publish("$JS.API.STREAM.PURGE.S", b'{"filter":"s.*"}', reply=b"_INBOX.a")
    server.engine.flush()
    assert [step(1.5), step(1.5), step(1.5)] == [False] * 3
    assert step(1.5), "a purge that takes long"
    while stream.is_purging:
        server.engine.flush()
    server.publish("s.new")
    server.publish("$JS.API.STREAM.PURGE.S", b"", reply=b"_INBOX.a")
    server.turn()
    assert not stream.is_purging
    compacted.clear()
    server.advance(1.5)
    assert compacted


def test_house_keeping_that_is_behind_goes_on_without_a_pause(make_harness, monkeypatch):
    monkeypatch.setitem(StreamFolder.open_store.__kwdefaults__, "segment_bytes", 2000)
    disk = FaultyDisk(Random(1))
    disk.make_folder(ROOT)
    server = make_harness(FolderStorage(StoreFolder(disk, ROOT), print))
    store = server.create().store
    for _ in range(200):
        server.store("s.1", bytes(100))
    index = store._index
    assert len(index.blocks) > 10
    server.clock.advance(1)
    for _ in range(200):
        server.engine.run_timers()
        server.engine.flush()
    assert not store.is_behind()
    # What is left may wait: it takes little memory.
    assert len(index.blocks) - len(index.subjects.spilled.blocks) == 3
