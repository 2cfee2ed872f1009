"""Batches of direct gets, for one filter or for several put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from jetlake.client.connection.socket_connection import SocketConnection
from jetlake.client.tables.columns.frame_split import split_frames
from jetlake.client.tables.columns.message_columns import (
    NO_COLUMNS,
    MessageColumns,
    columns_of_direct_gets,
    in_order,
    statuses_of,
)
from jetlake.client.tables.columns.read_buffer import ReadBuffer
from jetlake.client.tables.plan.planning import SequenceRange
from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.errors import UnsupportedStreamError
from jetlake.model.encoding.codec import encode
from jetlake.model.requests import DirectGetRequest
from jetlake.protocol.headers import Headers

__all__ = ["MergedGets"]

_BATCH_MAX = 10_000
_BATCH_BYTES_MAX = 8 << 20
_ANSWER_S = 10.0


class MergedGets:
    """Batches of direct gets for each of several filters, put together in the order of their sequences.

    Every filter has a cursor of its own, so nothing is read that no filter wants, and nothing twice.

    Args:
        next_of: asks the stream's leader, over another connection, for the next message of a filter from a sequence on;
            None when there is none in the range.

    Attributes:
        next_sequence: what was given out lies before this.
    """

    def __init__(
        self,
        api: StreamApi,
        stream: str,
        filters: tuple[str, ...],
        whole: SequenceRange,
        next_of: Callable[[str, int], int | None],
    ) -> None:
        self.next_sequence = whole.first
        self._next_of = next_of
        patterns = filters or (">",)
        subject = api.subject("DIRECT.GET", stream)
        size_max = max(_BATCH_BYTES_MAX // len(patterns), 1 << 20)
        self._end = whole.end
        # One for all: what comes behind a batch belongs to the connection, not to a filter.
        buffer = ReadBuffer()
        # A request for a batch of no messages would be one for a single message, whose answer has no end of batch.
        ahead = whole.first if whole.first < whole.end else None
        self._cursors = [
            _Cursor(_DirectGets(api.connection, buffer, subject, stream, pattern, size_max), ahead)
            for pattern in patterns
        ]

    @property
    def done(self) -> bool:
        """Whether nothing is left of the range, by the word of the stream's leader."""
        return all(cursor.ahead is None and not cursor.held for cursor in self._cursors)

    def next_messages(self, wanted: int = _BATCH_MAX) -> MessageColumns:
        """Return the next messages, about so many per filter; none when the replicas lag behind the leader."""
        for cursor in self._cursors:
            if not cursor.held and cursor.ahead is not None:
                self._fill(cursor, wanted)
        # Up to here every filter has been asked.
        limits = [cursor.limit for cursor in self._cursors if cursor.limit is not None]
        limit = min(limits, default=self._end)
        parts = [part for cursor in self._cursors for part in cursor.take(limit)]
        if not parts:
            return NO_COLUMNS
        merged = parts[0] if len(parts) == 1 else in_order(parts)
        self.next_sequence = int(merged.sequence[-1]) + 1
        return merged

    def _fill(self, cursor: _Cursor, wanted: int) -> None:
        first = cursor.ahead if cursor.ahead is not None else self._end
        for messages in cursor.gets.batch(first, min(self._end - first, wanted)):
            inside = messages.slice(0, int(np.searchsorted(messages.sequence, self._end)))
            cursor.ahead = int(messages.sequence[-1]) + 1
            if len(inside):
                cursor.held.append(inside)
        if cursor.ahead is not None and cursor.ahead >= self._end:
            cursor.ahead = None
        elif not cursor.held:
            # That nothing came does not prove that there is nothing: whoever answered may lag.
            cursor.ahead = self._next_of(cursor.gets.pattern, first)

    def close(self) -> None:
        """End the subscriptions and leave the connection clean for the next one."""
        for cursor in self._cursors:
            cursor.gets.close()


class _Cursor:
    """How far one filter is read: what is held, and the sequence to go on with; None when there is no more."""

    def __init__(self, gets: _DirectGets, ahead: int | None) -> None:
        self.gets = gets
        self.ahead = ahead
        self.held: list[MessageColumns] = []

    @property
    def limit(self) -> int | None:
        """The sequence up to which this filter has nothing but what is held; None for the whole range."""
        if self.ahead is None:
            return None
        return self.ahead - 1 if not self.held else int(self.held[-1].sequence[-1])

    def take(self, limit: int) -> list[MessageColumns]:
        """Return what is held, up to and including that sequence."""
        taken, kept = [], []
        for part in self.held:
            inside = int(np.searchsorted(part.sequence, limit, side="right"))
            if inside:
                taken.append(part.slice(0, inside))
            if inside < len(part):
                kept.append(part.slice(inside, len(part)))
        self.held = kept
        return taken


class _DirectGets:
    """Batches of direct gets for one filter, over one subscription."""

    def __init__(
        self,
        connection: SocketConnection,
        buffer: ReadBuffer,
        subject: bytes,
        stream: str,
        pattern: str,
        size_max: int,
    ) -> None:
        self.pattern = pattern
        self._connection = connection
        self._subject = subject
        self._stream = stream
        self._size_max = size_max
        self._buffer = buffer
        self._inbox = connection.new_inbox()
        self._sid = connection.subscribe(self._inbox)

    def batch(self, sequence: int, wanted: int) -> Iterator[MessageColumns]:
        """Yield the messages from that sequence on, up to so many."""
        request = DirectGetRequest(
            seq=sequence,
            next_by_subj="" if self.pattern == ">" else self.pattern,
            batch=min(wanted, _BATCH_MAX),
            max_bytes=self._size_max,
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
        name = self._stream
        if status.status == 503:
            raise UnsupportedStreamError(
                f"stream {name} no longer answers direct gets: it was deleted, or its allow_direct was switched off"
            )
        raise UnsupportedStreamError(f"stream {name} refused a direct get: {status.status} {status.description}")

    def close(self) -> None:
        """End the subscription and leave the connection clean for the next one."""
        self._connection.unsubscribe(self._sid)
        self._buffer.settle(self._connection)
