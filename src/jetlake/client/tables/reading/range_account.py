"""What became of every sequence of a range: a row, a removal that is no loss, or a loss.

A gap that lies behind the stream's first message, by the word of its leader, comes from messages that were deleted or
superseded in the middle of the stream: no loss. What lies before the first message went from the stream's head, and is
lost unless it was known to be removed before, or need not have concerned the reader.

Messages that a shared durable consumer handed out are another matter: one that is gone was acknowledged by another
reader, to whom the consumer handed it out again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from jetlake.client.tables.plan.data_loss import data_loss_error, may_have_pushed_out, supersedes
from jetlake.client.tables.plan.partition import ReadPartition
from jetlake.model.stream import StreamInfo

__all__ = ["RangeAccount"]

_log = logging.getLogger("jetlake.tables")

Sequences = NDArray[np.int64]


class RangeAccount:
    """The account of one task; `take` what was read, then `close`.

    Args:
        ask: asks the stream's leader for the stream's state, and makes sure that it is the planned stream.
        count: asks how many messages match from one sequence up to another; None when nobody can tell.
        fail: whether a loss is an error.

    Attributes:
        lost: how many messages are lost (an upper bound under filters and where messages supersede each other).
    """

    def __init__(
        self,
        partition: ReadPartition,
        ask: Callable[[], StreamInfo],
        count: Callable[[int, int], int | None],
        *,
        fail: bool,
    ) -> None:
        self.lost = 0
        self._partition = partition
        self._ask = ask
        self._count = count
        self._fail = fail
        self._first = self._next = partition.first
        self._rows = 0
        self._expected = partition.messages
        # Whether a gap says nothing by itself, so that the range is judged at the end, by counts.
        self._sparse = bool(partition.subjects)
        self._removed = _expand(partition.removed)

    def take(self, sequences: Sequences) -> None:
        """Account for messages that were read, in ascending order behind those before.

        Raises:
            DataLossError: messages before or between them are lost, and that is an error.
        """
        partition = self._partition
        first, last = int(sequences[0]), int(sequences[-1])
        begins = not self._rows
        if begins and partition.beginning == "open":
            self._first = self._next = first
        if (first != self._next or last - first + 1 != len(sequences)) and not self._sparse and partition.runs is None:
            edges = np.concatenate(([self._next - 1], sequences))
            at = np.flatnonzero(np.diff(edges) > 1)
            self._judge(edges[at] + 1, edges[at + 1])
        self._next = last + 1
        self._rows += len(sequences)
        if begins and partition.beginning != "strict" and partition.subjects:
            # From here on nothing may go away.
            rest = self._count(self._next, partition.end) if self._next < partition.end else 0
            self._first = first
            self._expected = self._rows + rest if rest is not None else None

    def close(self) -> None:
        """Account for the rest of the range, of which nothing came.

        Raises:
            StreamRecreatedError: another stream was read than the one that was planned; always an error, for the
                range cannot be read to its end.
            DataLossError: messages are lost, and that is an error.
        """
        partition = self._partition
        if partition.runs is not None:
            self._tell_of_missing(partition.runs)
            return
        info = self._ask()
        if not self._rows and partition.beginning == "open":
            return
        if not self._sparse and self._next < partition.end:
            self._judge(np.array([self._next]), np.array([partition.end]), info)
        if self._sparse and (self._rows or partition.beginning == "strict"):
            self._judge_by_count(info)

    def _judge(self, starts: Sequences, ends: Sequences, info: StreamInfo | None = None) -> None:
        """Account for gaps, each from its start up to but not including its end."""
        info = info or self._ask()
        if supersedes(info):
            self._sparse = True
            return
        partition = self._partition
        head = max(info.state.first_seq, 1)
        lost = starts < head
        if not self._rows and partition.beginning == "pushed":
            lost[0] &= not may_have_pushed_out(info, partition.first, partition.seen)
        if not lost.any():
            return
        starts, ends = starts[lost], np.minimum(ends[lost], head)
        known = np.searchsorted(self._removed, ends) - np.searchsorted(self._removed, starts)
        self._lose(int((ends - starts - known).sum()), int(starts[0]), int(ends[-1]))

    def _judge_by_count(self, info: StreamInfo) -> None:
        """Account for messages that are missing, where a gap says nothing by itself."""
        partition = self._partition
        head = info.state.first_seq
        is_counted = bool(partition.subjects) and self._expected is not None
        expected = self._expected if is_counted and self._expected is not None else partition.end - self._first
        missing = min(expected - self._rows, head - self._first)
        if missing <= 0:
            return
        if supersedes(info):
            # The newest message of a stream is never superseded.
            certain = not partition.subjects and info.state.messages == 0
        else:
            certain = is_counted
        if certain or may_have_pushed_out(info, self._first, partition.seen):
            self._lose(missing, self._first, min(head, partition.end))

    def _tell_of_missing(self, runs: tuple[tuple[int, int], ...]) -> None:
        """Log how many of the messages that a shared consumer handed out are gone; who took them nobody knows."""
        missing = sum(last + 1 - first for first, last in runs) - self._rows
        if missing > 0:
            _log.warning(
                "%d messages that the consumer of stream %s handed out are gone: other readers acknowledged them when "
                "their ack wait was over, or they were removed",
                missing,
                self._partition.stream,
            )

    def _lose(self, count: int, first: int, end: int) -> None:
        if count <= 0:
            return
        error = data_loss_error(self._partition.stream, first, end)
        if self._fail:
            raise error
        _log.warning("%s (going on, as the option says)", error)
        self.lost += count


def _expand(runs: tuple[tuple[int, int], ...]) -> Sequences:
    if not runs:
        return np.empty(0, np.int64)
    return np.concatenate([np.arange(first, last + 1, dtype=np.int64) for first, last in runs])
