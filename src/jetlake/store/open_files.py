"""How many files of old segments are open: handles are few, and segments may be many."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress

from jetlake.store.segment import Segment

__all__ = ["OpenFiles"]


class OpenFiles:
    """Remembers which segments have a handle and takes it from the one that got its own longest ago.

    Args:
        limit: how many may have one at a time; those whose bytes are not safe yet keep theirs beyond it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._opened: deque[tuple[Segment, Callable[[Segment], bool]]] = deque()

    def add(self, segment: Segment, is_safe: Callable[[Segment], bool]) -> None:
        """The segment has a handle, or is about to get one.

        Args:
            is_safe: says whether a segment's handle may be taken: nobody needs it to sync.
        """
        self._opened.append((segment, is_safe))
        if len(self._opened) <= self._limit:
            return
        oldest, oldest_is_safe = self._opened.popleft()
        if oldest is segment or not oldest_is_safe(oldest):
            self._opened.append((oldest, oldest_is_safe))
        else:
            with suppress(OSError):
                oldest.close()

    def forget(self, segments: list[Segment]) -> None:
        """These segments have no handle any more."""
        gone = set(map(id, segments))
        self._opened = deque(entry for entry in self._opened if id(entry[0]) not in gone)
