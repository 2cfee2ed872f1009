"""Priority groups (NATS ADR-42): which of the waiting pull requests may get the next message.

All policies share one contract: a request is checked when it arrives, waits on a level of the queue, and is admitted or
not when a message is there. `GroupPolicy` itself is the policy of consumers that have none.
"""

from __future__ import annotations

from collections.abc import Callable

from jetlake.errors import ConfigError
from jetlake.model.consumer import ConsumerConfig, PriorityGroupState
from jetlake.model.encoding.times import ZERO_TIME, format_time
from jetlake.model.enums import PriorityPolicy, UnpinReason
from jetlake.protocol.headers import append_pair
from jetlake.server.engine.consumer import statuses
from jetlake.server.engine.consumer.events import ConsumerEvents
from jetlake.server.engine.consumer.pull.pull_queue import PullQueue
from jetlake.server.engine.consumer.pull.pull_request import WaitingPull
from jetlake.server.engine.routing.account import Message
from jetlake.server.engine.routing.subscription import Subscriber

__all__ = ["GroupPolicy", "Overflow", "PinnedClient", "Prioritized", "make_policy"]

_PIN_ID = b"Nats-Pin-Id"


class GroupPolicy:
    """The contract of all policies, and the policy of a consumer without one: requests are served in turns.

    Attributes:
        admits_all: every request may always be served, so that `admits` need not be called.
        deadline_ns: when `expire` has something to do; 0 = never.
    """

    admits_all = True
    deadline_ns = 0

    def __init__(self, config: ConsumerConfig) -> None:
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
        if policy is PriorityPolicy.NONE or request.is_plain:
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

    def admits(self, request: WaitingPull, num_pending: int, num_ack_pending: int) -> bool:
        """Return whether the request may have the next message, which is counted in `num_pending`."""
        return True

    def assign(self, request: WaitingPull, message: Message, now_ns: int) -> Message:
        """Give the message to an admitted request; returns the message with the policy's headers."""
        return message

    def expire(self, now_ns: int) -> bool:
        """End what is over by now; whether another request may be served because of that."""
        return False

    def unpin(self, reason: UnpinReason) -> bool:
        """Take the pin from the pinned client; False when the policy has no pins."""
        return False

    def states(self) -> tuple[PriorityGroupState, ...]:
        """Return the groups as the consumer's info shows them."""
        return tuple(PriorityGroupState(group=group) for group in self.config.priority_groups[:1])


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


class PinnedClient(GroupPolicy):
    """One client gets every message; when it stops pulling, or is unpinned, the next in the queue is pinned.

    Messages already delivered to the old client can still be acknowledged; when their ack wait passes they are
    redelivered to the new client.

    Args:
        config: the consumer's configuration.
        queue: the waiting requests.
        new_pin: returns a new pin.
        events: publishes pinned and unpinned advisories.
    """

    admits_all = False

    def __init__(
        self, config: ConsumerConfig, queue: PullQueue, new_pin: Callable[[], str], events: ConsumerEvents
    ) -> None:
        super().__init__(config)
        self.deadline_ns = 0
        """When the pin is lost unless its client pulls again; 0 = no client is pinned."""
        self._pin = ""
        self._pinned_ns = 0
        self._queue = queue
        self._new_pin = new_pin
        self._events = events

    def accepts(self, request: WaitingPull, origin: Subscriber | None, now_ns: int) -> bool:
        if request.id and self._pin:
            if request.id != self._pin:
                return False
            self.deadline_ns = now_ns + self.config.priority_timeout
        request.client = origin.client_info() if origin is not None else None
        return True

    def admits(self, request: WaitingPull, num_pending: int, num_ack_pending: int) -> bool:
        if request.id == self._pin:
            # Also when both are empty: the request chosen now gets the pin.
            return True
        if request.id:
            self._queue.reject(request, statuses.WRONG_PIN_ID)
        return False

    def assign(self, request: WaitingPull, message: Message, now_ns: int) -> Message:
        if not self._pin:
            self._pin_client(request, now_ns)
        subject, reply, header, payload = message
        return subject, reply, append_pair(header, _PIN_ID, self._pin.encode()), payload

    def _pin_client(self, request: WaitingPull, now_ns: int) -> None:
        self._pin = request.id = self._new_pin()
        self._pinned_ns = now_ns
        self.deadline_ns = now_ns + self.config.priority_timeout
        for waiting in list(self._queue):
            if waiting.id and waiting.id != self._pin:
                self._queue.reject(waiting, statuses.WRONG_PIN_ID)
        self._events.pinned(self._group, self._pin, request.client)

    def unpin(self, reason: UnpinReason) -> bool:
        self._pin = ""
        self._pinned_ns = self.deadline_ns = 0
        # Also without a pin: the advisory answers the request to unpin.
        self._events.unpinned(self._group, reason)
        return True

    def expire(self, now_ns: int) -> bool:
        if not self.deadline_ns or self.deadline_ns > now_ns:
            return False
        return self.unpin(UnpinReason.TIMEOUT)

    def states(self) -> tuple[PriorityGroupState, ...]:
        pinned_ts = format_time(self._pinned_ns) if self._pin else ZERO_TIME
        return tuple(
            PriorityGroupState(group=group, pinned_client_id=self._pin, pinned_ts=pinned_ts)
            for group in self.config.priority_groups[:1]
        )

    @property
    def _group(self) -> str:
        return next(iter(self.config.priority_groups), "")


def make_policy(
    config: ConsumerConfig, queue: PullQueue, new_pin: Callable[[], str], events: ConsumerEvents
) -> GroupPolicy:
    """Make the policy that the configuration names."""
    if config.priority_policy is PriorityPolicy.OVERFLOW:
        return Overflow(config)
    if config.priority_policy is PriorityPolicy.PRIORITIZED:
        return Prioritized(config)
    if config.priority_policy is PriorityPolicy.PINNED_CLIENT:
        return PinnedClient(config, queue, new_pin, events)
    return GroupPolicy(config)
