"""The open files of a server's stores: a bounded number of handles for any number of segments."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from jetlake import platform

if TYPE_CHECKING:
    from jetlake.store.log.segment import Segment

__all__ = ["OpenFiles", "connections_max", "files_max"]

_FILES_MIN = 32
_FILES_LEAST = 4
_OTHERS_MIN = 64
_FILES_MAX = 16_384
_OTHERS = 192
_CONNECTIONS_MIN = 16


def files_max() -> int:
    """Return how many segments of a server may be open: an eighth of the process's file descriptors.

    One that is written to has a mark beside it, so that this is a quarter of the handles; clients, journals and
    whatever else the process does have the rest.
    """
    soft = platform.open_files_max()
    if soft is None:
        return _FILES_MAX
    # Below some hundred the process itself and the fewest clients come first: the store would starve with them.
    least = min(_FILES_MIN, max((soft - _OTHERS_MIN) // 2, _FILES_LEAST))
    return min(max(soft // 8, least), _FILES_MAX)


def connections_max() -> int | None:
    """Return how many client connections leave enough file descriptors to the store; None for any number.

    A quarter of what the process may open is for segments and their marks, an eighth for journals, folders and small
    files, and some for monitoring and the process itself.
    """
    soft = platform.open_files_max()
    return None if soft is None else max(soft - soft // 4 - soft // 8 - _OTHERS, _CONNECTIONS_MIN)


class OpenFiles:
    """The segments that have a handle; at the limit, the least recently used one is closed.

    All stores of a server share one; stores of different threads must not.

    Args:
        limit: how many may have one at a time.

    Attributes:
        newest: the segment that used its handle last.
    """

    def __init__(self, limit: int) -> None:
        self.newest: Segment | None = None
        self._limit = limit
        self._opened: OrderedDict[Segment, Callable[[Segment], None]] = OrderedDict()

    @property
    def is_full(self) -> bool:
        """Whether the next segment takes the handle of another one."""
        return len(self._opened) >= self._limit

    def use(self, segment: Segment, let_go: Callable[[Segment], None]) -> None:
        """Mark a segment as most recently used, before it opens its file or uses its handle.

        Args:
            let_go: gives the segment's handle back, whatever has to be done for that first; must not raise.
        """
        opened = self._opened
        self.newest = segment
        if segment in opened:
            opened.move_to_end(segment)
            return
        opened[segment] = let_go
        if len(opened) > self._limit:
            oldest, let_oldest_go = opened.popitem(last=False)
            let_oldest_go(oldest)

    def forget(self, segments: Iterable[Segment]) -> None:
        """Drop segments that were closed."""
        for segment in segments:
            self._opened.pop(segment, None)
            if segment is self.newest:
                self.newest = None
