"""First deliveries: a run of new messages with their ack subjects, encoded with one format a message."""

from __future__ import annotations

from collections.abc import Iterable

from jetlake.server.engine.routing.account import Message
from jetlake.store.message import StoredMessage

__all__ = ["FirstDeliveries"]


class FirstDeliveries:
    """A run of messages that a consumer delivers for the first time; see `routing.account.MessageRun`.

    Args:
        stored: the messages in the order of delivery.
        ack_template: the format of an ack subject: stream sequence, consumer sequence, time, pending messages.
        consumer_sequence: that of the first message.
        pending: number of messages after the first one.
    """

    __slots__ = ("_ack_template", "_consumer_sequences", "_pending", "_stored")

    def __init__(self, stored: list[StoredMessage], ack_template: bytes, consumer_sequence: int, pending: int) -> None:
        self._stored = stored
        self._ack_template = ack_template
        self._consumer_sequences = range(consumer_sequence, consumer_sequence + len(stored))
        self._pending: Iterable[int] = range(pending, pending - len(stored), -1)
        if pending < len(stored) - 1:
            # The count is behind what the store has just given.
            self._pending = [max(left, 0) for left in self._pending]

    def messages(self) -> list[Message]:
        """Return the messages one by one."""
        template = self._ack_template
        return [
            (stored.subject, template % (stored.sequence, nth, stored.time_ns, pending), stored.header, stored.payload)
            for stored, nth, pending in zip(self._stored, self._consumer_sequences, self._pending, strict=True)
        ]

    def encode(self, sid: bytes, *, headers: bool) -> tuple[list[bytes], int]:
        """Return the frames for a subscription, and the size of all headers and payloads."""
        # A sid may hold a percent sign.
        start = b" %b " + sid.replace(b"%", b"%%") + b" " + self._ack_template
        plain = b"MSG" + start + b" %d\r\n%b\r\n"
        headed = b"HMSG" + start + b" %d %d\r\n%b%b\r\n"
        frames: list[bytes] = []
        append = frames.append
        size = 0
        for stored, nth, pending in zip(self._stored, self._consumer_sequences, self._pending, strict=True):
            header, payload = stored.header, stored.payload
            length = len(payload)
            if header and headers:
                header_length = len(header)
                length += header_length
                numbers = stored.subject, stored.sequence, nth, stored.time_ns, pending
                append(headed % (*numbers, header_length, length, header, payload))
            else:
                append(plain % (stored.subject, stored.sequence, nth, stored.time_ns, pending, length, payload))
            size += length
        return frames, size
