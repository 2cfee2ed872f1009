"""Long work in steps (`model/steps.py`): lists in groups, and sorting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain, islice, pairwise
from typing import TypeVar

from jetlake.model.steps import Steps, finish

__all__ = ["Steps", "drained", "finish", "in_groups", "sort_in_steps"]

Item = TypeVar("Item")
Sortable = TypeVar("Sortable", int, bytes, str)

_RUN = 2048
_RUN_MAX = 16 * _RUN


def in_groups(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items in lists of this size; the last one may be shorter."""
    rest = iter(items)
    while group := list(islice(rest, size)):
        yield group


def drained(items: list[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items in lists of this size, and take them from the list: a long one that goes at once takes long."""
    items.reverse()
    while items:
        group = items[-size:]
        group.reverse()
        del items[-size:]
        yield group


def sort_in_steps(items: list[Sortable]) -> Steps[list[Sortable]]:
    """Return the items in ascending order, sorted in short runs that are merged; the list is empty afterwards."""
    if len(items) <= _RUN // 32:
        few = sorted(items)
        items.clear()
        return few
    runs: list[list[Sortable]] = []
    for run in drained(items, _RUN):
        run.sort()
        runs.append(run)
        yield
    if all(before[-1] <= after[0] for before, after in pairwise(runs)):
        joined: list[Sortable] = []
        for some in drained(runs, _RUN_MAX // _RUN):
            joined.extend(chain.from_iterable(some))
            yield
        return joined
    while len(runs) > 1 and len(runs[0]) < _RUN_MAX:
        # Two runs are sorted about as quickly as they are read.
        longer: list[list[Sortable]] = []
        for at in range(0, len(runs), 2):
            longer.append(sorted(chain.from_iterable(runs[at : at + 2])))
            yield
        runs = longer
    if len(runs) == 1:
        return runs[0]
    merged: list[Sortable] = []
    for group in in_groups(merge(*runs), _RUN):
        merged += group
        yield
    return merged
