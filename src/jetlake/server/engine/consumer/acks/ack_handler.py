"""What comes back for a consumer's messages: acknowledgements of every kind, and what each of them sets off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetlake.errors import JetlakeError
from jetlake.model.enums import AckPolicy, RetentionPolicy
from jetlake.server.engine.consumer.acks.ack_body import AckKind, parse_ack_body

if TYPE_CHECKING:
    from jetlake.server.engine.consumer.consumer import Consumer
    from jetlake.server.engine.routing.subscription import Subscriber

__all__ = ["Acknowledgements"]

_DELETED_REASON = "Unacknowledged message was deleted"


class Acknowledgements:
    """The way back of one consumer's messages, into the tracker, the journal and the stream.

    Attributes:
        are_wanted: whether the consumer takes acknowledgements at all.
        last_ns: when the last one came; 0 when none did.
    """

    def __init__(self, consumer: Consumer) -> None:
        self.last_ns = 0
        self._consumer = consumer
        self._stream = consumer.stream
        self._acks = consumer.acks
        self._committed = consumer.committed
        self._journal = consumer.committed.journal
        self.configure()

    def configure(self) -> None:
        """Read the consumer's configuration into what is looked at for each acknowledgement."""
        policy = self._consumer.config.ack_policy
        self.are_wanted = policy is not AckPolicy.NONE
        self._is_explicit = policy is AckPolicy.EXPLICIT

    def receive(
        self, stream_sequence: int, consumer_sequence: int, reply: bytes, payload: bytes, origin: Subscriber | None
    ) -> bool:
        """Handle what somebody published to an ack subject; False when this consumer takes no acknowledgements."""
        if not self.are_wanted:
            return False
        acks = self._acks
        if not 0 < stream_sequence <= acks.delivered_stream:
            # Never delivered: nobody can know about it, and nobody is told.
            return True
        consumer = self._consumer
        now_ns = consumer.idleness.used_ns = consumer.engine.clock.now_ns()
        if not payload or payload == b"+ACK":
            self._acked(stream_sequence, consumer_sequence, now_ns)
        else:
            body = parse_ack_body(payload)
            kind = body.kind
            if kind is AckKind.ACK:
                self._acked(stream_sequence, consumer_sequence, now_ns)
            elif kind is AckKind.NEXT:
                self._acked(stream_sequence, consumer_sequence, now_ns)
                if reply:
                    consumer.delivery.receive_pull(reply, b"", body.request, origin)
                return True
            elif kind is AckKind.NAK:
                self._naked(stream_sequence, consumer_sequence, body.delay_ns, now_ns)
            elif kind is AckKind.PROGRESS:
                if acks.progress(stream_sequence, now_ns):
                    self._write_down(stream_sequence)
                    consumer.arm()
            elif kind is AckKind.TERM:
                count = acks.delivery_count(stream_sequence)
                self._done(stream_sequence, consumer_sequence, now_ns)
                consumer.events.terminated(stream_sequence, consumer_sequence, count, body.reason)
        if reply:
            self._confirm(reply)
        return True

    def _acked(self, sequence: int, consumer_sequence: int, now_ns: int) -> None:
        events = self._consumer.events
        acks = self._acks
        if events.samples and self._is_explicit and sequence in acks.pending:
            ack_time_ns = now_ns - acks.delivered_ns(sequence)
            events.acked(sequence, consumer_sequence, acks.delivery_count(sequence), ack_time_ns)
        self._done(sequence, consumer_sequence, now_ns)

    def _done(self, sequence: int, consumer_sequence: int, now_ns: int) -> None:
        """The message (with policy all, everything up to it) is never to be delivered again."""
        self.last_ns = now_ns
        consumer = self._consumer
        was_full = len(self._acks.pending) >= consumer.max_pending
        if self._is_explicit:
            self._finish(sequence, consumer_sequence)
        else:
            self.ack_up_to(sequence, consumer_sequence)
        if was_full:
            consumer.wake()

    def _finish(self, sequence: int, consumer_sequence: int) -> None:
        acks = self._acks
        floor = acks.floor_stream
        is_new = sequence in acks.exhausted
        is_new = acks.ack(sequence, consumer_sequence) or is_new
        if is_new:
            self._journal.acked(sequence)
        if is_new or acks.floor_stream != floor:
            # Also when it was done before: with nothing pending any more, the floor has come up to what was delivered.
            self._journal.ack_floor(acks.floor_consumer, acks.floor_stream)
            self._committed.mark_soon()
        if is_new and self._stream.config.retention is not RetentionPolicy.LIMITS:
            self._stream.consumed(self._consumer, sequence)

    def ack_up_to(self, sequence: int, consumer_sequence: int) -> None:
        """Everything up to this message is done."""
        acks = self._acks
        done = acks.ack_all(sequence, consumer_sequence)
        for covered in done:
            self._journal.acked(covered)
        self._journal.ack_floor(acks.floor_consumer, acks.floor_stream)
        self._committed.mark_soon()
        if self._stream.config.retention is not RetentionPolicy.LIMITS:
            for covered in done:
                self._stream.consumed(self._consumer, covered)

    def vanished(self, sequence: int) -> None:
        """A message that was pending, or out of deliveries, is no longer in the stream: that is the end of it."""
        acks = self._acks
        consumer = self._consumer
        count = acks.delivery_count(sequence)
        consumer_sequence = acks.pending.get(sequence)
        was_full = len(acks.pending) >= consumer.max_pending
        if not acks.lose(sequence):
            return
        self._journal.acked(sequence)
        self._journal.ack_floor(acks.floor_consumer, acks.floor_stream)
        self._committed.mark_soon()
        # What ran out of deliveries was told of when it did.
        if consumer_sequence is not None:
            consumer.events.terminated(sequence, consumer_sequence, count, _DELETED_REASON)
        if was_full:
            consumer.wake()

    def _naked(self, sequence: int, consumer_sequence: int, delay_ns: int | None, now_ns: int) -> None:
        acks = self._acks
        consumer = self._consumer
        count = acks.delivery_count(sequence)
        if not acks.nak(sequence, consumer_sequence, delay_ns, now_ns):
            return
        self._write_down(sequence)
        consumer.events.naked(sequence, consumer_sequence, count)
        if delay_ns is not None:
            consumer.arm()
        else:
            consumer.wake()

    def _write_down(self, sequence: int) -> None:
        """A pending message waits for another time than its delivery said; a restart goes by this one."""
        first, time_ns, count = self._acks.at_rest(sequence)
        self._journal.delivered(first, sequence, time_ns, count)
        self._committed.mark_soon()

    def _confirm(self, reply: bytes) -> None:
        """Answer an acknowledgement that asked for it, once it is on disk."""
        account = self._consumer.account
        if not self._committed.is_durable:
            account.publish(reply, b"", b"", b"")
            return

        def answer(error: JetlakeError | None) -> None:
            # Clients take any answer for a confirmation but this one, which they take for nobody being there.
            reason = " ".join(str(error).split()).encode("ascii", "replace")
            header = b"" if error is None else b"NATS/1.0 503 %b\r\n\r\n" % reason
            account.publish(reply, b"", header, b"")

        self._committed.when_durable(answer)
