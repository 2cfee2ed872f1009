"""Priority groups (NATS ADR-42): which of the waiting pull requests may get the next message.

All policies share one contract: a request is checked when it arrives, waits on a level of the queue, and is admitted or
not when a message is there. `GroupPolicy` itself is the policy of consumers that have none.

The pinned client changes in this order: the old pin is removed from the record; nothing is delivered while messages are
in flight to the old client (`Handover`); the new pin is stored; when it is on disk, the new client gets its first
message; behind it the advisory and the statuses of the other clients are sent. A crash between two steps leaves no
pin, or the new one: two clients never hold a pin at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from jetlake.errors import ConfigError
from jetlake.model.consumer import ConsumerConfig, PriorityGroupState
from jetlake.model.encoding.times import ZERO_TIME, format_time
from jetlake.model.enums import PriorityPolicy, UnpinReason
from jetlake.protocol.headers import append_pair
from jetlake.server.engine.consumer import statuses
from jetlake.server.engine.consumer.pull_queue import PullQueue, WaitingPull
from jetlake.server.engine.core.commit import Commit, Syncable
from jetlake.server.engine.routing.account import Message
from jetlake.server.engine.routing.interest import Watch
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.engine.storage.consumer_storage import ConsumerRecord

if TYPE_CHECKING:
    from jetlake.server.engine.consumer.consumer import Consumer


class GroupPolicy:
    """The contract of all policies, and the policy of a consumer without one: requests are served in turns.

    Attributes:
        admits_all: every request may always be served, so that `admits` need not be called.
        deadline_ns: when `expire` has something to do; 0 = never.
        is_switching: a client has just got its first message, which is to be announced.
    """

    admits_all = True
    deadline_ns = 0
    is_switching = False

    def __init__(self, config: ConsumerConfig) -> None:
        self.config = config

    def configure(self, config: ConsumerConfig) -> None:
        """Apply a changed configuration."""
        self.config = config

    def check(self, request: WaitingPull) -> None:
        """Check that a request fits the policy.

        Raises:
            ConfigError: with the detail of the 400 that answers the request.
        """
        policy = self.config.priority_policy
        if request.is_conditional and policy is not PriorityPolicy.OVERFLOW:
            raise ConfigError("Not a Overflow Priority consumer")
        if request.id and policy is not PriorityPolicy.PINNED_CLIENT:
            raise ConfigError("Not a Pinned Client Priority consumer")
        if not 0 <= request.priority <= 9:
            raise ConfigError("Priority must be between 0 and 9")
        if policy is PriorityPolicy.NONE:
            return
        if not request.group:
            raise ConfigError("Priority Group missing")
        if request.group not in self.config.priority_groups:
            raise ConfigError("Invalid Priority Group")

    def accepts(self, request: WaitingPull, origin: Subscriber | None, now_ns: int) -> bool:
        """Return whether a request's pin is right, so that the request may wait."""
        return True

    def level(self, request: WaitingPull) -> int:
        """Return the level of the queue on which the request waits."""
        return 0

    def is_handing_over(self) -> bool:
        """Return whether no client may be served yet, because one takes over from another."""
        return False

    def prepare(self, now_ns: int) -> bool:
        """Get ready to serve a message; False when that takes a moment, after which the consumer is made ready."""
        return True

    def vacate(self) -> bool:
        """Give up the choice of `prepare` if that request ended before it got a message; whether it had."""
        return False

    def admits(self, request: WaitingPull, num_pending: int, num_ack_pending: int) -> bool:
        """Return whether the request may have the next message, which is counted in `num_pending`."""
        return True

    def assign(self, request: WaitingPull, message: Message, now_ns: int) -> Message:
        """Give the message to an admitted request; returns the message with the policy's headers."""
        return message

    def announce(self, request: WaitingPull) -> None:
        """Tell the others that this request's client was chosen and has its first message."""

    def expire(self, now_ns: int) -> bool:
        """End what is over by now; whether another request may be served because of that."""
        return False

    def unpin(self, reason: UnpinReason) -> bool:
        """Take the pin from the pinned client; False when the policy has no pins."""
        return False

    def states(self) -> tuple[PriorityGroupState, ...]:
        """Return the groups as the consumer's info shows them."""
        return tuple(PriorityGroupState(group=group) for group in self.config.priority_groups[:1])

    def close(self) -> None:
        """Stop waiting for anything."""


class Overflow(GroupPolicy):
    """A request may wait for a backlog; requests without such a condition are served first."""

    admits_all = False

    def level(self, request: WaitingPull) -> int:
        return 1 if request.is_conditional else 0

    def admits(self, request: WaitingPull, num_pending: int, num_ack_pending: int) -> bool:
        if not request.is_conditional:
            return True
        return (0 < request.min_pending <= num_pending) or (0 < request.min_ack_pending <= num_ack_pending)


class Prioritized(GroupPolicy):
    """Requests of a better (lower) priority are served before all others."""

    def level(self, request: WaitingPull) -> int:
        return request.priority


_PIN_ID = b"Nats-Pin-Id"


class Handover:
    """The wait until the messages in flight to the previous pinned client are acked, nakked, terminated or timed out.

    A client whose inbox has no subscriber any more is gone, and is not waited for.

    Attributes:
        inbox: where the pinned client got its last message; empty = unknown, since the server was restarted.

    Args:
        consumer: the consumer, which is made ready when the wait may be over because the client is gone.
    """

    def __init__(self, consumer: Consumer) -> None:
        self.inbox = b""
        self._tracker = consumer.ack_tracker
        self._account = consumer.stream.account
        self._schedule = consumer.schedule
        self._watch: Watch | None = None

    def is_over(self) -> bool:
        """Return whether the next client may be pinned; if not, the consumer is made ready when that may change."""
        is_gone = self.inbox and not self._account.has_interest(self.inbox)
        if is_gone or not self._tracker.in_flight:
            self.stop()
            return True
        # sometimes: a pin waits for messages in flight
        self._tracker.is_awaited = True
        if self._watch is None and self.inbox:
            self._watch = self._account.watch_interest(self.inbox, self._schedule.make_ready)
        return False

    def stop(self) -> None:
        """End the wait."""
        self._tracker.is_awaited = False
        if self._watch is not None:
            self._account.unwatch(self._watch)
            self._watch = None


class PinnedClient(GroupPolicy):
    """One client gets every message; when it stops pulling, or is unpinned, the next in the queue is pinned.

    Args:
        consumer: the consumer; a client that was pinned before a restart has the whole timeout to come back.
        queue: the waiting requests.
    """

    admits_all = False

    def __init__(self, consumer: Consumer, queue: PullQueue) -> None:
        config, schedule = consumer.config, consumer.schedule
        super().__init__(config)
        self._store = consumer.pin
        self.deadline_ns = schedule.clock.now_ns() + config.priority_timeout if self._store.id else 0
        """When the pin is lost unless its client pulls again; 0 = no client is pinned."""
        self._queue = queue
        self._services = consumer.services
        self._events = consumer.events
        self._handover = Handover(consumer)
        self._schedule = schedule
        self._chosen: WaitingPull | None = None
        """The request that was pinned and has had no message yet."""
        self._is_storing = False

    def configure(self, config: ConsumerConfig) -> None:
        """Apply a changed configuration; a changed timeout counts for the pinned client too, from its last pull on."""
        if self.deadline_ns:
            self.deadline_ns += config.priority_timeout - self.config.priority_timeout
        super().configure(config)

    def accepts(self, request: WaitingPull, origin: Subscriber | None, now_ns: int) -> bool:
        if request.id and self._store.id:
            if request.id != self._store.id:
                return False
            self.deadline_ns = now_ns + self.config.priority_timeout
        request.client = origin.client_info() if origin is not None else None
        return True

    def is_handing_over(self) -> bool:
        return not self._store.id and not self._handover.is_over()

    def prepare(self, now_ns: int) -> bool:
        """Pin a client if none is pinned; False until the pin is on disk, and while no client can be pinned."""
        self.vacate()
        if not self._store.id:
            self._pin_next(now_ns)
        return bool(self._store.id) and not self._is_storing

    def vacate(self) -> bool:
        if self._chosen is None or self._chosen.waiting or self._is_storing:
            return False
        self._chosen = None
        self.deadline_ns = 0
        self._store.set("", 0, _do_nothing)
        return True

    def _pin_next(self, now_ns: int) -> None:
        for request in self._queue.open_requests():
            if request.id:
                continue  # Of an earlier pin: it is told once the next client has its message.
            self._chosen = request
            request.id = self._services.next_nuid()
            self.deadline_ns = now_ns + self.config.priority_timeout
            self._is_storing = True
            self._store.set(request.id, now_ns, partial(self._on_stored, request.id))
            return
        # Nobody may be pinned: these clear their pins, and pull again without.
        self._reject_others("")

    def _on_stored(self, pin: str) -> None:
        if pin == self._store.id:
            self._is_storing = False
            self._schedule.make_ready()

    def admits(self, request: WaitingPull, num_pending: int, num_ack_pending: int) -> bool:
        if request.id == self._store.id:
            return True
        if request.id and self._chosen is None:
            self._queue.reject(request, statuses.WRONG_PIN_ID)
        return False

    @property
    def is_switching(self) -> bool:  # type: ignore[override]
        """Whether the pinned client has just got its first message."""
        return self._chosen is not None

    def assign(self, request: WaitingPull, message: Message, now_ns: int) -> Message:
        self._handover.inbox = request.reply
        subject, reply, header, payload = message
        return subject, reply, append_pair(header, _PIN_ID, self._store.id.encode()), payload

    def announce(self, request: WaitingPull) -> None:
        """Publish the advisory, then tell the other clients, behind the first message for the pinned one."""
        self._chosen = None
        self._events.pinned(self._group, self._store.id, request.client)
        self._reject_others(self._store.id)

    def _reject_others(self, pin: str) -> None:
        for waiting in list(self._queue):
            if waiting.id and waiting.id != pin:
                self._queue.reject(waiting, statuses.WRONG_PIN_ID)

    def unpin(self, reason: UnpinReason) -> bool:
        self._chosen = None
        self.deadline_ns = 0
        self._is_storing = False
        if self._store.id:
            self._store.set("", 0, _do_nothing)
        # Also without a pin: the advisory answers the request to unpin.
        self._events.unpinned(self._group, reason)
        return True

    def expire(self, now_ns: int) -> bool:
        if not self.deadline_ns or self.deadline_ns > now_ns:
            return False
        return self.vacate() or self.unpin(UnpinReason.TIMEOUT)

    def states(self) -> tuple[PriorityGroupState, ...]:
        pin = self._store.id
        pinned_ts = format_time(self._store.pinned_ns) if pin else ZERO_TIME
        return tuple(
            PriorityGroupState(group=group, pinned_client_id=pin, pinned_ts=pinned_ts)
            for group in self.config.priority_groups[:1]
        )

    def close(self) -> None:
        self._handover.stop()

    @property
    def _group(self) -> str:
        return next(iter(self.config.priority_groups), "")


def _do_nothing() -> None:
    pass


class StoredPin:
    """A pin that survives a restart.

    Attributes:
        id: the pin in the record; empty = no client is pinned.
        pinned_ns: when the client was pinned.

    Args:
        record: the consumer's record as it was read.
        save: saves the consumer's record.
        folder: what is durable once the record is; None in memory.
        commit: tells when that is.
    """

    def __init__(
        self, record: ConsumerRecord, save: Callable[[], None], folder: Syncable | None, commit: Commit
    ) -> None:
        self.id = record.pin
        self.pinned_ns = record.pinned_ns
        self._save: Callable[[], None] | None = save
        self._folder = folder
        self._commit = commit

    def set(self, id: str, pinned_ns: int, on_stored: Callable[[], None]) -> None:
        """Replace the pin; `on_stored` is called when it is on disk, or the disk has refused it.

        A refused record is reported and written again by the commit; the client need not wait for that.
        """
        self.id, self.pinned_ns = id, pinned_ns
        if self._save is None:
            return
        self._save()
        if self._folder is None:
            on_stored()
        else:
            self._commit.when_durable(self._folder, lambda _error: on_stored())

    def close(self) -> None:
        """Save nothing more, and forget the consumer, which was closed."""
        self._save = None
