"""Publishes messages with a bounded number on their way, and is done when every one of them is acknowledged."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import pyarrow as pa

from jetlake.client.socket_connection import SocketConnection
from jetlake.errors import ApiError, DecodeError, RequestTimeoutError, RowPublishError, WrongLastSequenceError
from jetlake.model.publish import decode_pub_ack
from jetlake.model.replies import StoredMessage
from jetlake.protocol.headers import find_value, inline_status
from jetlake.protocol.nuid import new_inbox
from jetlake.spark.connection import BROKEN, Patience, leased, retrying
from jetlake.spark.frame_split import Split, split_frames
from jetlake.spark.message_columns import gather
from jetlake.spark.options import SinkOptions
from jetlake.spark.read_buffer import ReadBuffer
from jetlake.spark.row_encoder import OutgoingMessage
from jetlake.spark.stream_api import StreamApi

__all__ = ["Publisher", "new_digest"]

_STORED = b'{"stream":'
_DUPLICATE = b'"duplicate":'
_SEND_BYTES = 256 << 10
_NOBODY_ATTEMPTS_MAX = 4

# Refusals that pass: the system is not ready yet, or has too much to do.
_PASSING = (10008, 10167)


class _TryAgainError(Exception):
    """The server could not take a message right now."""


def new_digest() -> hashlib.blake2b:
    """The hash by which a task knows that it wrote the same before."""
    return hashlib.blake2b(digest_size=16)


class Publisher:
    """One task's messages on their way to their streams; rows count from 0 in the order in which they are published.

    Attributes:
        count: how many were published so far.
        duplicates: how many the stream had already, by their message ids.
        stream: the stream that acknowledged last.
        inbox: what the reply subjects of all messages begin with; the row's number follows.
        open: messages without an acknowledgement, by row, with their frames: to publish again is to send them again.
        nobody: how often a row found no stream.
        digest: of all that was published, in its order.
    """

    def __init__(self, options: SinkOptions) -> None:
        self.count = 0
        self.duplicates = 0
        self.stream = ""
        self._options = options
        self.inbox = new_inbox().encode() + b"."
        self.open: dict[int, tuple[bytes, OutgoingMessage]] = {}
        self.nobody: dict[int, int] = {}
        self.digest = new_digest()

    def publish_all(self, messages: Iterable[OutgoingMessage]) -> None:
        """Publish, wait for every acknowledgement, and publish again what a broken connection left open.

        Raises:
            RowPublishError: a message was refused; names its row.
            ClientConnectionError, RequestTimeoutError: the server was away for too long.
        """
        patience = Patience(self._options.connection)
        rest = iter(messages)
        while True:
            done_before = self.count - len(self.open)
            try:
                with leased(self._options.connection) as connection:
                    _Flight(self, connection, self._options).run(rest)
                return
            except (*BROKEN, _TryAgainError) as error:
                if self.count - len(self.open) > done_before:
                    patience.succeeded()
                patience.pause(RequestTimeoutError(str(error)) if isinstance(error, _TryAgainError) else error)

    def frame(self, message: OutgoingMessage) -> bytes:
        """The next message as a frame, from now on open."""
        row = self.count
        subject, header, payload, _ = message
        if header:
            frame = b"HPUB %b %b%d %d %d\r\n%b%b\r\n" % (
                subject,
                self.inbox,
                row,
                len(header),
                len(header) + len(payload),
                header,
                payload,
            )
        else:
            frame = b"PUB %b %b%d %d\r\n%b\r\n" % (subject, self.inbox, row, len(payload), payload)
        self.open[row] = (frame, message)
        self.digest.update(message.content)
        self.count = row + 1
        return frame


class _Flight:
    """Publishing over one connection, until all is acknowledged or the connection breaks."""

    def __init__(self, publisher: Publisher, connection: SocketConnection, options: SinkOptions) -> None:
        self._publisher = publisher
        self._connection = connection
        self._options = options
        self._buffer = ReadBuffer(256 << 10)
        self._inbox = publisher.inbox
        self._sid = connection.subscribe(self._inbox + b"*")

    def run(self, messages: Iterator[OutgoingMessage]) -> None:
        """What was left open first, then the rest."""
        publisher, window = self._publisher, self._options.window
        open_messages = publisher.open
        self._send([frame for frame, _ in open_messages.values()])
        frames: list[bytes] = []
        size = 0
        max_payload = self._connection.max_payload
        for message in messages:
            length = len(message.header) + len(message.payload)
            if length > max_payload:
                reason = f"{length} bytes with headers are more than the server takes ({max_payload})"
                raise RowPublishError(publisher.count, message.subject.decode(), reason)
            frames.append(publisher.frame(message))
            size += length
            if len(open_messages) >= window or size >= _SEND_BYTES:
                self._send(frames)
                frames, size = [], 0
                if len(open_messages) >= window:
                    self._await(window // 2)
        self._send(frames)
        self._await(0)
        self._connection.unsubscribe(self._sid)
        self._buffer.settle(self._connection)

    def _send(self, frames: list[bytes]) -> None:
        for start in range(0, len(frames), 1024):
            self._connection.send(b"".join(frames[start : start + 1024]))

    def _await(self, open_max: int) -> None:
        """Take acknowledgements until no more than that many are missing."""
        buffer = self._buffer
        while len(self._publisher.open) > open_max:
            buffer.receive(self._connection, self._options.ack_timeout_s)
            split = split_frames(buffer.data, buffer.fill)
            for line in split.lines:
                self._connection.handle_line(line)
            if len(split):
                self._take(split)
            buffer.discard(split.consumed)

    def _take(self, split: Split) -> None:
        """Close the messages that were acknowledged; those that were refused are looked at one by one."""
        import pyarrow.compute as pc  # here, as in message_columns

        buffer, publisher = self._buffer.data, self._publisher
        rows = gather(buffer, split.subject + len(self._inbox), split.sizes - len(self._sid) - 1)
        numbers = rows.cast(pa.string()).cast(pa.int64())
        answers = gather(buffer, split.payload, split.end)
        stored = pc.starts_with(answers, _STORED)
        acknowledged = numbers.filter(stored).to_pylist()
        duplicate = pc.match_substring(answers, _DUPLICATE)
        open_messages = publisher.open
        for row, was_there in zip(acknowledged, duplicate.filter(stored).to_pylist(), strict=True):
            # A message that was published twice is acknowledged twice.
            if open_messages.pop(row, None) is not None and was_there:
                publisher.duplicates += 1
        if acknowledged:
            publisher.stream = decode_pub_ack(answers.filter(stored)[-1].as_py()).stream
        if len(acknowledged) < len(split):
            others = pc.invert(stored)
            header = gather(buffer, split.header, split.payload).filter(others).to_pylist()
            refusals = zip(numbers.filter(others).to_pylist(), header, answers.filter(others).to_pylist(), strict=True)
            for row, block, answer in refusals:
                if row in open_messages:
                    self._refused(row, block, answer)

    def _refused(self, row: int, header: bytes, answer: bytes) -> None:
        """Raise for what is wrong with a row, unless it turns out that the stream has it."""
        publisher = self._publisher
        message = publisher.open[row][1]
        subject = message.subject.decode()
        if inline_status(header) == 503:
            attempts = publisher.nobody[row] = publisher.nobody.get(row, 0) + 1
            if attempts >= _NOBODY_ATTEMPTS_MAX:
                raise RowPublishError(row, subject, "no stream has this subject: add it to one, or check the subject")
            raise _TryAgainError(f"no stream answered on {subject!r}")
        try:
            decode_pub_ack(answer)
        except WrongLastSequenceError as error:
            if not self._is_stored(message, error):
                raise RowPublishError(row, subject, error.description, error.err_code) from None
            del publisher.open[row]
            publisher.duplicates += 1
        except ApiError as error:
            if error.err_code in _PASSING:
                raise _TryAgainError(f"{subject!r}: {error}") from None
            raise RowPublishError(row, subject, error.description, error.err_code) from None
        except DecodeError:
            reason = f"what answered is no stream but another service: {answer[:80]!r}"
            raise RowPublishError(row, subject, reason) from None

    def _is_stored(self, message: OutgoingMessage, error: WrongLastSequenceError) -> bool:
        """Whether an expected sequence does not hold because this very message was stored before, and its
        acknowledgement lost: then the message behind the expected one carries its id.
        """
        if not message.message_id:
            return False
        of_subject = find_value(message.header, b"Nats-Expected-Last-Subject-Sequence")
        of_stream = find_value(message.header, b"Nats-Expected-Last-Sequence")
        settings = self._options.connection

        def look(connection: SocketConnection) -> StoredMessage | None:
            api = StreamApi(connection, settings.domain, settings.request_timeout_s)
            stream = self._options.stream or self._publisher.stream or api.stream_of(message.subject.decode())
            if of_subject is not None:
                return api.next_message(stream, int(of_subject) + 1, message.subject.decode())
            return api.message(stream, int(of_stream or 0) + 1)

        found = retrying(settings, look)
        return found is not None and find_value(found.hdrs, b"Nats-Msg-Id") == message.message_id
