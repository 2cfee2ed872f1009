"""Messages fetched by requests: batches of direct gets, and the leader's own gets, which decide what does not exist.

A direct get is answered by the stream's leader, one of its replicas, or a mirror, and only the answer says by which
stream. Answers of a mirror are dropped, and their messages requested from the leader: a message that a mirror lacks may
be in its origin (a mirror has limits and filters of its own), and one that it has may belong to an older stream of the
same name. A replica has all messages that the leader had a moment ago; when it has none, the leader decides whether
there are any. `STREAM.MSG.GET` is answered by the leader alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from jetlake.client.tables.frames import split_frames
from jetlake.client.tables.message_columns import (
    NO_COLUMNS,
    MessageColumns,
    columns_of_direct_gets,
    in_order,
    statuses_of,
)
from jetlake.client.tables.planning import SequenceRange
from jetlake.client.tables.read_buffer import ReadBuffer
from jetlake.client.tables.stream_api import StreamApi
from jetlake.errors import MessageNotFoundError, UnsupportedStreamError
from jetlake.model.api import decode_reply
from jetlake.model.encoding.codec import encode
from jetlake.model.encoding.times import parse_time
from jetlake.model.replies import MessageGetReply, StoredMessage
from jetlake.model.requests import DirectGetRequest, MessageGetRequest
from jetlake.protocol import encoder
from jetlake.protocol.frames import Msg
from jetlake.protocol.headers import Headers, inline_status
from jetlake.protocol.subjects import compile_matcher

_BATCH_MAX = 10_000
_BATCH_BYTES_MAX = 8 << 20
_BATCH_GROWTH = 16
_ANSWER_S = 10.0


class MergedGets:
    """Batches of direct gets for each of several filters, merged in the order of their sequences.

    Every filter has a cursor of its own, so no message is read that no filter wants, and none twice.

    Attributes:
        api, buffer: shared by all cursors: bytes behind a batch belong to the connection, not to a filter.
        stream: name of the stream.
        subject: the subject of direct gets.
    """

    def __init__(self, api: StreamApi, stream: str, filters: tuple[str, ...], whole: SequenceRange) -> None:
        self.buffer = ReadBuffer()
        self.stream = stream
        self.subject = api.subject("DIRECT.GET", stream)
        self.api = api
        self._end = whole.end
        patterns = filters or (">",)
        size_max = max(_BATCH_BYTES_MAX // len(patterns), 1 << 20)
        # A request for a batch of no messages would be one for a single message, whose answer has no end of batch.
        ahead = whole.first if whole.first < whole.end else None
        self._cursors = [_Cursor(self, pattern, ahead, size_max) for pattern in patterns]

    @property
    def done(self) -> bool:
        """Whether the whole range is read, as confirmed by the stream's leader."""
        return all(cursor.ahead is None and not cursor.held for cursor in self._cursors)

    def next_messages(self, wanted: int = _BATCH_MAX) -> MessageColumns:
        """Return the next messages, at most `wanted` per filter; none when the range is read."""
        for cursor in self._cursors:
            if not cursor.held and cursor.ahead is not None:
                self._fill(cursor, wanted)
        # Up to here every filter has been asked.
        limits = [cursor.limit for cursor in self._cursors if cursor.limit is not None]
        limit = min(limits, default=self._end)
        parts = [part for cursor in self._cursors for part in cursor.take(limit)]
        if not parts:
            return NO_COLUMNS
        return parts[0] if len(parts) == 1 else in_order(parts)

    def _fill(self, cursor: _Cursor, wanted: int) -> None:
        first = cursor.ahead if cursor.ahead is not None else self._end
        for messages in cursor.batch(first, min(self._end - first, wanted, cursor.batch_max)):
            inside = messages.slice(0, int(np.searchsorted(messages.sequence, self._end)))
            cursor.ahead = int(messages.sequence[-1]) + 1
            if len(inside):
                cursor.held.append(inside)
        if cursor.ahead is not None and cursor.ahead >= self._end:
            cursor.ahead = None
        elif not cursor.held:
            # An empty answer does not prove that there is no message: it may come from a replica that lags, or from
            # a mirror. With batches of one, hardly a message is sent in vain by a mirror that always answers first.
            cursor.batch_max = 1
            self._fill_by_leader(cursor, first)
            return
        cursor.batch_max = min(cursor.batch_max * _BATCH_GROWTH, _BATCH_MAX)

    def _fill_by_leader(self, cursor: _Cursor, first: int) -> None:
        while True:
            # Requests read from the connection too, so no bytes may be left in the buffer.
            self.buffer.drain(self.api.connection)
            if not self.buffer.fill:
                break
        filters = () if cursor.pattern == ">" else (cursor.pattern,)
        messages, cursor.ahead = next_stored(self.api, self.stream, filters, SequenceRange(first, self._end))
        if len(messages):
            cursor.held.append(messages)

    def close(self) -> None:
        """End the subscriptions and leave the connection clean for the next reader."""
        for cursor in self._cursors:
            cursor.close()


class _Cursor:
    """How far one filter is read, by batches of direct gets over one subscription.

    Attributes:
        pattern: the filter.
        ahead: the sequence of the next request; None when the filter has no more messages in the range.
        held: messages that were fetched and not returned yet.
        batch_max: most messages of one request; few after an answer that could not be used.
    """

    def __init__(self, gets: MergedGets, pattern: str, ahead: int | None, size_max: int) -> None:
        self.pattern = pattern
        self.ahead = ahead
        self.held: list[MessageColumns] = []
        self.batch_max = _BATCH_MAX
        self._gets = gets
        self._size_max = size_max
        self._inbox = gets.api.connection.new_inbox()
        self._sid = gets.api.connection.subscribe(self._inbox)

    @property
    def limit(self) -> int | None:
        """The sequence up to which this filter has no messages but the held ones; None for the whole range."""
        return self.ahead - 1 if self.ahead is not None else None

    def take(self, limit: int) -> list[MessageColumns]:
        """Return the held messages, up to and including that sequence."""
        taken, kept = [], []
        for part in self.held:
            inside = int(np.searchsorted(part.sequence, limit, side="right"))
            if inside:
                taken.append(part.slice(0, inside))
            if inside < len(part):
                kept.append(part.slice(inside, len(part)))
        self.held = kept
        return taken

    def batch(self, sequence: int, wanted: int) -> Iterator[MessageColumns]:
        """Yield at most `wanted` messages from that sequence on; none when a mirror answers."""
        connection, buffer, stream = self._gets.api.connection, self._gets.buffer, self._gets.stream
        request = DirectGetRequest(
            seq=sequence,
            next_by_subj="" if self.pattern == ">" else self.pattern,
            batch=min(wanted, _BATCH_MAX),
            max_bytes=self._size_max,
        )
        connection.publish(self._gets.subject, encode(request), reply=self._inbox)
        ended = False
        while not ended:
            buffer.receive(connection, _ANSWER_S)
            split = split_frames(buffer.data, buffer.fill)
            for line in split.lines:
                connection.handle_line(line)
            if not len(split):
                buffer.discard(split.consumed)
                continue
            messages, statuses = columns_of_direct_gets(buffer.data, split, stream)
            for status in statuses_of(buffer.data, statuses):
                ended = True
                _check_end(stream, status)
            buffer.discard(split.consumed)
            if len(messages):
                yield messages

    def close(self) -> None:
        """End the subscription and leave the connection clean for the next reader."""
        self._gets.api.connection.unsubscribe(self._sid)
        self._gets.buffer.drain(self._gets.api.connection)


def _check_end(stream: str, status: Headers) -> None:
    """Let the ends of a batch pass: 204 end of batch, 404 no message."""
    if status.status in (204, 404):
        return
    if status.status == 503:
        raise UnsupportedStreamError(
            f"stream {stream} no longer answers direct gets: it was deleted, or its allow_direct was switched off"
        )
    raise UnsupportedStreamError(f"stream {stream} refused a direct get: {status.status} {status.description}")


LEADER_WINDOW = 512
"""How many messages are requested at a time."""


def first_matching(api: StreamApi, stream: str, subjects: tuple[str, ...], sequence: int) -> int | None:
    """Return the first sequence from that one on whose message matches, as the leader says; None when there is none.

    From a stream's head on, nats-server 2.15 looks up a subject in an index, which may lose subjects of an interest
    stream that was purged; behind the head it scans the messages. So a subject that is not found is tried there too.
    """
    found = {subject: api.next_message(stream, sequence, subject) for subject in subjects or (">",)}
    missing = [subject for subject, message in found.items() if message is None]
    if subjects and missing and (head := api.next_message(stream, sequence)) is not None:
        if any(compile_matcher(subject.encode())(head.subject.encode()) for subject in missing):
            return head.seq
        found.update({subject: api.next_message(stream, head.seq + 1, subject) for subject in missing})
    return min((message.seq for message in found.values() if message is not None), default=None)


def next_stored(
    api: StreamApi, stream: str, subjects: tuple[str, ...], whole: SequenceRange
) -> tuple[MessageColumns, int | None]:
    """Return the next matching messages of a range, and the sequence to continue with.

    Returns:
        At least one message, and None instead of a sequence at the end of the range; no message and None when the
        leader has none left in the range.
    """
    matches = [compile_matcher(subject.encode()) for subject in subjects]
    first: int | None = whole.first
    while first is not None and first < whole.end:
        first = first_matching(api, stream, subjects, first)
        if first is None or first >= whole.end:
            break
        end = min(first + LEADER_WINDOW, whole.end)
        requests = [MessageGetRequest(seq=sequence) for sequence in range(first, end)]
        found = [message for message in get_stored(api, stream, requests) if message is not None]
        wanted = [
            message for message in found if not matches or any(match(message.subject.encode()) for match in matches)
        ]
        if wanted:
            return columns_of_stored(wanted), end if end < whole.end else None
        first = end  # The message that the leader found was deleted meanwhile.
    return NO_COLUMNS, None


def get_stored(api: StreamApi, stream: str, requests: list[MessageGetRequest]) -> list[StoredMessage | None]:
    """Return the answers to all these requests, sent at once, in their order; None for a message that does not exist.

    Raises:
        UnsupportedStreamError: the stream is gone, or the login may not read it this way.
        ConnectionError, TimeoutError: the connection broke.
    """
    connection = api.connection
    subject = api.subject("STREAM.MSG.GET", stream)
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
        for message in connection.receive(api.timeout_s):
            answers[message.subject] = message
    return [_message(answers[b"%b.%d" % (inbox, number)], stream) for number in range(len(requests))]


def _message(answer: Msg, stream: str) -> StoredMessage | None:
    if inline_status(answer.header) == 503:
        raise UnsupportedStreamError(f"stream {stream} is no longer there, or this login may not read its messages")
    try:
        return decode_reply(MessageGetReply, answer.payload).message
    except MessageNotFoundError:
        return None


def columns_of_stored(messages: list[StoredMessage]) -> MessageColumns:
    """Return the messages as columns."""
    return MessageColumns(
        sequence=np.array([message.seq for message in messages], np.int64),
        time_ns=np.array([parse_time(message.time) for message in messages], np.int64),
        subject=pa.array([message.subject.encode() for message in messages], pa.binary()),
        header=pa.array([message.hdrs for message in messages], pa.binary()),
        payload=pa.array([message.data for message in messages], pa.binary()),
    )
