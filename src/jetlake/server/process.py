"""The process of `jetlake serve`: settings that only a server with a process of its own may change."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jetlake import platform

__all__ = ["GarbageCollection", "allow_many_files", "share_interpreter", "without_collections"]

# How long a thread that syncs may keep the interpreter from the loop, and the loop from it.
_SWITCH_S = 0.0005

# Objects that make a collection of the youngest due, and of the next generation; the oldest waits for `run_due`.
# Each of these collections takes less than a millisecond.
_THRESHOLDS = (800, 3, 1_000_000)
# A look at the older objects is due after this number of collections of the middle generation, each of which stands for
# 4,000 new objects. Beyond the last number a look would take too long, and the objects are exempt unseen.
_DUE_BUSY = 25
_DUE_QUIET = 1
_DUE_MAX = 50
_NEW_PER_DUE = 4000
_QUIET_TURNS_PER_S = 50
# More objects than this are exempt from further looks after one.
_LOOKED_AT_MAX = 20_000
# A full collection is due when this number of objects, and this multiple of the number that survived the last one, have
# become exempt. In a quiet moment, whose length is unknown, it is due earlier, unless there are too many objects.
_ALL_BUSY = (2_000_000, 4)
_ALL_QUIET = (200_000, 1)
_ALL_QUIET_MAX = 400_000


def allow_many_files() -> None:
    """Raise the limit of open files to the hard limit: each client takes one, each active stream two."""
    platform.raise_open_files()


def share_interpreter() -> None:
    """Let the loop and the threads that sync take turns in shorter intervals than Python's 5 ms."""
    sys.setswitchinterval(_SWITCH_S)


@contextmanager
def without_collections() -> Iterator[None]:
    """Put off garbage collections: what a start makes is no garbage, and the more of it there is the longer each takes.

    `GarbageCollection.start` allows them again. At the end the process goes, and its memory as a whole: Python would
    free the remaining objects one by one, which takes longer than all else in a stop with many streams.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class GarbageCollection:
    """Garbage collections that look at a bounded number of objects: each takes as long as there are objects to look at.

    Young objects are collected as usual. Older objects are looked at once, some tens of thousands at a time; the
    survivors are exempt from then on. So are the objects of a request that has created a large number: they live about
    as long as the result of the request. Objects outside of cycles need no collection, and short-lived ones (consumers,
    connections, requests) leave no cycles. For the remaining cycles, all objects are looked at when their number has
    doubled, in a quiet moment; a server that is large, or never quiet, postpones that for long.

    Args:
        turns: returns how many turns the server's loop has had so far.
    """

    _QUIET_S = 1.0
    _BUSY_S = 0.05

    def __init__(self, turns: Callable[[], int]) -> None:
        self._turns = turns
        self._turns_seen = 0
        self._interval_s = self._QUIET_S
        self._exempt = 0  # objects since the last look at all
        self._left = 0  # objects after the last look at all

    def start(self) -> None:
        """Exempt the objects of the start from collection, which live as long as the process."""
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)
        gc.enable()

    def run_due(self) -> float:
        """Look at the objects that are due: earlier on a server that has had little to do since the last call.

        Returns:
            The seconds until the next call: few on a busy server, where many objects may come in a second.
        """
        turns, seen = self._turns(), self._turns_seen
        self._turns_seen = turns
        is_quiet = turns - seen < _QUIET_TURNS_PER_S * self._interval_s
        self._interval_s = self._QUIET_S if is_quiet else self._BUSY_S
        due = gc.get_count()[2]
        if due >= _DUE_MAX:
            gc.freeze()
            self._exempt += due * _NEW_PER_DUE
        elif due >= (_DUE_QUIET if is_quiet else _DUE_BUSY):
            gc.collect()
            left = len(gc.get_objects())
            if left > _LOOKED_AT_MAX:
                gc.freeze()
                self._exempt += left
        may_look = is_quiet and self._exempt + self._left <= _ALL_QUIET_MAX
        least, growth = _ALL_QUIET if may_look else _ALL_BUSY
        if self._exempt >= max(least, growth * self._left):
            gc.unfreeze()
            gc.collect()
            self._exempt, self._left = 0, len(gc.get_objects())
            gc.freeze()
        return self._interval_s
