"""Group commit: writes of one cycle share a flush and a sync, and acknowledgements wait for the sync.

    mark, when_durable ──► flush (one cycle) ──► begin ──► sync in a thread ──► finish ──► actions
                             │ refused: rolled back           │ failed: retried later
                             └────► actions get the error ◄───┘

A cycle of the engine marks the stores and journals that it wrote to, and adds actions that wait for them
(acknowledgements, answers, visibility). With `always`, the shell takes the unsynced stores, several at a time, and
writes during a sync share the next one. With an interval, actions run right after the flush, and the shell syncs when
the interval has passed; only stores marked with `mark_now` are synced at once, and waited for.

What is always true:

- An action runs once: with None when everything written to its syncable before the action was added is as durable as
  the policy says, or with the error that prevented that.
- A syncable has at most one sync in flight; its later writes, and the actions that wait for them, wait for the next
  one.
- After `order(first, then)`, `then` is not flushed before the writes that `first` had are durable; if `first` fails,
  the actions that wait for `then` fail too, and it stays held. So a removal is in the log before a consumer's journal
  counts on it.
- After a failed flush or sync a syncable takes no writes until `retry` and another sync have succeeded; `failures`
  lists it meanwhile.
- Everything here runs on the engine's thread. Other threads only run `sync` of the syncables that `begin` returned, and
  touch nothing of this object. The shell may also sync them on the engine's thread, before it does anything else.

A crash at any point loses only writes whose actions have not run with None.

The reasons are in decisions 7 and 8 (docs/decisions).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from enum import Enum, auto
from itertools import chain, islice
from typing import Protocol

from jetlake.errors import JetlakeError, StoreError

__all__ = ["Action", "Commit", "SharedSync", "Syncable", "sync"]


class Syncable(Protocol):
    """A store, a journal or a folder, whose writes reach the disk in two steps: flush and sync."""

    @property
    def changes_names(self) -> bool:
        """Whether a sync makes, renames or removes files, as that of a folder does, instead of syncing one."""
        ...

    @property
    def failure(self) -> StoreError | None:
        """The error that stopped all writes; None while writes are possible."""
        ...

    def flush(self) -> None:
        """Write buffered data to the operating system; raises a `JetlakeError` on failure."""
        ...

    def sync(self) -> None:
        """Sync everything flushed before the call; may run in another thread."""
        ...

    def retry(self) -> None:
        """Retry after a failure; raises a `JetlakeError` while it persists. A sync that succeeds ends the failure."""
        ...


class SharedSync:
    """One sync that makes several stores durable; where it fails, each of them may still be synced by itself.

    Args:
        syncables: the stores.
        size: how many bytes it makes durable.
        sync: may run in another thread; raises a `JetlakeError` on failure.
        ended: called with the error afterwards, before anything else is synced.
    """

    changes_names = False

    def __init__(
        self,
        syncables: Sequence[Syncable],
        size: int,
        sync: Callable[[], None],
        ended: Callable[[JetlakeError | None], None],
    ) -> None:
        self.syncables = syncables
        self.size = size
        self.sync = sync
        self.ended = ended


def sync(syncable: Syncable | SharedSync) -> JetlakeError | None:
    """Sync a store or a journal, and return the error if that failed."""
    try:
        syncable.sync()
    except JetlakeError as error:
        return error
    except Exception as error:  # no error may end the thread that syncs
        return JetlakeError(f"sync failed: {error}")
    return None


Action = Callable[[JetlakeError | None], None]
"""Waits for a commit: called with None once the writes are durable, or with the error that prevented it."""

_Waiter = tuple[Syncable | None, Action]


class _SyncQueue:
    """Syncables in the order in which they were added; name-changing ones have a lane of their own."""

    def __init__(self) -> None:
        self._lanes: tuple[dict[Syncable, None], dict[Syncable, None]] = ({}, {})

    def __contains__(self, syncable: Syncable) -> bool:
        return syncable in self._lanes[syncable.changes_names]

    def __iter__(self) -> Iterator[Syncable]:
        return chain(*self._lanes)

    def __len__(self) -> int:
        return len(self._lanes[0]) + len(self._lanes[1])

    def add(self, syncable: Syncable) -> None:
        """Append a syncable, unless it waits already."""
        self._lanes[syncable.changes_names][syncable] = None

    def discard(self, syncable: Syncable) -> None:
        """Remove a syncable if it waits."""
        self._lanes[syncable.changes_names].pop(syncable, None)

    def first(self, others: Container[Syncable], count_max: int | None, names_max: int | None) -> list[Syncable]:
        """Return the longest waiting ones that are not among others.

        Args:
            count_max: how many that change no names.
            names_max: how many that change names.
        """
        data, names = self._lanes
        if len(data) == 1 and not names and count_max != 0:
            (only_subscription,) = data
            return [] if only_subscription in others else [only_subscription]
        found = list(islice((syncable for syncable in data if syncable not in others), count_max)) if data else []
        if names:
            found += islice((syncable for syncable in names if syncable not in others), names_max)
        return found


class _Progress(Enum):
    """How far a store or journal is that another one waits for."""

    MARKED = auto()
    FLUSHED = auto()
    SYNCING = auto()


class _Hold:
    """A store or journal that must not be written before others are on disk.

    Attributes:
        firsts: what must be on disk before.
        is_marked: the held one has something to flush.
        waiters: actions that wait for the held one.
    """

    __slots__ = ("firsts", "is_marked", "waiters")

    def __init__(self) -> None:
        self.firsts: dict[Syncable, _Progress] = {}
        self.is_marked = False
        self.waiters: list[_Waiter] = []

    def fail(self, error: JetlakeError) -> None:
        """Fail the waiting actions."""
        waiters, self.waiters = self.waiters, []
        for _, action in waiters:
            action(error)


class _Barrier:
    """Actions that wait for several syncs, whatever their outcome."""

    def __init__(self, count: int) -> None:
        self.actions: list[Action] = []
        self._left = count

    def pass_one(self, _error: JetlakeError | None) -> None:
        """Count a sync that has ended; the last one runs the actions."""
        self._left -= 1
        if not self._left:
            for action in self.actions:
                action(None)


class Commit:
    """The group commit of an engine.

    Args:
        always: actions wait for the sync; otherwise for the flush alone.
    """

    def __init__(self, *, always: bool) -> None:
        self.always = always
        self.failures: dict[Syncable, JetlakeError] = {}
        """Errors of stores and journals that could not be flushed or synced, until a retry succeeds."""
        self.on_failure: Callable[[Syncable, JetlakeError], None] = lambda _syncable, _error: None
        """Called once for each failure."""
        self.on_recovery: Callable[[Syncable], None] = lambda _syncable: None
        """Called when a failure is over."""
        self.on_single_flush: Callable[[Syncable], None] = lambda _syncable: None
        """Called with a syncable that was flushed alone and is about to be synced, while no sync is under way."""
        self._mended: set[Syncable] = set()  # failed ones that could be flushed again, and wait for a sync
        self._dirty: dict[Syncable, None] = {}
        self._soon: dict[Syncable, None] = {}
        self._unsynced = _SyncQueue()
        self._due = _SyncQueue()  # with an interval: the unsynced ones to sync now
        self._strict: set[Syncable] = set()  # with an interval: those whose sync is waited for
        self._in_flight: dict[Syncable, None] = {}
        self._forgotten: set[Syncable] = set()  # during their sync
        self._held: dict[Syncable, _Hold] = {}
        self._fresh: list[_Waiter] = []  # since the last flush
        self._flushed: dict[Syncable, list[Action]] = {}  # wait for the next sync
        self._syncing: dict[Syncable, list[Action]] = {}  # wait for the sync in flight

    # Called by the engine's parts

    def mark(self, syncable: Syncable) -> None:
        """Flush a written store or journal at the end of this cycle."""
        self._dirty[syncable] = None

    def mark_soon(self, syncable: Syncable) -> None:
        """Flush a written store or journal that no action waits for with the next `flush_soon`."""
        self._soon[syncable] = None

    def mark_now(self, syncable: Syncable) -> None:
        """Flush a written store or journal, and let actions wait for its sync, whatever the sync policy."""
        self._dirty[syncable] = None
        if not self.always:
            self._strict.add(syncable)

    def when_durable(self, syncable: Syncable | None, action: Action) -> None:
        """Run `action` when everything written to `syncable` so far is durable; None stands for all that is marked.

        With None the action never gets an error: failures are reported to the actions of the store that failed.
        """
        self._fresh.append((syncable, action))

    def when_synced(self, syncable: Syncable, action: Action) -> None:
        """Run `action` when all writes flushed to `syncable` so far are durable, whatever happens to later ones."""
        if not self.always and syncable not in self._strict:
            action(None)
            return
        self._unsynced.add(syncable)
        self._due.add(syncable)
        self._flushed.setdefault(syncable, []).append(action)

    def when_settled(self, action: Callable[[], object]) -> None:
        """Run `action` when everything written so far is as durable as the sync policy promises."""

        def act(_error: JetlakeError | None) -> None:
            action()

        self.when_durable(None, act)

    def when_all_durable(self, syncables: list[Syncable], action: Action) -> None:
        """Run `action` when all of the stores and journals are durable, with the first error if there is one."""
        left = len(syncables)
        first_error: JetlakeError | None = None

        def pass_one(error: JetlakeError | None) -> None:
            nonlocal left, first_error
            left -= 1
            first_error = first_error or error
            if not left:
                action(first_error)

        for syncable in syncables:
            self.when_durable(syncable, pass_one)

    def order(self, first: Syncable, then: Syncable) -> None:
        """Hold back writes to `then` until everything written to `first` so far is on disk.

        A removal must be in the log before a consumer's journal counts on it: a power cut in between would leave
        messages that the consumer never delivers.
        """
        self.mark_now(first)
        hold = self._held.setdefault(then, _Hold())
        hold.firsts[first] = _Progress.MARKED

    def fail(self, syncable: Syncable, error: JetlakeError) -> None:
        """Fail the actions that wait for writes since the last flush, which were undone."""
        fresh, self._fresh = self._fresh, []
        for waiter in fresh:
            if waiter[0] is syncable:
                waiter[1](error)
            else:
                self._fresh.append(waiter)

    def failed(self, syncable: Syncable, error: JetlakeError | None) -> None:
        """Record a failure; None and repeated errors change nothing."""
        if error is not None and syncable not in self.failures:
            self.failures[syncable] = error
            self.on_failure(syncable, error)

    def retry(self) -> None:
        """Retry failed stores and journals; a sync that succeeds ends their failure."""
        for syncable in list(self.failures):
            if syncable in self._in_flight or syncable in self._held:
                continue
            try:
                syncable.retry()
            except JetlakeError:
                continue
            self._mended.add(syncable)
            self._unsynced.add(syncable)
            self._due.add(syncable)

    def _recovered(self, syncable: Syncable) -> None:
        if self.failures.pop(syncable, None) is not None:
            self.on_recovery(syncable)
            # Flush what had to wait: removals of a stream, and the journals that come after them.
            self.mark_now(syncable)

    def forget(self, syncable: Syncable, error: JetlakeError | None = None) -> None:
        """Flush and sync a closed or deleted store or journal no more, and release the actions that wait for it.

        Args:
            error: passed to the waiting actions, when their writes are lost.
        """
        if error is not None:
            self.fail(syncable, error)
            for action in self._flushed.pop(syncable, ()):
                action(error)
        self.failures.pop(syncable, None)
        self._mended.discard(syncable)
        if syncable in self._in_flight:
            self._forgotten.add(syncable)
        for marked in (self._dirty, self._soon):
            marked.pop(syncable, None)
        self._unsynced.discard(syncable)
        self._due.discard(syncable)
        self._strict.discard(syncable)
        self._fresh += [(syncable, action) for action in self._flushed.pop(syncable, ())]
        if (hold := self._held.pop(syncable, None)) is not None:
            self._fresh += hold.waiters
        for then, hold in list(self._held.items()):
            if hold.firsts.pop(syncable, None) is not None:
                self._let_go_if_free(then, hold)

    # The cycle

    def is_quiet(self) -> bool:
        """Return whether `flush` has nothing to do."""
        return not self._dirty and not self._fresh

    def has_soon(self) -> bool:
        """Return whether `flush_soon` has something to do."""
        return bool(self._soon)

    def flush_soon(self) -> None:
        """Include everything marked with `mark_soon` in the next `flush`."""
        self._dirty.update(self._soon)
        self._soon.clear()

    def flush(self) -> None:
        """Flush each marked store and journal once, then run the actions that need no sync.

        The branches are ordered by what an action waits for. First the waits that a flush does not end: for everything
        (a barrier), for another store (held), for the next flush (marked again while this one ran). Then an error,
        which ends every other wait: a sync under way says nothing of what the flush could not write. Only then the
        sync: the next one if the store was flushed since the last began, the one under way if not, and none if all is
        synced.
        """
        errors = self._flush_dirty()
        fresh, self._fresh = self._fresh, []
        again = self._dirty.copy()  # marked by the flush of another one
        barrier: _Barrier | None = None
        for syncable, action in fresh:
            if syncable is None:
                barrier = barrier or self._new_barrier()
                barrier.actions.append(action)
            elif (hold := self._held.get(syncable)) is not None:
                self._wait_held(hold, (syncable, action))
            elif syncable in again:
                self._fresh.append((syncable, action))
            elif (error := errors.get(syncable) or syncable.failure) is not None:
                action(error)
            elif not self.always and syncable not in self._strict:
                action(None)
            elif syncable in self._unsynced:
                self._flushed.setdefault(syncable, []).append(action)
            elif syncable in self._in_flight:
                self._syncing.setdefault(syncable, []).append(action)
            else:
                action(None)
        if barrier is not None:
            barrier.pass_one(None)

    def _flush_dirty(self) -> dict[Syncable, JetlakeError]:
        errors: dict[Syncable, JetlakeError] = {}
        dirty, self._dirty = self._dirty, {}
        is_lone = self.always and len(dirty) == 1 and not self._in_flight
        for syncable in dirty:
            self._soon.pop(syncable, None)
            if syncable.failure is not None:
                # Nothing is written after a failed sync, until a `retry` succeeds.
                errors[syncable] = syncable.failure
                self.failed(syncable, syncable.failure)
                continue
            if (hold := self._held.get(syncable)) is not None:
                # sometimes: a journal waits for the log of its stream
                hold.is_marked = True
                continue
            try:
                syncable.flush()
            except JetlakeError as refused:
                errors[syncable] = refused
                self.failed(syncable, refused)
                self._soon[syncable] = None  # What is still buffered is tried again.
            else:
                self._unsynced.add(syncable)
                if syncable in self._strict:
                    self._due.add(syncable)
                if is_lone:
                    self.on_single_flush(syncable)
        for hold in self._held.values():
            for first, progress in hold.firsts.items():
                is_flushed = first in dirty and first not in errors and first not in self._held
                if is_flushed and progress is _Progress.MARKED:
                    hold.firsts[first] = _Progress.FLUSHED
        for syncable, refusal in errors.items():
            self._fail_held_by(syncable, refusal)
        return errors

    def _new_barrier(self) -> _Barrier:
        """Create a barrier for everything that is not durable yet; this flush itself passes it last."""
        waited: dict[Syncable, dict[Syncable, list[Action]]] = dict.fromkeys(self._in_flight, self._syncing)
        waited.update(dict.fromkeys(self._unsynced, self._flushed))
        if not self.always:
            waited = {syncable: waiters for syncable, waiters in waited.items() if syncable in self._strict}
        barrier = _Barrier(len(waited) + 1)
        for syncable, waiters in waited.items():
            waiters.setdefault(syncable, []).append(barrier.pass_one)
        return barrier

    def _wait_held(self, hold: _Hold, waiter: _Waiter) -> None:
        failure = self._failure_before(hold)
        if failure is not None:
            waiter[1](failure)
        else:
            hold.waiters.append(waiter)

    def _failure_before(self, hold: _Hold) -> JetlakeError | None:
        """Return the failure of something that must be on disk first, or first for that in turn."""
        for first in hold.firsts:
            failure = self.failures.get(first)
            if failure is None and (before := self._held.get(first)) is not None:
                failure = self._failure_before(before)
            if failure is not None:
                return failure
        return None

    def _fail_held_by(self, first: Syncable, error: JetlakeError) -> None:
        """Fail the actions of all that waits for a store or journal, which starts again with its next flush."""
        for then, hold in list(self._held.items()):
            if first in hold.firsts:
                hold.firsts[first] = _Progress.MARKED
                hold.fail(error)
                self._fail_held_by(then, error)

    def _let_go_if_free(self, then: Syncable, hold: _Hold) -> None:
        """Release a held store or journal when all that had to be before is on disk."""
        if hold.firsts:
            return
        del self._held[then]
        if hold.is_marked:
            self._dirty[then] = None
        self._fresh += hold.waiters

    # Called by the shell, which syncs

    def interval_passed(self) -> None:
        """Make all unsynced stores and journals due for a sync."""
        for syncable in self._unsynced:
            self._due.add(syncable)

    def waiting_syncs(self) -> int:
        """Return how many stores and journals wait for a sync, those included that have one in flight."""
        return len(self._unsynced if self.always else self._due)

    def wants_sync(self) -> bool:
        """Return whether the shell should `begin` syncs now; False while all are in flight."""
        return bool(self._idle(1, 1))

    def begin(self, count_max: int | None = None, names_max: int | None = None) -> list[Syncable]:
        """Return stores and journals to sync in worker threads; `finish` follows for each.

        Args:
            count_max: how many at most that change no names; None for all.
            names_max: how many at most that change names; None for all.
        """
        begun = self._idle(count_max, names_max)
        for syncable in begun:
            self._unsynced.discard(syncable)
            self._due.discard(syncable)
            self._syncing[syncable] = self._flushed.pop(syncable, [])
            self._in_flight[syncable] = None
        for hold in self._held.values():
            for first in begun:
                if hold.firsts.get(first) is _Progress.FLUSHED:
                    hold.firsts[first] = _Progress.SYNCING
        return begun

    def _idle(self, count_max: int | None, names_max: int | None) -> list[Syncable]:
        """Return the syncables that need a sync and have none in flight, the longest unsynced first."""
        queue = self._unsynced if self.always else self._due
        return queue.first(self._in_flight, count_max, names_max)

    def finish(self, outcomes: Mapping[Syncable, JetlakeError | None]) -> None:
        """Run the actions that waited for these syncs, with the errors of failed ones."""
        released = []
        for syncable, error in outcomes.items():
            self._in_flight.pop(syncable, None)
            if syncable in self._forgotten:
                self._forgotten.discard(syncable)
            elif error is not None:
                self._mended.discard(syncable)
                self.failed(syncable, error)
            elif syncable in self._mended:
                self._mended.discard(syncable)
                self._recovered(syncable)
            if syncable not in self._unsynced and syncable not in self._dirty:
                self._strict.discard(syncable)
            released += [(action, error) for action in self._syncing.pop(syncable, ())]
        for syncable, error in outcomes.items() if self._held else ():
            self._synced_first(syncable, error)
        for action, error in released:
            action(error)

    def _synced_first(self, first: Syncable, error: JetlakeError | None) -> None:
        """Release what waited for the sync of a store or journal, or fail the actions that wait for it."""
        if error is not None:
            self._fail_held_by(first, error)
            return
        for then, hold in list(self._held.items()):
            if hold.firsts.get(first) is _Progress.SYNCING:
                del hold.firsts[first]
                self._let_go_if_free(then, hold)

    def fail_waiting(self, error: JetlakeError) -> None:
        """Fail all waiting actions, because the engine stops without another sync."""
        for hold in self._held.values():
            self._fresh += hold.waiters
        waiting = [*self._syncing.values(), *self._flushed.values(), [action for _, action in self._fresh]]
        self._syncing, self._flushed, self._fresh, self._held = {}, {}, [], {}
        for actions in waiting:
            for action in actions:
                action(error)
