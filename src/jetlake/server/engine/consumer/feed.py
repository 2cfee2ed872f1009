"""The messages that a consumer delivers next: its position in the stream, new messages and redeliveries, their frames.

`Feed` decides what comes next, `Cursor` is the position among the messages that pass the filter, `FirstDeliveries`
encodes a run of them, and `Replay` keeps their original timing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

import msgspec
from msgspec.json import encode

from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.times import parse_time
from jetlake.model.enums import DeliverPolicy, ReplayPolicy
from jetlake.protocol.headers import append_pair
from jetlake.server.engine.routing.account import Message, MessageRun
from jetlake.store.message import MessageColumns, StoredMessage
from jetlake.store.message_store import MessageStore
from jetlake.store.steps import Steps
from jetlake.store.subject_filter import SubjectFilter

if TYPE_CHECKING:
    from jetlake.server.engine.consumer.consumer import Consumer

RUN_MESSAGES = 512
"""Most messages that a consumer delivers before other consumers have their turn."""
_RUN_BYTES = 1024 * 1024
"""Most bytes of a run, unless its first message is larger."""

_MESSAGE_SIZE = b"Nats-Msg-Size"
_ACK_NUMBERS = b"%d.%d.%d.%d"
# Fewer messages are encoded faster one by one.
_COLUMNS_LEAST = 8


class Feed:
    """The messages of one consumer in the order of delivery.

    Reading moves nothing; `delivered` and `redelivered` move the cursor and the ack tracker and write the journal.

    Attributes:
        last_delivered_ns: time of the last delivery; 0 = none yet.

    """

    def __init__(self, consumer: Consumer) -> None:
        self.last_delivered_ns = 0
        self._release = consumer.stream.release
        self._store = consumer.stream.store
        self._cursor = consumer.cursor
        self._tracker = consumer.ack_tracker
        self._ack_handler = consumer.ack_handler
        self._journal = consumer.journal
        self._on_done: Callable[[Sequence[int]], None] = consumer.on_done
        self._ack_prefix = consumer.ack_prefix()
        # A consumer's name may hold a percent sign.
        self._first_ack = self._ack_prefix.replace(b"%", b"%%") + b"1." + _ACK_NUMBERS
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

    def read_run(self, max_messages: int) -> tuple[FirstDeliveries, int]:
        """Read the next visible messages as first deliveries, and the sequence after them."""
        columns = None
        if not self._headers_only:
            columns = self._cursor.read_columns(max_messages, _RUN_BYTES, self._release.visible_sequence)
        if columns is not None:
            return self._frame_run(columns), columns.sequences[-1] + 1
        messages, next_sequence = self.read(max_messages)
        return self.frame_run(messages), next_sequence

    def frame_run(self, messages: list[StoredMessage]) -> FirstDeliveries:
        """Make first deliveries of the next messages."""
        if self._headers_only:
            messages = [_without_payload(message) for message in messages]
        return self._frame_run(MessageColumns.of(messages))

    def _frame_run(self, columns: MessageColumns) -> FirstDeliveries:
        return FirstDeliveries(columns, self._first_ack, self._tracker.delivered_consumer + 1, self._cursor.pending - 1)

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
            count = tracker.delivery_count(sequence)
            if tracker.is_last_delivery(sequence):
                tracker.take_redelivery()
                self._ack_handler.exhausted(sequence, count)
                continue
            message = self._store.get(sequence)
            if message is None:
                tracker.take_redelivery()
                self._ack_handler.lost(sequence)
                continue
            return sequence, self._frame(message, count + 1, 1, self._cursor.pending)

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
        columns: the messages in the order of delivery.
        ack_template: the format of an ack subject, which ends with four numbers: stream sequence, consumer sequence,
            time, pending messages.
        consumer_sequence: of the first message.
        pending: number of messages after the first one.
    """

    __slots__ = ("_ack_template", "_columns", "_consumer_sequences", "_pending")

    def __init__(self, columns: MessageColumns, ack_template: bytes, consumer_sequence: int, pending: int) -> None:
        count = len(columns.payloads)
        self._columns = columns
        self._ack_template = ack_template
        self._consumer_sequences = range(consumer_sequence, consumer_sequence + count)
        self._pending: Sequence[int] = range(pending, pending - count, -1)
        if pending < count - 1:
            # The count is behind what the store has just given.
            self._pending = [max(left, 0) for left in self._pending]

    def __len__(self) -> int:
        return len(self._consumer_sequences)

    @property
    def sequences(self) -> Sequence[int]:
        """The messages' sequences in the stream."""
        return self._columns.sequences

    def keep(self, count: int) -> None:
        """Drop all messages but the first `count`."""
        self._columns.keep(count)
        self._consumer_sequences, self._pending = self._consumer_sequences[:count], self._pending[:count]

    def messages(self) -> list[Message]:
        """Return the messages one by one."""
        template, columns = self._ack_template, self._columns
        return [
            (subject, template % numbers, header, payload)
            for subject, numbers, header, payload in zip(
                columns.subjects, self._numbers(), columns.headers or repeat(b""), columns.payloads, strict=False
            )
        ]

    def _numbers(self) -> Iterable[tuple[int, int, int, int]]:
        """Return the numbers in the ack subjects."""
        columns = self._columns
        return zip(columns.sequences, self._consumer_sequences, columns.times_ns, self._pending, strict=True)

    def encode(self, sid: bytes, *, headers: bool) -> tuple[bytes, int, int]:
        """Return the frames for a subscription, their number, and the size of all headers and payloads."""
        columns = self._columns
        if len(self) >= _COLUMNS_LEAST and not (headers and columns.headers is not None):
            return self._encode_columns(sid)
        return self._encode_each(sid, headers=headers)

    def _encode_columns(self, sid: bytes) -> tuple[bytes, int, int]:
        """Encode messages of which none shows a header, column by column, which is quicker than one by one."""
        columns, count = self._columns, len(self)
        lengths = list(map(len, columns.payloads))
        first_length = lengths[0]
        # As JSON: its encoder writes numbers faster than anything else at hand.
        numbers = encode(list(self._numbers()))[2:-2].replace(b",", b".").split(b"].[")
        start = b" %b %b" % (sid, self._ack_template[: -len(_ACK_NUMBERS)].replace(b"%%", b"%"))
        pieces = [b"\r\nMSG ", b"", start, b"", b" %d\r\n" % first_length, b""] * count
        pieces[0] = b"MSG "
        pieces[1::6] = columns.subjects
        pieces[3::6] = numbers
        if lengths.count(first_length) < count:
            pieces[4::6] = [b" %d\r\n" % length for length in lengths]
        pieces[5::6] = columns.payloads
        pieces.append(b"\r\n")
        return b"".join(pieces), count, sum(lengths)

    def _encode_each(self, sid: bytes, *, headers: bool) -> tuple[bytes, int, int]:
        # A sid may hold a percent sign.
        start = b" %b " + sid.replace(b"%", b"%%") + b" " + self._ack_template
        plain = b"MSG" + start + b" %d\r\n%b\r\n"
        headed = b"HMSG" + start + b" %d %d\r\n%b%b\r\n"
        frames: list[bytes] = []
        append = frames.append
        size = 0
        columns = self._columns
        given = columns.headers if headers and columns.headers is not None else repeat(b"")
        for subject, numbers, header, payload in zip(
            columns.subjects, self._numbers(), given, columns.payloads, strict=False
        ):
            length = len(payload)
            if header:
                header_length = len(header)
                length += header_length
                append(headed % (subject, *numbers, header_length, length, header, payload))
            else:
                append(plain % (subject, *numbers, length, payload))
            size += length
        return b"".join(frames), len(frames), size


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


_CHOSEN_PER_STEP = 1024


class Cursor:
    """The position of one consumer among the messages that pass its filter.

    Reading does not move the cursor; `move_past` does, so that messages that could not be delivered are read again.

    Attributes:
        position: the next message has this sequence or a later one.
        pending: number of messages after the cursor; kept by counting.

    Args:
        store: the stream's messages.
        subject_filter: which messages to read; None = all.
        start: where to begin.
        waits: see `go_to`.
    """

    def __init__(
        self,
        store: MessageStore,
        subject_filter: SubjectFilter | None,
        start: StartPosition,
        *,
        waits: bool = False,
    ) -> None:
        self._store = store
        self._filter = subject_filter
        self._awaited = 0
        # The messages chosen at the start, ascending; the index of the next one; and those ahead that were removed.
        self._chosen: Sequence[int] = ()
        self._next_chosen = 0
        self._gone: set[int] = set()
        self._chosen_end = 0
        self.go_to(start, waits=waits)

    @property
    def subject_filter(self) -> SubjectFilter | None:
        """Which messages to read; None = all."""
        return self._filter

    @property
    def resume(self) -> int:
        """Where to continue after the chosen messages; 0 when none are left."""
        return self._resume

    def go_to(self, start: StartPosition, *, waits: bool = False) -> None:
        """Move to a start position; with `waits`, a sequence beyond the end is waited for."""
        self.position = start.sequence
        self._chosen = start.chosen
        self._next_chosen = 0
        self._gone = set()
        self._chosen_end = 0
        self._resume = start.resume if start.chosen else 0
        self._awaited = start.sequence if waits else 0
        if start.pending is None:
            self._count()
        else:
            self.pending = start.pending

    def return_to(self, sequence: int) -> None:
        """Go back to a sequence, over messages that did not pass the filter; never to those before `resume`."""
        if not self._resume:
            self.position = min(self.position, max(sequence, self._chosen_end))

    def filter_by(self, subject_filter: SubjectFilter | None, pending: int | None = None) -> None:
        """Change the filter.

        Args:
            pending: the number of messages after the cursor that pass; None when they were not counted.
        """
        self._filter = subject_filter
        if self._resume:
            self.go_to(last_of_subjects(self._store, subject_filter, self.position, self._resume - 1))
        elif pending is not None:
            self.pending = pending
        else:
            self._count()

    def _count(self) -> None:
        """Have the store count the messages after the cursor."""
        if self._resume:
            chosen_left = len(self._chosen) - self._next_chosen - len(self._gone)
            self.pending = chosen_left + self._store.count(self._resume, self._filter)
        else:
            self.pending = self._store.count(self.position, self._filter)

    def wants(self, subject: bytes) -> bool:
        """Return whether messages on this subject pass the filter."""
        return self._filter is None or self._filter.matches(subject)

    def is_ahead(self, sequence: int) -> bool:
        """Return whether a message that passes the filter is after the cursor."""
        if self._resume:
            return sequence >= self._resume or self._is_chosen(sequence)
        return sequence >= self.position

    def _is_chosen(self, sequence: int) -> bool:
        """Return whether a message is chosen, stored and after the cursor."""
        index = bisect_left(self._chosen, sequence, self._next_chosen)
        return index < len(self._chosen) and self._chosen[index] == sequence and sequence not in self._gone

    # Reading

    def read(self, max_messages: int, max_bytes: int, last_sequence: int) -> tuple[list[StoredMessage], int]:
        """Read the next messages up to `last_sequence`; also returns the sequence after them, for `move_past`."""
        if self._resume:
            return self._read_chosen(max_messages, max_bytes, last_sequence)
        run = self._store.read(self.position, self._filter, max_messages, max_bytes, last_sequence)
        return run.messages, run.next_sequence

    def read_columns(self, max_messages: int, max_bytes: int, last_sequence: int) -> MessageColumns | None:
        """Read the next messages column by column; None where only `read` can tell which are next."""
        if self._filter is not None or self._resume:
            return None
        return self._store.read_columns(self.position, max_messages, max_bytes, last_sequence)

    def _read_chosen(self, max_messages: int, max_bytes: int, last_sequence: int) -> tuple[list[StoredMessage], int]:
        messages: list[StoredMessage] = []
        for index in range(self._next_chosen, len(self._chosen)):
            sequence = self._chosen[index]
            if len(messages) >= max_messages or max_bytes <= 0 or sequence > last_sequence:
                break
            message = self._store.get(sequence) if sequence not in self._gone else None
            if message is not None:
                messages.append(message)
                max_bytes -= len(message.subject) + len(message.header) + len(message.payload)
        else:
            if messages:
                return messages, self._resume
            # All chosen messages were removed.
            self.move_past(0, self._resume)
            return self.read(max_messages, max_bytes, last_sequence)
        return messages, messages[-1].sequence + 1 if messages else self.position

    def move_past(self, taken: int, next_sequence: int) -> None:
        """Move to a sequence past this many delivered messages."""
        if self._resume:
            # Counts removed ones too that were not announced to this consumer.
            taken = self._pass_chosen(next_sequence)
        self.pending = max(self.pending - taken, 0)
        if self._resume and self._next_chosen == len(self._chosen):
            self._end_chosen()
        elif next_sequence > self.position:
            self.position = next_sequence

    def _pass_chosen(self, next_sequence: int) -> int:
        """Pass the chosen messages before a sequence, and return how many of them were counted as pending."""
        passed = 0
        while self._next_chosen < len(self._chosen) and self._chosen[self._next_chosen] < next_sequence:
            sequence = self._chosen[self._next_chosen]
            self._next_chosen += 1
            if sequence in self._gone:
                self._gone.discard(sequence)
            else:
                passed += 1
        return passed

    def _end_chosen(self) -> None:
        self.position = self._chosen_end = max(self._resume, self.position)
        self._chosen = ()
        self._next_chosen = 0
        self._gone.clear()
        self._resume = 0

    # Changes of the stream

    def on_stored(self, count: int) -> None:
        """Count newly stored messages that pass the filter."""
        if not self._awaited:
            self.pending += count
            return
        # The cursor waits for a sequence among these or beyond.
        self._count()
        if self._store.last_sequence + 1 >= self._awaited:
            self._awaited = 0

    def on_removed(self, sequence: int, subject: bytes) -> None:
        """Count a removed message."""
        if self._resume:
            if self._is_chosen(sequence):
                self._gone.add(sequence)
                self.pending -= 1
            elif sequence >= self._resume and self.wants(subject):
                self.pending -= 1
        elif sequence >= self.position and self.pending and self.wants(subject):
            self.pending -= 1

    def count_in_steps(self, count: Callable[[int, SubjectFilter], Steps[int]]) -> Steps[int]:
        """Count the messages after the cursor, which does not move meanwhile; the chosen ones are looked for first.

        Args:
            count: counts the messages from a sequence on that pass a filter.
        """
        first = max(self._resume or self.position, self._store.first_sequence)
        for start in range(self._next_chosen, len(self._chosen), _CHOSEN_PER_STEP):
            some = self._chosen[start : start + _CHOSEN_PER_STEP]
            self._gone.update(sequence for sequence in some if not self._store.has(sequence))
            yield
        if self._filter is None:
            found = self._store.count(first)
        else:
            found = yield from count(first, self._filter)
        return len(self._chosen) - self._next_chosen - len(self._gone) + found

    def on_purged(self, pending: int | None = None) -> None:
        """Recount after many messages were removed, or the newest were undone because the disk refused them.

        Args:
            pending: the number of messages after the cursor, where they were counted in steps.
        """
        store = self._store
        if self.position < store.first_sequence:
            self.position = store.first_sequence
        end = max(store.last_sequence + 1, self._awaited)
        if self.position > end:
            self.position = end
        self._resume = min(self._resume, end)
        if pending is not None:
            self.pending = pending
            return
        to_come = self._chosen[self._next_chosen :]
        self._gone = {sequence for sequence in to_come if not store.has(sequence)}
        self._count()


class StartPosition(msgspec.Struct, frozen=True):
    """A start position.

    Attributes:
        sequence: the first sequence to read.
        chosen: sequences before `resume`; only these are delivered first.
        resume: where to continue after the chosen messages.
        pending: how many messages there are from the first sequence on; None when they were not counted.
    """

    sequence: int
    chosen: Sequence[int] = ()
    resume: int = 0
    pending: int | None = None


def start_position(
    config: ConsumerConfig, store: MessageStore, subject_filter: SubjectFilter | None, last_sequence: int
) -> Steps[StartPosition]:
    """Find the start position of a deliver policy; messages after `last_sequence` count as not yet stored.

    On an empty stream a consumer starts at the next message, unless the policy is a start sequence: a consumer may
    wait for one beyond the end.
    """
    yield from store.prepare(subject_filter)
    policy = config.deliver_policy
    first = max(store.first_sequence, 1)
    if policy is DeliverPolicy.BY_START_SEQUENCE:
        return StartPosition(max(config.opt_start_seq, first))
    if policy is DeliverPolicy.ALL or last_sequence < first:
        return StartPosition(first)
    if policy is DeliverPolicy.NEW:
        return StartPosition(last_sequence + 1)
    if policy is DeliverPolicy.BY_START_TIME:
        assert config.opt_start_time is not None
        return StartPosition(min(store.first_at_or_after(parse_time(config.opt_start_time)), last_sequence + 1))
    if policy is DeliverPolicy.LAST:
        # Without a filter the newest sequence, stored or not.
        if subject_filter is None:
            return StartPosition(last_sequence)
        newest = yield from store.last_per_subject_in_steps(subject_filter, last_sequence)
        return StartPosition(newest[-1] if newest else first)
    newest = yield from store.last_per_subject_in_steps(subject_filter, last_sequence)
    return _from_newest(newest, first, last_sequence)


def last_of_subjects(
    store: MessageStore, subject_filter: SubjectFilter | None, first_sequence: int, last_sequence: int
) -> StartPosition:
    """Choose the newest message of every subject that passes, from `first_sequence` on; all newer ones follow."""
    return _from_newest(store.last_per_subject(subject_filter, last_sequence), first_sequence, last_sequence)


def _from_newest(newest: list[int], first_sequence: int, last_sequence: int) -> StartPosition:
    chosen = newest[bisect_left(newest, first_sequence) :]
    if not chosen:
        return StartPosition(last_sequence)
    return StartPosition(chosen[0], chosen, last_sequence + 1)
