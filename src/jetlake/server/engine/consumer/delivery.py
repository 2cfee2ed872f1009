"""The contract of delivery: one implementation for consumers that are pulled from, one for those that push."""

from __future__ import annotations

from typing import Protocol

from jetlake.model.consumer import ConsumerConfig, PriorityGroupState
from jetlake.server.engine.routing.subscription import Subscriber

__all__ = ["Delivery"]


class Delivery(Protocol):
    """How the messages of one consumer reach its clients."""

    @property
    def is_bound(self) -> bool:
        """Whether the deliver subject of a push consumer has a subscriber."""
        ...

    def open(self) -> None:
        """Start to deliver."""
        ...

    def deliver(self, now_ns: int) -> bool:
        """Deliver one bounded run; True when more can be delivered right away."""
        ...

    def next_due_ns(self) -> int:
        """Return when `on_time` has something to do; 0 = never."""
        ...

    def on_time(self, now_ns: int) -> None:
        """Do what is due: heartbeats, expired requests and pins, messages that waited for their time."""
        ...

    def is_in_use(self, now_ns: int) -> bool:
        """Return whether a client uses the consumer now, so that the inactive threshold must not remove it."""
        ...

    def configure(self, old: ConsumerConfig, new: ConsumerConfig) -> None:
        """Apply a changed configuration."""
        ...

    def close(self, *, deleted: bool) -> None:
        """Stop: the consumer was deleted, or the server stops."""
        ...

    def receive_pull(self, reply: bytes, header: bytes, body: bytes, origin: Subscriber | None) -> None:
        """Handle a pull request."""
        ...

    def receive_flow_control(self, subject: bytes, header: bytes) -> bool:
        """Handle an answer to a flow control request; False when the consumer has no flow control."""
        ...

    def unpin(self) -> None:
        """Take the pin from the pinned client of a priority group, if the policy has one."""
        ...

    def num_waiting(self, now_ns: int) -> int:
        """Return the number of waiting pull requests."""
        ...

    def group_states(self) -> tuple[PriorityGroupState, ...]:
        """Return the priority groups as the consumer's info shows them."""
        ...
