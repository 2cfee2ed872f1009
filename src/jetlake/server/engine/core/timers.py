"""Timers: deadlines in one heap; the event loop sleeps until the earliest and runs the due ones."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

__all__ = ["Timer", "Timers"]

# Fewer cancelled entries than this are not worth a pass over the heap.
_DEAD_MIN = 64


class Timer:
    """One scheduled call, created by `Timers.schedule`."""

    __slots__ = ("callback", "deadline_ns")

    def __init__(self, deadline_ns: int, callback: Callable[[int], None]) -> None:
        self.deadline_ns = deadline_ns
        self.callback: Callable[[int], None] | None = callback


class Timers:
    """Scheduled calls in the order of their deadlines.

    Cancelling is lazy: an entry stays in the heap until its deadline, or until cancelled entries outnumber the others.

    Attributes:
        next_ns: the earliest deadline; None when nothing is scheduled.
    """

    def __init__(self) -> None:
        self.next_ns: int | None = None
        self._heap: list[tuple[int, int, Timer]] = []
        self._scheduled = 0
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def schedule(self, deadline_ns: int, callback: Callable[[int], None]) -> Timer:
        """Have `callback` called with the time by the first `run_due` at or after the deadline."""
        timer = Timer(deadline_ns, callback)
        self._scheduled += 1
        self._live += 1
        heappush(self._heap, (deadline_ns, self._scheduled, timer))
        if self.next_ns is None or deadline_ns < self.next_ns:
            self.next_ns = deadline_ns
        return timer

    def cancel(self, timer: Timer | None) -> None:
        """Cancel a timer; None, and one that has run or was cancelled before, are ignored."""
        if timer is None or timer.callback is None:
            return
        timer.callback = None
        self._live -= 1
        if len(self._heap) > 2 * self._live + _DEAD_MIN:
            # In place, because run_due may be iterating over the list.
            self._heap[:] = [entry for entry in self._heap if entry[2].callback is not None]
            heapify(self._heap)
        if timer.deadline_ns == self.next_ns:
            self._find_next()

    def _find_next(self) -> None:
        heap = self._heap
        while heap and heap[0][2].callback is None:
            heappop(heap)
        self.next_ns = heap[0][0] if heap else None

    def run_due(self, now_ns: int, has_time: Callable[[], bool] = lambda: True) -> int:
        """Run the calls that are due, in the order of deadlines, and return their number.

        A call that a callback schedules waits for the next `run_due`, even when it is due at once, so that this one
        ends. When a callback raises, the rest stays scheduled; so does what is left when `has_time` says no, which is
        asked after each call.
        """
        heap = self._heap
        newest = self._scheduled
        too_new: list[tuple[int, int, Timer]] = []
        ran = 0
        try:
            while heap and heap[0][0] <= now_ns:
                entry = heappop(heap)
                timer = entry[2]
                callback = timer.callback
                if callback is None:
                    continue
                if entry[1] > newest:
                    too_new.append(entry)
                    continue
                timer.callback = None
                self._live -= 1
                ran += 1
                callback(now_ns)
                if not has_time():
                    break
        finally:
            for entry in too_new:
                heappush(heap, entry)
            self._find_next()
        return ran
