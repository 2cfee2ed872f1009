"""Group commit: what was written together becomes durable together, and only then is anyone told.

A cycle of the engine marks the stores and journals it wrote to and leaves actions that wait for them (acknowledgements,
answers, visibility). `flush` hands everything to the operating system; with `always` the shell then takes what is
unsynced (`begin`), syncs each store in a worker thread, several of them at a time, and reports each back (`finish`),
which runs the actions that waited for that store. What is written to a store while its sync is under way shares the
next one. With an interval the actions run right after the flush, and the shell syncs when the interval has passed;
only what was marked with `mark_now` is synced at once there too, and waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Protocol

from jetlake.errors import JetlakeError, StoreError

__all__ = ["Action", "Commit", "Syncable", "sync"]


class Syncable(Protocol):
    """A store or a journal: something whose writes reach the disk in two steps."""

    @property
    def failure(self) -> StoreError | None:
        """Why it takes nothing more; None while it does."""
        ...

    def flush(self) -> None:
        """Hand everything buffered to the operating system; raises a `JetlakeError` when the disk refuses."""
        ...

    def sync(self) -> None:
        """Return when everything flushed before the call is on disk; runs in another thread."""
        ...

    def mend(self) -> None:
        """Try again after the disk refused; raises a `JetlakeError` while it does, and a sync decides after that."""
        ...


def sync(syncable: Syncable) -> JetlakeError | None:
    """Sync a store or a journal, and return the error when that failed."""
    try:
        syncable.sync()
    except JetlakeError as error:
        return error
    except Exception as error:  # whatever a disk does, it must not end the thread that syncs
        return JetlakeError(f"sync failed: {error}")
    return None


Action = Callable[[JetlakeError | None], None]
"""What waits for a commit: called with None once it is durable, or with the error that says it is not."""

_Waiter = tuple[Syncable | None, Action]


class _Hold:
    """What must not be written before something else is on the disk.

    Attributes:
        first: what has to be on the disk.
        is_flushed, is_syncing: how far that has come.
        is_marked: what is held has something to write.
        waiters: those who wait for what is held.
    """

    __slots__ = ("first", "is_flushed", "is_marked", "is_syncing", "waiters")

    def __init__(self, first: Syncable) -> None:
        self.first = first
        self.is_flushed = self.is_syncing = self.is_marked = False
        self.waiters: list[_Waiter] = []

    def fail(self, error: JetlakeError) -> None:
        """The disk refused what has to come first: begin again with its next flush."""
        self.is_flushed = self.is_syncing = False
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
    """The one group commit of an engine.

    Args:
        always: actions wait for the sync; otherwise for the flush alone.
    """

    def __init__(self, *, always: bool) -> None:
        self.always = always
        self.failures: dict[Syncable, JetlakeError] = {}
        """What the disk refused to write or to sync, and why, until a `retry` finds that it takes it again."""
        self.on_failure: Callable[[Syncable, JetlakeError], None] = lambda _syncable, _error: None
        """Told of each of them once."""
        self.on_recovery: Callable[[Syncable], None] = lambda _syncable: None
        """Told when it is over."""
        self._mended: set[Syncable] = set()  # of those that failed, what waits for the sync that decides
        self._dirty: dict[Syncable, None] = {}
        self._soon: dict[Syncable, None] = {}
        self._unsynced: dict[Syncable, None] = {}
        self._due: dict[Syncable, None] = {}  # with an interval: those of the unsynced that are to be synced now
        self._strict: set[Syncable] = set()  # with an interval: those that are waited for all the same
        self._in_flight: dict[Syncable, None] = {}
        self._forgotten: set[Syncable] = set()  # while a sync of theirs was under way
        self._held: dict[Syncable, _Hold] = {}
        self._fresh: list[_Waiter] = []  # since the last flush
        self._flushed: dict[Syncable, list[Action]] = {}  # the next sync of each decides
        self._syncing: dict[Syncable, list[Action]] = {}  # the sync under way decides

    # What the engine leaves

    def mark(self, syncable: Syncable) -> None:
        """It was written to: flush it at the end of this cycle."""
        self._dirty[syncable] = None

    def mark_soon(self, syncable: Syncable) -> None:
        """It was written to, and nobody waits for it: the next `flush_soon` takes it, a tenth of a second later."""
        self._soon[syncable] = None

    def mark_now(self, syncable: Syncable) -> None:
        """It was written to, and whoever waits for it waits for its sync, whatever the policy."""
        self._dirty[syncable] = None
        if not self.always:
            self._strict.add(syncable)

    def when_durable(self, syncable: Syncable | None, action: Action) -> None:
        """Run `action` when all that was written to `syncable` so far is durable; None stands for all that is marked.

        With None the action always gets None: it waits for its turn, and whose writes failed is told to their owners.
        """
        self._fresh.append((syncable, action))

    def when_settled(self, action: Callable[[], object]) -> None:
        """Run `action` when everything written so far is as durable as the sync policy promises."""

        def act(_error: JetlakeError | None) -> None:
            action()

        self.when_durable(None, act)

    def when_all_durable(self, syncables: list[Syncable], action: Action) -> None:
        """Run `action` when all of them are durable, with the first error if there is one."""
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
        """Write nothing more to `then` before all that was written to `first` so far is on the disk.

        A removal is in the log before a consumer's journal counts on it: a power cut in between would leave messages
        that are there and that the consumer never delivers.
        """
        self.mark_now(first)
        hold = _Hold(first)
        if (before := self._held.get(then)) is not None:
            hold.is_marked, hold.waiters = before.is_marked, before.waiters
        self._held[then] = hold

    def fail(self, syncable: Syncable, error: JetlakeError) -> None:
        """What was written to it since the last flush is undone: whoever waits for that is told now."""
        fresh, self._fresh = self._fresh, []
        for waiter in fresh:
            if waiter[0] is syncable:
                waiter[1](error)
            else:
                self._fresh.append(waiter)

    def failed(self, syncable: Syncable, error: JetlakeError | None) -> None:
        """The disk refused it; None, and being told so again, change nothing."""
        if error is not None and syncable not in self.failures:
            self.failures[syncable] = error
            self.on_failure(syncable, error)

    def retry(self) -> None:
        """See whether the disk takes again what it refused; where it does, a sync decides."""
        for syncable in list(self.failures):
            if syncable in self._in_flight or syncable in self._held:
                continue
            try:
                syncable.mend()
            except JetlakeError:
                continue
            self._mended.add(syncable)
            self._unsynced[syncable] = self._due[syncable] = None

    def _recovered(self, syncable: Syncable) -> None:
        if self.failures.pop(syncable, None) is not None:
            self.on_recovery(syncable)
            # What had to wait: removals of a stream, and the journals that come after them.
            self.mark_now(syncable)

    def forget(self, syncable: Syncable, error: JetlakeError | None = None) -> None:
        """It was closed or deleted: nothing is to be flushed or synced any more, and what waits for it may go on.

        Args:
            error: told to those who wait, when what they wait for has come to nothing.
        """
        if error is not None:
            self.fail(syncable, error)
            for action in self._flushed.pop(syncable, ()):
                action(error)
        self.failures.pop(syncable, None)
        self._mended.discard(syncable)
        if syncable in self._in_flight:
            self._forgotten.add(syncable)
        for marked in (self._dirty, self._soon, self._unsynced, self._due):
            marked.pop(syncable, None)
        self._strict.discard(syncable)
        self._fresh += [(syncable, action) for action in self._flushed.pop(syncable, ())]
        if (hold := self._held.pop(syncable, None)) is not None:
            self._fresh += hold.waiters
        for then in [then for then, hold in self._held.items() if hold.first is syncable]:
            self._let_go(then)

    # The cycle

    def is_quiet(self) -> bool:
        """Nothing waits to be flushed or acted upon by `flush`."""
        return not self._dirty and not self._fresh

    def has_soon(self) -> bool:
        """Something waits for `flush_soon`."""
        return bool(self._soon)

    def flush_soon(self) -> None:
        """Let the next `flush` take what was marked for soon."""
        self._dirty.update(self._soon)
        self._soon.clear()

    def flush(self) -> None:
        """One write for each store and journal that was written to; then actions that need not wait run."""
        errors = self._flush_dirty()
        fresh, self._fresh = self._fresh, []
        again = self._dirty.copy()  # written to by the flush of another one
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
        for syncable in dirty:
            self._soon.pop(syncable, None)
            if syncable.failure is not None:
                # Nothing is written after a failed sync; who waits hears of it, and the next `retry` comes.
                errors[syncable] = syncable.failure
                self.failed(syncable, syncable.failure)
                continue
            if (hold := self._held.get(syncable)) is not None:
                hold.is_marked = True
                continue
            try:
                syncable.flush()
            except JetlakeError as refused:
                errors[syncable] = refused
                self.failed(syncable, refused)
                self._soon[syncable] = None  # What it could keep it will try again.
            else:
                self._unsynced[syncable] = None
                if syncable in self._strict:
                    self._due[syncable] = None
        for hold in self._held.values():
            if (refusal := errors.get(hold.first)) is not None:
                hold.fail(refusal)
            elif hold.first in dirty:
                hold.is_flushed = True
        return errors

    def _new_barrier(self) -> _Barrier:
        """A barrier for all that is not durable yet; this flush itself passes it last."""
        waited: dict[Syncable, dict[Syncable, list[Action]]] = dict.fromkeys(self._in_flight, self._syncing)
        waited.update(dict.fromkeys(self._unsynced, self._flushed))
        if not self.always:
            waited = {syncable: waiters for syncable, waiters in waited.items() if syncable in self._strict}
        barrier = _Barrier(len(waited) + 1)
        for syncable, waiters in waited.items():
            waiters.setdefault(syncable, []).append(barrier.pass_one)
        return barrier

    def _wait_held(self, hold: _Hold, waiter: _Waiter) -> None:
        failure = self.failures.get(hold.first)
        if failure is not None:
            waiter[1](failure)
        else:
            hold.waiters.append(waiter)

    def _let_go(self, then: Syncable) -> None:
        """What had to come first is on the disk."""
        hold = self._held.pop(then)
        if hold.is_marked:
            self._dirty[then] = None
        self._fresh += hold.waiters

    # The sync, driven by the shell

    def interval_passed(self) -> None:
        """Have everything that is unsynced synced now."""
        self._due.update(self._unsynced)

    def wants_sync(self) -> bool:
        """Whether the shell should `begin` syncs now; False while each is under way already."""
        return next(self._idle(), None) is not None

    def begin(self, count_max: int | None = None) -> list[Syncable]:
        """What to sync, each in a worker thread, before `finish` is called for it on the loop."""
        begun = list(islice(self._idle(), count_max))
        for syncable in begun:
            del self._unsynced[syncable]
            self._due.pop(syncable, None)
            self._syncing[syncable] = self._flushed.pop(syncable, [])
        self._in_flight.update(dict.fromkeys(begun))
        for hold in self._held.values():
            if hold.first in begun:
                hold.is_syncing = hold.is_flushed
        return begun

    def _idle(self) -> Iterator[Syncable]:
        """What is to be synced and has no sync under way; the longest unsynced first."""
        queue = self._unsynced if self.always else self._due
        return (syncable for syncable in queue if syncable not in self._in_flight)

    def finish(self, outcomes: Mapping[Syncable, JetlakeError | None]) -> None:
        """These syncs ended, with the error of those that failed: run what waited for them."""
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
        for then, hold in list(self._held.items()):
            if hold.is_syncing and hold.first in outcomes:
                if (failure := outcomes[hold.first]) is not None:
                    hold.fail(failure)
                else:
                    self._let_go(then)
        for action, error in released:
            action(error)

    def fail_waiting(self, error: JetlakeError) -> None:
        """The engine stops without another sync: whoever still waits is told that nothing is promised."""
        for hold in self._held.values():
            self._fresh += hold.waiters
        waiting = [*self._syncing.values(), *self._flushed.values(), [action for _, action in self._fresh]]
        self._syncing, self._flushed, self._fresh, self._held = {}, {}, [], {}
        for actions in waiting:
            for action in actions:
                action(error)
