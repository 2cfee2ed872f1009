"""Group commit: what was written together becomes durable together, and only then is anyone told.

A cycle of the engine marks the stores and journals it wrote to and leaves actions that wait for them (acknowledgements,
answers, visibility). `flush` hands everything to the operating system; with `always` the shell then takes what is
unsynced (`begin`), syncs it in one worker thread, and reports back (`finish`), which runs the actions. What comes in
while a sync is under way shares the next one. With an interval the actions run right after the flush, and the shell
syncs when the interval's timer says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from jetlake.errors import JetlakeError, StoreError

__all__ = ["Action", "Commit", "Syncable"]


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


class Commit:
    """The one group commit of an engine.

    Args:
        always: actions wait for the sync; otherwise for the flush alone.
    """

    def __init__(self, *, always: bool) -> None:
        self.always = always
        self.failures: dict[Syncable, JetlakeError] = {}
        """What failed to sync, and why: it takes nothing more before a restart."""
        self.on_failure: Callable[[Syncable, JetlakeError], None] = lambda _syncable, _error: None
        """Told of each of them once."""
        self.sync_due = False
        """With an interval policy: the interval has passed, so the next `wants_sync` says yes."""
        self._dirty: dict[Syncable, None] = {}
        self._soon: dict[Syncable, None] = {}
        self._unsynced: dict[Syncable, None] = {}
        self._in_flight: dict[Syncable, None] = {}
        self._forgotten: set[Syncable] = set()  # while the sync under way had them
        self._held: dict[Syncable, _Hold] = {}
        self._fresh: list[_Waiter] = []  # since the last flush
        self._flushed: list[_Waiter] = []  # their writes are with the operating system; the next sync takes them
        self._syncing: list[_Waiter] = []  # the sync under way decides

    # What the engine leaves

    def mark(self, syncable: Syncable) -> None:
        """It was written to: flush it at the end of this cycle."""
        self._dirty[syncable] = None

    def mark_soon(self, syncable: Syncable) -> None:
        """It was written to, and nobody waits for it: the next `flush_soon` takes it, a tenth of a second later."""
        self._soon[syncable] = None

    def when_durable(self, syncable: Syncable | None, action: Action) -> None:
        """Run `action` when all that was written to `syncable` so far is durable; None stands for all that is marked.

        With None the action always gets None: it waits for its turn, and whose writes failed is told to their owners.
        """
        self._fresh.append((syncable, action))

    def order(self, first: Syncable, then: Syncable) -> None:
        """Write nothing more to `then` before all that was written to `first` so far is on the disk.

        A removal is in the log before a consumer's journal counts on it: a power cut in between would leave messages
        that are there and that the consumer never delivers.
        """
        self.mark(first)
        self.sync_due = True
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
        """It takes nothing more; None, and being told so again, change nothing."""
        if error is not None and syncable not in self.failures:
            self.failures[syncable] = error
            self.on_failure(syncable, error)

    def forget(self, syncable: Syncable) -> None:
        """It was closed or deleted: nothing is to be flushed or synced any more, and what waits for it may go on."""
        self.failures.pop(syncable, None)
        if syncable in self._in_flight:
            self._forgotten.add(syncable)
        for marked in (self._dirty, self._soon, self._unsynced):
            marked.pop(syncable, None)
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
        errors: dict[Syncable, JetlakeError] = {}
        dirty, self._dirty = self._dirty, {}
        for syncable in dirty:
            self._soon.pop(syncable, None)
            if (hold := self._held.get(syncable)) is not None:
                hold.is_marked = True
                continue
            try:
                syncable.flush()
            except JetlakeError as refused:
                errors[syncable] = refused
                self.failed(syncable, syncable.failure)
                self._soon[syncable] = None  # What it could keep it will try again.
            else:
                self._unsynced[syncable] = None
        for hold in self._held.values():
            if (refusal := errors.get(hold.first)) is not None:
                hold.fail(refusal)
            elif hold.first in dirty:
                hold.is_flushed = True
        fresh, self._fresh = self._fresh, []
        for waiter in fresh:
            syncable_or_all, action = waiter
            if syncable_or_all is not None and (hold := self._held.get(syncable_or_all)) is not None:
                self._wait_held(hold, waiter)
                continue
            error = errors.get(syncable_or_all) if syncable_or_all is not None else None
            if error is not None or not self.always:
                action(error)
            elif self._awaits(syncable_or_all, self._unsynced):
                self._flushed.append(waiter)
            elif self._awaits(syncable_or_all, self._in_flight):
                self._syncing.append(waiter)
            else:
                action(None)

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

    @staticmethod
    def _awaits(syncable: Syncable | None, marked: dict[Syncable, None]) -> bool:
        return bool(marked) if syncable is None else syncable in marked

    # The sync, driven by the shell

    def wants_sync(self) -> bool:
        """Whether the shell should `begin` a sync now; False while one is under way."""
        return bool(self._unsynced) and not self._in_flight and (self.always or self.sync_due)

    def begin(self) -> list[Syncable]:
        """What to sync, in one worker thread, before `finish` is called on the loop."""
        self.sync_due = False
        self._in_flight, self._unsynced = self._unsynced, {}
        self._syncing, self._flushed = self._flushed, []
        for hold in self._held.values():
            hold.is_syncing = hold.is_flushed
        return list(self._in_flight)

    def finish(self, errors: Mapping[Syncable, JetlakeError]) -> None:
        """The sync ended: run what waited for it, with the error of its store where that failed."""
        self._in_flight = {}
        for failing in errors.keys() - self._forgotten:
            self.failed(failing, errors[failing])
        self._forgotten.clear()
        for then, hold in list(self._held.items()):
            if hold.is_syncing and (error := errors.get(hold.first)) is not None:
                hold.fail(error)
            elif hold.is_syncing:
                self._let_go(then)
        syncing, self._syncing = self._syncing, []
        for syncable, action in syncing:
            action(errors.get(syncable) if syncable is not None else None)

    def fail_waiting(self, error: JetlakeError) -> None:
        """The engine stops without another sync: whoever still waits is told that nothing is promised."""
        for waiters in (self._syncing, self._flushed, self._fresh, *(hold.waiters for hold in self._held.values())):
            pending, waiters[:] = list(waiters), []
            for _, action in pending:
                action(error)
