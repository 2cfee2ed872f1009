"""The tombstones in a segment: which sequences they say are gone."""

from __future__ import annotations

from array import array

__all__ = ["SegmentTombstones"]


class SegmentTombstones:
    """The ranges of sequences that the tombstones of one segment cover.

    Attributes:
        low, high: all covered sequences lie between these; 0 when there is no tombstone.
        ranges: first and last sequence of each tombstone in turn, until the segment has a segment index.
    """

    __slots__ = ("high", "low", "ranges")

    def __init__(self) -> None:
        self.low = 0
        self.high = 0
        self.ranges: array[int] = array("Q")

    def add(self, first: int, last: int) -> None:
        """Add a tombstone."""
        self.low = min(self.low, first) if self.low else first
        self.high = max(self.high, last)
        self.ranges.extend((first, last))

    def forget_after(self, last: int) -> None:
        """Forget the tombstones that begin after a sequence."""
        ranges, self.ranges = self.ranges, array("Q")
        self.low = self.high = 0
        for begin, end in zip(ranges[::2], ranges[1::2], strict=True):
            if begin <= last:
                self.add(begin, end)
