"""Reads a range by batches of direct gets: nothing is created on the server, and nothing is taken out of a queue."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from jetlake.client.socket_connection import SocketConnection
from jetlake.errors import UnsupportedStreamError
from jetlake.model.codec import encode
from jetlake.model.requests import DirectGetRequest
from jetlake.protocol.headers import Headers
from jetlake.protocol.nuid import new_inbox
from jetlake.spark.frame_split import split_frames
from jetlake.spark.leader_reader import read_by_leader
from jetlake.spark.message_columns import MessageColumns, columns_of_direct_gets, statuses_of
from jetlake.spark.options import SourceOptions
from jetlake.spark.partition import ReadPartition
from jetlake.spark.range_end import next_in_range
from jetlake.spark.read_buffer import ReadBuffer
from jetlake.spark.stream_api import StreamApi
from jetlake.spark.subject_filters import cover, keep_matching

__all__ = ["read_by_direct_get"]

_BATCH_MAX = 10_000
_BATCH_BYTES_MAX = 8 << 20
_ANSWER_S = 10.0

# How long a replica may lag before the leader is read instead.
_LAG_CHECKS_MAX = 20
_LAG_PAUSE_S = 0.05


def read_by_direct_get(
    connection: SocketConnection, partition: ReadPartition, options: SourceOptions, first: int
) -> Iterator[MessageColumns]:
    """The messages of the partition from sequence `first` on, in order.

    Raises:
        UnsupportedStreamError: the stream is gone or does not answer direct gets any more.
        ConnectionError, TimeoutError: the connection broke; reading can go on behind the last message.
    """
    api = StreamApi(connection, options.connection.domain, options.connection.request_timeout_s)
    gets = _DirectGets(connection, api.subject("DIRECT.GET", partition.stream), partition)
    filters = partition.subjects if len(partition.subjects) > 1 else ()
    next_sequence = first
    lag_checks = 0
    while next_sequence < partition.end:
        before = next_sequence
        for messages in gets.batch(next_sequence):
            next_sequence = int(messages.sequence[-1]) + 1
            inside = messages.slice(0, int(np.searchsorted(messages.sequence, partition.end)))
            wanted = keep_matching(inside, filters) if filters else inside
            if len(wanted):
                yield wanted
        if next_sequence > before:
            lag_checks = 0
            continue
        following = next_in_range(options, partition, next_sequence)
        if following is None:
            break
        # The leader has more than the server that answered: wait for that one, then leave it.
        next_sequence = following
        lag_checks += 1
        if lag_checks == _LAG_CHECKS_MAX:
            gets.close()
            yield from read_by_leader(connection, partition, options, following)
            return
        time.sleep(_LAG_PAUSE_S)
    gets.close()


class _DirectGets:
    """Batches of direct gets over one subscription."""

    def __init__(self, connection: SocketConnection, subject: bytes, partition: ReadPartition) -> None:
        self._connection = connection
        self._subject = subject
        self._partition = partition
        self._filter = cover(partition.subjects)
        self._buffer = ReadBuffer()
        self._inbox = new_inbox().encode()
        self._sid = connection.subscribe(self._inbox)

    def batch(self, sequence: int) -> Iterator[MessageColumns]:
        """The messages from that sequence on, up to one batch of them."""
        partition = self._partition
        request = DirectGetRequest(
            seq=sequence,
            next_by_subj="" if self._filter == ">" else self._filter,
            batch=min(partition.end - sequence, _BATCH_MAX),
            max_bytes=_BATCH_BYTES_MAX,
        )
        self._connection.publish(self._subject, encode(request), reply=self._inbox)
        buffer = self._buffer
        ended = False
        while not ended:
            buffer.receive(self._connection, _ANSWER_S)
            split = split_frames(buffer.data, buffer.fill)
            for line in split.lines:
                self._connection.handle_line(line)
            if not len(split):
                buffer.discard(split.consumed)
                continue
            messages, statuses = columns_of_direct_gets(buffer.data, split)
            for status in statuses_of(buffer.data, statuses):
                ended = True
                self._check(status)
            buffer.discard(split.consumed)
            if len(messages):
                yield messages

    def _check(self, status: Headers) -> None:
        """Let the ends of a batch pass: 204 end of batch, 404 nothing there."""
        if status.status in (204, 404):
            return
        name = self._partition.stream
        if status.status == 503:
            raise UnsupportedStreamError(
                f"stream {name} no longer answers direct gets: it was deleted, or its allow_direct was switched off"
            )
        raise UnsupportedStreamError(f"stream {name} refused a direct get: {status.status} {status.description}")

    def close(self) -> None:
        """End the subscription and leave the connection clean for the next one."""
        self._connection.unsubscribe(self._sid)
        self._buffer.settle(self._connection)
