"""The three ways to read a range: by an ephemeral pull consumer, by batches of direct gets, one by one from the leader.

    reader     server
    consumer   2.9     fastest; limits streams only, because a consumer takes part in retention
    direct     2.11    creates nothing on the server; the stream needs `allow_direct`; a mirror or replica may answer
    leader     2.9     one request a message: slow, and possible with every stream

Each yields the messages of its partition from a sequence on, in order, and ends when the range is read. That no more
messages come never proves that there are no more: the server that answered may be a replica that lags. So a reader
asks the stream's leader for the next message before it ends short of the range (`next_in_range`). Which sequences may
be missing is judged by `range_reader.py`, which also replaces a connection that breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np

from jetlake.client.connection.socket_connection import SocketConnection
from jetlake.client.tables.frames import split_frames
from jetlake.client.tables.message_columns import MessageColumns, columns_of_deliveries, statuses_of
from jetlake.client.tables.message_gets import LEADER_WINDOW, MergedGets, columns_of_stored, first_matching, get_stored
from jetlake.client.tables.planning import ReadOptions, ReadPartition, SequenceRange
from jetlake.client.tables.read_buffer import ReadBuffer
from jetlake.client.tables.stream_api import StreamApi, ask
from jetlake.errors import JetlakeError, ProtocolError, PullStatusError
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.codec import encode
from jetlake.model.encoding.durations import nanoseconds
from jetlake.model.enums import AckPolicy, DeliverPolicy
from jetlake.model.replies import StoredMessage
from jetlake.model.requests import MessageGetRequest, PullRequest
from jetlake.protocol.headers import Headers
from jetlake.protocol.nuid import next_nuid
from jetlake.protocol.subjects import compile_matcher

# Bytes under way to a reader that is slower than the server, which disconnects it at 64 MiB pending.
_AHEAD_BYTES = 16 << 20
_PULL_MESSAGES_MAX = 100_000
_PULL_EXPIRES_S = 30.0
_HEARTBEAT_S = 5.0
_INACTIVE_S = 60.0
# Every message carries the consumer's name: 12 letters and digits are unique enough for a consumer of a minute.
_NAME_LENGTH = 12


def read_by_consumer(
    connection: SocketConnection, partition: ReadPartition, options: ReadOptions, first: int
) -> Iterator[MessageColumns]:
    """Yield the messages of the partition from sequence `first` on.

    Raises:
        ApiError: the server refused the consumer.
        PullStatusError: the consumer ended before the range did.
        ConnectionError, TimeoutError: the connection broke; the read can resume behind the last message.
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
        buffer.drain(connection)
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
    """Yield the consumer's deliveries, up to the end of the range."""
    next_sequence = first
    pull.request_more(partition.end - next_sequence)
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
        pull.request_more(partition.end - next_sequence)


class _Pull:
    """The pull requests of one consumer: always enough messages requested that the server never waits for a request."""

    def __init__(self, connection: SocketConnection, subject: bytes, inbox: bytes, partition: ReadPartition) -> None:
        self.connection = connection
        self._subject = subject
        self._inbox = inbox
        self._outstanding = 0
        self._bytes_per_message = max(partition.bytes_per_message, 64.0)

    def request_more(self, wanted_max: int) -> None:
        """Request more messages when less than half of the bound is under way; never more than are wanted."""
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
        """Count the messages that arrived, and return whether the server ended a request or had nothing to send.

        Raises:
            PullStatusError: the server ended the consumer.
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


def read_by_direct_get(
    connection: SocketConnection, partition: ReadPartition, options: ReadOptions, first: int
) -> Iterator[MessageColumns]:
    """Yield the messages of the partition from sequence `first` on, in order.

    Raises:
        UnsupportedStreamError: the stream is gone or does not answer direct gets any more.
        ConnectionError, TimeoutError: the connection broke; the read can resume behind the last message.
    """
    api = StreamApi.through(connection, options.connection)
    gets = MergedGets(api, partition.stream, partition.subjects, SequenceRange(first, partition.end))
    while not gets.done:
        messages = gets.next_messages()
        if len(messages):
            yield messages
    gets.close()


def read_by_leader(
    connection: SocketConnection, partition: ReadPartition, options: ReadOptions, first: int
) -> Iterator[MessageColumns]:
    """Yield the messages of the partition from sequence `first` on, in order.

    Raises:
        UnsupportedStreamError: the stream is gone, or the login may not read it this way.
        ConnectionError, TimeoutError: the connection broke; the read can resume behind the last message.
    """
    api = StreamApi.through(connection, options.connection)
    matchers = [compile_matcher(pattern.encode()) for pattern in partition.subjects]
    next_sequence: int | None = first
    while next_sequence is not None and next_sequence < partition.end:
        sequences = list(islice(_sequences(partition, next_sequence), LEADER_WINDOW))
        if not sequences:
            return
        requests = [MessageGetRequest(seq=sequence) for sequence in sequences]
        found = [message for message in get_stored(api, partition.stream, requests) if message is not None]
        wanted = [message for message in found if _matches(matchers, message.subject.encode())]
        if wanted:
            yield columns_of_stored(wanted)
        next_sequence = sequences[-1] + 1
        if not wanted and partition.runs is None:
            # A window without any message may be the start of a gap of millions of sequences.
            next_sequence = next_in_range(options, partition, next_sequence)


def _sequences(partition: ReadPartition, first: int) -> Iterator[int]:
    """Yield the partition's sequences from `first` on."""
    for run_first, run_last in (
        partition.runs if partition.runs is not None else ((partition.first, partition.end - 1),)
    ):
        yield from range(max(run_first, first), run_last + 1)


def last_by_leader(api: StreamApi, stream: str, subjects: list[str], behind: int) -> MessageColumns:
    """Return the last message of each subject, in order, if its sequence is `behind` or higher.

    Raises:
        UnsupportedStreamError: the stream is gone, or the login may not read it this way.
        ConnectionError, TimeoutError: the connection broke.
    """
    found: list[StoredMessage] = []
    for start in range(0, len(subjects), LEADER_WINDOW):
        requests = [MessageGetRequest(last_by_subj=subject) for subject in subjects[start : start + LEADER_WINDOW]]
        messages = get_stored(api, stream, requests)
        found += [message for message in messages if message is not None and message.seq >= behind]
    return columns_of_stored(sorted(found, key=lambda message: message.seq))


def _matches(matchers: list[Callable[[bytes], bool]], subject: bytes) -> bool:
    return not matchers or any(match(subject) for match in matchers)


def next_in_range(options: ReadOptions, partition: ReadPartition, sequence: int) -> int | None:
    """Ask the stream's leader for the partition's next message from that sequence on; None when there is none."""
    found = ask(options.connection, lambda api: first_matching(api, partition.stream, partition.subjects, sequence))
    return found if found is not None and found < partition.end else None
