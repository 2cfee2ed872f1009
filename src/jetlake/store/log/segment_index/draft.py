"""The draft of a segment index: the index of a full segment, made in steps while messages of it may be removed."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import compress

from jetlake.store.index.index import Index
from jetlake.store.index.postings import BLOOM_BYTES, Postings, add_to_bloom, gather_in_steps
from jetlake.store.index.subject_index import SubjectIndex
from jetlake.store.log.segment import Segment
from jetlake.store.log.segment_index.format import IndexContent, Names, pack_in_steps
from jetlake.store.steps import Steps, in_groups

__all__ = ["IndexDraft"]

_ROWS_PER_STEP = 8192
_SUBJECTS_PER_STEP = 2048


class IndexDraft:
    """The index of a full segment, of one that is not spilled or of a spilled one whose columns are in memory.

    Attributes:
        Bloom filter: of the subjects.
        postings: a message that was removed since the beginning may be among them.
        content: of the segment index; None until all steps are taken.
    """

    def __init__(self, segment: Segment, index: Index[Segment]) -> None:
        self.segment = segment
        self.bloom = bytearray(BLOOM_BYTES)
        self.postings = Postings(array("I"), array("I"), array("Q"), array("Q"))
        self.content: IndexContent | None = None
        self._names = Names()
        self._generation = segment.generation
        self._is_dead = not segment.live_count
        self._steps = self._make(index)

    def holds(self, segment: Segment) -> bool:
        """Return whether the draft is of this segment, as it is now.

        A rewrite moves rows, and takes dead ones away that the postings may have. When the last row has died, nobody
        knows whether the subjects still have their numbers; a draft without a living row has none.
        """
        is_same = self.segment is segment and self._generation == segment.generation
        return is_same and (segment.live_count > 0 or self._is_dead)

    def step(self) -> None:
        """Take a step."""
        next(self._steps, None)

    def _make(self, index: Index[Segment]) -> Steps[None]:
        gather = self._gather_tails(index) if self.segment.spilled is None else self._gather_rows(index.subjects)
        self.postings = yield from gather
        self.content = yield from pack_in_steps(self.segment, self.postings, self._names, bytes(self.bloom))

    def _gather_tails(self, index: Index[Segment]) -> Steps[Postings]:
        """Return the postings of a segment whose sequences are in its subjects' tails."""
        segment, postings = self.segment, self.postings
        # By number: a long list would be sorted, and looked at by the garbage collection.
        is_here = bytearray(len(index.subjects.tails))
        for start in range(0, segment.row_count, _ROWS_PER_STEP):
            end = start + _ROWS_PER_STEP
            for number in compress(segment.subject_ids[start:end], segment.live[start:end]):
                is_here[number] = 1
            yield
        for numbers in in_groups(_positions(is_here), _subjects_per_step(is_here.count(1), segment.live_count)):
            yield
            # A number may be another subject's by now, which has nothing here.
            part, group_names = index.subjects.postings_below(numbers, index.last_of(segment) + 1)
            add_to_bloom(self.bloom, part.numbers)
            self._names.extend(group_names)
            postings.extend(part)
        yield
        return postings

    def _gather_rows(self, subjects: SubjectIndex) -> Steps[Postings]:
        """Return the postings of a spilled segment, by its rows; a number without a name has no message any more."""
        numbers = subjects.numbers

        def add(added: array[int]) -> None:
            add_to_bloom(self.bloom, added)
            self._names.extend([numbers.names[number] for number in added])

        return gather_in_steps(self.segment, is_used=lambda number: numbers.names[number], on_added=add)


def _positions(flags: bytearray) -> Iterator[int]:
    """Yield the places of the flags that are set."""
    position = flags.find(1)
    while position >= 0:
        yield position
        position = flags.find(1, position + 1)


def _subjects_per_step(subjects: int, rows: int) -> int:
    """Return how many subjects are gathered in a step, so that they have a bounded number of rows on average."""
    return max(min(_SUBJECTS_PER_STEP, _ROWS_PER_STEP * subjects // max(rows, 1)), 1)
