"""`compression: s2`: full segments shrink a moment later, on creation as after an update."""

from pathlib import Path
from random import Random

import pytest

from jetlake.server.engine.storage.folder_storage import FolderStorage
from jetlake.store.store_folder import StoreFolder
from tests.support.faulty_disk import FaultyDisk

ROOT = Path("/data")
PAYLOAD = b"words that are said again and again " * 15_000
COUNT = 20


@pytest.fixture
def disk():
    disk = FaultyDisk(Random(1))
    disk.make_folder(ROOT)
    return disk


@pytest.fixture
def server(make_harness, disk):
    return make_harness(FolderStorage(StoreFolder(disk, ROOT), print))


def fill(server):
    for _ in range(COUNT):
        assert "seq" in server.store("s.a", PAYLOAD)


def pass_time(server):
    for _ in range(60):
        server.advance(0.5)


def bytes_on(disk):
    return sum(len(disk.content(path)) for path in disk.files() if path.suffix == ".seg")


def test_full_segments_are_compressed(server, disk):
    server.create(compression="s2")
    fill(server)
    before = bytes_on(disk)
    assert before > COUNT * len(PAYLOAD)
    pass_time(server)
    assert bytes_on(disk) < before / 2
    assert server.state()["bytes"] > COUNT * len(PAYLOAD)
    assert server.jetstream.streams["S"].store.get(3).payload == PAYLOAD


def test_an_update_compresses_what_is_there_and_another_stops_it(server, disk):
    server.create()
    fill(server)
    pass_time(server)
    before = bytes_on(disk)
    assert before > COUNT * len(PAYLOAD)
    config = {"name": "S", "subjects": ["s.>"]}
    assert "error" not in server.api("STREAM.UPDATE.S", {**config, "compression": "s2"})
    pass_time(server)
    compressed = bytes_on(disk)
    assert compressed < before / 2
    assert "error" not in server.api("STREAM.UPDATE.S", {**config, "compression": "none"})
    fill(server)
    pass_time(server)
    assert bytes_on(disk) > compressed + COUNT * len(PAYLOAD)


def test_memory_streams_take_the_word_without_effect(server):
    """As in nats-server."""
    server.create(compression="s2", storage="memory")
    assert server.store("s.a", b"x")["seq"] == 1
