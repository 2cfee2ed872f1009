"""Reads a range to its end over connections that may break, and accounts for every sequence of it.

    read_range -- lease -- reader (consumer, direct or leader) -- messages --> yield
        |                    ^ reopened behind the last message after a break
        `-- RangeAccount.take(sequences) … close()

What is always true: a message is yielded once and in order, because a reopened reader starts behind the last message
that was yielded; and each sequence of the range is a row, a removal that is no loss, or a loss.

* A gap behind the stream's first message, as its leader reports it, comes from messages that were deleted or replaced
  in the middle of the stream: no loss, as far as the leader counts that many deleted messages. If it counts fewer, the
  server that answered did not have all messages, and the read fails.
* Messages before the stream's first message left from its head: lost, unless they were known to be deleted before, or
  need not have concerned the reader.
* A range that starts at the stream's beginning may lose its first messages to the stream's limits before the first one
  is read, and to nothing else. The planned range stays the range however often a task is repeated.
* A message that a shared durable consumer delivered and that is gone was acknowledged by another reader, to which the
  consumer redelivered it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from jetlake.client.tables.data_loss import (
    check_not_restored,
    data_loss_error,
    limits_explain,
    may_have_pushed_out,
    supersedes,
)
from jetlake.client.tables.message_columns import MessageColumns
from jetlake.client.tables.planning import ReadOptions, ReadPartition, StreamOffset
from jetlake.client.tables.readers import read_by_consumer, read_by_direct_get, read_by_leader
from jetlake.client.tables.stream_api import BROKEN, RetryPolicy, StreamApi, ask
from jetlake.client.tables.survey import count_matching
from jetlake.errors import (
    ProtocolError,
    PullStatusError,
    StreamNotFoundError,
    StreamRecreatedError,
    UnsupportedStreamError,
)
from jetlake.model.stream import StreamInfo

T = TypeVar("T")
_READERS = {
    "consumer": read_by_consumer,
    "direct": read_by_direct_get,
    "leader": read_by_leader,
}


def read_range(
    partition: ReadPartition, options: ReadOptions, on_lost: Callable[[int], object] | None = None
) -> Iterator[MessageColumns]:
    """Yield the partition's messages, each once, in order; a broken connection is replaced.

    Args:
        on_lost: called at the end with the number of messages that are lost, if there are any.

    Raises:
        DataLossError: messages of the range are lost, and the options say that this is an error.
        SparkError, ApiError: the stream cannot be read any more.
    """
    reader = _READERS[partition.reader]
    policy = RetryPolicy(options.connection)
    account = RangeAccount(partition, options)
    next_sequence = partition.first
    while next_sequence < partition.end:
        try:
            with options.connection.lease() as connection:
                for messages in reader(connection, partition, options, next_sequence):
                    account.take(messages.sequence)
                    next_sequence = int(messages.sequence[-1]) + 1
                    yield messages
                    policy.succeeded()
                break
        except (*BROKEN, PullStatusError) as error:
            # sometimes: a read of a range goes on over another connection
            policy.pause(error)
        except StreamNotFoundError:
            raise _deleted(partition) from None
    account.close()
    if account.lost and on_lost is not None:
        on_lost(account.lost)


def _deleted(partition: ReadPartition) -> UnsupportedStreamError:
    return UnsupportedStreamError(f"stream {partition.stream} was deleted while it was read")


_log = logging.getLogger("jetlake.tables")
Sequences = NDArray[np.int64]


class RangeAccount:
    """The account of one task: `take` the messages that were read, then `close`.

    Attributes:
        lost: how many messages are lost (an upper bound under filters and where messages replace each other).
    """

    def __init__(self, partition: ReadPartition, options: ReadOptions) -> None:
        self.lost = 0
        self._partition = partition
        self._options = options
        self._first = self._next = partition.first
        self._rows = 0
        self._expected = partition.messages
        # Whether a gap proves nothing by itself, so that the range is judged at the end, by counts.
        self._sparse = bool(partition.subjects)
        self._removed = _expand(partition.removed)

    def take(self, sequences: Sequences) -> None:
        """Account for messages that were read, in ascending order.

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
        if begins and self._sparse and self._may_begin_at(first):
            # From this message on every missing one is a loss.
            self._first = first
            if partition.subjects:
                rest = self.count(self._next, partition.end) if self._next < partition.end else 0
                self._expected = self._rows + rest if rest is not None else None

    def close(self) -> None:
        """Account for the rest of the range, from which no message came.

        Raises:
            StreamRecreatedError: another stream was read than the planned one; always an error, because the range
                cannot be read to its end.
            DataLossError: messages are lost, and that is an error.
        """
        partition = self._partition
        if partition.runs is not None:
            self._tell_of_missing(partition.runs)
            return
        info = self.stream_info()
        if not self._rows and partition.beginning == "open":
            return
        if not self._sparse and self._next < partition.end:
            self._judge(np.array([self._next]), np.array([partition.end]), info)
        if self._sparse and (self._rows or not self._is_explained(partition.end, info)):
            self._judge_by_count(info)

    def stream_info(self) -> StreamInfo:
        """Ask the stream's leader for the stream's state, and check that it is the planned stream.

        Raises:
            StreamRecreatedError: it is another stream.
        """
        partition = self._partition
        planned = StreamOffset(partition.created, partition.end, seen=partition.seen)
        try:
            return self._ask(lambda api: check_not_restored(api, partition.stream, planned))
        except StreamRecreatedError:
            # What to do about a checkpoint is said where a query is planned; a table has none.
            raise StreamRecreatedError(
                f"stream {partition.stream} was recreated, or restored from an older state, while it was read: its "
                "sequences mean other messages now. Start the read, or the query, again"
            ) from None

    def count(self, first: int, end: int) -> int | None:
        """Ask how many messages match from `first` up to `end`; None where the server cannot be asked."""
        partition = self._partition
        if not partition.may_count:
            return None
        counts = self._ask(lambda api: count_matching(api, partition.stream, partition.subjects, [first, end]))
        return counts[0] if counts is not None else None

    def _ask(self, question: Callable[[StreamApi], T]) -> T:
        try:
            return ask(self._options.connection, question)
        except StreamNotFoundError:
            raise _deleted(self._partition) from None

    def _judge(self, starts: Sequences, ends: Sequences, info: StreamInfo | None = None) -> None:
        """Account for gaps, each from its start up to but not including its end."""
        info = info or self.stream_info()
        if supersedes(info):
            self._sparse = True
            return
        head = max(info.state.first_seq, 1)
        self._check_deleted(np.maximum(starts, head), ends, info)
        lost = starts < head
        if not self._rows and self._is_explained(int(ends[0]), info):
            lost[0] = False
        if not lost.any():
            return
        starts, ends = starts[lost], np.minimum(ends[lost], head)
        known = np.searchsorted(self._removed, ends) - np.searchsorted(self._removed, starts)
        self._lose(int((ends - starts - known).sum()), int(starts[0]), int(ends[-1]))

    def _check_deleted(self, starts: Sequences, ends: Sequences, info: StreamInfo) -> None:
        """Check that the stream's leader counts at least as many deleted messages as are missing.

        Raises:
            ProtocolError: the leader has some of the missing messages.
        """
        missing = int(np.maximum(ends - starts, 0).sum())
        if missing > info.state.num_deleted:
            raise ProtocolError(
                f"{missing} messages between {int(starts[0])} and {int(ends[-1]) - 1} of stream "
                f"{self._partition.stream} did not arrive, but its leader counts only {info.state.num_deleted} deleted "
                "messages: what answered does not have all messages of the stream"
            )

    def _may_begin_at(self, first: int) -> bool:
        """Return whether the range may start with that message, the first one read, instead of its planned start."""
        partition = self._partition
        if partition.beginning != "limits" or first == partition.first:
            return partition.beginning == "open"
        # Without a count, and where messages replace each other, a gap proves nothing.
        if partition.subjects and self._expected is None:
            return True
        info = self.stream_info()
        return supersedes(info) or self._is_explained(first, info)

    def _is_explained(self, end: int, info: StreamInfo) -> bool:
        """Return whether the stream's limits explain the messages that are gone from the range's start up to `end`."""
        partition = self._partition
        gone = min(end, max(info.state.first_seq, 1)) - 1
        if partition.beginning != "limits" or gone < partition.first:
            return False
        # Messages that had been deleted in the middle needed no limit.
        for run_first, run_last in reversed(partition.removed):
            if run_first <= gone <= run_last:
                gone = run_first - 1
        return limits_explain(info, gone, partition.seen, partition.expiring)

    def _judge_by_count(self, info: StreamInfo) -> None:
        """Account for missing messages by their number, where a gap proves nothing by itself."""
        partition = self._partition
        head = info.state.first_seq
        is_counted = bool(partition.subjects) and self._expected is not None
        expected = self._expected if is_counted and self._expected is not None else partition.end - self._first
        missing = min(expected - self._rows, head - self._first)
        if missing <= 0:
            return
        if supersedes(info):
            # The newest message of a stream is never replaced.
            certain = not partition.subjects and info.state.messages == 0
        else:
            certain = is_counted
        # Without any row the limits were checked before, and do not explain the gap.
        may_be_pushed = bool(self._rows) or partition.beginning == "strict"
        if certain or (may_be_pushed and may_have_pushed_out(info, self._first, partition.seen)):
            self._lose(missing, self._first, min(head, partition.end))

    def _tell_of_missing(self, runs: tuple[tuple[int, int], ...]) -> None:
        """Log how many of the messages that a shared consumer delivered are gone; who acknowledged them is unknown."""
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
        if self._options.fail_on_data_loss:
            raise error
        _log.warning("%s (continuing, as the option says)", error)
        self.lost += count


def _expand(runs: tuple[tuple[int, int], ...]) -> Sequences:
    if not runs:
        return np.empty(0, np.int64)
    return np.concatenate([np.arange(first, last + 1, dtype=np.int64) for first, last in runs])
