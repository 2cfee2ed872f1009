"""Delivery on request: pull requests are checked, wait, and are served in turns (NATS ADR-13, ADR-37, ADR-42).

Two paths lead to a client. The short one deals out a run without a look at each message: no request counts bytes, the
policy admits all, and every inbox is one open subscription. The long one decides for each message. Both read first and
move the cursor last, so that a message that no request may have is read again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from jetlake.errors import ConfigError
from jetlake.model.consumer import ConsumerConfig, PriorityGroupState
from jetlake.model.consumer_features import REDELIVER_LOST, features_of
from jetlake.model.encoding.durations import format_duration
from jetlake.model.enums import PriorityPolicy, UnpinReason
from jetlake.server.engine.consumer import statuses
from jetlake.server.engine.consumer.ack_tracker import AckTracker
from jetlake.server.engine.consumer.feed import RUN_MESSAGES, size_of
from jetlake.server.engine.consumer.priority import GroupPolicy, Overflow, PinnedClient, Prioritized
from jetlake.server.engine.consumer.pull_queue import InboxState, PullQueue, WaitingPull, parse_pull_request
from jetlake.server.engine.core.api_level import requires_newer_api
from jetlake.server.engine.routing.account import Account, Message
from jetlake.server.engine.routing.subscription import EndListener, Subscriber

if TYPE_CHECKING:
    from jetlake.server.engine.consumer.consumer import Consumer, Schedule


class PullDelivery:
    """Delivery of one pull consumer."""

    is_bound = False

    def __init__(self, consumer: Consumer) -> None:
        self._config = consumer.config
        self._feed = consumer.feed
        self._tracker = consumer.ack_tracker
        self._schedule = consumer.schedule
        self._account = consumer.stream.account
        self.queue = PullQueue(self._config.max_waiting, self._answer, self._inbox_state)
        self._policy = _policy_of(consumer, self.queue)
        self._resume_ns = 0
        """When the next message is due by its original timing; 0 = none waits for that."""
        self._outbox: list[Message] = []
        self._outbox_reply = b""
        self._lost_clients: LostClients | None = None
        self._read(self._config)

    def _read(self, config: ConsumerConfig) -> None:
        wanted = REDELIVER_LOST in features_of(config) and self._tracker.wants_acks
        if wanted and self._lost_clients is None:
            self._lost_clients = LostClients(self._tracker, self._account, self._schedule)
        if self._lost_clients is not None:
            self._lost_clients.is_on = wanted

    def open(self) -> None:
        """Do nothing: delivery starts with the first request."""

    def configure(self, old: ConsumerConfig, new: ConsumerConfig) -> None:
        """Apply a changed configuration."""
        self._config = new
        self._policy.configure(new)
        self._read(new)
        self.queue.limit = new.max_waiting

    # Requests

    def receive_pull(self, reply: bytes, header: bytes, body: bytes, origin: Subscriber | None) -> None:
        """Check a pull request; the request waits for messages, or is refused with a status."""
        now_ns = self._schedule.use()
        if requires_newer_api(header):
            self._answer(reply, statuses.REQUIRED_API_LEVEL)
            return
        try:
            request = parse_pull_request(reply, body)
            refusal = self._refusal(request, origin, now_ns)
        except ConfigError as error:
            self._answer(reply, statuses.bad_request(str(error)))
            return
        if refusal is not None:
            if refusal:
                self._answer(reply, refusal)
            return
        self.queue.add(request, now_ns, self._policy.level(request))
        self._schedule.make_ready()
        self._schedule.arm()

    def _refusal(self, request: WaitingPull, origin: Subscriber | None, now_ns: int) -> bytes | None:
        """Return the status of a refusal, empty for silence; None when the request may wait. The order is NATS's own.

        Raises:
            ConfigError: the detail of a 400.
        """
        config = self._config
        if 0 < config.max_batch < request.batch:
            return statuses.conflict(f"Exceeded MaxRequestBatch of {config.max_batch}")
        if 0 < config.max_expires < request.expires_ns:
            return statuses.conflict(f"Exceeded MaxRequestExpires of {format_duration(config.max_expires)}")
        if 0 < config.max_bytes < request.max_bytes:
            return statuses.conflict(f"Exceeded MaxRequestMaxBytes of {config.max_bytes}")
        self._policy.check(request)
        if not self._policy.accepts(request, origin, now_ns):
            return statuses.PIN_ID_MISMATCH
        if request.no_wait:
            available = self._feed.pending + self._tracker.queue_length
            if not available and not request.expires_ns:
                return statuses.NO_MESSAGES
            if available and self.queue:
                self.queue.reap(now_ns)
                if available < self.queue.batch_total():
                    return statuses.REQUESTS_PENDING
        if self.queue.is_full(now_ns):
            return b"" if request.idle_heartbeat_ns else statuses.EXCEEDED_MAX_WAITING
        return None

    def _answer(self, reply: bytes, header: bytes) -> None:
        if self._outbox and reply == self._outbox_reply:
            self._flush()
        self._account.send_to(reply, [(reply, b"", header, b"")])

    def _inbox_state(self, reply: bytes) -> InboxState:
        route = self._account.route(reply)
        if not route.recipients:
            return InboxState.GONE
        return InboxState.CONGESTED if route.congested else InboxState.OPEN

    def receive_flow_control(self, subject: bytes, header: bytes) -> bool:
        """Refuse an answer to flow control, which pull consumers do not have."""
        return False

    # Messages

    def deliver(self, now_ns: int) -> bool:
        """Deliver one bounded run; True when more can be delivered right away."""
        queue = self.queue
        self._resume_ns = 0
        if not queue:
            return False
        if self._schedule.is_paused(now_ns):
            queue.end_one_shots()
            return False
        tracker, policy = self._tracker, self._policy
        if not policy.admits_all:
            if policy.is_handing_over():
                return self._rest(blocked=True)
            if (self._feed.pending or tracker.queue_length) and not policy.prepare(now_ns):
                if queue.held_back:
                    self._schedule.wait_for_drain()
                return False
        if tracker.queue_length and not self._redeliver(now_ns):
            return self._rest(blocked=True)
        if not queue:
            return False
        if tracker.queue_length:
            return True
        room = tracker.room()
        if room <= 0:
            # Requests that do not wait get no answer while messages are left: acknowledgements will make room.
            return False if self._feed.pending else self._rest()
        limit = min(RUN_MESSAGES, room)
        # At least one message is looked for: what is pending is a count, and the store has the last word.
        count = self._simple_count(min(limit, max(self._feed.pending, 1)))
        if count:
            return self._deliver_run(count, now_ns)
        return self._deliver_each(limit, now_ns)

    def _rest(self, *, blocked: bool = False) -> bool:
        """Stop for now: no request may have the next message (`blocked`), or all messages are delivered."""
        if blocked and self.queue.held_back:
            self._schedule.wait_for_drain()
        if blocked or not self._feed.pending:
            self.queue.end_one_shots()
        # Otherwise a stored message becomes visible in a moment, and requests that do not wait get that one.
        self._schedule.wait_for_messages()
        return False

    # The short path: no request counts bytes, all are admitted, and every inbox is one open subscription

    def _simple_count(self, limit: int) -> int:
        """Return how many messages can be dealt out without a look at each; 0 when they cannot.

        Requests take turns, so that any of the first `limit` requests may get a message: all of them are checked.
        """
        queue = self.queue
        if queue.counts_bytes or not self._policy.admits_all or self._feed.is_paced:
            return 0
        route_of = self._account.route
        total = 0
        last_reply = b""
        for looked_at, request in enumerate(queue, 1):
            if request.reply != last_reply:
                last_reply = request.reply
                recipient = route_of(last_reply).only_subscription
                if recipient is None or recipient.max or recipient.subscriber.congested:
                    return 0
            total += request.batch if request.batch > 0 else 1
            if looked_at == limit:
                break
        return min(total, limit)

    def _deliver_run(self, count: int, now_ns: int) -> bool:
        feed = self._feed
        run, next_sequence = feed.read_run(count)
        if not run:
            return self._rest()
        recipients = self.queue.deal(len(run), now_ns)
        if len(recipients) < len(run):
            # Some requests had expired; their messages are read again.
            if not recipients:
                return len(self.queue) > 0
            run.keep(len(recipients))
            next_sequence = run.sequences[-1] + 1
        sequences = list(run.sequences)
        first = recipients[0]
        if recipients.count(first) == len(recipients) or len({recipient.reply for recipient in recipients}) == 1:
            self._account.send_run_to(first.reply, run)
            if self._lost_clients is not None:
                self._lost_clients.delivered(first.reply, sequences)
        else:
            by_reply: dict[bytes, list[Message]] = {}
            for recipient, frame in zip(recipients, run.messages(), strict=True):
                by_reply.setdefault(recipient.reply, []).append(frame)
            for reply, frames in by_reply.items():
                self._account.send_to(reply, frames)
            if self._lost_clients is not None:
                for recipient, sequence in zip(recipients, sequences, strict=True):
                    self._lost_clients.delivered(recipient.reply, (sequence,))
        feed.delivered(sequences, next_sequence, now_ns)
        if not self.queue:
            return False
        return feed.has_more(next_sequence) or self._rest()

    # The long path: one decision for each message

    def _deliver_each(self, count: int, now_ns: int) -> bool:
        feed = self._feed
        messages, next_sequence = feed.read(count)
        if not messages:
            return self._rest()
        sequences: list[int] = []
        blocked = False
        for message in messages:
            if not self.queue:
                break
            due_ns = feed.due_ns(message)
            if due_ns > now_ns:
                self._resume_ns = due_ns
                break
            taken = len(sequences)
            if not self._hand_out(feed.frame(message, taken), feed.pending - taken, taken, now_ns):
                blocked = True
                break
            feed.sent(message, now_ns)
            sequences.append(message.sequence)
            if self._lost_clients is not None:
                self._lost_clients.delivered(self._outbox_reply, (message.sequence,))
        self._flush()
        if sequences:
            if len(sequences) < len(messages):
                next_sequence = sequences[-1] + 1
            feed.delivered(sequences, next_sequence, now_ns)
        if self._resume_ns or not self.queue:
            return False
        return (not blocked and feed.has_more(next_sequence)) or self._rest(blocked=blocked)

    def _redeliver(self, now_ns: int) -> bool:
        """Deliver from the redelivery queue; False when no request may have the message at its head."""
        feed = self._feed
        for _ in range(RUN_MESSAGES):
            # Messages that reached max_deliver are dropped only when a request is there to get them, as in NATS.
            head = feed.next_redelivery() if self.queue else None
            if head is None:
                break
            sequence, frame = head
            if not self._hand_out(frame, feed.pending, 0, now_ns):
                self._flush()
                return False
            feed.redelivered(sequence, now_ns)
            if self._lost_clients is not None:
                self._lost_clients.delivered(self._outbox_reply, (sequence,))
        self._flush()
        return True

    def _hand_out(self, frame: Message, num_pending: int, taken: int, now_ns: int) -> bool:
        """Give one message to the request whose turn it is; False when no request may have the message."""
        policy = self._policy
        num_ack_pending = len(self._tracker.pending) + taken

        def admits(request: WaitingPull) -> bool:
            return policy.admits(request, num_pending, num_ack_pending)

        request = self.queue.choose(size_of(frame), now_ns, None if policy.admits_all else admits)
        if request is None:
            if policy.vacate():
                self._schedule.make_ready()
            return False
        frame = policy.assign(request, frame, now_ns)
        if self._outbox_reply != request.reply:
            self._flush()
            self._outbox_reply = request.reply
        self._outbox.append(frame)
        recipient = self._account.route(request.reply).only_subscription
        if recipient is None or recipient.max:
            # The subscription may end with this message: the next choice must see that.
            self._flush()
        self.queue.complete(request)
        if policy.is_switching:
            # The message first, then the advisory and the statuses of the others: steps 4 to 6 of NATS ADR-42.
            self._flush()
            policy.announce(request)
        return True

    def _flush(self) -> None:
        if self._outbox:
            outbox, self._outbox = self._outbox, []
            self._account.send_to(self._outbox_reply, outbox)

    # Time

    def next_due_ns(self) -> int:
        """Return when `on_time` has something to do; 0 = never."""
        due_ns = self.queue.next_due_ns
        for other_ns in (self._resume_ns, self._policy.deadline_ns):
            if other_ns and (not due_ns or other_ns < due_ns):
                due_ns = other_ns
        return due_ns

    def on_time(self, now_ns: int) -> None:
        """Send heartbeats, end expired requests and pins, continue a replay."""
        queue = self.queue
        if queue.next_due_ns and queue.next_due_ns <= now_ns:
            waiting = len(queue)
            tracker = self._tracker
            queue.run_due(now_ns, statuses.heartbeat(tracker.delivered_consumer, tracker.delivered_stream))
            if len(queue) < waiting:
                self._schedule.use()
        if self._policy.expire(now_ns):
            self._schedule.make_ready()
        if self._resume_ns and self._resume_ns <= now_ns:
            self._resume_ns = 0
            self._schedule.make_ready()

    # State

    def num_waiting(self, now_ns: int) -> int:
        """Return the number of waiting requests."""
        self.queue.reap(now_ns)
        return len(self.queue)

    def is_in_use(self, now_ns: int) -> bool:
        """Return whether a request waits."""
        return self.num_waiting(now_ns) > 0

    def group_states(self) -> tuple[PriorityGroupState, ...]:
        """Return the priority groups as the consumer's info shows them."""
        return self._policy.states()

    def unpin(self) -> None:
        """Take the pin from the pinned client; the next client in the queue gets one with the next message."""
        if self._policy.unpin(UnpinReason.ADMIN):
            self._schedule.make_ready()

    def close(self, *, deleted: bool) -> None:
        """End every waiting request with a status."""
        self._policy.close()
        if self._lost_clients is not None:
            self._lost_clients.is_on = False
        if deleted:
            self.queue.close(statuses.CONSUMER_DELETED)
        else:
            self.queue.shut_down()


# Settled messages that are always tolerated: a clean-up for fewer costs more than it frees.
_STALE_MIN = 1024


class LostClients(EndListener):
    """Remembers the recipient of each pending message of one consumer.

    Messages that reached their client through another account or server have no recipient here, and wait for their
    ack wait.
    """

    def __init__(self, tracker: AckTracker, account: Account, schedule: Schedule) -> None:
        self._tracker = tracker
        self._account = account
        self._schedule = schedule
        self._recipients: dict[int, Subscriber] = {}
        self._watched: set[Subscriber] = set()
        self.is_on = True

    def delivered(self, inbox: bytes, sequences: Iterable[int]) -> None:
        """Remember the recipient of messages that were just sent to an inbox."""
        recipient = self._account.route(inbox).only_subscription
        if recipient is None:
            for sequence in sequences:
                self._recipients.pop(sequence, None)
            return
        client = recipient.subscriber
        self._recipients.update(dict.fromkeys(sequences, client))
        if client not in self._watched:
            self._watched.add(client)
            client.notify_of_end(self)
        pending = self._tracker.pending
        if len(self._recipients) > 2 * len(pending) + _STALE_MIN:
            self._recipients = {number: one for number, one in self._recipients.items() if number in pending}

    def subscriber_ended(self, subscriber: Subscriber) -> None:
        """Queue the messages of a closed client for redelivery."""
        self._watched.discard(subscriber)
        lost = [sequence for sequence, one in self._recipients.items() if one is subscriber]
        for sequence in lost:
            del self._recipients[sequence]
        if self.is_on and self._tracker.redeliver(lost):
            self._schedule.make_ready()


def _policy_of(consumer: Consumer, queue: PullQueue) -> GroupPolicy:
    """Make the priority policy of a consumer's configuration."""
    config = consumer.config
    if config.priority_policy is PriorityPolicy.OVERFLOW:
        return Overflow(config)
    if config.priority_policy is PriorityPolicy.PRIORITIZED:
        return Prioritized(config)
    if config.priority_policy is PriorityPolicy.PINNED_CLIENT:
        return PinnedClient(consumer, queue)
    return GroupPolicy(config)
