"""Delivery on request: pull requests are checked, wait, and are served in turns (ADR-13, ADR-37, ADR-42)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetlake.errors import ConfigError
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.durations import format_duration
from jetlake.model.enums import PriorityPolicy, UnpinReason
from jetlake.protocol.headers import append_pair
from jetlake.protocol.nuid import next_nuid
from jetlake.server.engine.consumer.delivery import RUN_BYTES, RUN_MESSAGES, Delivery
from jetlake.server.engine.consumer.framer import size_of
from jetlake.server.engine.consumer.pull import pull_status
from jetlake.server.engine.consumer.pull.priority_groups import OpenToAll, Overflow, PinnedClient, Prioritized
from jetlake.server.engine.consumer.pull.pull_queue import PullQueue, Reach
from jetlake.server.engine.consumer.pull.pull_request import WaitingPull, parse_pull_request
from jetlake.server.engine.core.api_level import requires_newer_api
from jetlake.server.engine.routing.account import Message

if TYPE_CHECKING:
    from jetlake.server.engine.consumer.consumer import Consumer
    from jetlake.server.engine.routing.subscription import Subscriber

__all__ = ["PullDelivery"]

_PIN_ID = b"Nats-Pin-Id"


class PullDelivery(Delivery):
    """The pull side of one consumer."""

    def __init__(self, consumer: Consumer) -> None:
        super().__init__(consumer)
        self.queue = PullQueue(consumer.config.max_waiting, self._answer, self._reach)
        self.policy = self._make_policy(consumer.config)
        self._outbox: list[Message] = []
        self._outbox_reply = b""

    def _make_policy(self, config: ConsumerConfig) -> OpenToAll:
        if config.priority_policy is PriorityPolicy.OVERFLOW:
            return Overflow(config)
        if config.priority_policy is PriorityPolicy.PRIORITIZED:
            return Prioritized(config)
        if config.priority_policy is PriorityPolicy.PINNED_CLIENT:
            return PinnedClient(config, self.queue, next_nuid, self._on_pinned, self._on_unpinned)
        return OpenToAll(config)

    def configure(self, old: ConsumerConfig, new: ConsumerConfig) -> None:
        self.queue.limit = new.max_waiting
        self.policy.config = new

    # Requests

    def receive_pull(self, reply: bytes, header: bytes, body: bytes, origin: Subscriber | None) -> None:
        """Check a request; it waits for its messages, or is answered at once with the reason why not."""
        consumer = self._consumer
        now_ns = consumer.engine.clock.now_ns()
        consumer.used(now_ns)
        if requires_newer_api(header):
            self._answer(reply, pull_status.REQUIRED_API_LEVEL)
            return
        try:
            request = parse_pull_request(reply, body)
            refusal = self._refusal(request, now_ns)
        except ConfigError as error:
            self._answer(reply, pull_status.bad_request(str(error)))
            return
        if refusal is not None:
            if refusal:
                self._answer(reply, refusal)
            return
        if origin is not None and isinstance(self.policy, PinnedClient):
            request.client = origin.client_info()
        self.queue.add(request, now_ns, self.policy.level(request))
        consumer.engine.make_ready(consumer)
        consumer.arm()

    def _refusal(self, request: WaitingPull, now_ns: int) -> bytes | None:
        """The status that refuses the request, empty for silence; None when it may wait. The order is the server's.

        Raises:
            ConfigError: the detail of a 400.
        """
        config = self._consumer.config
        if 0 < config.max_batch < request.batch:
            return pull_status.conflict(f"Exceeded MaxRequestBatch of {config.max_batch}")
        if 0 < config.max_expires < request.expires_ns:
            return pull_status.conflict(f"Exceeded MaxRequestExpires of {format_duration(config.max_expires)}")
        if 0 < config.max_bytes < request.max_bytes:
            return pull_status.conflict(f"Exceeded MaxRequestMaxBytes of {config.max_bytes}")
        self.policy.check(request)
        if isinstance(self.policy, PinnedClient) and not self.policy.welcomes(request, now_ns):
            return pull_status.PIN_ID_MISMATCH
        if request.no_wait:
            available = self._consumer.cursor.pending + self._consumer.acks.queue_length
            if not available and not request.expires_ns:
                return pull_status.NO_MESSAGES
            if available and self.queue:
                self.queue.reap(now_ns)
                if available < self.queue.batch_total():
                    return pull_status.REQUESTS_PENDING
        if self.queue.is_full(now_ns):
            return b"" if request.idle_heartbeat_ns else pull_status.EXCEEDED_MAX_WAITING
        return None

    def _answer(self, reply: bytes, header: bytes) -> None:
        if self._outbox and reply == self._outbox_reply:
            self._flush()
        self._account.send_to(reply, [(reply, b"", header, b"")])

    def _reach(self, reply: bytes) -> Reach:
        route = self._account.route(reply)
        if not route.takers:
            return Reach.GONE
        return Reach.CONGESTED if route.congested else Reach.OPEN

    # Messages

    @property
    def has_takers(self) -> bool:
        return len(self.queue) > 0

    def deliver(self, now_ns: int) -> bool:
        consumer = self._consumer
        queue = self.queue
        self._resume_ns = 0
        if not queue:
            return False
        if consumer.is_paused(now_ns):
            queue.end_one_shots()
            return False
        if consumer.acks.queue_length and not self._redeliver(now_ns):
            return self._rest(blocked=True)
        if not queue:
            return False
        if consumer.acks.queue_length:
            return True
        room = consumer.room()
        if room <= 0:
            # Requests that do not wait get no answer now: acknowledgements will make room.
            return False
        limit = min(RUN_MESSAGES, room)
        # One at least is looked for: what is pending is a count, and the store has the last word.
        count = self._simple_count(min(limit, max(consumer.cursor.pending, 1)))
        if count:
            return self._deliver_run(count, now_ns)
        return self._deliver_each(limit, now_ns)

    def _rest(self, *, blocked: bool = False) -> bool:
        """Nothing more can be delivered now: nobody may have what is there (`blocked`), or all of it is delivered."""
        consumer = self._consumer
        if blocked and self.queue.held_back:
            consumer.engine.wait_for_drain(consumer)
        if blocked or not consumer.cursor.pending:
            self.queue.end_one_shots()
        # Otherwise something is stored and will be shown in a moment: those who do not wait are not sent away before.
        self._stream.hungry.add(consumer)
        return False

    # The short path: nobody counts bytes, everybody may be served, and every inbox is one open subscription

    def _simple_count(self, limit: int) -> int:
        """How many messages can be dealt out without a look at each; 0 when they cannot.

        Requests take turns, so that every one of them may get one of the messages: each that may is looked at.
        """
        queue = self.queue
        if queue.counts_bytes or not self.policy.is_open or self._replay is not None:
            return 0
        route_of = self._account.route
        total = 0
        last_reply = b""
        for looked_at, request in enumerate(queue, 1):
            if request.reply != last_reply:
                last_reply = request.reply
                taker = route_of(last_reply).lone
                if taker is None or taker.max or taker.subscriber.congested:
                    return 0
            total += request.batch if request.batch > 0 else 1
            if looked_at == limit:
                break
        return min(total, limit)

    def _deliver_run(self, count: int, now_ns: int) -> bool:
        consumer = self._consumer
        stream = self._stream
        messages, next_sequence = consumer.cursor.read(count, RUN_BYTES, stream.visible_sequence)
        if not messages:
            return self._rest()
        takers = self.queue.deal(len(messages), now_ns)
        if len(takers) < len(messages):
            # Some had waited too long; what they leave is read again.
            if not takers:
                return len(self.queue) > 0
            del messages[len(takers) :]
            next_sequence = messages[-1].sequence + 1
        frames = consumer.framer.first_run(messages, consumer.acks.delivered_consumer, consumer.cursor.pending)
        first = takers[0]
        if takers.count(first) == len(takers) or len({taker.reply for taker in takers}) == 1:
            self._account.send_to(first.reply, frames)
        else:
            by_reply: dict[bytes, list[Message]] = {}
            for taker, frame in zip(takers, frames, strict=True):
                by_reply.setdefault(taker.reply, []).append(frame)
            for reply, run in by_reply.items():
                self._account.send_to(reply, run)
        consumer.delivered([message.sequence for message in messages], next_sequence, now_ns)
        if not self.queue:
            return False
        return next_sequence <= stream.visible_sequence or self._rest()

    # The long path: one message, one decision

    def _deliver_each(self, count: int, now_ns: int) -> bool:
        consumer = self._consumer
        cursor = consumer.cursor
        messages, next_sequence = cursor.read(count, RUN_BYTES, self._stream.visible_sequence)
        if not messages:
            return self._rest()
        framer = consumer.framer
        consumer_sequence = consumer.acks.delivered_consumer
        sequences: list[int] = []
        blocked = False
        for message in messages:
            if not self.queue or self._is_early(message, now_ns):
                break
            taken = len(sequences)
            frame = framer.one(message, 1, consumer_sequence + taken + 1, cursor.pending - taken - 1)
            if not self._hand_out(frame, cursor.pending - taken, taken, now_ns):
                blocked = True
                break
            if self._replay is not None:
                self._replay.sent(message.time_ns, now_ns)
            sequences.append(message.sequence)
        self._flush()
        if sequences:
            if len(sequences) < len(messages):
                next_sequence = sequences[-1] + 1
            consumer.delivered(sequences, next_sequence, now_ns)
        if self._resume_ns or not self.queue:
            return False
        return (not blocked and next_sequence <= self._stream.visible_sequence) or self._rest(blocked=blocked)

    def _redeliver(self, now_ns: int) -> bool:
        """Deliver from the redelivery queue; False when nobody could take what is at its head."""
        consumer = self._consumer
        for _ in range(RUN_MESSAGES):
            head = self._next_redelivery(now_ns)
            if head is None or not self.queue:
                break
            message, frame = head
            if not self._hand_out(frame, consumer.cursor.pending, 0, now_ns):
                self._flush()
                return False
            consumer.delivered_again(message.sequence, now_ns)
        self._flush()
        return True

    def _hand_out(self, frame: Message, num_pending: int, taken: int, now_ns: int) -> bool:
        """Give one message to the request whose turn it is; False when there is none that can have it."""
        policy = self.policy
        num_ack_pending = len(self._consumer.acks.pending) + taken

        def admits(request: WaitingPull) -> bool:
            return policy.admits(request, num_pending, num_ack_pending)

        request = self.queue.choose(size_of(frame), now_ns, None if policy.is_open else admits)
        if request is None:
            return False
        if isinstance(policy, PinnedClient):
            policy.chosen(request, now_ns)
            subject, reply, header, payload = frame
            frame = (subject, reply, append_pair(header, _PIN_ID, policy.pin.encode()), payload)
        if self._outbox_reply != request.reply:
            self._flush()
            self._outbox_reply = request.reply
        self._outbox.append(frame)
        taker = self._account.route(request.reply).lone
        if taker is None or taker.max:
            # It may end with this message: the next choice must know.
            self._flush()
        self.queue.complete(request)
        return True

    def _flush(self) -> None:
        if self._outbox:
            outbox, self._outbox = self._outbox, []
            self._account.send_to(self._outbox_reply, outbox)

    # Time

    def next_due_ns(self) -> int:
        due_ns = self.queue.next_due_ns
        for other_ns in (self._resume_ns, self.policy.deadline_ns if isinstance(self.policy, PinnedClient) else 0):
            if other_ns and (not due_ns or other_ns < due_ns):
                due_ns = other_ns
        return due_ns

    def on_time(self, now_ns: int) -> None:
        consumer = self._consumer
        queue = self.queue
        if queue.next_due_ns and queue.next_due_ns <= now_ns:
            waiting = len(queue)
            acks = consumer.acks
            queue.reap(now_ns, pull_status.heartbeat(acks.delivered_consumer, acks.delivered_stream))
            if len(queue) < waiting:
                consumer.used(now_ns)
        if isinstance(self.policy, PinnedClient) and self.policy.expire(now_ns):
            consumer.engine.make_ready(consumer)
        if self._resume_ns and self._resume_ns <= now_ns:
            self._resume_ns = 0
            consumer.engine.make_ready(consumer)

    # The rest

    def num_waiting(self, now_ns: int) -> int:
        self.queue.reap(now_ns)
        return len(self.queue)

    def is_in_use(self, now_ns: int) -> bool:
        return self.num_waiting(now_ns) > 0

    def unpin(self) -> None:
        """Take the pin back, if there is one; the next client in the queue gets it with the next message."""
        if isinstance(self.policy, PinnedClient):
            self.policy.unpin(UnpinReason.ADMIN)
            self._consumer.engine.make_ready(self._consumer)

    def close(self, *, deleted: bool) -> None:
        if deleted:
            self.queue.close(pull_status.CONSUMER_DELETED)
        else:
            self.queue.shut_down()

    def _on_pinned(self, pin: str, request: WaitingPull) -> None:
        self._consumer.events.pinned(self._group, pin, request)

    def _on_unpinned(self, reason: UnpinReason) -> None:
        self._consumer.events.unpinned(self._group, reason)

    @property
    def _group(self) -> str:
        return next(iter(self._consumer.config.priority_groups), "")
