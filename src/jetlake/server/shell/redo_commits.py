"""Commits by the redo log: one entry and one sync make what many busy stores appended durable.

The reasons are in decision 26 (docs/decisions).
"""

from __future__ import annotations

import asyncio
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from jetlake.errors import JetlakeError, StoreError
from jetlake.server.engine.core.commit import SharedSync, Syncable
from jetlake.store.redo.redo_format import ENTRY_BYTES_MAX
from jetlake.store.redo.redo_log import RedoFile, RedoLog

if TYPE_CHECKING:
    from jetlake.store.file_store import FileStore

__all__ = ["RedoCommits"]

_STORES_LEAST = 2
"""How many stores must have something to sync for an entry to be quicker than a sync of each."""
_COMMITS_SMALL = 20
"""After a commit of this many stores, how many smaller ones still go to the redo log: busy streams take turns."""
_CROWDED_LEAST = 32
"""After how many commits of many stores within a second the redo log is worth its files."""
_PART_BYTES_MAX = 128 * 1024
_PAUSE_S = 1.0
"""After a pause so long, the redo log's entries are not worth keeping any more."""
_MAKE_AGAIN_S = 60.0
"""How long files that could not be made are not tried again: each attempt may fill the disk for a moment."""

Result = TypeVar("Result")


class RedoCommits:
    """Starts commits by the redo log, one at a time, and its checkpoints.

    Args:
        log: not made before it is worth it.
        redo_store: returns the syncable if the log may take its appends, and otherwise None.
        refused: called with a store that could not be synced by a checkpoint, and the error.
        report: logs that the redo log cannot be used.

    Attributes:
        is_under_way: whether an entry is being synced.
        stores_least: how few stores a commit must have to go to the redo log; smaller ones are synced by themselves.
    """

    def __init__(
        self,
        log: RedoLog,
        loop: asyncio.AbstractEventLoop,
        *,
        redo_store: Callable[[Syncable], FileStore | None],
        refused: Callable[[FileStore, StoreError], None],
        report: Callable[[str], None],
    ) -> None:
        self.is_under_way = False
        self.stores_least = _STORES_LEAST
        self._log = log
        self._loop = loop
        self._redo_store = redo_store
        self._report = report
        self._refused = refused
        self._is_failed = False
        self._make_after_s = 0.0  # not 0 after an attempt to make the files has failed
        self._has_job = False
        self._timer: asyncio.TimerHandle | None = None
        self._entries = 0  # since the timer was set
        self._crowded = 0  # commits of many stores, since the timer was set
        self._small_left = 0

    @property
    def is_busy(self) -> bool:
        """Whether an entry, a checkpoint or the making of the files is under way in a thread."""
        return self.is_under_way or self._has_job

    def start(self, begun: list[Syncable]) -> tuple[SharedSync | None, list[Syncable]]:
        """Write what the redo log can take of stores, and return the sync that makes those durable, and the others.

        Args:
            begun: at least `stores_least` of them.
        """
        if len(begun) >= _STORES_LEAST:
            self._small_left = _COMMITS_SMALL
        else:
            self._small_left -= 1
        self.stores_least = 1 if self._small_left else _STORES_LEAST
        if self._is_failed or not self._has_room():
            return None, begun
        stores: list[FileStore] = []
        others: list[Syncable] = []
        parts: list[bytes] = []
        room = ENTRY_BYTES_MAX
        for syncable in begun:
            store = self._redo_store(syncable) if room >= _PART_BYTES_MAX else None
            part = store.take_redo() if store is not None else None
            if store is None or part is None:
                others.append(syncable)
            else:
                stores.append(store)
                parts.append(part)
                room -= len(part)
        if not stores:
            return None, begun
        try:
            sync = self._log.append(stores, parts)
        except OSError as error:
            self._fail(error)
            return None, begun  # All of them: the log has nothing of this entry.
        self._entries += 1
        self._set_timer()
        self.is_under_way = True
        return SharedSync(stores, sum(map(len, parts)), sync, partial(self._end, stores)), others

    def _end(self, stores: list[FileStore], error: JetlakeError | None) -> None:
        self.is_under_way = False
        if error is not None:
            self._fail(error)
            return
        for store in stores:
            store.redo_synced()

    def _fail(self, error: Exception) -> None:
        """Use the log no more until a checkpoint has emptied it: it is unknown what the disk has of its last entry."""
        # sometimes: the disk refuses the redo log
        if not self._is_failed:
            self._is_failed = True
            self._report_refusal(error)
        self._set_timer()

    def _report_refusal(self, error: Exception) -> None:
        self._report(f"JetStream - cannot write the redo log; streams are synced one by one meanwhile: {error}")

    # Files

    def _has_room(self) -> bool:
        """Return whether the log takes an entry; one that is full is given a checkpoint."""
        log = self._log
        if log.has_room():
            return True
        if not log.is_made:
            self._crowded += 1
            self._set_timer()
            if self._crowded >= _CROWDED_LEAST and not self._has_job and self._loop.time() >= self._make_after_s:
                self._run(log.make, lambda _made: None, self._not_made)
        elif not self._has_job and not log.is_behind:
            # sometimes: a file of the redo log is full
            self._checkpoint(wipes=False)
        return log.has_room()

    def _checkpoint(self, *, wipes: bool) -> None:
        """Let entries go to the other file, and have the segments synced of which this one tells."""
        log = self._log
        file = log.rotate(wipes=wipes)
        if file is not None:
            self._run(partial(log.checkpoint, file, wipes=wipes), partial(self._checkpointed, file), self._fail)

    def _checkpointed(self, file: RedoFile, refused: list[tuple[FileStore, StoreError]]) -> None:
        if not refused:
            self._log.reset(file)
            self._is_failed = self._is_failed and not self._log.is_clean
        for store, error in refused:
            self._refused(store, error)

    def _not_made(self, error: Exception) -> None:
        """Report the first attempt that fails, and leave the disk alone for a while."""
        if not self._make_after_s:
            self._report_refusal(error)
        self._make_after_s = self._loop.time() + _MAKE_AGAIN_S

    def _run(
        self, job: Callable[[], Result], then: Callable[[Result], None], failed: Callable[[Exception], None]
    ) -> None:
        """Run a job in a thread, and give the loop what it returns, or how it failed."""

        def run() -> None:
            try:
                ended = partial(then, job())
            except Exception as error:  # no error may leave the job under way
                ended = partial(failed, error)
            with suppress(RuntimeError):  # the loop has gone
                self._loop.call_soon_threadsafe(end, ended)

        def end(ended: Callable[[], None]) -> None:
            self._has_job = False
            ended()

        self._has_job = True
        start_new_thread(run, ())

    # Time

    def _set_timer(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(_PAUSE_S, self._pass_time)

    def _pass_time(self) -> None:
        """Make a checkpoint when nothing was written for a while, or the one before has failed."""
        self._timer = None
        is_quiet = not self._entries or self._is_failed
        self._entries = self._crowded = 0
        if not self._log.is_made:
            return
        if not self._has_job and not self.is_under_way and (is_quiet or self._log.is_behind):
            self._checkpoint(wipes=is_quiet)
        if self._has_job or not is_quiet:
            self._set_timer()

    def stop(self) -> None:
        """Make no more checkpoints; nothing may be under way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
