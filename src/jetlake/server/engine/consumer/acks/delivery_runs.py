"""Runs of first deliveries, each with one delivery time, from which the ack wait of its messages counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain

__all__ = ["DeliveryRun", "DeliveryRuns"]


class DeliveryRun:
    """Messages delivered for the first time together; sequences ascend within a run and from run to run."""

    __slots__ = ("delivered_ns", "sequences")

    def __init__(self, sequences: list[int], delivered_ns: int) -> None:
        self.sequences = sequences
        self.delivered_ns = delivered_ns


class DeliveryRuns:
    """All runs with pending messages, oldest first; which of their messages are pending is known to the ack tracker.

    Attributes:
        tracked: how many sequences the runs hold, pending or not.
    """

    __slots__ = ("_front", "_old", "_timed", "tracked")

    def __init__(self) -> None:
        self._old: deque[DeliveryRun] = deque()  # their wait is over, or each message has its own deadline
        self._timed: deque[DeliveryRun] = deque()
        self._front = 0  # the place in the first run up to which nothing is pending
        self.tracked = 0

    def __iter__(self) -> Iterator[DeliveryRun]:
        return chain(self._old, self._timed)

    def add(self, sequences: list[int], delivered_ns: int) -> None:
        """Append a run; its sequences are above all others."""
        self._timed.append(DeliveryRun(sequences, delivered_ns))
        self.tracked += len(sequences)

    def replace(self, sequences: list[int]) -> None:
        """Replace all runs by one with these sequences and no deadline."""
        self.clear()
        if sequences:
            self._old.append(DeliveryRun(sequences, 0))
            self.tracked = len(sequences)

    def clear(self) -> None:
        """Drop all runs."""
        self._old.clear()
        self._timed.clear()
        self._front = self.tracked = 0

    def delivered_ns(self, sequence: int) -> int:
        """Return when a message was first delivered; 0 when unknown."""
        # Runs ascend: the last one that begins at or before the sequence has it.
        for runs in (self._timed, self._old):
            for run in reversed(runs):
                if run.sequences[0] <= sequence:
                    return run.delivered_ns
        return 0

    @property
    def waits_since_ns(self) -> int | None:
        """When the first run was delivered whose wait is not over; None when there is none."""
        return self._timed[0].delivered_ns if self._timed else None

    def expire(self, delivered_ns: int) -> list[int]:
        """End the wait of the runs that were delivered up to that time, and return their sequences."""
        due: list[int] = []
        while self._timed and self._timed[0].delivered_ns <= delivered_ns:
            run = self._timed.popleft()
            due += run.sequences
            self._old.append(run)
        return due

    def lowest(self, pending: Mapping[int, int]) -> int:
        """Return the lowest pending sequence, and drop the runs before it; at least one must be pending."""
        while True:
            runs = self._old or self._timed
            sequences = runs[0].sequences
            for index in range(self._front, len(sequences)):
                if sequences[index] in pending:
                    self._front = index
                    return sequences[index]
            runs.popleft()
            self.tracked -= len(sequences)
            self._front = 0

    def sweep(self, pending: Mapping[int, int]) -> None:
        """Drop sequences that are no longer pending; pays off when most are not."""
        self.tracked = 0
        for runs in (self._old, self._timed):
            for run in runs:
                run.sequences = [sequence for sequence in run.sequences if sequence in pending]
                self.tracked += len(run.sequences)
            living = [run for run in runs if run.sequences]
            runs.clear()
            runs.extend(living)
        self._front = 0
