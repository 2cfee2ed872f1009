"""The deadlines of messages that wait on their own, apart from the run in which they went out."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

__all__ = ["MessageDeadlines"]

# So many deadlines that no longer hold may always stand in the heap: a clean-up for less is not worth its pass.
_STALE_MIN = 1024


class MessageDeadlines:
    """A deadline for some sequences, each of which can be moved or dropped.

    Attributes:
        times_ns: the deadline of each; always the same dictionary. To drop one is to take it out here.
    """

    __slots__ = ("_heap", "times_ns")

    def __init__(self) -> None:
        self.times_ns: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []  # with some that do not hold any more

    def set(self, sequence: int, deadline_ns: int) -> None:
        """From now on this is the message's deadline."""
        self.times_ns[sequence] = deadline_ns
        heappush(self._heap, (deadline_ns, sequence))
        if len(self._heap) > 2 * len(self.times_ns) + _STALE_MIN:
            self._heap = [(deadline_ns, sequence) for sequence, deadline_ns in self.times_ns.items()]
            heapify(self._heap)

    @property
    def next_ns(self) -> int:
        """The first deadline; 0 when there is none."""
        heap, times_ns = self._heap, self.times_ns
        while heap and times_ns.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else 0

    def take_due(self, now_ns: int) -> list[int]:
        """The messages whose deadline has come; they have none any more."""
        due: list[int] = []
        heap, times_ns = self._heap, self.times_ns
        while heap and heap[0][0] <= now_ns:
            deadline_ns, sequence = heappop(heap)
            if times_ns.get(sequence) == deadline_ns:
                del times_ns[sequence]
                due.append(sequence)
        return due

    def clear(self) -> None:
        """Nothing waits on its own."""
        self._heap.clear()
        self.times_ns.clear()
