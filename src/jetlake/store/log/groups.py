"""Groups: messages that a crash keeps all together or not at all. Each record of one names the neighbours in it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable

from jetlake.store.log.record import FOLLOWED, PRECEDED
from jetlake.store.sequence_ranges import Range, merged

__all__ = ["incomplete_groups", "links_of"]


def links_of(sequence: int, first: int, last: int) -> int:
    """The marks of one member of the group between two sequences."""
    return (FOLLOWED if sequence < last else 0) | (PRECEDED if sequence > first else 0)


def incomplete_groups(
    links: Iterable[tuple[int, int]], tombstones: list[Range], is_there: Callable[[int], bool], *, above: int, last: int
) -> list[Range]:
    """What is left of groups that are not there as a whole, as (first, last).

    Args:
        links: sequence and marks of the members that were found.
        tombstones: the sequences that were removed, which nobody misses.
        is_there: whether there is a message of a sequence, or a safe one was.
        above: up to here everything was safe: what is missing there was lost since, and alone.
        last: the highest sequence that was ever used.
    """
    members = sorted(links)
    if not members or members[-1][0] <= above:
        return []
    gone = merged(tombstones)

    def nearest(sequence: int, step: int) -> int:
        """The nearest sequence in that direction, this one included, that was not removed."""
        place = bisect_right(gone, sequence, key=lambda removed: removed[0]) - 1
        if place < 0 or gone[place][1] < sequence:
            return sequence
        return gone[place][1] + 1 if step > 0 else gone[place][0] - 1

    def is_missing(sequence: int, step: int) -> bool:
        found = nearest(sequence, step)
        return (found == sequence or 0 < found <= last) and not is_there(found)

    runs: list[tuple[int, int, int, int]] = []  # first and last sequence, and their marks
    for sequence, marks in members:
        if runs and marks & PRECEDED and runs[-1][3] & FOLLOWED and nearest(sequence - 1, -1) <= runs[-1][1]:
            runs[-1] = (runs[-1][0], sequence, runs[-1][2], marks)
        else:
            runs.append((sequence, sequence, marks, marks))
    return [
        (first, end)
        for first, end, first_marks, end_marks in runs
        if end > above
        and (
            (first_marks & PRECEDED and is_missing(first - 1, -1)) or (end_marks & FOLLOWED and is_missing(end + 1, 1))
        )
    ]
