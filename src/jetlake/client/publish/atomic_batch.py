"""Atomic batches: messages that a stream stores all together or not at all."""

from __future__ import annotations

from typing import Any, Unpack

from jetlake.client.connection.connection import Connection
from jetlake.client.messages.ready import READY, Ready
from jetlake.client.publish.outgoing_message import OutgoingMessage, PublishOptions, outgoing_message
from jetlake.errors import BatchError, InvalidOptionError, PublishTimeoutError, RequestTimeoutError
from jetlake.model.publish import PubAck, decode_pub_ack
from jetlake.protocol import encoder
from jetlake.protocol.headers import append_pair
from jetlake.protocol.nuid import next_nuid

__all__ = ["AtomicBatch"]


class AtomicBatch:
    """Messages for one stream with `allow_atomic`; made by `JetStream.batch`.

    Messages are collected here and sent when the `async with` block ends; an exception in it discards them. Without a
    block, `commit` sends them.

    Args:
        connection: where the messages are sent.
        timeout_s: seconds to wait for each answer.
    """

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._id = next_nuid().encode()
        self._messages: list[tuple[OutgoingMessage, bytes]] = []
        self._ack: PubAck | None = None
        self._is_over = False

    def __len__(self) -> int:
        return len(self._messages)

    def __repr__(self) -> str:
        if self._ack is not None:
            return f"<AtomicBatch of {self._ack.count} messages committed to {self._ack.stream!r}>"
        return f"<AtomicBatch of {len(self)} messages {'over' if self._is_over else 'not committed'}>"

    @property
    def ack(self) -> PubAck:
        """The acknowledgement: sequence of the last message, and number of messages.

        Raises:
            BatchError: the batch is not committed.
        """
        if self._ack is None:
            raise BatchError("the batch is not committed")
        return self._ack

    def publish(self, subject: str, payload: bytes = b"", **options: Unpack[PublishOptions]) -> Ready:
        """Add a message; awaiting the result is allowed and not needed, since nothing is sent yet.

        Args:
            subject: a subject that the stream captures.
            payload: the content.
            options: those of `JetStream.publish`, but `timeout`, `retries` and `expected_last_msg_id`;
                `expected_last_sequence` is for the first message only.

        Raises:
            BatchError: the batch is over.
            InvalidOptionError: an option that a batch cannot have, or more than the server takes.
        """
        if self._is_over:
            raise BatchError("the batch is over; begin another one")
        for name in ("timeout", "retries", "expected_last_msg_id"):
            if options.get(name) is not None:
                raise InvalidOptionError(f"{name} is not for messages of a batch")
        message = outgoing_message(subject, payload, options)
        header = append_pair(message.header, b"Nats-Batch-Id", self._id)
        header = append_pair(header, b"Nats-Batch-Sequence", b"%d" % (len(self._messages) + 1))
        self._connection.check_size(len(header) + len(message.payload))
        self._messages.append((message, header))
        return READY

    async def commit(self) -> PubAck:
        """Send the messages and wait until the stream has them all.

        Raises:
            InvalidOptionError: the last message is larger than the server takes with the header that commits.
            ApiError: the stream refuses one of the messages, and stores none.
            BatchError: there are no messages, the batch is over, or the server knows no atomic batches.
            PublishTimeoutError: no answer in time; the batch may be stored.
            NoRespondersError: no stream captures the first subject.
        """
        if self._is_over or not self._messages:
            raise BatchError("the batch is over" if self._is_over else "the batch has no messages")
        *messages, (last, last_header) = self._messages
        last_header = append_pair(last_header, b"Nats-Batch-Commit", b"1")
        self._connection.check_size(len(last_header) + len(last.payload))
        self._is_over = True
        for number, (message, header) in enumerate(messages, 1):
            if number == 1:
                self._check_opened(await self._request(message, header))
            else:
                self._connection.send(encoder.hpub(message.subject, b"", header, message.payload))
        self._ack = decode_pub_ack(await self._request(last, last_header))
        self._messages = []
        return self.ack

    def discard(self) -> None:
        """Forget the messages; nothing was sent."""
        self._is_over = True
        self._messages = []

    async def _request(self, message: OutgoingMessage, header: bytes) -> bytes:
        try:
            answer = await self._connection.request_raw(message.subject, header, message.payload, self._timeout_s)
        except RequestTimeoutError:
            raise PublishTimeoutError(
                f"no stream answered the batch on {message.subject.decode()!r} within {self._timeout_s:g} s"
            ) from None
        return answer.payload

    @staticmethod
    def _check_opened(answer: bytes) -> None:
        """Check that the first message was staged: its answer is empty."""
        if answer:
            ack = decode_pub_ack(answer)
            raise BatchError(
                f"the server knows no atomic batches: stream {ack.stream} stored the first message alone, as {ack.seq}"
            )

    async def __aenter__(self) -> AtomicBatch:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is not None:
            self.discard()
        elif not self._is_over and self._messages:
            await self.commit()
