"""The redelivery queue: messages in the order in which they became due."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

__all__ = ["RedeliveryQueue"]

# Stale entries that are always tolerated: a clean-up for fewer costs more than it frees.
_STALE_MIN = 1024


class RedeliveryQueue:
    """A queue whose members can be removed anywhere.

    Attributes:
        members: the sequences in the queue; always the same set. Discarding one removes it from the queue.
    """

    __slots__ = ("_order", "members")

    def __init__(self) -> None:
        self.members: set[int] = set()
        self._order: deque[int] = deque()  # some entries are stale

    def put(self, sequences: Collection[int]) -> None:
        """Append sequences."""
        self._order.extend(sequences)
        self.members.update(sequences)
        if len(self._order) > 2 * len(self.members) + _STALE_MIN:
            self._order = deque(dict.fromkeys(sequence for sequence in self._order if sequence in self.members))

    def head(self) -> int | None:
        """Return the head without removing it."""
        order, members = self._order, self.members
        while order:
            if order[0] in members:
                return order[0]
            order.popleft()
        return None

    def take(self) -> int | None:
        """Remove and return the head."""
        sequence = self.head()
        if sequence is not None:
            self._order.popleft()
            self.members.discard(sequence)
        return sequence

    def clear(self) -> None:
        """Remove all."""
        self._order.clear()
        self.members.clear()
