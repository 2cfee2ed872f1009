"""The driver's half where a durable consumer is shared with others: batches of messages that it handed out.

The driver takes messages from the consumer, writes their sequences into the batch's offset, and acknowledges them when
the batch is in Spark's commit log. Tasks read the messages by their sequences. So a batch can be repeated exactly, and
what is not acknowledged in time the consumer hands out again, to this query or to another reader: at least once.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
from numpy.typing import NDArray

from jetlake.client.tables.plan.data_loss import check_same_stream
from jetlake.client.tables.plan.offsets import BatchRange, Offset, StreamOffset
from jetlake.client.tables.plan.planning import SequenceRange
from jetlake.client.tables.reading.tasks import runs_of
from jetlake.client.tables.requests.pull_now import pull_now
from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.errors import StreamRecreatedError
from jetlake.protocol import encoder
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.plan.cluster_size import pinned_partitions
from jetlake.spark.plan.partition import TaskPartition
from jetlake.spark.source.clock import Clock
from jetlake.spark.source.durable import TAKEN_MAX, consumer_name, ensure_shared
from jetlake.spark.source.retention import choose_release
from jetlake.spark.source.stream_watch import StreamWatch
from jetlake.spark.source.tasks import cut_range

__all__ = ["SharedDriver"]

Sequences = NDArray[np.int64]

_REAL_CLOCK = Clock()


class SharedDriver:
    """Plans the micro-batches of an at-least-once query over one stream."""

    def __init__(self, options: SourceOptions, clock: Clock = _REAL_CLOCK) -> None:
        self._options = options
        self._clock = clock
        self._watch = StreamWatch(options, clock)
        self._stream = options.streams[0]
        self._consumer = consumer_name(options, self._stream)
        self._ready = False
        self._acknowledged: StreamOffset | None = None
        self._left: int | None = None
        self._last_batch_s = clock.monotonic_s()

    def stop_at_present_end(self) -> None:
        """Take no more messages than the consumer has now."""
        self._prepare()
        info = self._watch.ask(lambda api: api.consumer_info(self._stream, self._consumer))
        self._left = info.num_pending + info.num_ack_pending

    def latest_offset(self, start: Offset, *, limited: bool = True) -> Offset:
        """Acknowledge what the batch up to `start` held, and take the next messages; `start` when there are none."""
        self._prepare()
        before = start.of(self._stream)
        if before is not None and before != self._acknowledged:
            self._acknowledge(before)
        info = self._watch.info(self._stream)
        taken = self._take(limited)
        if not len(taken) and before is not None and self._left is None:
            self._watch.wait_for_poll()
            taken = self._take(limited)
        if not len(taken) and before is not None:
            return start
        self._last_batch_s = self._clock.monotonic_s()
        if self._left is not None:
            self._left -= len(taken)
        next_sequence = int(taken[-1]) + 1 if len(taken) else (before.next if before is not None else 1)
        batch = BatchRange(None, taken=runs_of(taken), partitions=pinned_partitions(self._options))
        return Offset(((self._stream, StreamOffset(info.created, next_sequence, batch=batch)),))

    def present_end(self) -> Offset:
        """Return where the stream ends now."""
        info = self._watch.info(self._stream)
        return Offset(((self._stream, StreamOffset(info.created, info.state.last_seq + 1)),))

    def partitions(self, start: Offset, end: Offset) -> list[TaskPartition]:
        """Return the tasks of a batch, cut by the number of messages."""
        offset = end.of(self._stream)
        taken = offset.batch.taken if offset is not None and offset.batch is not None else None
        if offset is None or not taken:
            return []
        check_same_stream(self._watch.info(self._stream), offset)
        options = self._options
        sequences = [sequence for first, last in taken for sequence in range(first, last + 1)]
        pieces = cut_range(SequenceRange(0, len(sequences)), 0.0, options, offset)
        partitions = []
        for piece in pieces:
            part = sequences[piece.first : piece.end]
            runs = runs_of(np.array(part, np.int64))
            partitions.append(TaskPartition(self._stream, part[0], part[-1] + 1, (), "leader", runs=runs))
        return partitions

    def _prepare(self) -> None:
        if not self._ready:
            choose_release(self._watch.info(self._stream).config, self._watch.version, self._options)
            self._watch.ask(lambda api: ensure_shared(api, self._stream, self._options))
            self._ready = True

    def _acknowledge(self, offset: StreamOffset) -> None:
        """Acknowledge a finished batch; after a restart perhaps for the second time, which does no harm."""
        try:
            self._watch.ask(lambda api: acknowledge(api, self._stream, self._consumer, offset))
        except StreamRecreatedError:
            if self._options.fail_on_data_loss:
                raise
            self._watch.info(self._stream, fresh=True)
        self._acknowledged = offset

    def _take(self, limited: bool) -> Sequences:
        """Take messages from the consumer, as many as the options allow; their sequences."""
        options = self._options
        wanted = TAKEN_MAX if self._left is None else min(self._left, TAKEN_MAX)
        if limited:
            if options.max_messages:
                wanted = min(wanted, options.max_messages)
            state = self._watch.info(self._stream).state
            if options.max_bytes and state.messages:
                wanted = min(wanted, max(1, int(options.max_bytes * state.messages / max(state.bytes, 1))))
            if options.min_messages and self._left is None and self._waits():
                wanted = 0
        if wanted <= 0:
            return np.empty(0, np.int64)
        taken = self._watch.ask(lambda api: pull_now(api, self._stream, self._consumer, wanted))
        return np.unique(np.concatenate([part.sequence for part in taken])) if taken else np.empty(0, np.int64)

    def _waits(self) -> bool:
        waited_s = self._clock.monotonic_s() - self._last_batch_s
        if waited_s >= self._options.max_trigger_delay_s:
            return False
        pending = self._watch.ask(lambda api: api.consumer_info(self._stream, self._consumer)).num_pending
        return pending < self._options.min_messages


def acknowledge(api: StreamApi, stream: str, consumer: str, offset: StreamOffset) -> None:
    """Acknowledge what the batch that ends there has taken, and wait until the server has done it.

    Raises:
        StreamRecreatedError: it is another stream; nothing was acknowledged.
    """
    check_same_stream(api.stream_info(stream), offset)
    runs = offset.batch.taken if offset.batch is not None else None
    sequences = (sequence for first, last in runs or () for sequence in range(first, last + 1))
    # Only the stream's sequence counts in an acknowledgement; the other numbers may be anything.
    prefix = f"$JS.ACK.{stream}.{consumer}.1.".encode()
    last = b""
    while chunk := list(islice(sequences, 1000)):
        subjects = [b"%b%d.0.0.0" % (prefix, sequence) for sequence in chunk]
        api.connection.send(b"".join(encoder.pub(subject, b"", b"+ACK") for subject in subjects))
        last = subjects[-1]
    if last:
        api.connection.request(last, b"+ACK", api.timeout_s)
