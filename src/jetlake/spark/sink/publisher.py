"""Publishes messages with a bounded number of open acknowledgements, until every message is acknowledged.

    encoder -- OutgoingBatch --> Publisher -- Chunk (frames) --> _Flight over one connection --> stream
                                    ^ open chunks                       | PubAcks
                                    `-----------------------------------'

What is always true:

* A chunk is open before it is sent, and closed when each of its messages is acknowledged. A flight that breaks leaves
  its chunks open, and the next flight sends their frames again: message ids make the stream store each message once.
* At most `publishWindow` messages and 64 MiB are open; then the flight waits for acknowledgements before it sends.
* Messages that may be repeated share one reply subject per chunk, and their PubAcks are only counted, as long as each
  says that one stream stored one more message (`stored_acks.py`). The first answer that leaves open which message it is
  about ends the flight when all answers have come; from then on every message has a reply subject of its own, under a
  new inbox, so that a late answer to the first attempt is never taken for one to the second.
* A row is refused only by an answer to its own reply subject: the error names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jetlake.client.connection.socket_connection import SocketConnection
from jetlake.client.tables.arrow_values import numpy_of
from jetlake.client.tables.frames import Split, split_frames
from jetlake.client.tables.message_columns import gather
from jetlake.client.tables.read_buffer import ReadBuffer
from jetlake.client.tables.stream_api import BROKEN, RetryPolicy, StreamApi, ask, retrying
from jetlake.errors import (
    ApiError,
    DecodeError,
    RequestTimeoutError,
    RowPublishError,
    ServerError,
    WrongLastSequenceError,
)
from jetlake.model.publish import decode_pub_ack
from jetlake.model.replies import StoredMessage
from jetlake.protocol import encoder
from jetlake.protocol.headers import find_value, inline_status
from jetlake.protocol.nuid import new_inbox
from jetlake.protocol.parser import MAX_CONTROL_LINE
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.sink.outgoing import Frames, OutgoingBatch, OutgoingMessage
from jetlake.spark.sink.stored_acks import StoredAcks

_STORED = b'{"stream":'
_DUPLICATE = b'"duplicate":'
_UNANSWERED_MAX = 4
# A window is filled in chunks, so that the server works on one while the next is encoded.
_CHUNKS_IN_WINDOW = 4
_OPEN_BYTES_MAX = 64 << 20

# Error codes that pass: JetStream is not ready yet, or overloaded.
_PASSING = (10008, 10167)


class _TryAgainError(Exception):
    """The server could not take a message right now."""


class _UnclearError(Exception):
    """An answer to a shared reply subject leaves open which message it is about."""


class Publisher:
    """One task's messages on their way to their streams; rows count from 0 in the order in which they are published.

    Attributes:
        count: how many were published so far.
        duplicates: how many the stream had already, by their message ids.
        stream: the stream that acknowledged last.
        inbox: what the reply subjects of all messages begin with; a row's number follows.
        counts: whether the messages of a chunk share a reply subject, so that their answers are only counted.
        open: chunks with messages that are not acknowledged; to publish again is to send their frames again.
        unanswered: how often no stream took a row.

    Args:
        repeatable: whether a message that is stored may be published again without harm, for it has an id and expects
            nothing of the stream. Then answers are counted, which costs the server and this task less; at the first
            that is not clear, and after a broken connection, everything open is published again and asked for row by
            row.
    """

    def __init__(self, options: SinkOptions, *, repeatable: bool = False) -> None:
        self.count = 0
        self.duplicates = 0
        self.stream = ""
        self.inbox = new_inbox().encode() + b"."
        self.open: list[Chunk] = []
        self.unanswered: dict[int, int] = {}
        self.counts = repeatable
        self._options = options

    def publish_all(self, batches: Iterable[OutgoingBatch]) -> None:
        """Publish, wait for every acknowledgement, and publish again the messages that a broken connection left open.

        Raises:
            RowPublishError: a message was refused; names its row.
            ClientConnectionError, RequestTimeoutError: the server was away for too long.
        """
        policy = RetryPolicy(self._options.connection)
        rest = self._chunks(batches)
        while True:
            done_before = self.count - self.open_rows
            try:
                with self._options.connection.lease() as connection:
                    _Flight(self, connection, self._options).run(rest)
                return
            except _UnclearError:
                self._ask_by_row()
            except (*BROKEN, _TryAgainError) as error:
                if self.count - self.open_rows > done_before:
                    policy.succeeded()
                self._ask_by_row()
                policy.pause(RequestTimeoutError(str(error)) if isinstance(error, _TryAgainError) else error)

    def _chunks(self, batches: Iterable[OutgoingBatch]) -> Iterator[Chunk]:
        rows_max = max(1, self._options.window // _CHUNKS_IN_WINDOW)
        for batch in batches:
            for part in batch.chunks(rows_max):
                yield Chunk(part, self.inbox, self.count, counted=self.counts)

    def _ask_by_row(self) -> None:
        """Give every open message, and all later ones, a reply subject of its own."""
        if self.counts:
            # sometimes: a task asks row by row
            self.counts = False
            # Answers to the first attempt must not be taken for those to the second.
            self.inbox = new_inbox().encode() + b"."
            for chunk in self.open:
                chunk.ask_by_row(self.inbox)

    def add(self, chunk: Chunk) -> None:
        """Add an open chunk."""
        self.open.append(chunk)
        self.count += len(chunk.batch)

    @property
    def open_rows(self) -> int:
        """How many messages are not acknowledged."""
        return sum(chunk.open_rows for chunk in self.open)

    @property
    def open_bytes(self) -> int:
        """How much memory they hold."""
        return sum(len(chunk.frames.data) for chunk in self.open)

    def acknowledge(self, rows: Rows, were_there: NDArray[np.bool_] | None = None) -> None:
        """Close rows, and count the duplicates among them. A row that was sent twice is answered twice."""
        for chunk in self.open:
            own = (rows >= chunk.first_row) & (rows < chunk.end_row)
            if were_there is not None:
                self.duplicates += chunk.count_found(rows[own & were_there])
            chunk.close(rows[own])
        self.close_answered()

    def count_answers(self, first_row: int, answers: int, stored: int) -> bool:
        """Count answers to the chunk that begins with that row; False when there are more of them than messages."""
        for chunk in self.open:
            if chunk.first_row == first_row:
                chunk.count_answers(answers, stored)
                return chunk.open_rows >= 0
        return False

    def close_answered(self) -> None:
        """Close the chunks whose messages are all answered."""
        self.open = [chunk for chunk in self.open if chunk.open_rows]

    def find_open(self, row: int) -> OutgoingMessage | None:
        """Return the message of a row that is not acknowledged."""
        for chunk in self.open:
            if chunk.first_row <= row < chunk.end_row and chunk.is_open[row - chunk.first_row]:
                return chunk.batch[row - chunk.first_row]
        return None


class _Flight:
    """Publishing over one connection, until all is acknowledged or the connection breaks."""

    def __init__(self, publisher: Publisher, connection: SocketConnection, options: SinkOptions) -> None:
        self._publisher = publisher
        self._connection = connection
        self._options = options
        self._buffer = ReadBuffer(256 << 10)
        self._inbox = publisher.inbox
        self._sid = connection.subscribe(self._inbox + b"*")
        self._acks = StoredAcks()
        self._is_clear = True
        # How long a control line may be, as far as it is known.
        self._line_bytes_taken = MAX_CONTROL_LINE
        # Rows that the server could not take right now, and why; the next flight publishes them again.
        self._put_off: dict[int, str] = {}

    def run(self, chunks: Iterator[Chunk]) -> None:
        """Publish the open chunks first, then the rest."""
        publisher = self._publisher
        for chunk in publisher.open:
            self._connection.send(chunk.open_frames())
        for chunk in chunks:
            self._check_sizes(chunk)
            self._check_lines(chunk)
            # Open before it is sent: if the connection breaks while the flight waits for room, the next one has it.
            publisher.add(chunk)
            self._await(self._options.window, _OPEN_BYTES_MAX, unsent=1)
            self._connection.send(chunk.frames.data)
        self._await(0, 0)
        self._connection.unsubscribe(self._sid)
        self._buffer.drain(self._connection)

    def _check_sizes(self, chunk: Chunk) -> None:
        max_payload = self._connection.max_payload
        sizes = chunk.frames.sizes
        index = int(sizes.argmax())
        if sizes[index] > max_payload:
            reason = f"{sizes[index]} bytes with headers are more than the server takes ({max_payload})"
            raise RowPublishError(chunk.first_row + index, chunk.batch[index].subject.decode(), reason)

    def _check_lines(self, chunk: Chunk) -> None:
        """Raise for a subject that makes a control line longer than the server takes.

        A server closes the connection at such a line, and bytes under way behind it may hide the reason. Its limit is a
        setting that it does not report, so a line longer than the default is tried first, by a subscription on another
        connection.
        """
        lines = chunk.frames.line_sizes()
        index = int(lines.argmax())
        size = int(lines[index])
        if size <= self._line_bytes_taken:
            return

        def subscribe(connection: SocketConnection) -> None:
            inbox = connection.inbox + b"."
            connection.send(encoder.sub(inbox.ljust(size - len(b" 0"), b"x"), b"", b"0"))
            connection.flush()
            connection.unsubscribe(b"0")

        try:
            retrying(self._options.connection, subscribe)
        except ServerError as error:
            subject = chunk.batch[index].subject
            reason = f"column subject: {len(subject)} bytes are more than the server takes ({error})"
            raise RowPublishError(chunk.first_row + index, subject.decode(), reason) from None
        self._line_bytes_taken = size

    def _await(self, rows_max: int, bytes_max: int, unsent: int = 0) -> None:
        """Take acknowledgements until no more than that is open, or only the chunks that are not sent yet."""
        publisher = self._publisher
        while len(publisher.open) > unsent and (publisher.open_rows > rows_max or publisher.open_bytes > bytes_max):
            self._receive(publisher.open_rows - rows_max)
            if not self._is_clear:
                # All answers must come first: they say how many of the stored messages are this task's own.
                while self._sent_rows(unsent) > 0:
                    self._receive()
                raise _UnclearError
            if self._put_off:
                # A row whose answer is not awaited would be published again, and count as a duplicate.
                while self._sent_rows(unsent) > sum(publisher.find_open(row) is not None for row in self._put_off):
                    self._receive()
                raise _TryAgainError(next(iter(self._put_off.values())))

    def _sent_rows(self, unsent: int) -> int:
        """Return how many messages of the chunks before the unsent ones are open."""
        sent = self._publisher.open[: len(self._publisher.open) - unsent]
        return sum(max(0, chunk.open_rows) for chunk in sent)

    def _receive(self, wanted: int = 0) -> None:
        """Take the next acknowledgements, if possible `wanted` at once."""
        buffer = self._buffer
        buffer.receive(self._connection, self._options.ack_timeout_s, wanted)
        if self._publisher.counts and self._is_clear:
            self._count_runs()
        split = split_frames(buffer.data, buffer.fill)
        for line in split.lines:
            self._connection.handle_line(line)
        if len(split):
            texts = gather(buffer.data, split.subject + len(self._inbox), split.sizes - len(self._sid) - 1)
            rows = numpy_of(texts.cast(pa.string()).cast(pa.int64()))
            (self._count if self._publisher.counts else self._take)(rows, split)
        buffer.discard(split.consumed)

    def _count_runs(self) -> None:
        """Count the clear answers at the beginning of the buffer, while they are in runs."""
        buffer, publisher = self._buffer, self._publisher
        end = 0
        while self._is_clear and (run := self._acks.read_run(buffer.data, end, buffer.fill)) is not None:
            first_row = int(run.subject[len(self._inbox) :])
            self._is_clear = publisher.count_answers(first_row, run.answers, run.answers)
            end = run.end
        if end and self._is_clear:
            publisher.close_answered()
        buffer.discard(end)

    def _count(self, rows: Rows, split: Split) -> None:
        """Count the answers to each chunk; the first that is not clear ends the flight when all have come."""
        buffer, publisher = self._buffer.data, self._publisher
        clear = self._is_clear and self._acks.are_clear(buffer, split)
        stored = np.ones(len(rows), np.bool_) if clear else _were_stored(gather(buffer, split.payload, split.end))
        for first_row in np.unique(rows).tolist():
            own = rows == first_row
            clear &= publisher.count_answers(first_row, int(own.sum()), int((own & stored).sum()))
        self._is_clear = clear
        if clear:
            publisher.close_answered()
            publisher.stream = self._acks.stream

    def _take(self, rows: Rows, split: Split) -> None:
        """Close the acknowledged messages, and check each refused one."""
        import pyarrow.compute as pc  # here, as in message_columns

        buffer, publisher = self._buffer.data, self._publisher
        answers = gather(buffer, split.payload, split.end)
        are_stored = pc.starts_with(answers, _STORED)
        were_there = pc.match_substring(answers, _DUPLICATE)
        if pc.all(are_stored).as_py() and not pc.any(were_there).as_py():
            publisher.acknowledge(rows)
            publisher.stream = decode_pub_ack(answers[-1].as_py()).stream
            return
        stored = np.array(are_stored.to_pylist(), np.bool_)
        publisher.acknowledge(rows[stored], np.array(were_there.to_pylist(), np.bool_)[stored])
        if stored.any():
            publisher.stream = decode_pub_ack(answers.filter(are_stored)[-1].as_py()).stream
        headers = gather(buffer, split.header, split.payload)
        for index in np.flatnonzero(~stored):
            message = publisher.find_open(int(rows[index]))
            if message is not None:
                self._refused(int(rows[index]), message, headers[index].as_py(), answers[index].as_py())

    def _refused(self, row: int, message: OutgoingMessage, header: bytes, answer: bytes) -> None:
        """Raise the reason of a refused row, unless the refusal passes or the stream has the message already."""
        publisher = self._publisher
        subject = message.subject.decode()
        if inline_status(header) == 503:
            attempts = publisher.unanswered[row] = publisher.unanswered.get(row, 0) + 1
            if attempts >= _UNANSWERED_MAX:
                raise RowPublishError(row, subject, "no stream has this subject: add it to one, or check the subject")
            self._put_off[row] = f"no stream answered on {subject!r}"
            return
        try:
            decode_pub_ack(answer)
        except WrongLastSequenceError as error:
            if not self._is_stored(message, error):
                raise RowPublishError(row, subject, error.description, error.err_code) from None
            publisher.acknowledge(np.array([row]), np.array([True]))
        except ApiError as error:
            if error.err_code not in _PASSING:
                raise RowPublishError(row, subject, error.description, error.err_code) from None
            self._put_off[row] = f"{subject!r}: {error}"
        except DecodeError:
            reason = f"what answered is no stream but another service: {answer[:80]!r}"
            raise RowPublishError(row, subject, reason) from None

    def _is_stored(self, message: OutgoingMessage, error: WrongLastSequenceError) -> bool:
        """Return whether an expected sequence does not hold because this very message was stored before, and its
        acknowledgement lost: then the message behind the expected one carries its id.
        """
        if not message.message_id:
            return False
        of_subject = find_value(message.header, b"Nats-Expected-Last-Subject-Sequence")
        of_stream = find_value(message.header, b"Nats-Expected-Last-Sequence")

        def look(api: StreamApi) -> StoredMessage | None:
            stream = self._options.stream or self._publisher.stream or api.stream_of(message.subject.decode())
            if of_subject is not None:
                return api.next_message(stream, int(of_subject) + 1, message.subject.decode())
            return api.message(stream, int(of_stream or 0) + 1)

        found = ask(self._options.connection, look)
        return found is not None and find_value(found.hdrs, b"Nats-Msg-Id") == message.message_id


def _were_stored(answers: pa.Array) -> NDArray[np.bool_]:
    """Return which answers say that a message was stored just now."""
    import pyarrow.compute as pc  # here, as in message_columns

    were_stored = pc.and_not(pc.starts_with(answers, _STORED), pc.match_substring(answers, _DUPLICATE))
    return np.array(were_stored.to_pylist(), np.bool_)


Rows = NDArray[np.int64]


class Chunk:
    """Messages that are sent together, with their frames, until the last of them is acknowledged.

    Either every message has a reply subject of its own, which ends with its row, and it is known which are open; or all
    share one, which ends with the first row, and their answers are only counted.

    Attributes:
        first_row: the row of the first message.
        end_row: the row behind the last one.
        is_open: which messages are not acknowledged, where each has its own reply subject.
        open_rows: how many messages are not acknowledged, or not answered where they are only counted.
        stored: how many are known to be stored by this task without its being known which.
    """

    def __init__(self, batch: OutgoingBatch, inbox: bytes, first_row: int, *, counted: bool = False) -> None:
        self.batch = batch
        self.first_row = first_row
        self.end_row = first_row + len(batch)
        self.stored = 0
        self._set_open(batch.frames(b"%b%d" % (inbox, first_row)) if counted else batch.frames(inbox, first_row))

    def _set_open(self, frames: Frames) -> None:
        self.frames = frames
        self.is_open = np.ones(len(self.batch), np.bool_)
        self.open_rows = len(self.batch)

    def open_frames(self) -> memoryview | bytes:
        """Return the frames of the messages that are not acknowledged."""
        data, edges, _ = self.frames
        if self.open_rows == len(self.batch):
            return data
        return b"".join(data[edges[index] : edges[index + 1]] for index in np.flatnonzero(self.is_open))

    def close(self, rows: Rows) -> None:
        """Close these rows."""
        if len(rows):
            self.is_open[rows - self.first_row] = False
            self.open_rows = int(np.count_nonzero(self.is_open))

    def count_found(self, rows: Rows) -> int:
        """Return how many of these rows, which the stream had already, are open and were not stored by this task."""
        different = np.unique(rows - self.first_row)
        found = int(np.count_nonzero(self.is_open[different]))
        own = min(found, self.stored)
        self.stored -= own
        return found - own

    def count_answers(self, answers: int, stored: int) -> None:
        """Count answers to a shared reply subject, and how many of them say that a message was stored just now."""
        self.open_rows -= answers
        self.stored += stored

    def ask_by_row(self, inbox: bytes) -> None:
        """Open all messages again, each with a reply subject of its own."""
        self._set_open(self.batch.frames(inbox, self.first_row))
