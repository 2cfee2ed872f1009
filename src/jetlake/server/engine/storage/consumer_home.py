"""Where a consumer is kept: what the engine asks of it, and a home for consumers that need not survive."""

from __future__ import annotations

from typing import Protocol

import msgspec

from jetlake.model.consumer import ConsumerConfig
from jetlake.server.engine.core.commit import Syncable
from jetlake.store.journal.consumer_journal import ConsumerJournal, MemoryJournal

__all__ = ["ConsumerHome", "ConsumerRecord", "TransientHome"]


class ConsumerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept about a consumer besides its state."""

    name: str
    """Its name, also when the configuration has none."""
    config: ConsumerConfig
    """With all defaults filled in."""
    created_ns: int
    """When it was created."""
    start: int = 1
    """The first sequence that it looked at; where it stands until it has delivered something."""
    resume: int = 0
    """Where it goes on after the messages that its deliver policy chose at the start; 0 when it chose none."""


class ConsumerHome(Protocol):
    """The place of one consumer."""

    journal: ConsumerJournal

    @property
    def place(self) -> Syncable | None:
        """What is durable when the record is; None when nothing is kept."""
        ...

    def save(self, record: ConsumerRecord) -> None:
        """Keep the record; it is durable when `place` is."""
        ...

    def close(self) -> None:
        """Stop cleanly."""
        ...

    def delete(self, after: Syncable | None) -> Syncable | None:
        """Remove everything, once `after` is durable, and return what is durable when it is gone for good.

        Raises:
            StoreError: the disk refused; everything is still there.
        """
        ...

    def discard(self) -> None:
        """Write nothing more: the stream is gone with everything."""
        ...


class TransientHome:
    """The home of a consumer that is gone with the process."""

    place: Syncable | None = None

    def __init__(self) -> None:
        self.journal: ConsumerJournal = MemoryJournal()

    def save(self, record: ConsumerRecord) -> None:
        """Nothing to keep."""

    def close(self) -> None:
        """Nothing to close."""

    def delete(self, after: Syncable | None) -> Syncable | None:
        """Nothing to remove."""
        return None

    def discard(self) -> None:
        """Nothing to write."""
