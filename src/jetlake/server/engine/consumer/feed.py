"""A consumer's feed: the messages to deliver next, new or again, and the record of what was delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jetlake.model.consumer import ConsumerConfig
from jetlake.model.enums import ReplayPolicy
from jetlake.protocol.headers import append_pair
from jetlake.server.engine.consumer.acks.ack_handler import AckHandler
from jetlake.server.engine.consumer.acks.ack_tracker import AckTracker
from jetlake.server.engine.consumer.committed_journal import CommittedJournal
from jetlake.server.engine.consumer.cursor import Cursor
from jetlake.server.engine.consumer.first_deliveries import FirstDeliveries
from jetlake.server.engine.consumer.replay import Replay
from jetlake.server.engine.routing.account import Message
from jetlake.server.engine.stream.batch_release import BatchRelease
from jetlake.store.message import StoredMessage

__all__ = ["RUN_MESSAGES", "Feed", "size_of"]

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

    Args:
        config: the consumer's configuration.
        release: the stream's messages, and how far they are released to readers.
        cursor: the consumer's position in the stream.
        tracker: the consumer's ack tracker.
        ack_handler: ends messages that cannot be redelivered.
        journal: records deliveries.
        ack_prefix: the constant beginning of the consumer's ack subjects.
        on_done: called with the sequences that a consumer without acknowledgements is done with.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        release: BatchRelease,
        cursor: Cursor,
        tracker: AckTracker,
        ack_handler: AckHandler,
        journal: CommittedJournal,
        ack_prefix: bytes,
        on_done: Callable[[Iterable[int]], None],
    ) -> None:
        self.last_delivered_ns = 0
        self._release = release
        self._cursor = cursor
        self._tracker = tracker
        self._ack_handler = ack_handler
        self._journal = journal
        self._ack_prefix = ack_prefix
        # A consumer's name may hold a percent sign.
        self._first_ack = ack_prefix.replace(b"%", b"%%") + b"1.%d.%d.%d.%d"
        self._on_done = on_done
        self._replay: Replay | None = None
        if config.replay_policy is ReplayPolicy.ORIGINAL:
            self._replay = Replay(release.store.last_sequence)
        self.configure(config)

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

        Messages that reached max_deliver, and those that are no longer stored, are dropped from the queue.
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
