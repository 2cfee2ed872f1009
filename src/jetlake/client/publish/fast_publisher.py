"""Fast publishing: a batch whose messages a stream stores on arrival and acknowledges in groups."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, Unpack

import msgspec

from jetlake.client.connection.connection import Connection
from jetlake.client.messages.message import Message
from jetlake.client.messages.receiver import Receiver
from jetlake.client.publish.outgoing_message import PublishOptions, outgoing_message
from jetlake.errors import (
    ApiError,
    BatchError,
    ConnectionClosedError,
    DecodeError,
    DisconnectedError,
    InvalidOptionError,
    NoRespondersError,
    PublishTimeoutError,
    api_error_of,
)
from jetlake.model.encoding.codec import decode
from jetlake.model.publish import PubAck, decode_pub_ack
from jetlake.model.stream import ErrorBody
from jetlake.protocol import encoder
from jetlake.protocol.nuid import new_inbox, next_nuid

GapMode = Literal["fail", "ok"]
"""What a lost or refused message does: `fail` ends the batch, `ok` reports it and continues."""

_START, _APPEND, _, _END = range(4)
_FLOW_MAX = 65_535


class _Answer(msgspec.Struct, frozen=True, gc=False):
    """Flow control of a fast batch."""

    type: str = ""
    seq: int = 0
    msgs: int = 0
    last_seq: int = 0
    error: ErrorBody | None = None


class FastPublisher:
    """Publishes to one stream with `allow_batched`; created by `JetStream.fast_publisher`.

    `publish` waits only while too many messages are not acknowledged; the end of the `async with` block commits.

    Args:
        connection: where the messages are sent.
        timeout_s: seconds to wait for an acknowledgement that is due.
        flow: messages between two acknowledgements, at most; the server may ask for fewer.
        outstanding: acknowledgements that may be missing before `publish` waits.
        gaps: `fail` or `ok`.

    Attributes:
        published: messages published so far.
        acknowledged: messages that the stream is known to have stored or refused.
        lost: ranges of messages that did not arrive, numbered from 1, with gaps `ok`.
        refused: numbers of messages that the stream refused, with the errors.
    """

    __slots__ = (
        "_ack",
        "_connection",
        "_failure",
        "_first_subject",
        "_inbox",
        "_interval",
        "_outstanding",
        "_prefix",
        "_timeout_s",
        "_waiter",
        "acknowledged",
        "lost",
        "published",
        "refused",
    )

    def __init__(self, connection: Connection, timeout_s: float, *, flow: int, outstanding: int, gaps: GapMode) -> None:
        if not 1 <= flow <= _FLOW_MAX or outstanding < 1:
            raise InvalidOptionError(f"flow must be 1 to {_FLOW_MAX} and outstanding at least 1")
        if gaps not in ("fail", "ok"):
            raise InvalidOptionError(f"gaps must be 'fail' or 'ok', not {gaps!r}")
        inbox = new_inbox(connection.options.inbox_prefix)
        self._inbox = _Inbox(f"{inbox}.>".encode(), self)
        self._connection = connection
        self._timeout_s = timeout_s
        self._outstanding = outstanding
        self._prefix = f"{inbox}.{next_nuid()}.{flow}.{gaps}.".encode()
        self._first_subject = b""
        self._interval = 0  # Unknown until the first acknowledgement.
        self._ack: PubAck | None = None
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.published = 0
        self.acknowledged = 0
        self.lost: list[tuple[int, int]] = []
        self.refused: list[tuple[int, ApiError]] = []

    @property
    def ack(self) -> PubAck:
        """The acknowledgement of the whole: last sequence in the stream, number of messages.

        Raises:
            BatchError: the batch is not committed.
        """
        if self._ack is None:
            raise BatchError("the batch is not committed")
        return self._ack

    async def publish(self, subject: str, payload: bytes = b"", **options: Unpack[PublishOptions]) -> int:
        """Publish a message and return its number in the batch; waits while too many are unacknowledged.

        Args:
            subject: a subject that the stream captures.
            payload: the content.
            options: the options of `JetStream.publish`, but `timeout` and `retries`.

        Raises:
            BatchError: the batch is over: it was committed, or a message was lost or refused.
            ApiError: the stream takes no fast batches, or refused the first message.
            NoRespondersError: no stream captures the subject.
            PublishTimeoutError: an acknowledgement is overdue.
            DisconnectedError: the connection was lost; messages behind `acknowledged` may be stored.
        """
        self._check()
        for name in ("timeout", "retries"):
            if options.get(name) is not None:
                raise InvalidOptionError(f"{name} is not available for messages of a batch")
        message = outgoing_message(subject, payload, options)
        self._connection.check_size(len(message.header) + len(message.payload))
        while self.published and self.published >= self.acknowledged + self._interval * self._outstanding:
            await self._changed()
            self._check()
        self._send(message.subject, _APPEND if self.published else _START, message.header, message.payload)
        self.published += 1
        return self.published

    async def commit(self) -> PubAck:
        """End the batch and wait until the stream has all messages.

        Raises:
            BatchError: the batch is over, or has no messages.
            PublishTimeoutError: no answer in time.
            DisconnectedError: the connection was lost; messages behind `acknowledged` may be stored.
        """
        try:
            self._check()
            if not self.published:
                raise BatchError("the batch has no messages")
            while not self._interval:
                await self._changed()
                self._check()
            # Any subject of the stream will do: the end is not stored.
            self._send(self._first_subject, _END, b"", b"")
            while self._ack is None and self._failure is None:
                await self._changed()
        finally:
            self._close()
        if self._ack is None:
            self._check()
        return self.ack

    def _send(self, subject: bytes, operation: int, header: bytes, payload: bytes) -> None:
        if not self.published:
            self._connection.subscribe(self._inbox)
            self._first_subject = subject
        reply = b"%b%d.%d.$FI" % (self._prefix, self.published + 1, operation)
        if header:
            self._connection.send(encoder.hpub(subject, reply, header, payload))
        else:
            self._connection.send(encoder.pub(subject, reply, payload))

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._ack is not None:
            raise BatchError(f"the batch ended after {self._ack.count} messages; start another one")

    async def _changed(self) -> None:
        """Wait for the next answer; several tasks may."""
        if self._waiter is None:
            self._waiter = self._connection.loop.create_future()
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.shield(self._waiter)
        except TimeoutError:
            self._connection.suspect()
            raise PublishTimeoutError(
                f"message {self.acknowledged + 1} of the batch is not acknowledged within {self._timeout_s:g} s"
            ) from None

    def _receive(self, messages: list[Message]) -> None:
        for message in messages:
            try:
                self._take(message)
            except (ApiError, DecodeError, NoRespondersError) as error:
                self._failure = error
        self._wake()

    def _take(self, message: Message) -> None:
        if message.raw_header and not message.payload and message.status == 503:
            raise NoRespondersError(self._first_subject.decode("utf-8", "replace"))
        answer = decode(_Answer, message.payload)
        if answer.type == "ack":
            self.acknowledged, self._interval = answer.seq, answer.msgs
        elif answer.type == "gap":
            self.lost.append((answer.last_seq, answer.seq - 1))
        elif answer.type == "err" and answer.error is not None:
            error = answer.error
            self.refused.append((answer.seq, api_error_of(error.code, error.err_code, error.description)))
            self.acknowledged = max(self.acknowledged, answer.seq)  # No other answer may come for it.
        elif answer.seq or answer.error is not None:
            self._ack = decode_pub_ack(message.payload)
        else:
            self._ack = decode(PubAck, message.payload)  # Only duplicates: nothing was stored.

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.set_result(None)

    def _close(self) -> None:
        if self._inbox.sid:
            self._connection.unsubscribe(self._inbox)

    async def __aenter__(self) -> FastPublisher:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is None and self.published and self._ack is None:
            await self.commit()
        else:
            self._close()


class _Inbox(Receiver):
    """Receives the answers of one batch.

    Args:
        subject: the pattern of all answers.
        publisher: the publisher of the batch.
    """

    __slots__ = ("_publisher",)

    def __init__(self, subject: bytes, publisher: FastPublisher) -> None:
        super().__init__(subject)
        self._publisher = publisher

    def receive(self, messages: list[Message]) -> None:
        self._publisher._receive(messages)

    def ended(self, error: Exception | None) -> None:
        self._publisher._fail(error or ConnectionClosedError("the connection was closed before the batch's end"))

    def disconnected(self) -> None:
        publisher = self._publisher
        publisher._connection.forget_unsent(self.subject[:-1])
        publisher._fail(
            DisconnectedError("the connection was lost during a batch; messages after `acknowledged` may be stored")
        )
