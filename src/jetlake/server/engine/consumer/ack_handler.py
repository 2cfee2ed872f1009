"""The ack handler: acknowledgements of every kind, ack timeouts, and messages that can never be acknowledged.

Every change goes to the tracker first, then to the journal, then to the stream, which removes what retention keeps only
until it is consumed. An acknowledgement with a reply is answered when the journal is durable; one without reaches the
journal within a tenth of a second, so that a crash may lead to a redelivery, never to a lost message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

import msgspec

from jetlake.errors import ConfigError, DecodeError, JetlakeError
from jetlake.model.consumer_features import STALE_ACK
from jetlake.model.encoding.codec import decode
from jetlake.model.encoding.durations import parse_duration
from jetlake.server.engine.routing.subscription import Subscriber

if TYPE_CHECKING:
    from jetlake.server.engine.consumer.consumer import Consumer

_LATE = b"NATS/1.0 503 %b\r\n\r\n" % STALE_ACK.encode()
_DELETED_REASON = "Unacknowledged message was deleted"


class AckHandler:
    """Applies what happens to one consumer's delivered messages to the ack tracker, the journal and the stream.

    Attributes:
        last_ns: time of the last acknowledgement; 0 = none yet.
        is_strict: an acknowledgement of an earlier delivery does not settle a later one.

    """

    def __init__(self, consumer: Consumer) -> None:
        self.last_ns = 0
        self.is_strict = False
        self._tracker = consumer.ack_tracker
        self._journal = consumer.journal
        self._commit = consumer.services.commit
        self._events = consumer.events
        self._schedule = consumer.schedule
        self._account = consumer.stream.account
        self._on_done: Callable[[Sequence[int]], None] = consumer.on_done
        self._on_next: Callable[[bytes, bytes, bytes, Subscriber | None], None] = consumer.receive_pull

    def close(self) -> None:
        """Forget the consumer, which was closed; acknowledgements on their way to the disk are still answered."""
        self._on_done = self._on_next = _ignore

    def receive(
        self, stream_sequence: int, consumer_sequence: int, reply: bytes, payload: bytes, origin: Subscriber | None
    ) -> bool:
        """Handle a message to an ack subject; False when the consumer takes no acknowledgements."""
        tracker = self._tracker
        if not tracker.wants_acks:
            return False
        if not 0 < stream_sequence <= tracker.delivered_stream:
            # Never delivered: the subject is made up, and gets no answer.
            return True
        now_ns = self._schedule.use()
        if not payload or payload == b"+ACK":
            self._done(stream_sequence, consumer_sequence, now_ns, self._events.samples)
        else:
            body = parse_ack_body(payload)
            self._apply(body, stream_sequence, consumer_sequence, now_ns)
            if body.kind is AckKind.NEXT:
                if reply:
                    self._on_next(reply, b"", body.request, origin)
                return True
        if reply:
            self._confirm(reply)
        return True

    def receive_late(self, stream_sequence: int, deliveries: int, reply: bytes) -> bool:
        """Refuse an acknowledgement of an earlier delivery of a pending message; False when it is of the last one."""
        tracker = self._tracker
        if stream_sequence not in tracker.pending or deliveries == tracker.delivery_count(stream_sequence):
            return False
        self._schedule.use()
        if reply:
            # Clients take any answer for a confirmation but this status, which they take for no responders.
            self._account.publish(reply, b"", _LATE, b"")
        return True

    def receive_run(self, sequences: list[int], consumer_sequences: list[int]) -> bool:
        """Handle plain acknowledgements without replies; False when each has to be handled by itself, and none was."""
        tracker = self._tracker
        if self.is_strict or self._events.samples or not tracker.is_explicit:
            return False
        was_full = len(tracker.pending) >= tracker.max_pending
        done = tracker.ack_run(sequences)
        if done:
            self.last_ns = self._schedule.use()
            self._journal.acked(done, (tracker.floor_consumer, tracker.floor_stream))
            self._on_done(done)
            if was_full or tracker.is_awaited:
                self._schedule.make_ready()
        if len(done) < len(sequences):
            settled = set(done)
            for sequence, consumer_sequence in zip(sequences, consumer_sequences, strict=True):
                if sequence not in settled:
                    self.receive(sequence, consumer_sequence, b"", b"", None)
        return True

    def _apply(self, body: AckBody, sequence: int, consumer_sequence: int, now_ns: int) -> None:
        """Apply a parsed acknowledgement."""
        kind, tracker = body.kind, self._tracker
        if kind in (AckKind.ACK, AckKind.NEXT):
            self._done(sequence, consumer_sequence, now_ns, self._events.samples)
        elif kind is AckKind.NAK:
            self._nak(sequence, consumer_sequence, body.delay_ns, now_ns)
        elif kind is AckKind.PROGRESS:
            if tracker.progress(sequence, now_ns):
                self._record_wait(sequence)
                self._schedule.arm()
        elif kind is AckKind.TERM:
            count = tracker.delivery_count(sequence)
            self._done(sequence, consumer_sequence, now_ns, samples=False)
            self._events.terminated(sequence, consumer_sequence, count, body.reason)

    def _done(self, sequence: int, consumer_sequence: int, now_ns: int, samples: bool) -> None:
        """Mark the message, or with ack policy all every message up to it, as never to be redelivered."""
        self.last_ns = now_ns
        tracker = self._tracker
        was_full = len(tracker.pending) >= tracker.max_pending
        if samples and sequence in tracker.pending:
            ack_time_ns = now_ns - tracker.delivered_ns(sequence)
            self._events.acked(sequence, consumer_sequence, tracker.delivery_count(sequence), ack_time_ns)
        if not tracker.is_explicit:
            self.ack_up_to(sequence, consumer_sequence)
        else:
            floor = tracker.floor_stream
            is_new = sequence in tracker.exhausted
            is_new = tracker.ack(sequence, consumer_sequence) or is_new
            if is_new:
                done = (sequence,)
                self._journal.acked(done, (tracker.floor_consumer, tracker.floor_stream))
                self._on_done(done)
            elif tracker.floor_stream != floor:
                # A message acked before can move the floor: with nothing pending, it rises to the last delivery.
                self._journal.acked((), (tracker.floor_consumer, tracker.floor_stream))
        if was_full or tracker.is_awaited:
            self._schedule.make_ready()

    def ack_up_to(self, sequence: int, consumer_sequence: int) -> None:
        """Acknowledge every message up to this one."""
        tracker = self._tracker
        done = tracker.ack_all(sequence, consumer_sequence)
        self._journal.acked(done, (tracker.floor_consumer, tracker.floor_stream))
        self._on_done(done)

    def _nak(self, sequence: int, consumer_sequence: int, delay_ns: int | None, now_ns: int) -> None:
        tracker = self._tracker
        count = tracker.delivery_count(sequence)
        if not tracker.nak(sequence, consumer_sequence, delay_ns, now_ns):
            return
        self._record_wait(sequence)
        self._events.naked(sequence, consumer_sequence, count)
        if delay_ns is None or tracker.is_awaited:
            self._schedule.make_ready()
        else:
            self._schedule.arm()

    def _record_wait(self, sequence: int) -> None:
        """Record from when a pending message's ack wait counts, so that a restart continues it."""
        first, time_ns, count = self._tracker.saved(sequence)
        self._journal.rescheduled(first, sequence, time_ns, count)

    def _confirm(self, reply: bytes) -> None:
        """Answer an acknowledgement that has a reply subject, once it is durable."""
        account = self._account
        journal, commit = self._journal, self._commit
        if not journal.durable:
            account.publish(reply, b"", b"", b"")
            return

        def answer(error: JetlakeError | None) -> None:
            # Clients take any answer for a confirmation but this status, which they take for no responders.
            reason = " ".join(str(error).split()).encode("ascii", "replace")
            header = b"" if error is None else b"NATS/1.0 503 %b\r\n\r\n" % reason
            account.publish(reply, b"", header, b"")

        commit.mark(journal)
        commit.when_durable(journal, answer)

    # Unacknowledged messages

    def expire(self, now_ns: int) -> None:
        """Queue messages for redelivery whose ack wait is over, and drop messages that reached max_deliver."""
        tracker = self._tracker
        if not tracker.has_ack_wait:
            return
        was_full = len(tracker.pending) >= tracker.max_pending
        for sequence in tracker.expire(now_ns):
            self.exhausted(sequence, tracker.delivery_count(sequence))
        if tracker.queue_length or was_full or tracker.is_awaited:
            self._schedule.make_ready()

    def exhausted(self, sequence: int, deliveries: int) -> None:
        """Drop a message that reached max_deliver from the pending ones."""
        if self._tracker.exhaust(sequence):
            self._journal.exhausted(sequence)
            self._events.exceeded(sequence, deliveries)

    def lost(self, sequence: int) -> None:
        """End a message that was delivered, not acknowledged, and is no longer in the stream."""
        tracker = self._tracker
        count = tracker.delivery_count(sequence)
        consumer_sequence = tracker.pending.get(sequence)
        was_full = len(tracker.pending) >= tracker.max_pending
        if not tracker.lose(sequence):
            return
        self._journal.acked((sequence,), (tracker.floor_consumer, tracker.floor_stream))
        # For one that reached max_deliver an advisory was published then.
        if consumer_sequence is not None:
            self._events.terminated(sequence, consumer_sequence, count, _DELETED_REASON)
        if was_full or tracker.is_awaited:
            self._schedule.make_ready()


class AckKind(IntEnum):
    """Kinds of acknowledgement."""

    ACK = 0
    """The message was processed."""
    NAK = 1
    """Redeliver the message, at once or after a delay."""
    PROGRESS = 2
    """The client is still working: the ack wait starts again."""
    TERM = 3
    """Never redeliver the message, although it was not processed."""
    NEXT = 4
    """The message was processed, and the rest of the body is a pull request."""
    UNKNOWN = 5
    """An unknown body; it changes nothing, and is answered all the same."""


class AckBody(msgspec.Struct, frozen=True, gc=False):
    """A parsed body."""

    kind: AckKind
    delay_ns: int | None = None
    """Of a nak: delay of the redelivery; None = at once."""
    reason: str = ""
    """Of a term: the reason."""
    request: bytes = b""
    """Of a next: the pull request."""


class _NakOptions(msgspec.Struct):
    delay: int = 0


_ACK = AckBody(AckKind.ACK)
_NAK = AckBody(AckKind.NAK)
_PROGRESS = AckBody(AckKind.PROGRESS)
_UNKNOWN = AckBody(AckKind.UNKNOWN)


def parse_ack_body(payload: bytes) -> AckBody:
    """Parse a body; one that makes no sense is `UNKNOWN`, a nak with an invalid delay is a plain nak. Never raises."""
    if payload in (b"", b"+ACK", b"+OK"):
        return _ACK
    if payload.startswith(b"-NAK"):
        return _parse_nak(payload[4:].strip())
    if payload == b"+WPI":
        return _PROGRESS
    if payload.startswith(b"+NXT"):
        return AckBody(AckKind.NEXT, request=payload[4:])
    if payload.startswith(b"+TERM"):
        return AckBody(AckKind.TERM, reason=payload[5:].strip().decode("utf-8", "replace"))
    return _UNKNOWN


def _parse_nak(argument: bytes) -> AckBody:
    if not argument:
        return _NAK
    try:
        if argument.startswith(b"{"):
            delay_ns = decode(_NakOptions, argument).delay
        else:
            delay_ns = parse_duration(argument.decode())
    except (DecodeError, ConfigError, UnicodeDecodeError):
        return _NAK
    return AckBody(AckKind.NAK, delay_ns=max(delay_ns, 0))


def _ignore(*_arguments: object) -> None:
    """Stand in for a callback of a closed consumer."""
