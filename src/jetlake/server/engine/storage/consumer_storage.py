"""The contract of a consumer's storage, and a storage for consumers in memory."""

from __future__ import annotations

from typing import Protocol

import msgspec

from jetlake.model.consumer import ConsumerConfig
from jetlake.server.engine.core.commit import Syncable
from jetlake.store.journal.consumer_journal import ConsumerJournal, MemoryJournal

__all__ = ["ConsumerRecord", "ConsumerStorage", "MemoryConsumerStorage"]


class ConsumerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The stored configuration of a consumer."""

    name: str
    """Name, also when the configuration has none."""
    config: ConsumerConfig
    """Configuration with all defaults filled in."""
    created_ns: int
    """Time of creation."""
    start: int = 1
    """First sequence to deliver from; the position until the first delivery."""
    resume: int = 0
    """Sequence to continue at after the messages that the deliver policy chose at the start; 0 = none were chosen."""
    passed: int = 0
    """Last sequence that the position may have passed without a delivery, by a reset or under other filters."""
    pin: str = ""
    """The pin of the pinned client; empty = no client is pinned."""
    pinned_ns: int = 0
    """When the client was pinned."""


class ConsumerStorage(Protocol):
    """The storage of one consumer."""

    journal: ConsumerJournal

    @property
    def folder(self) -> Syncable | None:
        """What is durable once the record is; None in memory."""
        ...

    @property
    def written(self) -> Syncable | None:
        """What is synced once the record of a new consumer survives a kill, if not a power cut; None in memory."""
        ...

    @property
    def is_adopted(self) -> bool:
        """Whether a start found the folder, and a power cut may undo it until `folder` is synced."""
        ...

    def save(self, record: ConsumerRecord) -> None:
        """Save the record; it is durable once `folder` is.

        Raises:
            StoreError: the disk refused, and the old record stays.
        """
        ...

    def save_later(self, record: ConsumerRecord) -> None:
        """Have the next sync of `folder` save the record, and the ones after it when the disk refuses."""
        ...

    def close(self) -> None:
        """Stop cleanly."""
        ...

    def delete(self, after: Syncable | None) -> Syncable | None:
        """Remove the consumer once `after` is durable, and return what is durable once it is gone for good.

        Raises:
            StoreError: the consumer could not be removed, and is unchanged.
        """
        ...

    def discard(self) -> None:
        """Write nothing more: the stream was deleted with its consumers."""
        ...


class MemoryConsumerStorage(ConsumerStorage):
    """The storage of a consumer in memory."""

    folder: Syncable | None = None
    written: Syncable | None = None
    is_adopted = False

    def __init__(self) -> None:
        self.journal: ConsumerJournal = MemoryJournal()

    def save(self, record: ConsumerRecord) -> None:
        """Save nothing."""

    def save_later(self, record: ConsumerRecord) -> None:
        """Save nothing."""

    def close(self) -> None:
        """Close nothing."""

    def delete(self, after: Syncable | None) -> Syncable | None:
        """Remove nothing."""
        return None

    def discard(self) -> None:
        """Discard nothing."""
