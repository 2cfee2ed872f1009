"""Where streams are kept: what the engine asks of it, and a storage that keeps nothing beyond the process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from jetlake.model.stream import StreamConfig
from jetlake.server.engine.core.commit import Syncable
from jetlake.server.engine.storage.consumer_home import ConsumerHome, ConsumerRecord, TransientHome
from jetlake.server.engine.storage.folder_removals import FolderRemovals
from jetlake.store.interface import MessageStore
from jetlake.store.journal.id_log import IdLog
from jetlake.store.memory_store import MemoryStore

__all__ = ["MemoryHome", "MemoryStorage", "SavedIds", "SavedLifetimes", "Storage", "StreamHome"]


class SavedIds(msgspec.Struct, frozen=True):
    """The window of message ids as it was at a clean stop."""

    last_sequence: int = 0
    """The stream's last sequence then: ids of newer messages are in their headers only."""
    entries: list[tuple[bytes, int, int]] = []
    """Id, sequence and time of each, oldest first."""


class SavedLifetimes(msgspec.Struct, frozen=True):
    """The deadlines of messages as they were at a clean stop."""

    last_sequence: int = 0
    """The stream's last sequence then: deadlines of newer messages are in their headers only."""
    entries: list[tuple[int, int]] = []
    """Deadline and sequence of each."""
    ageless: list[int] = []
    """Sequences of those that stay whatever their age."""


class StreamHome(Protocol):
    """The place of one stream."""

    store: MessageStore
    id_log: IdLog | None
    """Where ids are kept of messages whose records are gone; None where nothing survives anyway."""
    missing: set[str]
    """Consumers that are kept here and could not be opened, by their folders: nobody knows what they still need."""

    @property
    def place(self) -> Syncable | None:
        """What is durable when the configuration is; None when nothing is kept."""
        ...

    def save(self, config: StreamConfig, created_ns: int) -> None:
        """Keep the configuration; it is durable when `place` is."""
        ...

    def load_ids(self) -> SavedIds | None:
        """The message ids of the last clean stop; None when the stream never had any, so that nobody need look."""
        ...

    def save_ids(self, ids: SavedIds) -> None:
        """Keep the message ids; they are durable when this returns."""
        ...

    def load_lifetimes(self) -> SavedLifetimes | None:
        """The deadlines of the last clean stop; None when there are none that can be read: only headers tell."""
        ...

    def save_lifetimes(self, lifetimes: SavedLifetimes) -> None:
        """Keep the deadlines; they are durable when this returns."""
        ...

    def create_consumer(self, record: ConsumerRecord) -> ConsumerHome:
        """Make the place of a new consumer; its record is durable when its `place` is. It is missing no more."""
        ...

    def recover_consumers(self) -> Iterable[tuple[ConsumerRecord, ConsumerHome]]:
        """The consumers that the stream had; those that cannot be read are `missing`, and reported."""
        ...

    def set_aside(self, name: str, reason: str) -> None:
        """A consumer that was recovered cannot go on: it is `missing`, and reported."""
        ...

    def remove_missing(self, name: str) -> bool:
        """Remove what is left of a missing consumer; False when there is none of that name."""
        ...

    def close(self) -> None:
        """Stop cleanly."""
        ...

    def delete(self) -> Syncable | None:
        """Remove everything, and return what is durable when it is gone for good.

        Raises:
            StoreError: the disk refused; everything is still there.
        """
        ...


class Storage(Protocol):
    """The place of all streams."""

    set_aside: dict[tuple[str, str], str]
    """What is kept here and could not be opened, by account and folder (empty for all of an account), and why."""
    removals: FolderRemovals | None
    """Removes folders; None when nothing is kept."""

    def create(self, account: str, config: StreamConfig, created_ns: int) -> StreamHome:
        """Make the place of a new stream; its configuration is durable when its `place` is."""
        ...

    def recover(self, account: str) -> Iterable[tuple[StreamConfig, int, StreamHome]]:
        """The streams that the account had: configuration, time of creation, place."""
        ...


class MemoryHome:
    """A stream that is gone with the process."""

    place: Syncable | None = None

    def __init__(self) -> None:
        self.store: MessageStore = MemoryStore()
        self.id_log: IdLog | None = None
        self.missing: set[str] = set()

    def save(self, config: StreamConfig, created_ns: int) -> None:
        """Nothing to keep."""

    def load_ids(self) -> SavedIds | None:
        """There was nothing before."""
        return None

    def save_ids(self, ids: SavedIds) -> None:
        """Nothing to keep."""

    def load_lifetimes(self) -> SavedLifetimes | None:
        """There was nothing before."""
        return None

    def save_lifetimes(self, lifetimes: SavedLifetimes) -> None:
        """Nothing to keep."""

    def create_consumer(self, record: ConsumerRecord) -> ConsumerHome:
        """The place of a consumer that is gone with the process."""
        return TransientHome()

    def recover_consumers(self) -> Iterable[tuple[ConsumerRecord, ConsumerHome]]:
        """There is nothing to recover."""
        return ()

    def set_aside(self, name: str, reason: str) -> None:
        """Nothing is recovered, so that nothing can be missing."""

    def remove_missing(self, name: str) -> bool:
        """Nothing is ever missing."""
        return False

    def close(self) -> None:
        """Stop cleanly."""
        self.store.close()

    def delete(self) -> Syncable | None:
        """Remove everything."""
        self.store.delete()
        return None


class MemoryStorage:
    """A storage that keeps nothing: for tests, and for servers without a folder."""

    def __init__(self) -> None:
        self.set_aside: dict[tuple[str, str], str] = {}
        self.removals: FolderRemovals | None = None

    def create(self, account: str, config: StreamConfig, created_ns: int) -> StreamHome:
        """Make the place of a new stream, in memory whatever its configuration says."""
        return MemoryHome()

    def recover(self, account: str) -> Iterable[tuple[StreamConfig, int, StreamHome]]:
        """There is nothing to recover."""
        return ()
