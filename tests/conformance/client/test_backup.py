"""Backup and restore by our client, and its blocking form, on both servers."""

import asyncio
import io
import json

import pytest

from jetlake import blocking
from jetlake.errors import ApiError, BackupError, InvalidOptionError


@pytest.fixture
async def orders(js):
    """A stream with a consumer in the middle of its messages."""
    stream = await js.create_stream("ORDERS", subjects=["orders.>"])
    for number in range(200):
        await js.publish_async(f"orders.{number % 5}", b"%d" % number * 200)
    await js.publish_async_complete()
    worker = await stream.create_consumer("worker")
    for message in await worker.fetch(10):
        await message.ack_sync()
    await worker.fetch(5)
    return stream


async def test_to_a_folder_and_back(js, orders, tmp_path):
    told = []
    taken = await orders.backup(tmp_path / "deep" / "backup", progress=lambda *numbers: told.append(numbers))
    folder = tmp_path / "deep" / "backup"
    assert sorted(path.name for path in folder.iterdir()) == ["backup.json", "stream.tar.s2"]
    assert taken.size == (folder / "stream.tar.s2").stat().st_size == told[-1][0]
    assert taken.state.messages == 200
    assert json.loads((folder / "backup.json").read_text())["config"]["name"] == "ORDERS"
    await orders.delete()
    told.clear()
    restored = await js.restore(folder, progress=lambda *numbers: told.append(numbers))
    assert told[-1] == (taken.size, taken.size)
    assert (await restored.info()).state.messages == 200
    info = await restored.consumer_info("worker")
    assert (info.ack_floor.stream_seq, info.num_ack_pending) == (10, 5)


async def test_to_a_file_and_back_under_another_name(js, orders):
    archive = io.BytesIO()
    taken = await orders.backup(archive, consumers=False)
    archive.seek(0)
    restored = await js.restore(archive, taken.config, name="COPY", subjects=["copy.>"], storage="memory")
    info = await restored.info()
    assert (info.config.name, info.config.subjects, info.config.storage.value) == ("COPY", ("copy.>",), "memory")
    assert (info.state.messages, info.state.consumer_count) == (200, 0)


async def test_a_folder_of_the_nats_command(js, orders, tmp_path):
    """Its newer versions name the archive after its format, and its file says of which type the answer was."""
    taken = await orders.backup(tmp_path / "a")
    (tmp_path / "a" / "stream.tar.s2").rename(tmp_path / "a" / "stream.arc.s2")
    meta = json.loads((tmp_path / "a" / "backup.json").read_text())
    meta["type"] = "io.nats.jetstream.api.v1.stream_snapshot_response"
    (tmp_path / "a" / "backup.json").write_text(json.dumps(meta))
    await orders.delete()
    assert (await js.restore(str(tmp_path / "a"))).cached_info.state.messages == taken.state.messages


async def test_what_is_refused(js, orders, tmp_path):
    await orders.backup(tmp_path / "a")
    with pytest.raises(InvalidOptionError, match="holds a backup already"):
        await orders.backup(tmp_path / "a")
    with pytest.raises(BackupError, match="holds no backup"):
        await js.restore(tmp_path / "nothing")
    with pytest.raises(InvalidOptionError, match="configuration"):
        await js.restore(io.BytesIO(b"x"))
    with pytest.raises(ApiError) as refused:
        await js.restore(tmp_path / "a")
    assert refused.value.err_code == 10130
    with pytest.raises(ApiError, match="restore failed: s2: corrupt input") as refused:
        await js.restore(io.BytesIO(b"this is no archive"), orders.config, name="T", subjects=["t"])
    assert refused.value.err_code == 10062
    (tmp_path / "a" / "backup.json").write_text("nonsense")
    with pytest.raises(BackupError, match="can't be read"):
        await js.restore(tmp_path / "a")


async def test_a_backup_that_fails_leaves_no_archive(js, orders, tmp_path):
    await orders.delete()
    with pytest.raises(ApiError):
        await orders.backup(tmp_path / "a")
    assert list((tmp_path / "a").iterdir()) == []


async def test_without_await(server, orders, tmp_path):
    def run():
        with blocking.connect(server.url) as client:
            js = client.jetstream()
            stream = js.stream("ORDERS")
            assert stream.backup(tmp_path / "a").state.messages == 200
            stream.delete()
            assert js.restore(tmp_path / "a").info().state.messages == 200

    await asyncio.to_thread(run)
