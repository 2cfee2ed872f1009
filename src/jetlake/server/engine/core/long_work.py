"""Long work: requests that run in steps over several turns of the loop, so that other work is not delayed.

The reasons are in decision 11 (docs/decisions).
"""

from __future__ import annotations

from collections import deque

from jetlake.server.engine.core.clock import Clock
from jetlake.store.steps import Steps

__all__ = ["LongWork"]

# Longest time that one piece of work runs in a turn.
SLICE_NS = 500_000


class LongWork:
    """Unfinished work, which gets time slices in round-robin order.

    Args:
        now_ns: returns the time.

    Attributes:
        slice_ns: length of a time slice.
        waiting: unfinished work, the longest waiting first.
        is_finishing: whether the engine stops: what has begun is finished, and nothing else begins.
    """

    def __init__(self, clock: Clock) -> None:
        self.slice_ns = SLICE_NS
        self._clock = clock
        self.waiting: deque[Steps[None]] = deque()
        self.is_finishing = False

    def advance(self, work: Steps[None]) -> bool:
        """Run steps for one time slice; True when the work is done."""
        deadline_ns = self._clock.now_ns() + self.slice_ns
        return all(self._clock.now_ns() < deadline_ns for _ in work)

    def begin(self, work: Steps[None]) -> None:
        """Run one time slice of the work, and the rest in later turns."""
        if not self.advance(work):
            self.go_on_with(work)

    def go_on_with(self, work: Steps[None]) -> None:
        """Continue the work in later turns."""
        self.waiting.append(work)

    def run(self) -> None:
        """Run one time slice of the work that has waited longest; there must be some."""
        work = self.waiting.popleft()
        if not self.advance(work):
            self.waiting.append(work)

    def finish(self) -> None:
        """Run all unfinished work to its end, before the engine stops."""
        self.is_finishing = True
        while self.waiting:
            for _ in self.waiting.popleft():
                pass
