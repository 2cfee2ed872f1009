"""Reads a range through an ephemeral pull consumer: the fastest way, and the one that waits for a lagging replica."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jetlake.client.connection.socket_connection import SocketConnection
from jetlake.client.tables.columns.frame_split import split_frames
from jetlake.client.tables.columns.message_columns import MessageColumns, columns_of_deliveries, statuses_of
from jetlake.client.tables.columns.read_buffer import ReadBuffer
from jetlake.client.tables.options.read_options import ReadOptions
from jetlake.client.tables.plan.partition import ReadPartition
from jetlake.client.tables.reading.range_end import next_in_range
from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.errors import JetlakeError, ProtocolError, PullStatusError
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.codec import encode
from jetlake.model.encoding.durations import nanoseconds
from jetlake.model.enums import AckPolicy, DeliverPolicy
from jetlake.model.requests import PullRequest
from jetlake.protocol.headers import Headers
from jetlake.protocol.nuid import next_nuid

__all__ = ["read_by_consumer"]

# About how much may be on its way to a reader that is slower than the server, which cuts it off at 64 MiB.
_AHEAD_BYTES = 16 << 20
_PULL_MESSAGES_MAX = 100_000
_PULL_EXPIRES_S = 30.0
_HEARTBEAT_S = 5.0
_INACTIVE_S = 60.0
# Every message carries the consumer's name: so many letters and digits are unique enough for a consumer that goes soon.
_NAME_LENGTH = 12


def read_by_consumer(
    connection: SocketConnection, partition: ReadPartition, options: ReadOptions, first: int
) -> Iterator[MessageColumns]:
    """Yield the messages of the partition from sequence `first` on.

    Raises:
        ApiError: the server refused the consumer.
        PullStatusError: the consumer ended before the range did.
        ConnectionError, TimeoutError: the connection broke; reading can go on behind the last message.
    """
    api = StreamApi.through(connection, options.connection)
    name = next_nuid()[-_NAME_LENGTH:]
    info = api.create_consumer(partition.stream, _config(name, partition, first))
    if info.num_pending == 0 and next_in_range(options, partition, first) is None:
        api.forget_consumer(partition.stream, name)
        return
    inbox = connection.new_inbox()
    sid = connection.subscribe(inbox)
    buffer = ReadBuffer()
    pull = _Pull(connection, api.subject("CONSUMER.MSG.NEXT", partition.stream, name), inbox, partition)
    yield from _deliveries(pull, buffer, partition, options, name, first)
    try:
        connection.unsubscribe(sid)
        api.forget_consumer(partition.stream, name)
        buffer.settle(connection)
    except JetlakeError:
        connection.close()  # The range is read; the next task takes another connection.


def _config(name: str, partition: ReadPartition, first: int) -> ConsumerConfig:
    filters = partition.subjects
    return ConsumerConfig(
        name=name,
        description="a task of jetlake that reads a range",
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=first,
        ack_policy=AckPolicy.NONE,
        filter_subject=filters[0] if len(filters) == 1 else "",
        filter_subjects=filters if len(filters) > 1 else (),
        mem_storage=True,
        num_replicas=1,
        inactive_threshold=nanoseconds(_INACTIVE_S),
    )


def _deliveries(
    pull: _Pull, buffer: ReadBuffer, partition: ReadPartition, options: ReadOptions, consumer: str, first: int
) -> Iterator[MessageColumns]:
    """Yield what the consumer delivers, up to the end of the range."""
    next_sequence = first
    pull.keep_going(partition.end - next_sequence)
    while True:
        buffer.receive(pull.connection, 2 * _HEARTBEAT_S, partition.end - next_sequence)
        split = split_frames(buffer.data, buffer.fill)
        for line in split.lines:
            pull.connection.handle_line(line)
        ended = False
        if len(split):
            messages, statuses = columns_of_deliveries(buffer.data, split, partition.stream, consumer)
            ended = pull.take(len(messages), split.consumed, statuses_of(buffer.data, statuses))
        buffer.discard(split.consumed)
        if len(split) and len(messages):
            if int(messages.sequence[0]) < next_sequence or (np.diff(messages.sequence) <= 0).any():
                raise ProtocolError("the consumer delivered messages out of order")
            next_sequence = int(messages.sequence[-1]) + 1
            inside = int(np.searchsorted(messages.sequence, partition.end))
            if inside:
                yield messages.slice(0, inside)
            ended = messages.pending == 0
        if next_sequence >= partition.end or (ended and next_in_range(options, partition, next_sequence) is None):
            return
        pull.keep_going(partition.end - next_sequence)


class _Pull:
    """The requests of one consumer: always so many under way that the server need not wait for the next."""

    def __init__(self, connection: SocketConnection, subject: bytes, inbox: bytes, partition: ReadPartition) -> None:
        self.connection = connection
        self._subject = subject
        self._inbox = inbox
        self._outstanding = 0
        self._bytes_per_message = max(partition.bytes_per_message, 64.0)

    def keep_going(self, wanted_max: int) -> None:
        """Ask for more when less than half of what may be ahead is under way; never for more than is wanted."""
        ahead = int(max(1, min(_AHEAD_BYTES / self._bytes_per_message, _PULL_MESSAGES_MAX)))
        batch = min(ahead, wanted_max) - self._outstanding
        if batch <= 0 or self._outstanding > ahead // 2:
            return
        request = PullRequest(
            batch=batch, expires=nanoseconds(_PULL_EXPIRES_S), idle_heartbeat=nanoseconds(_HEARTBEAT_S)
        )
        self.connection.publish(self._subject, encode(request), reply=self._inbox)
        self._outstanding += batch

    def take(self, count: int, size: int, statuses: list[Headers]) -> bool:
        """Note what came; says whether the server ended a request, or has had nothing to send for a while.

        Raises:
            PullStatusError: it ended the consumer.
        """
        self._outstanding -= count
        if count:
            self._bytes_per_message = size / count
        ended = False
        for status in statuses:
            ended = True
            if status.status == 100:
                continue
            left = status.get("Nats-Pending-Messages")
            if status.status in (404, 408) or left is not None:
                self._outstanding -= int(left or self._outstanding)
            else:
                raise PullStatusError(status.status or 0, status.description)
        return ended
