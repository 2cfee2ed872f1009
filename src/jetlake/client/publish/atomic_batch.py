"""Atomic batches: messages that a stream stores all together or not at all."""

from __future__ import annotations

import asyncio
from typing import Any, Unpack

from jetlake.client.messages.ready import READY, Ready
from jetlake.client.publish.outgoing_message import OutgoingMessage, PublishOptions, outgoing_message
from jetlake.client.publish.stream_search import ELECTION_S, RETRY_WAIT_S, StreamSearch
from jetlake.errors import (
    BatchError,
    DisconnectedError,
    InvalidOptionError,
    NoRespondersError,
    PublishTimeoutError,
    RequestTimeoutError,
)
from jetlake.model.publish import PubAck, decode_pub_ack
from jetlake.protocol import encoder
from jetlake.protocol.headers import append_pair
from jetlake.protocol.nuid import next_nuid

_ANY_ID = next_nuid().encode()
"""An id as long as all others, to know how large a message will be."""


class AtomicBatch:
    """Messages for one stream with `allow_atomic`; created by `JetStream.batch`.

    Messages are collected here and sent when the `async with` block ends; an exception in it discards them. Without a
    block, `commit` sends them. While a cluster elects the stream's leader, the batch is sent again under another id: a
    batch whose end did not arrive is not stored.

    Args:
        search: decides whether a batch that found no stream is sent again; its API has the connection and the timeout
            of each answer.
    """

    def __init__(self, search: StreamSearch) -> None:
        self._connection = search.api.connection
        self._timeout_s = search.api.timeout_s
        self._search = search
        self._messages: list[OutgoingMessage] = []
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
        """Add a message. Nothing is sent yet, so the result need not be awaited.

        Args:
            subject: a subject that the stream captures.
            payload: the content.
            options: the options of `JetStream.publish`, but `timeout`, `retries` and `expected_last_msg_id`;
                `expected_last_sequence` is for the first message only.

        Raises:
            BatchError: the batch is over.
            InvalidOptionError: an option that a batch cannot have, or more than the server takes.
        """
        if self._is_over:
            raise BatchError("the batch has ended; start another one")
        for name in ("timeout", "retries", "expected_last_msg_id"):
            if options.get(name) is not None:
                raise InvalidOptionError(f"{name} is not available for messages of a batch")
        message = outgoing_message(subject, payload, options)
        header = _batch_header(message, _ANY_ID, len(self._messages) + 1)
        self._connection.check_size(len(header) + len(message.payload))
        self._messages.append(message)
        return READY

    async def commit(self) -> PubAck:
        """Send the messages and wait until the stream has them all.

        Raises:
            InvalidOptionError: the last message is larger than the server takes with the header that commits.
            ApiError: the stream refuses one of the messages, and stores none.
            BatchError: there are no messages, the batch is over, or the server knows no atomic batches.
            PublishTimeoutError: no answer in time; the batch may be stored.
            NoRespondersError: no stream captures the first subject, or it has no leader for half a minute.
        """
        if self._is_over or not self._messages:
            raise BatchError("the batch has ended" if self._is_over else "the batch has no messages")
        last = self._messages[-1]
        last_header = _batch_header(last, _ANY_ID, len(self._messages), is_last=True)
        self._connection.check_size(len(last_header) + len(last.payload))
        self._is_over = True
        self._ack = await self._send_until_answered()
        self._messages = []
        return self.ack

    async def _send_until_answered(self) -> PubAck:
        """Send the batch, and send it again while that is sure not to store it twice and there may be a leader soon."""
        give_up_at = self._connection.loop.time() + max(self._timeout_s, ELECTION_S)
        attempts = 0
        while True:
            batch_id = next_nuid().encode()
            try:
                if await self._begin(batch_id, give_up_at):
                    return await self._end(batch_id)
            except NoRespondersError:
                if not await self._search.is_retried(self._messages[0], attempts, give_up_at):
                    raise
            attempts += 1
            await asyncio.sleep(RETRY_WAIT_S)

    async def _begin(self, batch_id: bytes, give_up_at: float) -> bool:
        """Send all messages but the last one, before which nothing is stored.

        False if the first message has no answer, and a cluster has time to give the stream another leader.
        """
        for number, message in enumerate(self._messages[:-1], 1):
            header = _batch_header(message, batch_id, number)
            if number > 1:
                self._connection.send(encoder.hpub(message.subject, b"", header, message.payload))
                continue
            try:
                self._check_opened(await self._request(message, header))
            except (PublishTimeoutError, DisconnectedError):
                if not self._connection.info.cluster or self._connection.loop.time() >= give_up_at:
                    raise
                return False
        return True

    async def _end(self, batch_id: bytes) -> PubAck:
        """Send the last message, which commits the others."""
        last = self._messages[-1]
        header = _batch_header(last, batch_id, len(self._messages), is_last=True)
        return decode_pub_ack(await self._request(last, header))

    def discard(self) -> None:
        """Discard the messages; nothing was sent."""
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
                f"the server does not support atomic batches: stream {ack.stream} stored only the first message, "
                f"as {ack.seq}"
            )

    async def __aenter__(self) -> AtomicBatch:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is not None:
            self.discard()
        elif not self._is_over and self._messages:
            await self.commit()


def _batch_header(message: OutgoingMessage, batch_id: bytes, number: int, *, is_last: bool = False) -> bytes:
    """Return the message's header as one of the batch, which the last one commits."""
    header = append_pair(message.header, b"Nats-Batch-Id", batch_id)
    header = append_pair(header, b"Nats-Batch-Sequence", b"%d" % number)
    return append_pair(header, b"Nats-Batch-Commit", b"1") if is_last else header
