"""Groups: messages that a crash keeps all together or not at all. Each record of one names the neighbours in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jetlake.store.log.record import FOLLOWED, PRECEDED
from jetlake.store.sequence_ranges import Range

__all__ = ["incomplete_groups", "links_of"]


def links_of(sequence: int, first: int, last: int) -> int:
    """Return the marks of one member of the group between two sequences."""
    return (FOLLOWED if sequence < last else 0) | (PRECEDED if sequence > first else 0)


def incomplete_groups(links: Iterable[tuple[int, int]], was_safe: Callable[[int], bool], *, above: int) -> list[Range]:
    """Return the remaining parts of incomplete groups, as (first, last).

    Args:
        links: sequence and marks of the members whose records were found, of removed ones as well.
        was_safe: whether a sequence is missing because it, or its segment, was removed or rewritten after a sync.
        above: up to here everything was safe: what is missing there was lost since, and alone.
    """
    runs: list[tuple[int, int, int, int]] = []  # first and last sequence, and their marks
    for sequence, marks in sorted(links):
        if runs and runs[-1][1] + 1 == sequence and marks & PRECEDED:
            runs[-1] = (runs[-1][0], sequence, runs[-1][2], marks)
        else:
            runs.append((sequence, sequence, marks, marks))
    return [
        (first, last)
        for first, last, first_marks, last_marks in runs
        if last > above
        and ((first_marks & PRECEDED and not was_safe(first - 1)) or (last_marks & FOLLOWED and not was_safe(last + 1)))
    ]
