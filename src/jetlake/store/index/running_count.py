"""A count of messages in steps, between which messages are stored and removed."""

from __future__ import annotations

from itertools import compress
from typing import Any

from jetlake.store.index.index import Index
from jetlake.store.steps import Steps, in_groups
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["RunningCount"]

_SUBJECTS_PER_STEP = 1024
_ROWS_PER_STEP = 4096
_RESTARTS_MAX = 3


class RunningCount:
    """How many messages from a sequence on pass a filter, counted in steps.

    Between the steps it must be notified of removals; it finds appended messages by itself.
    """

    def __init__(self, index: Index[Any], first_sequence: int, subject_filter: SubjectFilter) -> None:
        self._index = index
        self._first = first_sequence
        self._filter = subject_filter
        self._total = 0
        # Of each subject that was counted: up to which sequence.
        self._counted: dict[bytes, int] = {}
        self._restarts = 0
        self._is_stale = False

    def run(self) -> Steps[int]:
        """Return how many messages there are when the last step is taken; messages may be appended meanwhile."""
        index = self._index
        yield from index.prepare(self._filter)
        while self._restarts <= _RESTARTS_MAX and not self._is_quick():
            self._total, self._counted, self._is_stale = 0, {}, False
            last = index.last_sequence
            yield from self._count_subjects()
            rows = _ROWS_PER_STEP
            while last < index.last_sequence and not self._is_stale:
                # Messages stored meanwhile; more at a time with each step, so that the count ends.
                start, last = last + 1, min(last + rows, index.last_sequence)
                self._count_rows(start, last)
                rows *= 2
                if last < index.last_sequence:
                    yield
            if not self._is_stale:
                return self._total
        return index.count(self._first, self._filter)

    def on_removed(self, sequence: int, subject: bytes) -> None:
        """Note that a message was removed."""
        if self._first <= sequence <= self._counted.get(subject, 0):
            self._total -= 1

    def restart(self) -> None:
        """Recount: many messages were removed, or the newest were rolled back."""
        self._is_stale = True
        self._restarts += 1

    def _is_quick(self) -> bool:
        """Return whether all can be counted at once: of few subjects, of all there are, or of the newest messages."""
        index = self._index
        passing = len(index.subjects.numbers.matches.passing(self._filter))
        return (
            passing <= _SUBJECTS_PER_STEP
            or passing == len(index.subjects)
            or index.last_sequence - self._first < _ROWS_PER_STEP
        )

    def _count_subjects(self) -> Steps[None]:
        index, counted = self._index, self._counted
        subjects, first = index.subjects, self._first
        count_all = first <= index.first_sequence
        for group in in_groups(list(subjects.numbers.matches.passing(self._filter)), _SUBJECTS_PER_STEP):
            passing, last = subjects.numbers.matches.passing(self._filter), index.last_sequence
            if not isinstance(passing, set):
                passing = set(passing)
            for number in group:
                if number in passing:  # otherwise its messages were removed meanwhile
                    counted[subjects.numbers.names[number]] = last
                    self._total += subjects.count(number) if count_all else subjects.count_from(number, first)
            yield
            if self._is_stale:
                return

    def _count_rows(self, first: int, last: int) -> None:
        """Count messages between two sequences, as far as their subjects were counted before they were stored."""
        index, counted = self._index, self._counted
        names = index.subjects.numbers.names
        for position in range(index.block_index(first), len(index.blocks)):
            block = index.blocks[position]
            start, end = block.row_at_or_after(first), block.row_at_or_after(last + 1)
            live = block.live[start:end]
            numbers = compress(block.subject_ids[start:end], live)
            for number, sequence in zip(numbers, compress(block.sequence_slice(start, end), live), strict=True):
                name = names[number]
                before = counted.get(name)
                if before is None and not self._filter.matches(name):
                    continue
                if sequence > (before or 0):
                    counted[name] = sequence
                    self._total += sequence >= self._first
