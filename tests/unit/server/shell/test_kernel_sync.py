"""Syncs in the kernel: every owner is told of the end and its error, and whoever cannot wait for the loop need not."""

import asyncio
import os
import sys
import threading

import pytest

from jetlake.errors import StoreError
from jetlake.server.engine.core.commit import Commit
from jetlake.server.shell import committer as committer_module
from jetlake.server.shell import kernel_sync
from jetlake.server.shell.committer import Committer
from jetlake.server.shell.kernel_sync import KernelSync
from jetlake.store.file_store import FileStore
from jetlake.store.files.disk import RealDisk
from jetlake.store.log.durability import FileSync


@pytest.fixture
async def kernel():
    ended = asyncio.Queue()

    def put(outcomes):
        for outcome in outcomes:
            ended.put_nowait(outcome)

    kernel = KernelSync(asyncio.get_running_loop(), put)
    kernel.ended = ended
    yield kernel
    assert not kernel.is_busy
    kernel.close()


def opened(path):
    """The handle of a new file with something in it."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR)
    os.write(handle, b"something")
    return handle


def file_sync(handle, told):
    return FileSync(handle, lambda error: told.append(error) or (error and StoreError.of("sync", error)))


async def test_many_files_are_synced_and_each_owner_is_told(kernel, tmp_path):
    told = []
    files = {str(number): opened(tmp_path / str(number)) for number in range(kernel.room)}
    for _ in range(3):
        kernel.start([(name, file_sync(handle, told)) for name, handle in files.items()])
        assert kernel.room == 0 and kernel.is_busy
        async with asyncio.timeout(60):
            outcomes = [await kernel.ended.get() for _ in files]
        assert {owner for owner, _, _ in outcomes} == set(files)
        assert all(error is None and seconds >= 0 for _, error, seconds in outcomes)
    assert told == [None] * (3 * len(files)) and kernel.room == len(files)
    for handle in files.values():
        os.close(handle)


async def test_what_the_kernel_refuses_to_begin_is_an_error_of_that_one_alone(kernel, tmp_path):
    told = []
    readable, writable = os.pipe()  # There is nothing to sync in a pipe.
    file = opened(tmp_path / "file")
    handles = {"first": file, "pipe": readable, "last": file}
    kernel.start([(owner, file_sync(handle, told)) for owner, handle in handles.items()])
    async with asyncio.timeout(60):
        outcomes = {owner: error for owner, error, _ in [await kernel.ended.get() for _ in handles]}
    assert outcomes["first"] is outcomes["last"] is None
    assert isinstance(outcomes["pipe"], StoreError)
    for handle in (readable, writable, file):
        os.close(handle)


async def test_whoever_waits_has_the_outcome_before_the_loop_turns(kernel, tmp_path):
    told = []
    handle = opened(tmp_path / "file")
    sync = file_sync(handle, told)
    kernel.start([("owner", sync)])
    sync.wait(sync)
    assert sync.has_ended and told == [None] and kernel.ended.empty()
    async with asyncio.timeout(60):
        owner, error, _ = await kernel.ended.get()
    os.close(handle)
    assert (owner, error) == ("owner", None)


async def test_a_thread_waits_for_no_event_that_the_loop_has_taken(kernel, tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_sync, "_WAIT_S", 3600)
    handle = opened(tmp_path / "file")
    second = file_sync(handle, [])
    waiter = threading.Thread(target=lambda: second.wait(second), daemon=True)

    def end_first(_error):
        waiter.start()  # while the loop takes the events of both
        while sys._current_frames()[waiter.ident].f_code.co_filename != kernel_sync.__file__:
            pass

    first = FileSync(handle, end_first)
    events = kernel._context.events

    def in_order(wait_s=0.0):
        found = events(wait_s)
        while not wait_s and 0 < len(found) < 2:
            found += events()
        return sorted(found, reverse=True)  # numbers are taken from the end

    monkeypatch.setattr(kernel._context, "events", in_order)
    kernel.start([("first", first), ("second", second)])
    async with asyncio.timeout(60):
        assert {(await kernel.ended.get())[0] for _ in range(2)} == {"first", "second"}
        while waiter.is_alive():
            await asyncio.sleep(0.001)
    os.close(handle)


async def publish(store, committer, commit, count):
    """Append one by one, each when the one before is durable."""
    for _ in range(count):
        store.append(b"subject", b"", b"payload", 1)
        durable = asyncio.get_running_loop().create_future()
        commit.mark(store)
        commit.when_durable(store, durable.set_result)
        commit.flush()
        committer.kick()
        async with asyncio.timeout(60):
            assert await durable is None


@pytest.mark.parametrize("has_kernel", [True, False])
async def test_a_store_is_synced_by_the_kernel_or_where_there_is_none_by_threads(has_kernel, tmp_path, monkeypatch):
    monkeypatch.setattr(committer_module, "_THREADS_FIRST", 0)
    if not has_kernel:
        monkeypatch.setattr(kernel_sync, "_CALLS", {})
    commit = Commit(always=True)
    committer = Committer(commit, asyncio.get_running_loop(), lambda: None, begin_file_sync=FileStore.begin_file_sync)
    store = FileStore(RealDisk(), tmp_path)
    syncs = []
    monkeypatch.setattr(store, "sync", lambda sync=store.sync: syncs.append(1) or sync())
    await publish(store, committer, commit, 5)
    assert len(syncs) == (1 if has_kernel else 5), "the first sync is that of a new file"
    assert store._log.durability.synced_sequence == 5 and committer.latency.count == 5
    await committer.stop()
    store.close()


async def test_many_stores_are_synced_at_once_two_of_them_by_threads(tmp_path):
    commit = Commit(always=True)
    committer = Committer(
        commit, asyncio.get_running_loop(), lambda: None, 4, begin_file_sync=FileStore.begin_file_sync
    )
    stores = [FileStore(RealDisk(), tmp_path / str(number)) for number in range(20)]
    for store in stores:
        await publish(store, committer, commit, 1)
    durable = []
    for store in stores:
        store.append(b"subject", b"", b"payload", 1)
        commit.mark(store)
        commit.when_durable(store, durable.append)
    commit.flush()
    committer.kick()
    assert not commit.wants_sync(), "no store waits for a thread"
    assert committer._busy == [2, 0] and committer._kernel.room == 64 - 18
    await committer.stop()
    assert durable == [None] * 20
    for store in stores:
        store.close()
