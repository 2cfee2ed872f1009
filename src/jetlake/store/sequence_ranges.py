"""Arithmetic on ranges of sequences, each as (first, last)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

__all__ = ["Range", "format_ranges", "merged", "ranges_of", "without"]

_RANGES_TOLD_MAX = 10

Range = tuple[int, int]


def merged(ranges: list[Range]) -> list[Range]:
    """Return the same sequences in ascending ranges that do not touch."""
    found: list[Range] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            if last > found[-1][1]:
                found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


def ranges_of(sequences: Iterable[int]) -> list[Range]:
    """Ascending sequences as ranges."""
    found: list[Range] = []
    first = last = -1
    for sequence in sequences:
        if sequence != last + 1:
            if last >= 0:
                found.append((first, last))
            first = sequence
        last = sequence
    return [*found, (first, last)] if last >= 0 else found


def format_ranges(ranges: list[Range]) -> str:
    """Ranges for a log line, which must not grow without bound: `1-3, 7 and 20 more ranges`."""
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges[:_RANGES_TOLD_MAX])
    more = len(ranges) - _RANGES_TOLD_MAX
    return shown if more <= 0 else f"{shown} and {more} more ranges"


def without(ranges: list[Range], gone: list[Range], limit: int) -> list[int]:
    """Return at most `limit` sequences of `ranges` that are in no range of `gone`, ascending; `gone` must be merged."""
    left: list[int] = []
    starts = [first for first, _ in gone]
    for first, last in merged(ranges):
        at = first
        while at <= last and len(left) < limit:
            position = bisect_right(starts, at) - 1
            if position >= 0 and gone[position][1] >= at:
                at = gone[position][1] + 1
                continue
            stop = min(last, starts[position + 1] - 1) if position + 1 < len(starts) else last
            left.extend(range(at, min(stop + 1, at + limit - len(left))))
            at = stop + 1
    return left
