"""Delivery to a subject: while it has subscribers, with heartbeats, flow control and a rate limit (NATS ADR-15)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetlake.model.consumer import ConsumerConfig, PriorityGroupState
from jetlake.model.enums import AckPolicy
from jetlake.protocol.headers import find_value
from jetlake.server.engine.consumer import statuses
from jetlake.server.engine.consumer.feed import RUN_MESSAGES, size_of
from jetlake.server.engine.consumer.flow_control import REQUEST, FlowControl
from jetlake.server.engine.routing.account import Message
from jetlake.server.engine.routing.interest import Watch
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.store.message import StoredMessage

if TYPE_CHECKING:
    from jetlake.server.engine.consumer.consumer import Consumer

_LAST_STREAM = b"Nats-Last-Stream"
_LAST_CONSUMER = b"Nats-Last-Consumer"
_DIGITS_MAX = 2 * 20


class PushDelivery:
    """Delivery of one push consumer.

    Attributes:
        is_bound: the deliver subject itself has a subscriber (a member of the deliver group, where there is one), or
            a stream that captures it; no wildcard is enough.
    """

    def __init__(self, consumer: Consumer) -> None:
        config = consumer.config
        self.is_bound = False
        self._stream = consumer.stream
        self._services = consumer.services
        self._feed = consumer.feed
        self._tracker = consumer.ack_tracker
        self._ack_handler = consumer.ack_handler
        self._schedule = consumer.schedule
        self._account = consumer.stream.account
        self._flow_control: FlowControl | None = FlowControl() if config.flow_control else None
        self._flow_control_acks = config.ack_policy is AckPolicy.FLOW_CONTROL
        self._flow_control_prefix = consumer.flow_control_prefix()
        self._asked_at = (0, 0)
        self._resume_ns = 0
        """When the next message may go out by its original timing or the rate limit; 0 = none waits for that."""
        self._heartbeat_due_ns = 0
        self._watch: Watch | None = None
        self._read(config)

    def _read(self, config: ConsumerConfig) -> None:
        self._subject = config.deliver_subject.encode()
        self._group = config.deliver_group.encode()
        self._heartbeat_ns = config.idle_heartbeat
        self._set_rate(config.rate_limit_bps)
        self._watch = self._account.watch_interest(self._subject, self._on_interest)

    def _set_rate(self, bits_per_second: int) -> None:
        self._rate_limit: RateLimit | None = None
        if bits_per_second:
            self._rate_limit = RateLimit(bits_per_second, self._burst(), self._schedule.use())

    def _burst(self) -> int:
        """Return how many bytes a rate limit lets through at once: the largest message."""
        max_msg_size = self._stream.config.max_msg_size
        return max_msg_size if max_msg_size > 0 else self._services.options.max_payload

    def open(self) -> None:
        """Start to deliver if the deliver subject has a subscriber."""
        self._on_interest()

    def configure(self, old: ConsumerConfig, new: ConsumerConfig) -> None:
        """Apply a changed configuration."""
        if (old.deliver_subject, old.deliver_group) != (new.deliver_subject, new.deliver_group):
            self._unwatch()
            self._read(new)
            if old.deliver_subject != new.deliver_subject:
                # Pending messages went to subscribers of the old subject.
                self._tracker.redeliver_all()
                if self._flow_control is not None:
                    self._flow_control.restart()
            self._on_interest()
        elif old.rate_limit_bps != new.rate_limit_bps:
            self._set_rate(new.rate_limit_bps)

    # Interest

    def _on_interest(self) -> None:
        """Start, continue or stop: the deliver subject gained or lost a subscriber."""
        was_bound = self.is_bound
        self.is_bound = self._account.has_literal_interest(self._subject, self._group)
        if self.is_bound == was_bound:
            return
        now_ns = self._schedule.use()
        if self.is_bound:
            if self._flow_control is not None:
                self._flow_control.restart()
            self._heartbeat_due_ns = now_ns + self._heartbeat_ns if self._heartbeat_ns else 0
            self._schedule.make_ready()
        else:
            self._heartbeat_due_ns = 0
        self._schedule.arm()

    # Messages

    def receive_pull(self, reply: bytes, header: bytes, body: bytes, origin: Subscriber | None) -> None:
        """Refuse a pull request."""
        self._account.send_to(reply, [(reply, b"", statuses.PUSH_BASED, b"")])

    def deliver(self, now_ns: int) -> bool:
        """Deliver one bounded run; True when more can be delivered right away."""
        self._resume_ns = 0
        if not self.is_bound or self._is_stalled or self._schedule.is_paused(now_ns):
            return False
        route = self._account.route(self._subject)
        if route.congested:
            self._schedule.wait_for_drain()
            return False
        limit = RUN_MESSAGES
        if route.only_subscription is not None and route.only_subscription.max:
            limit = min(limit, route.only_subscription.max - route.only_subscription.delivered)
        outbox: list[Message] = []
        more = self._redeliver(outbox, limit, now_ns)
        if not more:
            more = self._deliver_new(outbox, limit - len(outbox), now_ns)
        if self._tracker.room() <= 0:
            self._ask_for_acks(outbox)
        if outbox:
            if self._heartbeat_ns:
                self._heartbeat_due_ns = now_ns + self._heartbeat_ns
            self._account.send_to(self._subject, outbox)
        return more and self.is_bound and not self._is_stalled and not self._resume_ns

    def _redeliver(self, outbox: list[Message], limit: int, now_ns: int) -> bool:
        """Deliver from the redelivery queue; True when nothing else can be delivered in this run."""
        tracker = self._tracker
        while tracker.queue_length:
            if len(outbox) >= limit:
                return True
            head = self._feed.next_redelivery()
            if head is None:
                break
            sequence, frame = head
            if self._is_over_rate(frame, now_ns):
                return True
            self._feed.redelivered(sequence, now_ns)
            self._put(outbox, frame, tracker.delivered_stream, tracker.delivered_consumer)
            if self._is_stalled:
                return True
        return False

    def _deliver_new(self, outbox: list[Message], limit: int, now_ns: int) -> bool:
        """Deliver new messages; True when more can be delivered right away."""
        feed = self._feed
        room = min(limit, self._tracker.room())
        if room <= 0:
            return limit <= 0
        messages, next_sequence = feed.read(room)
        if not messages:
            self._schedule.wait_for_messages()
            return False
        if self._flow_control is None and self._rate_limit is None and not feed.is_paced:
            outbox += feed.frame_run(messages).messages()
        else:
            taken = self._put_each(outbox, messages, now_ns)
            if taken < len(messages):
                next_sequence = messages[taken].sequence
                del messages[taken:]
        if messages:
            feed.delivered([message.sequence for message in messages], next_sequence, now_ns)
        if feed.has_more(next_sequence):
            return not self._resume_ns
        self._schedule.wait_for_messages()
        return False

    def _put_each(self, outbox: list[Message], messages: list[StoredMessage], now_ns: int) -> int:
        """Deliver messages one by one as far as window, original timing and rate allow; returns their number."""
        feed = self._feed
        consumer_sequence = self._tracker.delivered_consumer
        for taken, message in enumerate(messages):
            if self._is_stalled:
                # sometimes: flow control holds a push consumer up
                return taken
            due_ns = feed.due_ns(message)
            if due_ns > now_ns:
                self._resume_ns = due_ns
                return taken
            frame = feed.frame(message, taken)
            if self._is_over_rate(frame, now_ns):
                return taken
            feed.sent(message, now_ns)
            self._put(outbox, frame, message.sequence, consumer_sequence + taken + 1)
        return len(messages)

    def _put(self, outbox: list[Message], frame: Message, sequence: int, consumer_sequence: int) -> None:
        """Append one message, and a flow control request when half the window is used."""
        outbox.append(frame)
        flow_control = self._flow_control
        if flow_control is not None:
            _, reply, header, payload = frame
            if flow_control.sent(len(self._subject) + len(reply) + len(header) + len(payload)):
                self._ask(outbox, sequence, consumer_sequence)

    @property
    def _is_stalled(self) -> bool:
        return self._flow_control is not None and self._flow_control.is_stalled

    def _is_over_rate(self, frame: Message, now_ns: int) -> bool:
        """Return whether the message has to wait for the rate limit; otherwise its bytes are spent."""
        if self._rate_limit is None:
            return False
        size = size_of(frame)
        ready_ns = self._rate_limit.ready_ns(size, now_ns)
        if ready_ns > now_ns:
            self._resume_ns = ready_ns
            return True
        self._rate_limit.spend(size)
        return False

    # Flow control

    def receive_flow_control(self, subject: bytes, header: bytes) -> bool:
        """Handle an answer to a flow control request; False when the consumer has no flow control."""
        self._schedule.use()
        if self._flow_control is None:
            return False
        if self._flow_control.answer(subject):
            if self._flow_control_acks:
                self._ack_handler.ack_up_to(*(stored_sequences(header) or self._asked_at))
            self._schedule.make_ready()
        return True

    def _ask(self, outbox: list[Message], sequence: int, consumer_sequence: int) -> None:
        assert self._flow_control is not None
        subject = self._flow_control_prefix + self._services.next_nuid()[-4:].encode()
        self._flow_control.ask(subject)
        self._asked_at = (sequence, consumer_sequence)
        outbox.append((self._subject, subject, REQUEST, b""))

    def _ask_for_acks(self, outbox: list[Message]) -> None:
        """Request flow control while messages are pending, where its answers are the acknowledgements."""
        flow_control, tracker = self._flow_control, self._tracker
        if flow_control is not None and not flow_control.outstanding and tracker.pending and self._flow_control_acks:
            self._ask(outbox, tracker.delivered_stream, tracker.delivered_consumer)

    # Time

    def next_due_ns(self) -> int:
        """Return when `on_time` has something to do; 0 = never."""
        due_ns = self._heartbeat_due_ns
        if self._resume_ns and (not due_ns or self._resume_ns < due_ns):
            due_ns = self._resume_ns
        return due_ns

    def on_time(self, now_ns: int) -> None:
        """Send a heartbeat; continue after a wait for original timing or the rate limit."""
        if self._heartbeat_due_ns and self._heartbeat_due_ns <= now_ns:
            self._heartbeat_due_ns = now_ns + self._heartbeat_ns
            tracker = self._tracker
            stalled = self._flow_control.outstanding if self._flow_control is not None else b""
            header = statuses.heartbeat(tracker.delivered_consumer, tracker.delivered_stream, stalled)
            outbox: list[Message] = [(self._subject, b"", header, b"")]
            self._ask_for_acks(outbox)
            self._account.send_to(self._subject, outbox)
        if self._resume_ns and self._resume_ns <= now_ns:
            self._resume_ns = 0
            self._schedule.make_ready()

    # State

    def num_waiting(self, now_ns: int) -> int:
        """Return 0: push consumers have no pull requests."""
        return 0

    def is_in_use(self, now_ns: int) -> bool:
        """Return whether the deliver subject has a subscriber."""
        return self.is_bound

    def group_states(self) -> tuple[PriorityGroupState, ...]:
        """Return none: push consumers have no priority groups."""
        return ()

    def unpin(self) -> None:
        """Do nothing: push consumers have no priority groups."""

    def close(self, *, deleted: bool) -> None:
        """Stop to deliver and to watch the deliver subject."""
        self._unwatch()
        self.is_bound = False
        self._heartbeat_due_ns = self._resume_ns = 0

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._account.unwatch(self._watch)
            self._watch = None


def stored_sequences(header: bytes) -> tuple[int, int] | None:
    """Return the stream and consumer sequence that a subscriber has stored, where its answer names them."""
    stream, consumer = find_value(header, _LAST_STREAM) or b"", find_value(header, _LAST_CONSUMER) or b""
    are_numbers = stream.isdigit() and consumer.isdigit() and len(stream) + len(consumer) <= _DIGITS_MAX
    return (int(stream), int(consumer)) if are_numbers else None


_NS = 1_000_000_000


class RateLimit:
    """A token bucket.

    Args:
        bits_per_second: the rate.
        burst: bytes that may be sent at once after a pause; the size of the largest message.
        now_ns: the time; the bucket begins full.
    """

    def __init__(self, bits_per_second: int, burst: int, now_ns: int) -> None:
        self._bytes_per_second = max(bits_per_second // 8, 1)
        # Counted in byte-nanoseconds so that nothing is lost to rounding.
        self._burst = max(burst, 1) * _NS
        self._level = self._burst
        self._filled_ns = now_ns

    def ready_ns(self, size: int, now_ns: int) -> int:
        """Return when a message of this many bytes may be sent; now or earlier means at once."""
        elapsed_ns = max(now_ns - self._filled_ns, 0)
        self._level = min(self._level + elapsed_ns * self._bytes_per_second, self._burst)
        self._filled_ns += elapsed_ns
        missing = min(size * _NS, self._burst) - self._level
        return self._filled_ns if missing <= 0 else self._filled_ns + -(-missing // self._bytes_per_second)

    def spend(self, size: int) -> None:
        """Take the bytes of a sent message from the bucket."""
        self._level -= size * _NS
