"""Every release opens what earlier ones stored, and none changes what a later one has."""

import json
import shutil
import tarfile
import time
from pathlib import Path

import pytest
import xxhash

import jetlake
from jetlake.client.tables.spark_offsets import read_offset
from jetlake.errors import StoreError
from jetlake.server import Server
from jetlake.server.shell.engine_loop import SystemClock
from tests.formats.contents import describe

RELEASES = sorted(path for path in Path(__file__).parent.iterdir() if (path / "expected.json").exists())


def unpack(release, name, folder):
    with tarfile.open(release / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".lock"}


@pytest.fixture(params=RELEASES, ids=lambda release: release.name)
def release(request):
    return request.param


@pytest.mark.parametrize("end", ["killed", "stopped"])
async def test_a_folder_of_an_earlier_release_has_all_that_it_had(release, end, tmp_path):
    expected = json.loads((release / "expected.json").read_text())
    # Files are opened years after they were written.
    clock = SystemClock(lambda: time.time_ns() + 10 * 365 * 86400 * 10**9)
    async with Server(unpack(release, end, tmp_path), clock=clock) as server, jetlake.connect(server.url) as nc:
        js = nc.jetstream()
        assert (await describe(js))["streams"] == expected["streams"]
        # It goes on from there.
        ack = await js.publish("orders.1", b"order 199", msg_id="o199")
        assert ack.duplicate
        stored = expected["streams"]["ORDERS"]["state"]
        assert (await js.publish("orders.1", b"new")).seq == stored[3] + 1


async def test_a_backup_of_an_earlier_release_is_restored(release):
    expected = json.loads((release / "expected.json").read_text())["streams"]["ORDERS"]
    async with Server() as server, jetlake.connect(server.url) as nc:
        js = nc.jetstream()
        await js.restore(release / "backup")
        found = (await describe(js))["streams"]["ORDERS"]
    assert found["messages"] == expected["messages"]
    assert found["consumers"] == expected["consumers"]


def test_an_offset_of_an_earlier_release_is_read(release):
    offset = json.loads((release / "expected.json").read_text())["offset"]
    assert read_offset(offset).of("ORDERS").next == 77


def test_the_killed_server_left_a_redo_log(release, tmp_path):
    names = {path.name for path in unpack(release, "killed", tmp_path).rglob("*")}
    assert names >= {"redo-1.log", "redo-2.log", "redo.made"}


async def test_a_stream_of_a_later_release_stays_as_it_is(release, tmp_path):
    folder = unpack(release, "stopped", tmp_path)
    stream = next(folder.rglob("ORDERS"))
    for name in ("meta.json", "meta.copy.json"):
        meta = stream / name
        meta.write_bytes(meta.read_bytes().replace(b'{"version":1,', b'{"version":99,', 1))
    before = contents(stream)
    log = []
    server = Server(folder)
    server.log.write = lambda level, text: log.append(text)
    async with server, jetlake.connect(server.url) as nc:
        js = nc.jetstream()
        assert "ORDERS" not in await js.stream_names()
        assert "JOBS" in await js.stream_names()
    assert contents(stream) == before
    (line,) = [line for line in log if str(stream) in line]
    assert "version 99" in line


async def test_a_redo_log_of_a_later_release_stays_as_it_is(release, tmp_path):
    folder = unpack(release, "killed", tmp_path)
    for name in ("redo-1.log", "redo-2.log"):
        path = next(folder.rglob(name))
        data = bytearray(path.read_bytes())
        for start in (0, 512, 4096):
            if data[start : start + 4] == b"JLRH":
                data[start + 4 : start + 6] = (99).to_bytes(2, "little")
                size = next(size for size in range(20, 40) if _has_hash(path.read_bytes(), start, size))
                data[start + size : start + size + 8] = xxhash.xxh3_64_intdigest(
                    bytes(data[start : start + size])
                ).to_bytes(8, "little")
        path.write_bytes(data)
    before = contents(folder)
    with pytest.raises(StoreError, match="version 99, and this release knows up to"):
        await Server(folder).start()
    assert contents(folder) == before
    shutil.rmtree(folder)


def _has_hash(data, start, size):
    stored = int.from_bytes(data[start + size : start + size + 8], "little")
    return stored == xxhash.xxh3_64_intdigest(data[start : start + size])
