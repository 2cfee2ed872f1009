"""Postings: which sequences of one block belong to each subject."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate

__all__ = ["MASK_BYTES", "Postings", "add_to_mask", "subject_mask", "within_mask"]

MASK_BYTES = 256
_MASK_BITS = 8 * MASK_BYTES


class Postings:
    """The sequences of a block, grouped by subject.

    Attributes:
        numbers: the subjects' numbers, ascending.
        counts: how many sequences each of them has here.
        sequences: those of the first number, then those of the second, ascending within a group; some may be dead.
        earlier: how many sequences of each subject were filed before this block; None when that is not known.
    """

    __slots__ = ("_ends", "counts", "earlier", "numbers", "sequences")

    def __init__(
        self, numbers: array[int], counts: array[int], sequences: array[int], earlier: array[int] | None
    ) -> None:
        self.numbers = numbers
        self.counts = counts
        self.sequences = sequences
        self.earlier = earlier
        self._ends: array[int] | None = None

    @classmethod
    def of_rows(cls, rows: Iterable[tuple[int, int]]) -> Postings:
        """Return the postings of rows, each as (subject number, sequence)."""
        groups: dict[int, array[int]] = {}
        for number, sequence in rows:
            group = groups.get(number)
            if group is None:
                groups[number] = array("Q", (sequence,))
            else:
                group.append(sequence)
        numbers = array("I", sorted(groups))
        sequences: array[int] = array("Q")
        for number in numbers:
            sequences.extend(groups[number])
        return cls(numbers, array("I", (len(groups[number]) for number in numbers)), sequences, None)

    def only(self, is_living: Callable[[int], bool]) -> Postings:
        """Return the same without sequences that are dead; how many were filed before is not told."""
        rows = ((number, each) for place, number in enumerate(self.numbers) for each in self.at(place))
        return Postings.of_rows(row for row in rows if is_living(row[1]))

    @property
    def size(self) -> int:
        """About how many bytes of memory they take."""
        return 8 * len(self.sequences) + 20 * len(self.numbers)

    def place_of(self, number: int) -> int:
        """Return the place of a subject among the numbers; -1 when the block has none of its sequences."""
        place = bisect_left(self.numbers, number)
        return place if place < len(self.numbers) and self.numbers[place] == number else -1

    def at(self, place: int) -> array[int]:
        """Return the sequences of the subject at a place."""
        if len(self.sequences) == len(self.numbers):
            return self.sequences[place : place + 1]
        if self._ends is None:
            self._ends = array("I", accumulate(self.counts))
        end = self._ends[place]
        return self.sequences[end - self.counts[place] : end]

    def of(self, number: int) -> array[int]:
        """Return the sequences of a subject."""
        place = self.place_of(number)
        return self.at(place) if place >= 0 else array("Q")


def subject_mask(numbers: Iterable[int]) -> bytes:
    """Return a mask of bits by which most blocks without a subject are told from those that may have it."""
    mask = bytearray(MASK_BYTES)
    add_to_mask(mask, numbers)
    return bytes(mask)


def add_to_mask(mask: bytearray, numbers: Iterable[int]) -> None:
    """Set the bits of these subjects."""
    for number in {number % _MASK_BITS for number in numbers}:
        mask[number >> 3] |= 1 << (number & 7)


def within_mask(mask: bytes, number: int) -> bool:
    """Return whether a block with this mask may have sequences of a subject."""
    return bool(mask[(number % _MASK_BITS) >> 3] >> (number & 7) & 1)
