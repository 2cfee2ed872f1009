"""The driver's half of an at-least-once read: batches of messages that a shared durable consumer delivered.

The driver pulls messages from the consumer, writes their sequences into the batch's offset, and acknowledges them when
the batch is in Spark's commit log. Tasks read the messages by their sequences from the stream's leader. So a batch can
be repeated exactly; a message that is not acknowledged in time is redelivered, to this query or to another reader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from jetlake.client.tables.data_loss import check_same_stream
from jetlake.client.tables.message_columns import MessageColumns
from jetlake.client.tables.planning import BatchRange, SequenceRange, StreamOffset
from jetlake.client.tables.ranges import runs_of
from jetlake.client.tables.spark_offsets import Offset
from jetlake.client.tables.stream_api import StreamApi
from jetlake.client.tables.survey import pull_now
from jetlake.errors import (
    ConsumerNotFoundError,
    DataLossError,
    PullStatusError,
    StreamRecreatedError,
    UnsupportedStreamError,
)
from jetlake.model.enums import RetentionPolicy
from jetlake.protocol import encoder
from jetlake.spark.options.source_options import SourceOptions, pinned_partitions
from jetlake.spark.source.durable_consumer import (
    TAKEN_MAX,
    choose_release,
    consumer_name,
    deleted_consumer_error,
    ensure_shared,
)
from jetlake.spark.source.stream_watch import Clock, StreamWatch
from jetlake.spark.source.tasks import TaskPartition, cut_range

__all__ = ["SharedDriver"]

T = TypeVar("T")

Sequences = NDArray[np.int64]

_log = logging.getLogger("jetlake.spark")

_REAL_CLOCK = Clock()

# How long a server may hold a pull: when the consumer has pending messages, and when it has none.
_PULL_S = 1.0
_IDLE_PULL_S = 0.05

# The status that answers a pull of a consumer that does not exist.
_NO_RESPONDERS = 503


class SharedDriver:
    """Plans the micro-batches of an at-least-once query over one stream."""

    def __init__(self, options: SourceOptions, clock: Clock = _REAL_CLOCK) -> None:
        self._options = options
        self._clock = clock
        self._watch = StreamWatch(options, clock)
        self._stream = options.streams[0]
        self._consumer = consumer_name(options, self._stream)
        self._ready = False
        # Whether this run created the consumer, and it is not checked yet whether messages were missed without it.
        self._is_new = False
        self._request_max = TAKEN_MAX
        self._acknowledged: StreamOffset | None = None
        self._left: int | None = None
        self._last_batch_s = clock.monotonic_s()

    def stop_at_present_end(self) -> None:
        """Take no more messages than the consumer has now."""
        self._prepare()
        info = self._watch.ask(lambda api: api.consumer_info(self._stream, self._consumer))
        self._left = info.num_pending + info.num_ack_pending

    def latest_offset(self, start: Offset, *, limited: bool = True) -> Offset:
        """Acknowledge the messages of the batch up to `start`, and take the next ones; `start` when there are none."""
        self._prepare()
        before = start.of(self._stream)
        if before is None:
            self._is_new = False
        elif before != self._acknowledged:
            self._finish(before)
        info = self._watch.info(self._stream)
        taken = self._take_next(before, limited)
        polls = self._watch.polls_held if before is not None and self._left is None else 0
        while not len(taken) and polls:
            self._watch.wait_for_poll([self._stream])
            info = self._watch.info(self._stream)
            taken = self._take_next(before, limited)
            polls -= 1
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

    def figures(self) -> dict[str, Any]:
        """Return the figures of a progress report beside the offsets."""
        return self._watch.figures([self._stream])

    def partitions(self, start: Offset, end: Offset) -> list[TaskPartition]:
        """Return the tasks of a batch, cut by the number of messages."""
        offset = end.of(self._stream)
        taken = offset.batch.taken if offset is not None and offset.batch is not None else None
        if offset is None or not taken:
            return []
        try:
            check_same_stream(self._watch.info(self._stream), offset)
        except StreamRecreatedError as error:
            self._raise_or_log(error)
            return []
        options = self._options
        sequences = [sequence for first, last in taken for sequence in range(first, last + 1)]
        parts = cut_range(SequenceRange(0, len(sequences)), 0.0, options, offset)
        partitions = []
        for part in parts:
            own = sequences[part.first : part.end]
            runs = runs_of(np.array(own, np.int64))
            partitions.append(TaskPartition(self._stream, own[0], own[-1] + 1, (), "leader", runs=runs))
        return partitions

    def _prepare(self) -> None:
        """Ensure the durable consumer, once."""
        if not self._ready:
            choose_release(self._watch.info(self._stream).config, self._watch.version, self._options)
            shared = self._watch.ask(lambda api: ensure_shared(api, self._stream, self._options))
            self._is_new, self._request_max = shared
            self._ready = True

    def _finish(self, offset: StreamOffset) -> None:
        """Acknowledge a finished batch; after a restart perhaps a second time, which does no harm."""
        try:
            check_same_stream(self._watch.info(self._stream, fresh=True), offset)
            self._check_consumer_was_there()
            self._ask(lambda api: acknowledge(api, self._stream, self._consumer, offset))
        except StreamRecreatedError as error:
            self._raise_or_log(error)
            self._ready = False
            self._prepare()
            self._is_new = False
        self._acknowledged = offset

    def _check_consumer_was_there(self) -> None:
        """Check that an interest stream had this query's consumer since the last batch.

        Raises:
            DataLossError: it had not, and the options say that this is an error.
        """
        if not self._is_new:
            return
        self._is_new = False
        if self._watch.info(self._stream).config.retention is RetentionPolicy.INTEREST:
            self._raise_or_log(deleted_consumer_error(self._stream, self._consumer))

    def _raise_or_log(self, error: DataLossError) -> None:
        if self._options.fail_on_data_loss:
            raise error
        _log.warning("%s (continuing, as the option says)", error)

    def _ask(self, question: Callable[[StreamApi], T]) -> T:
        """Ask something that needs the consumer.

        Raises:
            UnsupportedStreamError: the consumer was deleted.
        """
        try:
            return self._watch.ask(question)
        except (ConsumerNotFoundError, PullStatusError) as error:
            if isinstance(error, PullStatusError) and error.status != _NO_RESPONDERS:
                raise
            raise UnsupportedStreamError(
                f"consumer {self._consumer} of stream {self._stream} was deleted while the query ran: start the query "
                "again, which recreates the consumer"
            ) from error

    def _take_next(self, before: StreamOffset | None, limited: bool) -> Sequences:
        """Take messages from the consumer; exactly the messages of the batch before are only acknowledged again.

        They are redelivered where the server forgot their acknowledgements. They are read already, and an offset that
        stays the same would be no batch for Spark.
        """
        taken = self._take(limited)
        if len(taken) and before is not None and before.batch is not None and before.batch.taken == runs_of(taken):
            self._ask(lambda api: acknowledge(api, self._stream, self._consumer, before))
            taken = self._take(limited)
        return taken

    def _take(self, limited: bool) -> Sequences:
        """Take as many messages from the consumer as the options allow, and return their sequences."""
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
        taken: list[Sequences] = []
        while wanted > 0:
            asked = min(wanted, self._request_max)
            found = self._ask(partial(self._pull, asked))
            taken += [part.sequence for part in found]
            wanted -= asked
            if sum(map(len, found)) < asked:
                break
        return np.unique(np.concatenate(taken)) if taken else np.empty(0, np.int64)

    def _pull(self, wanted: int, api: StreamApi) -> list[MessageColumns]:
        """Return at most `wanted` messages that the consumer delivers now.

        The consumer delivers no new messages beyond its `max_ack_pending`, which it shares with other readers, and
        holds a request for more; redelivered messages are counted already.
        """
        info = api.consumer_info(self._stream, self._consumer)
        limit = info.config.max_ack_pending
        room = limit - info.num_ack_pending if limit > 0 else wanted
        if 0 < room < wanted and not info.num_redelivered:
            wanted = room
        expires_s = _PULL_S if info.num_pending or room <= 0 else _IDLE_PULL_S
        return pull_now(api, self._stream, self._consumer, wanted, expires_s)

    def _waits(self) -> bool:
        waited_s = self._clock.monotonic_s() - self._last_batch_s
        if waited_s >= self._options.max_trigger_delay_s:
            return False
        pending = self._ask(lambda api: api.consumer_info(self._stream, self._consumer)).num_pending
        return pending < self._options.min_messages


def acknowledge(api: StreamApi, stream: str, consumer: str, offset: StreamOffset) -> None:
    """Acknowledge the messages of the batch that ends there, and wait until the server has processed it.

    A consumer that was recreated, or fell back with its server, has not delivered all of them: it answers no
    acknowledgement of the others, and will deliver them again.

    Raises:
        ConsumerNotFoundError: there is no such consumer.
    """
    runs = offset.batch.taken if offset.batch is not None else None
    delivered = api.consumer_info(stream, consumer).delivered.stream_seq
    sequences = (sequence for first, last in runs or () for sequence in range(first, min(last, delivered) + 1))
    # Only the stream's sequence counts in an acknowledgement; the other numbers may be anything.
    prefix = f"$JS.ACK.{stream}.{consumer}.1.".encode()
    last = b""
    while chunk := list(islice(sequences, 1000)):
        subjects = [b"%b%d.0.0.0" % (prefix, sequence) for sequence in chunk]
        api.connection.send(b"".join(encoder.pub(subject, b"", b"+ACK") for subject in subjects))
        last = subjects[-1]
    if last:
        api.connection.request(last, b"+ACK", api.timeout_s)
