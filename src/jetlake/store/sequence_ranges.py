"""Arithmetic on ranges of sequences, each as (first, last)."""

from __future__ import annotations

from bisect import bisect_right

__all__ = ["Range", "merged", "without"]

Range = tuple[int, int]


def merged(ranges: list[Range]) -> list[Range]:
    """The same sequences in ascending ranges that do not touch."""
    found: list[Range] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            if last > found[-1][1]:
                found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


def without(ranges: list[Range], gone: list[Range], limit: int) -> list[int]:
    """The sequences of `ranges` that no range of `gone` has, ascending, at most so many; `gone` must be merged."""
    left: list[int] = []
    starts = [first for first, _ in gone]
    for first, last in merged(ranges):
        at = first
        while at <= last and len(left) < limit:
            place = bisect_right(starts, at) - 1
            if place >= 0 and gone[place][1] >= at:
                at = gone[place][1] + 1
                continue
            stop = min(last, starts[place + 1] - 1) if place + 1 < len(starts) else last
            left.extend(range(at, min(stop + 1, at + limit - len(left))))
            at = stop + 1
    return left
