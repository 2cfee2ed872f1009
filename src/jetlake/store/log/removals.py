"""Removals without a tombstone in the log: due at once, or held back until the append that caused them is durable.

A message that makes room for another must not be gone when a power cut takes the other one: its tombstone is written
only when the flush that wrote its cause is durable.
"""

from __future__ import annotations

from collections import deque

from jetlake.store.sequence_ranges import Range

__all__ = ["Removals"]


class Removals:
    """Ranges of removed sequences, in the order of their removal.

    Attributes:
        asked: requested removals, due at once.
        held_back: removals that an append caused: the flush that wrote the append, then the range.
    """

    __slots__ = ("asked", "held_back")

    def __init__(self) -> None:
        self.asked: list[Range] = []
        self.held_back: deque[tuple[int, int, int]] = deque()

    def add(self, first: int, last: int) -> None:
        """Add a removal that a user or a limit asked for, due at once."""
        due = self.asked
        if due and due[-1][1] + 1 == first:
            first = due.pop()[0]
        due.append((first, last))

    def hold_back(self, first: int, last: int, cause: int) -> None:
        """Hold back a removal that an append caused, until the flush `cause`, which wrote the append, is durable."""
        held_back = self.held_back
        if held_back and held_back[-1][0] == cause and held_back[-1][2] + 1 == first:
            first = held_back.pop()[1]
        held_back.append((cause, first, last))

    def are_due(self, durable: int) -> bool:
        """Return whether a tombstone is due when the flushes up to `durable` are."""
        return bool(self.asked) or (bool(self.held_back) and self.held_back[0][0] <= durable)

    def due(self, durable: int) -> list[Range]:
        """Return the removals that are due when the flushes up to `durable` are."""
        found = self.asked[:]
        for cause, first, last in self.held_back:
            if cause > durable:
                break
            found.append((first, last))
        return found

    def written(self, count: int) -> None:
        """Drop the first `count` removals that were due: their tombstones are written."""
        for _ in range(count - len(self.asked)):
            self.held_back.popleft()
        self.asked.clear()

    def roll_back_above(self, sequence: int) -> None:
        """Drop removals above a sequence: the appends of those sequences were undone."""
        self.asked = [(first, min(last, sequence)) for first, last in self.asked if first <= sequence]

    def hold_any(self, first: int, last: int) -> bool:
        """Return whether a held-back removal overlaps these sequences."""
        return any(low <= last and high >= first for _, low, high in self.held_back)
