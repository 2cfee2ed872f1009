"""The committer: threads that sync what the engine wrote, while the loop continues.

    commit.begin ──► redo log: one entry and one sync for many busy stores        (`RedoCommits`, four and more)
                 ├─► kernel: stores whose sync is one file's, beside busy threads (`KernelSync`, Linux)
                 ├─► a thread that an eventfd wakes: the first sync               (`_BellThread`, Linux)
                 └─► worker threads: all else

Each way is there for a case that was measured without it, in turns on one machine of two processors under other load
(nine rounds of `_acks.py`, three of `latency.py --only acks`): without the eventfd, a lone publisher's best median wait
for an acknowledgement is a sixth longer; without the early writeback, a fifth; without the kernel, the 99th percentile
beside five busy streams is more than four times as long. Worker threads alone keep every promise: the other ways are
left out where the system lacks them.

Always true: a store is in one of the ways at a time, and its waiters are released on the loop only, by `Commit.finish`.
An entry of the redo log that fails is followed by a sync of each of its stores, before any of them counts as durable.

The reasons are in decision 7 (docs/decisions).
"""

from __future__ import annotations

import asyncio
import os
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from jetlake.errors import JetlakeError
from jetlake.server.engine.core.commit import Commit, Syncable, sync
from jetlake.server.engine.core.syncable import SharedSync
from jetlake.server.shell.kernel_sync import KernelSync

if TYPE_CHECKING:
    from jetlake.server.shell.redo_commits import RedoCommits
    from jetlake.store.log.durability import FileSync

__all__ = ["Committer", "LatencyHistogram"]

_THREADS_MAX = 16
"""How many stores are synced at a time; the others wait for the first that is done."""
_THREADS_FIRST = 2
"""How many stores are synced by threads before the kernel is asked, whose own threads are slower to wake."""
_NAMES_MAX = 2
"""How many folders are synced at a time, beside the stores: each sync is dozens of calls to the file system, after
which a thread waits for the interpreter, and the loop behind all who wait."""
_QUICK_S = 0.001
"""How long the last sync may have taken for the loop to begin the next write: a busy disk could hold it up there."""


class LatencyHistogram:
    """A histogram of latencies, with the buckets of Prometheus."""

    BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)

    def __init__(self) -> None:
        self.counts = [0] * (len(self.BOUNDS_S) + 1)
        self.sum_s = 0.0
        self.count = 0

    def observe(self, seconds: float) -> None:
        """Count one latency."""
        self.count += 1
        self.sum_s += seconds
        for index, bound in enumerate(self.BOUNDS_S):
            if seconds <= bound:
                self.counts[index] += 1
                return
        self.counts[-1] += 1


class _BellThread:
    """A thread that runs one sync after the other, and is woken by an eventfd.

    A thread that wakes another by a lock or a queue keeps the interpreter until it waits itself: the other, on another
    processor is there first, goes to sleep again and has to be woken a second time. A write to a file lets go of the
    interpreter, so that the thread finds it free.

    Attributes:
        syncable: what is being synced; None while the thread is free.

    Args:
        run: runs a sync, and returns whether another may come.
        ended: called at the thread's end.

    Raises:
        OSError: the system has no such handle for it.
    """

    def __init__(self, run: Callable[[Syncable | SharedSync], bool], ended: Callable[[], None]) -> None:
        if not hasattr(os, "eventfd"):
            raise OSError("no eventfd on this system")
        self.syncable: Syncable | SharedSync | None = None
        self._run_sync = run
        self._ended = ended
        self._bell = os.eventfd(0, os.EFD_CLOEXEC)
        start_new_thread(self._run, ())

    def start(self, syncable: Syncable | SharedSync) -> None:
        """Begin a sync; the thread must be free."""
        self.syncable = syncable
        os.eventfd_write(self._bell, 1)

    def _run(self) -> None:
        try:
            # Not by `eventfd_read`, which a signal would end.
            while os.read(self._bell, 8) and (syncable := self.syncable) is not None and self._run_sync(syncable):
                pass
        finally:
            self._ended()

    def stop(self) -> None:
        """End the thread, which must be free; `close` may follow when it has ended."""
        os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Give the handle back."""
        os.close(self._bell)


class Committer:
    """Runs the syncs of a `Commit`: several stores at a time, each by itself.

    A sync waits for the disk and nothing else, and the file system's journal and the disk's cache are flushed once for
    all who ask at the same time, so that many syncs take little longer than one. Syncs that make, rename or remove
    files wait for each other anyway: few run at a time.

    Where many stores are busy, stores whose sync is one file's go to the kernel, if it can do that; all else
    goes to worker threads.

    Args:
        commit: the engine's; touched on the loop only.
        finished: called on the loop after the waiters of one or more syncs were released.
        files_max: how many files the stores may have open; no more of them are synced at a time.
        begin_file_sync: begins a sync for which the kernel may sync one file, and returns None where there is more to
            do; the handles must be the system's. None leaves everything to threads.
        begin_writeback: lets the disk begin with what is about to be synced; called for a store that is synced alone.
        redo: makes many stores durable by the redo log; None for a server without one.
    """

    def __init__(
        self,
        commit: Commit,
        loop: asyncio.AbstractEventLoop,
        finished: Callable[[], None],
        files_max: int = _THREADS_MAX,
        *,
        begin_file_sync: Callable[[Syncable], FileSync | None] | None = None,
        begin_writeback: Callable[[Syncable], None] = lambda _syncable: None,
        redo: RedoCommits[Any] | None = None,
    ) -> None:
        self.latency = LatencyHistogram()
        self._commit = commit
        self._loop = loop
        self._threads_max = min(files_max, _THREADS_MAX)
        self._finished = finished
        self._work: SimpleQueue[Syncable | SharedSync | None] = SimpleQueue()
        self._done: deque[tuple[Syncable | SharedSync, JetlakeError | None, float]] = deque()
        self._is_woken = False
        self._busy = [0, 0]  # syncs under way: of stores and journals, and of syncables that change names
        self._threads = 0  # that take their work from the queue
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._bell_thread: _BellThread | None = None
        self._redo = redo
        self._kernel: KernelSync[Syncable] | None = None
        self._begin_file_sync = begin_file_sync
        self._begin_writeback = begin_writeback
        self._is_quick = True  # the last sync by a thread was
        commit.on_single_flush = self._flushed_alone
        if begin_file_sync is not None:
            with suppress(OSError):  # Threads do it everywhere.
                self._kernel = KernelSync(loop, self._finish_in_kernel)
        with suppress(OSError):  # The queue's threads do it everywhere.
            self._bell_thread = _BellThread(self._sync_one, lambda: self._ended.put(None))

    def _flushed_alone(self, syncable: Syncable) -> None:
        """Let the disk write while a thread wakes that syncs."""
        if self._is_quick:
            self._begin_writeback(syncable)

    def kick(self) -> None:
        """Start the syncs that are due, as many as there are free threads."""
        busy, redo = self._busy, self._redo
        while redo is None or not redo.is_under_way:  # What comes meanwhile shares the next entry.
            count_max = max(self._threads_max - busy[False], 0)
            others = begun = self._commit.begin(count_max, _NAMES_MAX - busy[True])
            if redo is not None and len(begun) >= redo.stores_least:
                entry, others = redo.start(begun)
                if entry is not None:
                    self._start_in_threads((entry,))
            self._start_in_threads(self._start_in_kernel(others) if self._kernel is not None else others)
            if len(begun) < count_max or self._threads_max <= busy[False]:
                return

    def _start_in_threads(self, syncables: Iterable[Syncable | SharedSync]) -> None:
        busy, bell_thread = self._busy, self._bell_thread
        for syncable in syncables:
            busy[syncable.changes_names] += 1
            if bell_thread is not None and bell_thread.syncable is None and not syncable.changes_names:
                bell_thread.start(syncable)
                continue
            if sum(busy) - (bell_thread is not None and bell_thread.syncable is not None) > self._threads:
                self._threads += 1
                # Not a `Thread`, whose start waits until the other one runs.
                start_new_thread(self._run, ())
            self._work.put(syncable)

    def _start_in_kernel(self, begun: list[Syncable]) -> list[Syncable]:
        """Start those syncs in the kernel that it can carry out, and return the others."""
        kernel, begin_file_sync = self._kernel, self._begin_file_sync
        assert kernel is not None and begin_file_sync is not None
        threads = self._busy[False]
        if threads + len(begun) <= _THREADS_FIRST:
            return begun
        started: list[tuple[Syncable, FileSync]] = []
        others: list[Syncable] = []
        for syncable in begun:
            file_sync = None
            if threads >= _THREADS_FIRST and len(started) < kernel.room and not syncable.changes_names:
                file_sync = begin_file_sync(syncable)
            if file_sync is not None:
                started.append((syncable, file_sync))
            else:
                others.append(syncable)
                threads += not syncable.changes_names
        if started:
            kernel.start(started)
        return others

    def _finish_in_kernel(self, ended: list[tuple[Syncable, JetlakeError | None, float]]) -> None:
        for _, _, elapsed_s in ended:
            self.latency.observe(elapsed_s)
        self._commit.finish({syncable: error for syncable, error, _ in ended})
        self._finished()

    def _run(self) -> None:
        try:
            self._sync_all()
        finally:
            self._ended.put(None)

    def _sync_all(self) -> None:
        while (syncable := self._work.get()) is not None and self._sync_one(syncable):
            pass

    def _sync_one(self, syncable: Syncable | SharedSync) -> bool:
        """Sync in a thread, and have the loop notified of the outcome; False when the loop has gone."""
        started = time.perf_counter()
        error = sync(syncable)
        self._done.append((syncable, error, time.perf_counter() - started))
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._finish)
            except RuntimeError:
                return False
        return True

    def _finish(self) -> None:
        self._is_woken = False  # First: what is done from here on wakes the loop again, or is found below.
        outcomes: dict[Syncable, JetlakeError | None] = {}
        done, bell_thread = self._done, self._bell_thread
        while done:
            syncable, error, elapsed_s = done.popleft()
            if bell_thread is not None and bell_thread.syncable is syncable:
                bell_thread.syncable = None
            self._busy[syncable.changes_names] -= 1
            self.latency.observe(elapsed_s)
            self._is_quick = elapsed_s < _QUICK_S
            if not isinstance(syncable, SharedSync):
                outcomes[syncable] = error
                continue
            syncable.ended(error)
            if error is None:
                outcomes.update(dict.fromkeys(syncable.syncables))
            else:
                self._start_in_threads(syncable.syncables)
        self._commit.finish(outcomes)
        self._finished()

    async def stop(self) -> None:
        """Wait for the syncs under way, release their waiters, and end the threads."""
        kernel, redo = self._kernel, self._redo
        while any(self._busy) or (kernel is not None and kernel.is_busy) or (redo is not None and redo.is_busy):
            await asyncio.sleep(0.001)
        if redo is not None:
            redo.stop()
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None
        for _ in range(self._threads):
            self._work.put(None)
        bell_thread, self._bell_thread = self._bell_thread, None
        if bell_thread is not None:
            bell_thread.stop()
        for _ in range(self._threads + (bell_thread is not None)):
            self._ended.get()
        if bell_thread is not None:
            bell_thread.close()
