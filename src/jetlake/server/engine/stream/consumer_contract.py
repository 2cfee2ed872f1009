"""The contract between a stream and its consumers: all that a stream knows of them."""

from __future__ import annotations

from typing import Protocol

from jetlake.model.consumer import ConsumerConfig
from jetlake.server.engine.core.commit import Syncable
from jetlake.store.steps import Steps

__all__ = ["StreamConsumer"]


class StreamConsumer(Protocol):
    """A consumer as its stream sees it."""

    @property
    def name(self) -> str:
        """Name within the stream."""
        ...

    @property
    def config(self) -> ConsumerConfig:
        """Configuration with all defaults filled in."""
        ...

    @property
    def reached_sequence(self) -> int:
        """Highest stream sequence that was delivered or, by the choice of the deliver policy, never will be."""
        ...

    @property
    def passed_sequence(self) -> int:
        """Last sequence up to which the position does not prove that a work queue's message was consumed; 0 = none.

        The consumer passed the messages up to it with other filters, by a reset, or on another server; those that were
        never delivered wait for another consumer.
        """
        ...

    @property
    def holds_others(self) -> bool:
        """Whether messages may be unacknowledged that were delivered under other filters."""
        ...

    def wants(self, subject: bytes) -> bool:
        """Return whether the consumer's filters match the subject."""
        ...

    def needs(self, sequence: int, subject: bytes) -> bool:
        """Return whether a message is undelivered or unacknowledged."""
        ...

    def on_stored(self, count: int) -> None:
        """Count newly stored messages that match the filters; the stream wakes the consumer once they are durable."""
        ...

    def on_removed(self, sequence: int, subject: bytes) -> None:
        """Forget a message that was removed by a limit, a request or retention."""
        ...

    def on_purged(self) -> None:
        """Recount after many messages were removed at once, or the newest were undone."""
        ...

    def recount_in_steps(self) -> Steps[None]:
        """Do the same in steps, while nothing is delivered."""
        ...

    def write_after(self, store: Syncable) -> None:
        """Hold back the consumer's journal until everything written to the store so far is on disk."""
        ...

    def deliver(self, now_ns: int) -> bool:
        """Deliver one bounded run; True when more can be delivered right away."""
        ...
