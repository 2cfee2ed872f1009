"""The messages that a consumer delivers next, new or again, with their ack subjects and original timing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from jetlake.model.consumer import ConsumerConfig
from jetlake.model.enums import ReplayPolicy
from jetlake.protocol.headers import append_pair
from jetlake.server.engine.routing.account import Message, MessageRun
from jetlake.store.message import StoredMessage

if TYPE_CHECKING:
    from jetlake.server.engine.consumer.consumer import Consumer

RUN_MESSAGES = 512
"""Most messages that a consumer delivers before other consumers have their turn."""
_RUN_BYTES = 1024 * 1024
"""Most bytes of a run, unless its first message is larger."""

_MESSAGE_SIZE = b"Nats-Msg-Size"


class Feed:
    """The messages of one consumer in the order of delivery.

    Reading moves nothing; `delivered` and `redelivered` move the cursor and the ack tracker and write the journal.

    Attributes:
        last_delivered_ns: time of the last delivery; 0 = none yet.

    """

    def __init__(self, consumer: Consumer) -> None:
        self.last_delivered_ns = 0
        self._release = consumer.stream.release
        self._cursor = consumer.cursor
        self._tracker = consumer.ack_tracker
        self._ack_handler = consumer.ack_handler
        self._journal = consumer.journal
        self._on_done: Callable[[Sequence[int]], None] = consumer.on_done
        self._ack_prefix = consumer.ack_prefix()
        # A consumer's name may hold a percent sign.
        self._first_ack = self._ack_prefix.replace(b"%", b"%%") + b"1.%d.%d.%d.%d"
        self._replay: Replay | None = None
        if consumer.config.replay_policy is ReplayPolicy.ORIGINAL:
            self._replay = Replay(consumer.stream.store.last_sequence)
        self.configure(consumer.config)

    def close(self) -> None:
        """Forget the consumer, which was closed."""
        self._on_done = _ignore

    def configure(self, config: ConsumerConfig) -> None:
        """Apply a changed configuration."""
        self._headers_only = config.headers_only

    # New messages

    @property
    def pending(self) -> int:
        """Number of messages after the cursor."""
        return self._cursor.pending

    def read(self, max_messages: int) -> tuple[list[StoredMessage], int]:
        """Read the next visible messages, and the sequence after them."""
        return self._cursor.read(max_messages, _RUN_BYTES, self._release.visible_sequence)

    def has_more(self, next_sequence: int) -> bool:
        """Return whether visible messages may follow from this sequence on."""
        return next_sequence <= self._release.visible_sequence

    def frame_run(self, messages: list[StoredMessage]) -> FirstDeliveries:
        """Make first deliveries of the next messages."""
        if self._headers_only:
            messages = [_without_payload(message) for message in messages]
        return FirstDeliveries(
            messages, self._first_ack, self._tracker.delivered_consumer + 1, self._cursor.pending - 1
        )

    def frame(self, message: StoredMessage, index: int) -> Message:
        """Make the first delivery of the message at that place of a run."""
        return self._frame(message, 1, index + 1, self._cursor.pending - index - 1)

    def _frame(self, message: StoredMessage, count: int, nth: int, pending: int) -> Message:
        """Make the `count`-th delivery of a message, the `nth` from now on; `pending` messages come after it."""
        consumer_sequence = self._tracker.delivered_consumer + nth
        numbers = b"%d.%d.%d.%d.%d" % (count, message.sequence, consumer_sequence, message.time_ns, max(pending, 0))
        if self._headers_only:
            message = _without_payload(message)
        return message.subject, self._ack_prefix + numbers, message.header, message.payload

    def delivered(self, sequences: list[int], next_sequence: int, now_ns: int) -> None:
        """Record first deliveries; the cursor moves to `next_sequence`."""
        tracker = self._tracker
        self.last_delivered_ns = now_ns
        self._cursor.move_past(len(sequences), next_sequence)
        if tracker.wants_acks:
            first = tracker.delivered_consumer + 1
            tracker.deliver_run(sequences, now_ns)
            self._journal.delivered_run(first, sequences, now_ns)
        else:
            tracker.count_run(sequences)
            self._journal.position(tracker.delivered_consumer, tracker.delivered_stream)
            self._on_done(sequences)

    # Original timing

    @property
    def is_paced(self) -> bool:
        """Whether messages are replayed with their original timing."""
        return self._replay is not None

    def due_ns(self, message: StoredMessage) -> int:
        """Return when a message may be delivered; 0 = at once."""
        if self._replay is None:
            return 0
        if self._replay.is_over(message.sequence):
            self._replay = None
            return 0
        return self._replay.due_ns(message.time_ns)

    def sent(self, message: StoredMessage, now_ns: int) -> None:
        """Record when a message was sent; the next one is due at its original interval from then on."""
        if self._replay is not None:
            self._replay.sent(message.time_ns, now_ns)

    # Redeliveries

    def next_redelivery(self) -> tuple[int, Message] | None:
        """Return the head of the redelivery queue, as sequence and delivery, without taking it.

        Messages that reached max_deliver or are no longer stored are dropped from the queue.
        """
        tracker = self._tracker
        while True:
            sequence = tracker.next_redelivery()
            if sequence is None:
                return None
            count = tracker.delivery_count(sequence) + 1
            if 0 < tracker.max_deliver < count:
                tracker.take_redelivery()
                self._ack_handler.exhausted(sequence, count - 1)
                continue
            message = self._release.store.get(sequence)
            if message is None:
                tracker.take_redelivery()
                self._ack_handler.lost(sequence)
                continue
            return sequence, self._frame(message, count, 1, self._cursor.pending)

    def redelivered(self, sequence: int, now_ns: int) -> None:
        """Record the delivery of the message at the head of the redelivery queue."""
        tracker = self._tracker
        tracker.take_redelivery()
        self.last_delivered_ns = now_ns
        count = tracker.deliver_again(sequence, now_ns)
        self._journal.redelivered(tracker.delivered_consumer, sequence, now_ns, count)


def _without_payload(message: StoredMessage) -> StoredMessage:
    """Return a message as a consumer of headers only gets it: the payload's size is a header."""
    header = append_pair(message.header, _MESSAGE_SIZE, b"%d" % len(message.payload))
    return StoredMessage(message.sequence, message.time_ns, message.subject, header, b"")


def size_of(message: Message) -> int:
    """Bytes that a delivery counts against limits: subject, ack subject, headers and payload."""
    subject, reply, header, payload = message
    return len(subject) + len(reply) + len(header) + len(payload)


class FirstDeliveries(MessageRun):
    """A run of messages that a consumer delivers for the first time; see `routing.account.MessageRun`.

    Args:
        stored: the messages in the order of delivery.
        ack_template: the format of an ack subject: stream sequence, consumer sequence, time, pending messages.
        consumer_sequence: of the first message.
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


# Intervals up to this are not waited for.
_GAP_MIN_NS = 1_000_000


class Replay:
    """The due times of messages that were stored before the consumer started.

    Args:
        last_sequence: the newest message when the consumer was created or restarted.
    """

    def __init__(self, last_sequence: int) -> None:
        self._last_sequence = last_sequence
        self._stored_ns = 0
        self._sent_ns = 0

    def is_over(self, sequence: int) -> bool:
        """Return whether a message was stored after the start; it and all later ones are delivered at once."""
        return sequence > self._last_sequence

    def due_ns(self, stored_ns: int) -> int:
        """Return when a message stored at that time is due; now or earlier means at once."""
        gap_ns = stored_ns - self._stored_ns
        if not self._stored_ns or gap_ns <= _GAP_MIN_NS:
            return 0
        return self._sent_ns + gap_ns

    def sent(self, stored_ns: int, now_ns: int) -> None:
        """Record the message from which the next interval counts: stored at that time, sent now."""
        self._stored_ns = stored_ns
        self._sent_ns = now_ns


def _ignore(*_arguments: object) -> None:
    """Stand in for a callback of a closed consumer."""
