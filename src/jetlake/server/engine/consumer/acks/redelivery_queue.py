"""The messages that a consumer is to deliver again, in the order in which they became due."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

__all__ = ["RedeliveryQueue"]

# So much that has gone may always stand in the queue: a clean-up for less is not worth its pass.
_STALE_MIN = 1024


class RedeliveryQueue:
    """A queue whose members may leave it from anywhere.

    Attributes:
        members: the sequences in the queue; always the same set. To take one out is to discard it here.
    """

    __slots__ = ("_order", "members")

    def __init__(self) -> None:
        self.members: set[int] = set()
        self._order: deque[int] = deque()  # with some that are members no more

    def put(self, sequences: Collection[int]) -> None:
        """Put these at the tail."""
        self._order.extend(sequences)
        self.members.update(sequences)
        if len(self._order) > 2 * len(self.members) + _STALE_MIN:
            self._order = deque(dict.fromkeys(sequence for sequence in self._order if sequence in self.members))

    def head(self) -> int | None:
        """The one at the head, which stays there."""
        order, members = self._order, self.members
        while order:
            if order[0] in members:
                return order[0]
            order.popleft()
        return None

    def take(self) -> int | None:
        """Take the one at the head."""
        sequence = self.head()
        if sequence is not None:
            self._order.popleft()
            self.members.discard(sequence)
        return sequence

    def clear(self) -> None:
        """Nothing is to be delivered again."""
        self._order.clear()
        self.members.clear()
