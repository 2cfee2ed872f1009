"""House-keeping of a stream: what a start put off is done a moment later."""

from pathlib import Path
from random import Random

from faulty_disk import FaultyDisk
from jetlake.server.engine.storage.folder_storage import FolderStorage
from jetlake.store.store_folder import StoreFolder

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
