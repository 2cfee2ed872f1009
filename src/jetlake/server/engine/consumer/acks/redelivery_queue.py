"""The redelivery queue: messages in the order in which they became due."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

__all__ = ["RedeliveryQueue"]


class RedeliveryQueue:
    """A queue whose members can be removed anywhere; one that is put again goes to the end.

    Attributes:
        members: the sequences in the queue, in order; always the same dictionary.
    """

    __slots__ = ("members",)

    def __init__(self) -> None:
        # Unlike a plain dictionary, it finds its first key at once after many others were removed.
        self.members: OrderedDict[int, None] = OrderedDict()

    def put(self, sequences: Iterable[int]) -> None:
        """Append sequences; those in the queue keep their places."""
        self.members.update(dict.fromkeys(sequences))

    def head(self) -> int | None:
        """Return the head without removing it."""
        return next(iter(self.members), None)

    def take(self) -> int | None:
        """Remove and return the head."""
        return self.members.popitem(last=False)[0] if self.members else None

    def discard(self, sequence: int) -> None:
        """Remove a sequence if it is in the queue."""
        self.members.pop(sequence, None)

    def clear(self) -> None:
        """Remove all."""
        self.members.clear()
