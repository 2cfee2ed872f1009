"""Postings: which sequences of one block belong to each subject."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate, compress, islice, repeat
from operator import sub
from typing import TYPE_CHECKING, NamedTuple

from jetlake.store.steps import Steps, drained, sort_in_steps

if TYPE_CHECKING:
    from jetlake.store.index.block import Block

__all__ = ["BLOOM_BYTES", "Posted", "Postings", "add_to_bloom", "bloom_filter", "bloom_may_contain", "gather_in_steps"]

BLOOM_BYTES = 256
_ROWS_PER_STEP = 8192
_POSTED_PER_STEP = 2048
_BLOOM_BITS = 8 * BLOOM_BYTES


class Posted(NamedTuple):
    """The postings of one subject.

    Attributes:
        sequences: ascending; some may be dead.
        earlier: how many sequences of the subject were spilled before this block; None when that is not known.
    """

    sequences: array[int]
    earlier: int | None


class Postings:
    """The sequences of a block, grouped by subject.

    Attributes:
        numbers: the subjects' numbers, ascending.
        sequences: of the first number, then of the second, and so on, each ascending; some may be dead.
        earlier: how many sequences of each subject were spilled before this block; None when that is not known.
    """

    __slots__ = ("_counts", "_starts", "earlier", "numbers", "sequences")

    def __init__(
        self, numbers: array[int], counts: array[int], sequences: array[int], earlier: array[int] | None
    ) -> None:
        self.numbers = numbers
        self.sequences = sequences
        self.earlier = earlier
        self._counts: array[int] | None = counts
        self._starts: array[int] | None = None

    @classmethod
    def of_starts(
        cls, numbers: array[int], starts: array[int], sequences: array[int], earlier: array[int] | None
    ) -> Postings:
        """Return the postings of which it is known where each group begins, and where the last one ends."""
        postings = cls(numbers, starts, sequences, earlier)
        postings._counts, postings._starts = None, starts
        return postings

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

    def extend(self, more: Postings) -> None:
        """Add the postings of further subjects, whose numbers are higher; both must know their counts."""
        assert self.earlier is not None
        assert more.earlier is not None
        starts = self.starts
        starts.extend(islice(accumulate(more.counts, initial=starts[-1]), 1, None))
        self.counts.extend(more.counts)
        self.numbers.extend(more.numbers)
        self.sequences.extend(more.sequences)
        self.earlier.extend(more.earlier)

    def only(self, is_living: Callable[[int], bool]) -> Postings:
        """Return the same without dead sequences, and without the counts of earlier ones."""
        rows = ((number, each) for position, number in enumerate(self.numbers) for each in self.at(position))
        return Postings.of_rows(row for row in rows if is_living(row[1]))

    @property
    def counts(self) -> array[int]:
        """How many sequences each of the subjects has here."""
        if self._counts is None:
            self._counts = array("I", map(sub, self.starts[1:], self.starts))
        return self._counts

    @property
    def starts(self) -> array[int]:
        """Where the sequences of each subject begin, and where the last ones end."""
        if self._starts is None:
            self._starts = array("I", accumulate(self.counts, initial=0))
        return self._starts

    @property
    def size(self) -> int:
        """About how many bytes of memory they take."""
        return 8 * len(self.sequences) + 20 * len(self.numbers)

    def at(self, position: int) -> array[int]:
        """Return the sequences of the subject at a place."""
        starts = self.starts
        return self.sequences[starts[position] : starts[position + 1]]

    def of(self, number: int) -> Posted:
        """Return the postings of a subject."""
        position = bisect_left(self.numbers, number)
        if position == len(self.numbers) or self.numbers[position] != number:
            return Posted(array("Q"), None)
        return Posted(self.at(position), self.earlier[position] if self.earlier is not None else None)


def gather_in_steps(
    block: Block,
    is_used: Callable[[int], object] = lambda _number: True,
    on_added: Callable[[array[int]], None] = lambda _numbers: None,
) -> Steps[Postings]:
    """Return the living sequences of each subject by the rows of a block; some may have died by the end.

    Args:
        block: no row comes or goes between the steps, unless the columns are replaced.
        is_used: asked in the step in which rows are added; rows of other numbers are left out.
        on_added: called in the same step with the numbers that are new.
    """
    subject_ids, live, rows = block.subject_ids, block.live, len(block.live)
    sequences = block.sequence_slice(0, rows)
    keys: list[int] = []
    for start in range(0, rows, _ROWS_PER_STEP):
        end = start + _ROWS_PER_STEP
        living = compress(enumerate(subject_ids[start:end], start), live[start:end])
        keys += [number * rows + row for row, number in living]
        yield
    numbers, starts, found = array("I"), array("I"), array("Q")
    for group in drained((yield from sort_in_steps(keys)), _POSTED_PER_STEP):
        before = len(numbers)
        for number, row in map(divmod, group, repeat(rows)):
            if is_used(number):
                if not numbers or numbers[-1] != number:
                    numbers.append(number)
                    starts.append(len(found))
                found.append(sequences[row])
        on_added(numbers[before:])
        yield
    starts.append(len(found))
    return Postings.of_starts(numbers, starts, found, None)


def bloom_filter(numbers: Iterable[int]) -> bytes:
    """Return a Bloom filter of subjects: blocks that certainly lack a subject need not be searched."""
    bloom = bytearray(BLOOM_BYTES)
    add_to_bloom(bloom, numbers)
    return bytes(bloom)


def add_to_bloom(bloom: bytearray, numbers: Iterable[int]) -> None:
    """Set the bits of these subjects."""
    for number in {number % _BLOOM_BITS for number in numbers}:
        bloom[number >> 3] |= 1 << (number & 7)


def bloom_may_contain(bloom: bytes, number: int) -> bool:
    """Return whether a block with this Bloom filter may have sequences of a subject."""
    return bool(bloom[(number % _BLOOM_BITS) >> 3] >> (number & 7) & 1)
