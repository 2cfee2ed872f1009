"""Stored messages as deliveries: each with its ack subject, and without payload where only headers are wanted."""

from __future__ import annotations

from jetlake.protocol.headers import append_pair
from jetlake.server.engine.routing.account import Message
from jetlake.store.message import StoredMessage

__all__ = ["Framer", "size_of"]

_MESSAGE_SIZE = b"Nats-Msg-Size"


class Framer:
    """Makes the messages that a consumer sends.

    Attributes:
        headers_only: leave payloads out and add their size as a header.

    Args:
        ack_prefix: the constant beginning of the consumer's ack subjects.
    """

    def __init__(self, ack_prefix: bytes, *, headers_only: bool) -> None:
        self._prefix = ack_prefix
        self.headers_only = headers_only
        # A consumer's name may hold a percent sign.
        self._first = ack_prefix.replace(b"%", b"%%") + b"1.%d.%d.%d.%d"

    def first_run(self, messages: list[StoredMessage], consumer_sequence: int, pending: int) -> list[Message]:
        """Make first deliveries.

        Args:
            messages: in their order.
            consumer_sequence: the consumer's last one before the run.
            pending: number of messages to come, those of the run included.
        """
        if self.headers_only:
            return [
                self.one(message, 1, consumer_sequence + index, pending - index)
                for index, message in enumerate(messages, 1)
            ]
        template = self._first
        run: list[Message] = []
        append = run.append
        for message in messages:
            consumer_sequence += 1
            pending -= 1
            append(
                (
                    message.subject,
                    template % (message.sequence, consumer_sequence, message.time_ns, pending),
                    message.header,
                    message.payload,
                )
            )
        return run

    def one(self, message: StoredMessage, count: int, consumer_sequence: int, pending: int) -> Message:
        """Make the `count`-th delivery of a message; `pending` messages come after it."""
        numbers = b"%d.%d.%d.%d.%d" % (count, message.sequence, consumer_sequence, message.time_ns, max(pending, 0))
        header, payload = message.header, message.payload
        if self.headers_only:
            header, payload = append_pair(header, _MESSAGE_SIZE, b"%d" % len(payload)), b""
        return message.subject, self._prefix + numbers, header, payload


def size_of(message: Message) -> int:
    """Bytes that a delivery counts against limits: subject, ack subject, headers and payload."""
    subject, reply, header, payload = message
    return len(subject) + len(reply) + len(header) + len(payload)
