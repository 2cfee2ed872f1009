"""Long work, taken in steps between which everybody else goes first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from jetlake.store.steps import Steps

__all__ = ["LongWork"]

# How long work may go on before others get their turn.
SLICE_NS = 1_000_000


class LongWork:
    """Everything that is under way, a slice of time for each in turn.

    Args:
        now_ns: tells the time.

    Attributes:
        slice_ns: how long one piece of work goes on at a time.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.slice_ns = SLICE_NS
        self._now_ns = now_ns
        self._waiting: deque[Steps[None]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def advance(self, work: Steps[None]) -> bool:
        """Take steps for one slice of time; whether the work is done."""
        deadline_ns = self._now_ns() + self.slice_ns
        return all(self._now_ns() < deadline_ns for _ in work)

    def begin(self, work: Steps[None]) -> None:
        """Take one slice of the work, and the rest in later turns."""
        if not self.advance(work):
            self.go_on_with(work)

    def go_on_with(self, work: Steps[None]) -> None:
        """Let the work go on in later turns."""
        self._waiting.append(work)

    def run(self) -> None:
        """Give the work that has waited longest its slice."""
        if self._waiting:
            work = self._waiting.popleft()
            if not self.advance(work):
                self._waiting.append(work)

    def finish(self) -> None:
        """Do all that is left, because no more turns come."""
        while self._waiting:
            for _ in self._waiting.popleft():
                pass
