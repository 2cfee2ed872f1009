"""Reads messages one by one from the stream's leader: slow, and possible with every stream and every server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import pyarrow as pa

from jetlake.client.connection.socket_connection import SocketConnection
from jetlake.client.tables.columns.message_columns import MessageColumns
from jetlake.client.tables.options.read_options import ReadOptions
from jetlake.client.tables.plan.partition import ReadPartition
from jetlake.client.tables.reading.range_end import next_in_range
from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.errors import MessageNotFoundError, UnsupportedStreamError
from jetlake.model.api import decode_reply
from jetlake.model.encoding.codec import encode
from jetlake.model.encoding.times import parse_time
from jetlake.model.replies import MessageGetReply, StoredMessage
from jetlake.model.requests import MessageGetRequest
from jetlake.protocol import encoder
from jetlake.protocol.frames import Msg
from jetlake.protocol.headers import inline_status
from jetlake.protocol.subjects import compile_matcher

__all__ = ["last_by_leader", "read_by_leader"]

_WINDOW = 512


def read_by_leader(
    connection: SocketConnection, partition: ReadPartition, options: ReadOptions, first: int
) -> Iterator[MessageColumns]:
    """Yield the messages of the partition from sequence `first` on, in order.

    Raises:
        UnsupportedStreamError: the stream is gone, or the login may not read it this way.
        ConnectionError, TimeoutError: the connection broke; reading can go on behind the last message.
    """
    api = StreamApi.through(connection, options.connection)
    subject = api.subject("STREAM.MSG.GET", partition.stream)
    matchers = [compile_matcher(pattern.encode()) for pattern in partition.subjects]
    settings = options.connection
    next_sequence: int | None = first
    while next_sequence is not None and next_sequence < partition.end:
        sequences = list(islice(_sequences(partition, next_sequence), _WINDOW))
        if not sequences:
            return
        requests = [MessageGetRequest(seq=sequence) for sequence in sequences]
        answers = _get(connection, subject, requests, settings.request_timeout_s)
        found = [message for answer in answers if (message := _message(answer, partition.stream)) is not None]
        wanted = [message for message in found if _matches(matchers, message.subject.encode())]
        if wanted:
            yield _columns(wanted)
        next_sequence = sequences[-1] + 1
        if not wanted and partition.runs is None:
            # Behind a window without any message may lie a gap of millions of sequences.
            next_sequence = next_in_range(options, partition, next_sequence)


def _sequences(partition: ReadPartition, first: int) -> Iterator[int]:
    """Yield the partition's sequences from `first` on."""
    for run_first, run_last in (
        partition.runs if partition.runs is not None else ((partition.first, partition.end - 1),)
    ):
        yield from range(max(run_first, first), run_last + 1)


def last_by_leader(api: StreamApi, stream: str, subjects: list[str], behind: int) -> MessageColumns:
    """Return the last messages of these subjects, in order, of those from sequence `behind` on.

    Raises:
        UnsupportedStreamError: the stream is gone, or the login may not read it this way.
        ConnectionError, TimeoutError: the connection broke.
    """
    api_subject = api.subject("STREAM.MSG.GET", stream)
    found: list[StoredMessage] = []
    for start in range(0, len(subjects), _WINDOW):
        requests = [MessageGetRequest(last_by_subj=subject) for subject in subjects[start : start + _WINDOW]]
        answers = _get(api.connection, api_subject, requests, api.timeout_s)
        messages = (_message(answer, stream) for answer in answers)
        found += [message for message in messages if message is not None and message.seq >= behind]
    return _columns(sorted(found, key=lambda message: message.seq))


def _get(
    connection: SocketConnection, subject: bytes, requests: list[MessageGetRequest], timeout_s: float
) -> list[Msg]:
    """Return the answers to all these requests, in their order, asked for in one go."""
    inbox = connection.new_inbox()
    sid = connection.subscribe(inbox + b".*")
    connection.send(
        b"".join(
            encoder.pub(subject, b"%b.%d" % (inbox, number), encode(request)) for number, request in enumerate(requests)
        )
    )
    connection.unsubscribe(sid, after=len(requests))
    answers: dict[bytes, Msg] = {}
    while len(answers) < len(requests):
        for message in connection.receive(timeout_s):
            answers[message.subject] = message
    return [answers[b"%b.%d" % (inbox, number)] for number in range(len(requests))]


def _matches(matchers: list[Callable[[bytes], bool]], subject: bytes) -> bool:
    return not matchers or any(match(subject) for match in matchers)


def _message(answer: Msg, stream: str) -> StoredMessage | None:
    if inline_status(answer.header) == 503:
        raise UnsupportedStreamError(f"stream {stream} is no longer there, or this login may not read its messages")
    try:
        return decode_reply(MessageGetReply, answer.payload).message
    except MessageNotFoundError:
        return None


def _columns(messages: list[StoredMessage]) -> MessageColumns:
    return MessageColumns(
        sequence=np.array([message.seq for message in messages], np.int64),
        time_ns=np.array([parse_time(message.time) for message in messages], np.int64),
        subject=pa.array([message.subject.encode() for message in messages], pa.binary()),
        header=pa.array([message.hdrs for message in messages], pa.binary()),
        payload=pa.array([message.data for message in messages], pa.binary()),
    )
