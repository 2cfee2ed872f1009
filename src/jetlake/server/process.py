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
# A full collection is due after this number of the middle generation, each of which stands for 3,200 new objects.
_DUE_BUSY = 300
_DUE_QUIET = 1
_QUIET_TURNS = 50
_NEW_PER_DUE = 3200
# And no sooner than the objects have grown by this share of their number after the last full collection, so that the
# time of collections is a fixed share of the time that made the objects. Garbage does not count among these: whatever
# time a collection takes because of it, the next one comes no later.
_GROWTH_BUSY = 0.25
_GROWTH_QUIET = 0.02


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
    """Full garbage collections in quiet moments: each takes as long as the process has objects.

    Young objects are collected as ever. A busy server puts off the full collection until a million objects are new, or
    a quarter of all. Short-lived objects (consumers, connections, requests) leave no cycles, and need none.

    Args:
        turns: returns how many turns the server's loop has had so far.
    """

    INTERVAL_S = 1.0
    """The time between two calls of `run_due`."""

    def __init__(self, turns: Callable[[], int]) -> None:
        self._turns = turns
        self._turns_seen = 0
        self._left = 0  # objects after the last full collection

    def start(self) -> None:
        """Exempt the objects of the start from collection, which live as long as the process."""
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)
        gc.enable()

    def run_due(self) -> None:
        """Run a full collection if it is due: earlier on a server that has had little to do since the last call."""
        turns, seen = self._turns(), self._turns_seen
        self._turns_seen = turns
        due, growth = (_DUE_QUIET, _GROWTH_QUIET) if turns - seen < _QUIET_TURNS else (_DUE_BUSY, _GROWTH_BUSY)
        if gc.get_count()[2] >= max(due, growth * self._left / _NEW_PER_DUE):
            gc.collect()
            self._left = len(gc.get_objects())
