"""The contract of what the group commit flushes and syncs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from jetlake.errors import JetlakeError, StoreError

__all__ = ["SharedSync", "Syncable"]


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
