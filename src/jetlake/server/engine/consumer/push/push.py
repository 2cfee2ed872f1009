"""Delivery to a subject: as long as somebody subscribes it, with heartbeats, flow control and a rate (ADR-15)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetlake.model.consumer import ConsumerConfig
from jetlake.model.enums import AckPolicy
from jetlake.protocol.nuid import next_nuid
from jetlake.server.engine.consumer.delivery import RUN_BYTES, RUN_MESSAGES, Delivery
from jetlake.server.engine.consumer.framer import size_of
from jetlake.server.engine.consumer.pull import pull_status
from jetlake.server.engine.consumer.push.flow_control import REQUEST, FlowControl
from jetlake.server.engine.consumer.push.rate_limit import RateLimit
from jetlake.server.engine.routing.account import Message
from jetlake.server.engine.routing.interest import Watch

if TYPE_CHECKING:
    from jetlake.server.engine.consumer.consumer import Consumer
    from jetlake.server.engine.routing.subscription import Subscriber
    from jetlake.store.message import StoredMessage

__all__ = ["PushDelivery"]


class PushDelivery(Delivery):
    """The push side of one consumer.

    Attributes:
        is_active: somebody subscribes the deliver subject (as a member of the group, where there is one); that a stream
            keeps what is sent there is not enough.
    """

    def __init__(self, consumer: Consumer) -> None:
        super().__init__(consumer)
        self.is_active = False
        self.flow_control: FlowControl | None = FlowControl() if consumer.config.flow_control else None
        self._rate_limit: RateLimit | None = None
        self._heartbeat_due_ns = 0
        self._watch: Watch | None = None
        self._ask_prefix = b"$JS.FC.%b.%b." % (consumer.stream.name.encode(), consumer.name.encode())
        self._asked_at = (0, 0)
        self._read(consumer.config)

    def _read(self, config: ConsumerConfig) -> None:
        self._subject = config.deliver_subject.encode()
        self._group = config.deliver_group.encode()
        self._heartbeat_ns = config.idle_heartbeat
        self._set_rate(config)
        self._watch = self._account.watch_interest(self._subject, self.on_interest)

    def _set_rate(self, config: ConsumerConfig) -> None:
        consumer = self._consumer
        self._rate_limit = None
        if config.rate_limit_bps:
            burst = self._stream.config.max_msg_size
            if burst <= 0:
                burst = consumer.engine.options.max_payload
            self._rate_limit = RateLimit(config.rate_limit_bps, burst, consumer.engine.clock.now_ns())

    def configure(self, old: ConsumerConfig, new: ConsumerConfig) -> None:
        consumer = self._consumer
        if (old.deliver_subject, old.deliver_group) != (new.deliver_subject, new.deliver_group):
            self._unwatch()
            self._read(new)
            if old.deliver_subject != new.deliver_subject:
                # Whoever had them listened elsewhere.
                consumer.acks.redeliver_all()
                if self.flow_control is not None:
                    self.flow_control.restart()
            self.on_interest()
        elif old.rate_limit_bps != new.rate_limit_bps:
            self._set_rate(new)

    # Interest

    @property
    def has_takers(self) -> bool:
        return self.is_active

    def on_interest(self) -> None:
        """Somebody subscribed, or unsubscribed: begin, go on, or stop."""
        consumer = self._consumer
        was_active = self.is_active
        if self._group:
            self.is_active = self._account.has_queue_interest(self._subject, self._group)
        else:
            self.is_active = self._account.has_subscribers(self._subject)
        if self.is_active == was_active:
            return
        now_ns = consumer.engine.clock.now_ns()
        consumer.used(now_ns)
        if self.is_active:
            if self.flow_control is not None:
                self.flow_control.restart()
            self._heartbeat_due_ns = now_ns + self._heartbeat_ns if self._heartbeat_ns else 0
            consumer.engine.make_ready(consumer)
        else:
            self._heartbeat_due_ns = 0
        consumer.arm()

    # Messages

    def receive_pull(self, reply: bytes, header: bytes, body: bytes, origin: Subscriber | None) -> None:
        self._account.send_to(reply, [(reply, b"", pull_status.PUSH_BASED, b"")])

    def deliver(self, now_ns: int) -> bool:
        consumer = self._consumer
        self._resume_ns = 0
        if not self.is_active or consumer.is_paused(now_ns):
            return False
        flow_control = self.flow_control
        if flow_control is not None and flow_control.is_stalled:
            return False
        route = self._account.route(self._subject)
        if route.congested:
            consumer.engine.wait_for_drain(consumer)
            return False
        limit = RUN_MESSAGES
        if route.lone is not None and route.lone.max:
            limit = min(limit, route.lone.max - route.lone.delivered)
        outbox: list[Message] = []
        more = self._redeliver(outbox, limit, now_ns)
        if not more:
            more = self._deliver_new(outbox, limit - len(outbox), now_ns)
        if consumer.room() <= 0:
            self._ask_for_acks(outbox)
        if outbox:
            if self._heartbeat_ns:
                self._heartbeat_due_ns = now_ns + self._heartbeat_ns
            self._send(self._subject, outbox)
        return more and self.is_active and not self._is_stalled and not self._resume_ns

    def _redeliver(self, outbox: list[Message], limit: int, now_ns: int) -> bool:
        """Deliver from the redelivery queue; True when that is all that can be done in this run."""
        consumer = self._consumer
        acks = consumer.acks
        while acks.queue_length:
            if len(outbox) >= limit:
                return True
            head = self._next_redelivery(now_ns)
            if head is None:
                break
            message, frame = head
            if self._is_over_rate(frame, now_ns):
                return True
            consumer.delivered_again(message.sequence, now_ns)
            self._put(outbox, frame, acks.delivered_stream, acks.delivered_consumer)
            if self._is_stalled:
                return True
        return False

    def _deliver_new(self, outbox: list[Message], limit: int, now_ns: int) -> bool:
        """Deliver what comes next; whether there is more to do right away."""
        consumer = self._consumer
        stream = self._stream
        cursor = consumer.cursor
        room = min(limit, consumer.room())
        if room <= 0:
            return limit <= 0
        messages, next_sequence = cursor.read(room, RUN_BYTES, stream.visible_sequence)
        if not messages:
            stream.hungry.add(consumer)
            return False
        if self.flow_control is None and self._rate_limit is None and self._replay is None:
            outbox += consumer.framer.first_run(messages, consumer.acks.delivered_consumer, cursor.pending)
        else:
            taken = self._put_each(outbox, messages, now_ns)
            if taken < len(messages):
                next_sequence = messages[taken].sequence
                del messages[taken:]
        if messages:
            consumer.delivered([message.sequence for message in messages], next_sequence, now_ns)
        if next_sequence <= stream.visible_sequence:
            return not self._resume_ns
        stream.hungry.add(consumer)
        return False

    def _put_each(self, outbox: list[Message], messages: list[StoredMessage], now_ns: int) -> int:
        """Deliver messages one by one as far as rate, window and original distances allow; how many those were."""
        consumer = self._consumer
        consumer_sequence = consumer.acks.delivered_consumer
        pending = consumer.cursor.pending
        for taken, message in enumerate(messages):
            frame = consumer.framer.one(message, 1, consumer_sequence + 1, pending - taken - 1)
            if self._is_stalled or self._is_early(message, now_ns) or self._is_over_rate(frame, now_ns):
                return taken
            if self._replay is not None:
                self._replay.sent(message.time_ns, now_ns)
            consumer_sequence += 1
            self._put(outbox, frame, message.sequence, consumer_sequence)
        return len(messages)

    def _put(self, outbox: list[Message], frame: Message, sequence: int, consumer_sequence: int) -> None:
        """Send one message, and a flow control request when it is time for one."""
        outbox.append(frame)
        flow_control = self.flow_control
        if flow_control is not None:
            _, reply, header, payload = frame
            if flow_control.sent(len(self._subject) + len(reply) + len(header) + len(payload)):
                self._ask(outbox, sequence, consumer_sequence)

    @property
    def _is_stalled(self) -> bool:
        return self.flow_control is not None and self.flow_control.is_stalled

    def _is_over_rate(self, frame: Message, now_ns: int) -> bool:
        """Whether the message has to wait for the rate; if not it is paid for."""
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

    def receive_flow_control(self, subject: bytes) -> bool:
        """The subscriber answered a flow control request; False when there is no flow control here."""
        flow_control = self.flow_control
        if flow_control is None:
            return False
        if flow_control.answer(subject):
            consumer = self._consumer
            if consumer.config.ack_policy is AckPolicy.FLOW_CONTROL:
                consumer.acknowledgements.ack_up_to(*self._asked_at)
            consumer.engine.make_ready(consumer)
        return True

    def _ask(self, outbox: list[Message], sequence: int, consumer_sequence: int) -> None:
        assert self.flow_control is not None
        subject = self._ask_prefix + next_nuid()[-4:].encode()
        self.flow_control.ask(subject)
        self._asked_at = (sequence, consumer_sequence)
        outbox.append((self._subject, subject, REQUEST, b""))

    def _ask_for_acks(self, outbox: list[Message]) -> None:
        """Where answers to flow control are the only acknowledgements, ask for one when something waits for it."""
        flow_control, acks = self.flow_control, self._consumer.acks
        if (
            flow_control is not None
            and not flow_control.outstanding
            and acks.pending
            and self._consumer.config.ack_policy is AckPolicy.FLOW_CONTROL
        ):
            self._ask(outbox, acks.delivered_stream, acks.delivered_consumer)

    # Time

    def next_due_ns(self) -> int:
        due_ns = self._heartbeat_due_ns
        if self._resume_ns and (not due_ns or self._resume_ns < due_ns):
            due_ns = self._resume_ns
        return due_ns

    def on_time(self, now_ns: int) -> None:
        consumer = self._consumer
        if self._heartbeat_due_ns and self._heartbeat_due_ns <= now_ns:
            self._heartbeat_due_ns = now_ns + self._heartbeat_ns
            acks = consumer.acks
            stalled = self.flow_control.outstanding if self.flow_control is not None else b""
            header = pull_status.heartbeat(acks.delivered_consumer, acks.delivered_stream, stalled)
            outbox: list[Message] = [(self._subject, b"", header, b"")]
            self._ask_for_acks(outbox)
            self._send(self._subject, outbox)
        if self._resume_ns and self._resume_ns <= now_ns:
            self._resume_ns = 0
            consumer.engine.make_ready(consumer)

    # The rest

    def is_in_use(self, now_ns: int) -> bool:
        return self.is_active

    def close(self, *, deleted: bool) -> None:
        self._unwatch()
        self.is_active = False
        self._heartbeat_due_ns = self._resume_ns = 0

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._account.unwatch(self._watch)
            self._watch = None
