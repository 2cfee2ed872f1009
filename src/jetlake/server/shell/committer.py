"""The committer: syncs what the engine wrote.

    commit.begin ──► redo log: one entry and one sync for several busy stores              (`RedoCommits`, two and more)
                 ├─► the loop's own thread: short syncs, while the disk is quick and nothing else is ready
                 ├─► a thread that an eventfd wakes: the first sync                        (`_BellThread`, Linux)
                 │   the loop begins the write of a store that is synced alone             (`begin_writeback`, Linux)
                 └─► worker threads: all else

Waking a thread and being woken by it costs more than a quick disk takes. So the loop of a server that has a process of
its own syncs itself, if all of this holds:

- The last syncs took less than `_QUICK_S` on average. One that took `_SLOW_S` suspends this for twenty times as long:
  a disk that falters holds up the loop for at most a twentieth of the time.
- The loop's thread has not waited for a processor lately. Where others take the processors, a server that does
  everything in one thread waits longer for its share than one of several.
- Few bytes are to be synced, in files that are open; no names, no lists of segments.
- Nothing else is under way, and the loop has nothing else to do: no answers, deliveries or long work, and no event.
  When there are events, they are handled first: publishers that are about to write share the sync. If there are
  events after that, the loop is busy and threads sync.

Worker threads alone keep every promise: the other ways are left out where the system lacks them.

Always true: a store is in one of the ways at a time, and its waiters are released on the loop only, by `Commit.finish`.
An entry of the redo log that fails is followed by a sync of each of its stores, before any of them counts as durable.

The reasons are in decision 7 (docs/decisions).
"""

from __future__ import annotations

import asyncio
import os
import select
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING

from jetlake import platform
from jetlake.errors import JetlakeError
from jetlake.server.engine.core.commit import Commit, SharedSync, Syncable, sync

if TYPE_CHECKING:
    from jetlake.server.shell.redo_commits import RedoCommits

__all__ = ["Committer", "LatencyHistogram", "Pace", "has_events"]

_THREADS_MAX = 16
"""How many stores are synced at a time; the others wait for the first that is done."""
_NAMES_MAX = 2
"""How many folders are synced at a time, beside the stores: each sync is dozens of calls to the file system, after
which a thread waits for the interpreter, and the loop behind all who wait."""
_HERE_MAX = 4
"""How many stores the loop syncs in a turn, one after the other."""
_WAITING_MAX = 8
"""How many stores may have something to sync for the loop to wait: of more, it handles some while others are synced."""
_TURNS_POSTPONED = 2
"""How many turns a sync waits for events: the first of them begins before the loop takes its events."""
_HERE_BYTES_MAX = 256 * 1024
"""How many bytes of the redo log the loop syncs."""
_QUICK_S = 0.0008
_SLOW_S = 0.002
_SUSPENSION = 20
_SYNCS_AVERAGED = 4
_LOOK_S = 0.5
"""How often the loop looks whether its thread waits for a processor."""
_RUN_LEAST_S = 0.001
"""A thread that has run for less has had too little chance to wait."""
_CROWDED = 0.25
"""How long the thread may have waited, as a share of the time that it has run."""
_WRITEBACK_S = 0.001
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


class Pace:
    """Whether the loop may wait for the next sync: the disk was quick lately, and there is a processor for each thread.

    On a machine whose processors are taken by others, a server that does everything in one thread waits longer for its
    share of them than one of several threads.

    Args:
        run_times: returns how long the calling thread has run, and how long it waited for a processor, in seconds.
    """

    def __init__(self, run_times: Callable[[], tuple[float, float]] = platform.thread_run_times) -> None:
        self._run_times = run_times
        self._average_s = _SLOW_S
        self._resumes_s = 0.0
        self._looks_s = 0.0
        self._ran_s = self._waited_s = 0.0
        self._is_crowded = False

    def observe(self, elapsed_s: float, now_s: float) -> None:
        """Count a sync that has just ended."""
        self._average_s += (min(elapsed_s, _SLOW_S) - self._average_s) / _SYNCS_AVERAGED
        if elapsed_s >= _SLOW_S:
            self._resumes_s = max(self._resumes_s, now_s + _SUSPENSION * elapsed_s)

    def may_wait(self, now_s: float) -> bool:
        """Return whether the loop, whose thread calls this, may wait."""
        if now_s >= self._looks_s:
            self._looks_s = now_s + _LOOK_S
            ran_s, waited_s = self._run_times()
            new_s = ran_s - self._ran_s
            if new_s >= _RUN_LEAST_S:
                self._is_crowded = waited_s - self._waited_s > _CROWDED * new_s
                self._ran_s, self._waited_s = ran_s, waited_s
        return self._average_s < _QUICK_S and now_s >= self._resumes_s and not self._is_crowded


def has_events(loop: asyncio.AbstractEventLoop) -> Callable[[], bool] | None:
    """Return a function that tells whether events wait for the loop; None for loops that do not say.

    The handle from which uvloop takes its events (epoll, kqueue) is readable when there is one.
    """
    backend = getattr(loop, "_get_backend_id", None)
    if backend is None or not hasattr(select, "poll"):
        return None
    poller = select.poll()
    poller.register(backend(), select.POLLIN)
    return lambda: bool(poller.poll(0))


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

    Args:
        commit: the engine's; touched on the loop only.
        finished: called on the loop after the waiters of one or more syncs were released.
        files_max: how many files the stores may have open; no more of them are synced at a time.
        begin_writeback: lets the disk begin with what is about to be synced; called for a store that is synced alone.
        redo: makes several stores durable by the redo log; None for a server without one.
        sync_if_short: syncs a store if that takes the disk no longer than a thread takes to wake; whether it did.
        has_events: tells whether events wait for the loop; None leaves all syncs to threads.
    """

    def __init__(
        self,
        commit: Commit,
        loop: asyncio.AbstractEventLoop,
        finished: Callable[[], None],
        files_max: int = _THREADS_MAX,
        *,
        begin_writeback: Callable[[Syncable], None] = lambda _syncable: None,
        redo: RedoCommits | None = None,
        sync_if_short: Callable[[Syncable], bool] = lambda _syncable: False,
        has_events: Callable[[], bool] | None = None,
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
        self._begin_writeback = begin_writeback
        self._is_quick = True  # the last sync by a thread was
        commit.on_single_flush = self._flushed_alone
        self._sync_if_short = sync_if_short
        self._has_events = has_events
        self._pace = Pace()
        self._postponed = 0  # how many turns a sync has waited, since events are handled first
        with suppress(OSError):  # The queue's threads do it everywhere.
            self._bell_thread = _BellThread(self._sync_one, lambda: self._ended.put(None))

    def _flushed_alone(self, syncable: Syncable) -> None:
        """Let the disk write while a thread wakes that syncs."""
        if self._is_quick and (self._has_events is None or not self._pace.may_wait(time.perf_counter())):
            self._begin_writeback(syncable)

    def kick(self, *, is_idle: bool = False) -> bool:
        """Start the syncs that are due, as many as there are free threads.

        Args:
            is_idle: whether the loop has nothing to do but to wait for events.

        Returns:
            Whether the syncs were postponed until the loop has handled its events; another call must follow.
        """
        if is_idle and (has_events := self._has_events) is not None and self._may_sync_here():
            if not has_events():
                self._postponed = 0
                self._sync_here()
                return False
            if self._postponed < _TURNS_POSTPONED:
                self._postponed += 1
                return True
        self._postponed = 0
        busy, redo = self._busy, self._redo
        while redo is None or not redo.is_under_way:  # What comes meanwhile shares the next entry.
            count_max = max(self._threads_max - busy[False], 0)
            others = begun = self._commit.begin(count_max, _NAMES_MAX - busy[True])
            if redo is not None and len(begun) >= redo.stores_least:
                entry, others = redo.start(begun)
                if entry is not None:
                    self._start_in_threads((entry,))
            self._start_in_threads(others)
            if len(begun) < count_max or self._threads_max <= busy[False]:
                break
        return False

    # In the loop's thread

    def _may_sync_here(self) -> bool:
        return (
            not any(self._busy)
            and 0 < self._commit.waiting_syncs() <= _WAITING_MAX
            and self._pace.may_wait(time.perf_counter())
        )

    def _sync_here(self) -> None:
        """Sync what is short, and leave the rest to threads."""
        outcomes: dict[Syncable, JetlakeError | None] = {}
        left = self._commit.begin(self._threads_max, _NAMES_MAX)
        if (redo := self._redo) is not None and len(left) >= redo.stores_least:
            entry, left = redo.start(left)
            if entry is not None and entry.size > _HERE_BYTES_MAX:
                self._start_in_threads((entry,))
            elif entry is not None:
                started = time.perf_counter()
                error = sync(entry)
                self._observe(time.perf_counter() - started)
                self._end_shared(entry, error, outcomes)
        others = [syncable for syncable in left[:_HERE_MAX] if not self._try_here(syncable, outcomes)]
        self._start_in_threads(others + left[_HERE_MAX:])
        if outcomes:
            self._commit.finish(outcomes)
            self._finished()

    def _try_here(self, syncable: Syncable, outcomes: dict[Syncable, JetlakeError | None]) -> bool:
        started = time.perf_counter()
        try:
            if not self._sync_if_short(syncable):
                return False
            outcomes[syncable] = None
        except Exception as error:  # no error may leave the store under way
            outcomes[syncable] = error if isinstance(error, JetlakeError) else JetlakeError(f"sync failed: {error}")
        self._observe(time.perf_counter() - started)
        return True

    def _observe(self, elapsed_s: float) -> None:
        self.latency.observe(elapsed_s)
        self._pace.observe(elapsed_s, time.perf_counter())

    def _end_shared(
        self, entry: SharedSync, error: JetlakeError | None, outcomes: dict[Syncable, JetlakeError | None]
    ) -> None:
        entry.ended(error)
        if error is None:
            outcomes.update(dict.fromkeys(entry.syncables))
        else:
            self._start_in_threads(entry.syncables)

    # In other threads

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
            if syncable.changes_names:
                self.latency.observe(elapsed_s)  # Dozens of calls tell nothing of one.
            else:
                self._observe(elapsed_s)
            self._is_quick = elapsed_s < _WRITEBACK_S
            if isinstance(syncable, SharedSync):
                self._end_shared(syncable, error, outcomes)
            else:
                outcomes[syncable] = error
        self._commit.finish(outcomes)
        self._finished()

    async def stop(self) -> None:
        """Wait for the syncs under way, release their waiters, and end the threads."""
        redo = self._redo
        while any(self._busy) or (redo is not None and redo.is_busy):
            await asyncio.sleep(0.001)
        if redo is not None:
            redo.stop()
        for _ in range(self._threads):
            self._work.put(None)
        bell_thread, self._bell_thread = self._bell_thread, None
        if bell_thread is not None:
            bell_thread.stop()
        for _ in range(self._threads + (bell_thread is not None)):
            self._ended.get()
        if bell_thread is not None:
            bell_thread.close()
