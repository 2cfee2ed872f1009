"""Ack deadlines of single messages, which differ from the deadline of their run."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

__all__ = ["MessageDeadlines"]

# Stale heap entries that are always tolerated: a clean-up for fewer costs more than it frees.
_STALE_MIN = 1024


class MessageDeadlines:
    """A heap of deadlines with lazy deletion.

    Attributes:
        times_ns: deadline of each sequence; always the same dictionary. Deleting an entry drops the deadline.
    """

    __slots__ = ("_heap", "times_ns")

    def __init__(self) -> None:
        self.times_ns: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []  # some entries are stale

    def set(self, sequence: int, deadline_ns: int) -> None:
        """Set or move a message's deadline."""
        self.times_ns[sequence] = deadline_ns
        heappush(self._heap, (deadline_ns, sequence))
        if len(self._heap) > 2 * len(self.times_ns) + _STALE_MIN:
            self._heap = [(deadline_ns, sequence) for sequence, deadline_ns in self.times_ns.items()]
            heapify(self._heap)

    @property
    def next_ns(self) -> int:
        """The first deadline; 0 = none."""
        heap, times_ns = self._heap, self.times_ns
        while heap and times_ns.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else 0

    def take_due(self, now_ns: int) -> list[int]:
        """Remove and return the messages whose deadline has passed."""
        due: list[int] = []
        heap, times_ns = self._heap, self.times_ns
        while heap and heap[0][0] <= now_ns:
            deadline_ns, sequence = heappop(heap)
            if times_ns.get(sequence) == deadline_ns:
                del times_ns[sequence]
                due.append(sequence)
        return due

    def clear(self) -> None:
        """Drop all deadlines."""
        self._heap.clear()
        self.times_ns.clear()
