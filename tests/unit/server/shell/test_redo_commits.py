"""Commits by the redo log: one sync for many stores, whatever the disk does, and no entry outlives its use."""

import asyncio
import errno

import pytest

from jetlake.errors import StoreError
from jetlake.server.engine.core.commit import Commit
from jetlake.server.shell import redo_commits
from jetlake.server.shell.committer import Committer
from jetlake.server.shell.redo_commits import RedoCommits
from jetlake.store.file_store import FileStore
from jetlake.store.files.disk import RealDisk
from jetlake.store.redo.redo_log import FILE_NAMES, RedoLog
from jetlake.store.redo.replay import replay

STORES = 8


class Disk(RealDisk):
    """A disk that refuses the redo log when it is told to."""

    def __init__(self):
        self.refused = set()
        self.handles = set()

    def open(self, path, *, create=False):
        handle = super().open(path, create=create)
        if path.name in FILE_NAMES:
            if "make" in self.refused:
                raise OSError(errno.ENOSPC, "full")
            self.handles.add(handle)
        return handle

    def write(self, handle, data, offset):
        if handle in self.handles and "write" in self.refused:
            raise OSError(errno.ENOSPC, "full")
        super().write(handle, data, offset)

    def sync(self, handle):
        if handle in self.handles and "sync" in self.refused:
            raise OSError(errno.EIO, "broken")
        super().sync(handle)


class World:
    def __init__(self, folder, *, is_idle=False):
        self.is_idle = is_idle
        self.folder = folder
        self.disk = Disk()
        self.is_stopped = False
        self.reports = []
        self.refused = []
        self.commit = Commit(always=True)
        self.log = RedoLog(self.disk, folder)
        loop = asyncio.get_running_loop()
        self.committer = Committer(
            self.commit,
            loop,
            lambda: None,
            redo=RedoCommits(
                self.log,
                loop,
                redo_store=lambda store: store,
                refused=lambda store, error: self.refused.append(store),
                report=self.reports.append,
            ),
            sync_if_short=FileStore.sync_if_short,
            has_events=lambda: False,
        )
        self.stores = [self.open(number) for number in range(STORES)]

    def open(self, number):
        name = f"A/streams/{number}/msgs"
        return FileStore(RealDisk(), self.folder / name, redo_name=name)

    async def publish(self, count=STORES):
        """Append to so many stores, and wait until all of it is durable."""
        outcomes = []
        for store in self.stores[:count]:
            store.append(b"subject", b"", b"payload", 1)
            self.commit.mark(store)
            self.commit.when_durable(store, outcomes.append)
        self.commit.flush()
        self.committer.kick(is_idle=self.is_idle)
        await self.until(lambda: len(outcomes) == count)
        assert outcomes == [None] * count

    async def until(self, condition):
        async with asyncio.timeout(60):
            while not condition():
                self.commit.flush()
                self.committer.kick(is_idle=self.is_idle)
                await asyncio.sleep(0.001)

    async def publish_by_redo(self):
        """Publish until the log is made and takes what is published."""
        while not all(store.needs_checkpoint() for store in self.stores):
            await self.publish()
        assert (self.folder / FILE_NAMES[0]).stat().st_size == (self.folder / FILE_NAMES[1]).stat().st_size

    async def stop(self):
        if self.is_stopped:
            return
        self.is_stopped = True
        await self.committer.stop()
        for store in self.stores:
            store.close()
        self.log.close()


@pytest.fixture(params=[False, True], ids=["in threads", "on the loop"])
async def world(tmp_path, monkeypatch, request):
    """The committer's pace is the disk's own: a quick one's entries are synced on the loop where that may be."""
    monkeypatch.setattr(redo_commits, "_PAUSE_S", 3600)
    world = World(tmp_path, is_idle=request.param)
    if request.param:
        monkeypatch.setattr(world.committer._pace, "may_wait", lambda _now_s: True)
    yield world
    world.disk.refused.clear()
    await world.stop()


async def test_what_the_redo_log_made_durable_is_there_after_a_power_cut(world):
    await world.publish_by_redo()
    before = [store.last_sequence for store in world.stores]
    for number, store in enumerate(world.stores):
        # As if nothing was left of what was not synced.
        segment = world.folder / f"A/streams/{number}/msgs/0000000001.seg"
        size = store._log.durability._safe_end[1]
        with segment.open("r+b") as file:
            file.truncate(size)
    copy = world.folder / "copy"
    copy.mkdir()
    for name in ("A", *FILE_NAMES):
        (world.folder / name).rename(copy / name)
    replay(RealDisk(), copy, world.reports.append)
    for number, last_sequence in enumerate(before):
        with_replay = FileStore(RealDisk(), copy / f"A/streams/{number}/msgs")
        assert with_replay.messages == last_sequence and with_replay.lost == []
        with_replay.close()
    assert world.reports == []
    for name in ("A", *FILE_NAMES):
        if (copy / name).exists():
            (copy / name).rename(world.folder / name)


async def test_a_lone_store_is_synced_by_itself(world):
    await world.publish_by_redo()
    for _ in range(redo_commits._COMMITS_SMALL + 1):
        await world.publish(1)
    assert not world.stores[0].needs_checkpoint()


async def test_a_lone_store_makes_no_files(world):
    for _ in range(redo_commits._CROWDED_LEAST + 1):
        await world.publish(1)
    assert not (world.folder / FILE_NAMES[0]).exists()


async def test_a_pause_empties_the_log(world, monkeypatch):
    await world.publish_by_redo()
    monkeypatch.setattr(redo_commits, "_PAUSE_S", 0.01)
    world.committer._redo.stop()  # the long timer
    world.committer._redo._set_timer()
    await world.until(lambda: world.log.is_clean)
    assert not any(store.needs_checkpoint() for store in world.stores)
    assert all(b"payload" not in (world.folder / name).read_bytes() for name in FILE_NAMES)


async def test_a_clean_stop_leaves_no_files(world):
    await world.publish_by_redo()
    await world.stop()
    assert not any((world.folder / name).exists() for name in FILE_NAMES)


async def test_a_stop_keeps_what_a_failed_store_needs(world, monkeypatch):
    await world.publish_by_redo()
    world.stores[2]._log.durability.failure = StoreError("make the stream's log safe", "broken")
    await world.stop()
    assert all((world.folder / name).exists() for name in FILE_NAMES)
    with pytest.raises(OSError, match="replayed"):
        RedoLog(RealDisk(), world.folder).make()
    replay(RealDisk(), world.folder, world.reports.append)
    assert world.open(2).messages == world.stores[2].messages and world.reports == []


async def test_a_full_file_is_checkpointed_while_the_other_one_takes_entries(world):
    await world.publish_by_redo()
    first = world.log._current
    first.end = world.log._file_bytes - 1  # as if it were full
    await world.publish()
    assert world.log._current is not first
    await world.until(lambda: not world.log.is_behind)
    assert first.is_free and not first.stores


@pytest.mark.parametrize("what", ["write", "sync"])
async def test_a_refused_entry_is_made_good_by_a_sync_of_each_store(world, what, monkeypatch):
    await world.publish_by_redo()
    world.disk.refused.add(what)
    await world.publish()
    assert not any(store.needs_checkpoint() for store in world.stores)
    await world.publish()
    assert len(world.reports) == 1 and "redo log" in world.reports[0]
    world.disk.refused.clear()
    # Used again when a checkpoint has emptied it.
    world.committer._redo._pass_time()
    await world.until(lambda: not world.committer._redo.is_busy)
    world.committer._redo._pass_time()
    await world.until(lambda: world.log.is_clean)
    await world.publish_by_redo()


async def test_files_that_cannot_be_made_are_reported_once_and_everything_is_synced(world):
    world.disk.refused.add("make")
    for _ in range(3 * redo_commits._CROWDED_LEAST):
        await world.publish()
    await world.until(lambda: world.reports)
    assert len(world.reports) == 1
    assert not world.log.is_made


async def test_files_that_could_not_be_made_are_tried_again_later(world):
    world.disk.refused.add("make")
    while not world.reports:
        await world.publish()
    assert not world.log.is_made
    world.disk.refused.clear()
    world.committer._redo._make_after_s -= redo_commits._MAKE_AGAIN_S  # as if a minute had passed
    await world.publish_by_redo()
    assert len(world.reports) == 1


async def test_a_store_that_a_checkpoint_cannot_sync_keeps_the_file(world, monkeypatch):
    await world.publish_by_redo()
    broken = world.stores[3]

    def refuse():
        raise StoreError("make the stream's log safe", "broken")

    monkeypatch.setattr(broken, "checkpoint", refuse)
    world.committer._redo._checkpoint(wipes=False)
    await world.until(lambda: world.refused)
    assert world.refused == [broken] and world.log.is_behind and broken.needs_checkpoint()
    await world.publish()
    monkeypatch.undo()
    world.committer._redo._pass_time()
    await world.until(lambda: not world.log.is_behind)
    assert not broken.needs_checkpoint() or broken in world.log._current.stores
