"""The queue of stores, journals and folders that wait for a sync, and the contract that they share."""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import chain, islice
from typing import Protocol

from jetlake.errors import StoreError

__all__ = ["SyncQueue", "Syncable"]


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
        """Sync everything flushed before the call; runs in another thread."""
        ...

    def mend(self) -> None:
        """Retry after a failure; raises a `JetlakeError` while it persists. A sync that succeeds ends the failure."""
        ...


class SyncQueue:
    """Syncables in the order in which they were added; those that change names have a lane of their own."""

    def __init__(self) -> None:
        self._lanes: tuple[dict[Syncable, None], dict[Syncable, None]] = ({}, {})

    def __contains__(self, syncable: Syncable) -> bool:
        return syncable in self._lanes[syncable.changes_names]

    def __iter__(self) -> Iterator[Syncable]:
        return chain(*self._lanes)

    def add(self, syncable: Syncable) -> None:
        """Append a syncable, unless it waits already."""
        self._lanes[syncable.changes_names][syncable] = None

    def discard(self, syncable: Syncable) -> None:
        """Remove a syncable if it waits."""
        self._lanes[syncable.changes_names].pop(syncable, None)

    def first(self, others: Container[Syncable], count_max: int | None, names_max: int | None) -> list[Syncable]:
        """Return the longest waiting ones that are not among others.

        Args:
            count_max: how many of those that change no names.
            names_max: how many of those that change names.
        """
        found: list[Syncable] = []
        for lane, limit in zip(self._lanes, (count_max, names_max), strict=True):
            found += islice((syncable for syncable in lane if syncable not in others), limit)
        return found
