"""What lies on the disk is its owner's alone, and no name of a folder can be made to mean another."""

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.store.files.disk import RealDisk
from jetlake.store.files.folders import folder_name
from jetlake.store.store_folder import StoreFolder


async def test_folders_are_0700_and_files_0600(start, connect):
    server = await start('jetstream { store_dir: "STORE_DIR/deeper/still" }')
    wire = await connect(server)
    await wire.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    config = {"durable_name": "c", "ack_policy": "explicit"}
    await wire.request("$JS.API.CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    await wire.request("s", b"x")
    await wire.subscribe("_INBOX.p", 1)
    await wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b"1", reply="_INBOX.p")
    await wire.publish((await wire.message()).reply, b"+ACK")
    await wire.ping()
    await server.restart()
    found = list((server.folder / "data").rglob("*"))
    assert len([path for path in found if path.is_file()]) >= 4
    for path in (server.folder / "data", *found):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), (path, oct(mode))


@given(st.text(max_size=300))
def test_a_folder_name_is_one_plain_name(name):
    folder = folder_name(name)
    assert folder not in ("", ".", "..")
    assert "/" not in folder
    assert "\x00" not in folder
    assert len(folder.encode()) < 255


@given(st.text(max_size=150), st.text(max_size=150))
def test_different_names_have_different_folders(one, other):
    assert (folder_name(one) == folder_name(other)) == (one == other)


@pytest.mark.parametrize("account", ["..", "../B", "a/b", ""])
def test_accounts_stay_within_the_store(tmp_path, account):
    stream = StoreFolder(RealDisk(), tmp_path).stream(account, "../../S")
    assert stream.path.resolve().is_relative_to((tmp_path / "jetstream").resolve())
    assert stream.path.parent.parent.parent == tmp_path / "jetstream"


def test_short_reads_and_writes_of_the_system_are_made_whole(tmp_path, monkeypatch):
    """The kernel may do less than it was asked for; a record must not be torn by that."""
    import os

    pread, pwrite = os.pread, os.pwrite
    monkeypatch.setattr(os, "pread", lambda handle, size, offset: pread(handle, min(size, 3), offset))
    monkeypatch.setattr(os, "pwrite", lambda handle, data, offset: pwrite(handle, bytes(data)[:5], offset))
    disk = RealDisk()
    handle = disk.open(tmp_path / "file", create=True)
    disk.write(handle, b"a record of some length", 4)
    assert disk.read(handle, 100, 4) == b"a record of some length"
    disk.close(handle)
