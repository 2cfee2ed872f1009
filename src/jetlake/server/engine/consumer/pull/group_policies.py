"""Priority groups (NATS ADR-42): which of the waiting pull requests may get the next message.

All policies share one contract: a request is checked when it arrives, waits on a level of the queue, and is admitted or
not when a message is there. `GroupPolicy` itself is the policy of consumers that have none.
"""

from __future__ import annotations

from jetlake.errors import ConfigError
from jetlake.model.consumer import ConsumerConfig, PriorityGroupState
from jetlake.model.enums import PriorityPolicy, UnpinReason
from jetlake.server.engine.consumer.pull.pull_request import WaitingPull
from jetlake.server.engine.routing.account import Message
from jetlake.server.engine.routing.subscription import Subscriber

__all__ = ["GroupPolicy", "Overflow", "Prioritized"]


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
        """Return whether nobody may be served yet, because one client takes over from another."""
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
