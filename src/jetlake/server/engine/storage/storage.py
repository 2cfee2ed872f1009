"""The contract of the engine's storage, and a storage in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from jetlake.model.stream import StreamConfig
from jetlake.server.engine.core.commit import Syncable
from jetlake.server.engine.storage.consumer_storage import ConsumerRecord, ConsumerStorage, MemoryConsumerStorage
from jetlake.server.engine.storage.folder_removals import FolderRemovals
from jetlake.store.journal.id_log import IdLog
from jetlake.store.memory_store import MemoryStore
from jetlake.store.message_store import MessageStore

__all__ = [
    "MemoryStorage",
    "MemoryStreamStorage",
    "SavedIds",
    "SavedLifetimes",
    "SavedPositions",
    "SavedSchedules",
    "Storage",
    "StreamStorage",
]


class SavedIds(msgspec.Struct, frozen=True):
    """The message ids of a stream at a clean stop."""

    last_sequence: int = 0
    """The stream's last sequence at the stop; ids of newer messages are in their headers only."""
    entries: list[tuple[bytes, int, int]] = []
    """Id, sequence and time of each message, oldest first."""


class SavedLifetimes(msgspec.Struct, frozen=True):
    """The TTL deadlines of a stream's messages at a clean stop."""

    last_sequence: int = 0
    """The stream's last sequence at the stop; deadlines of newer messages are in their headers only."""
    entries: list[tuple[int, int]] = []
    """Deadline and sequence of each message."""
    ageless: list[int] = []
    """Sequences of the messages that `max_age` spares."""


class SavedPositions(msgspec.Struct, frozen=True):
    """How far a stream has copied from its sources, as of one of its messages."""

    last_sequence: int = 0
    """The message up to which the positions count; positions of newer messages are in their headers."""
    time_ns: int = 0
    """That message's time, or an earlier one."""
    entries: dict[str, tuple[int, str]] = {}
    """Sequence and identity of each source's origin, by index name."""
    torn_sequence: int = 0
    """From this message on, copies beyond the positions must be removed, because a crash tore one; 0 for none."""


class SavedSchedules(msgspec.Struct, frozen=True):
    """The schedules of a stream at one moment."""

    last_sequence: int = 0
    """The stream's last sequence at that moment; newer messages tell the rest."""
    entries: list[tuple[bytes, int, int]] = []
    """Subject, next time and sequence of each schedule."""


class StreamStorage(Protocol):
    """The storage of one stream."""

    store: MessageStore
    id_log: IdLog | None
    """Stores the ids of messages whose records are deleted; None in memory."""
    missing: set[str]
    """Folders of consumers that could not be opened, and may still need any message."""

    @property
    def folder(self) -> Syncable | None:
        """What is durable once the configuration is; None in memory."""
        ...

    @property
    def is_adopted(self) -> bool:
        """Whether a start found the folder, and a power cut may undo it until `folder` is synced."""
        ...

    def save(self, config: StreamConfig, created_ns: int) -> None:
        """Save the configuration; it is durable once `folder` is.

        Raises:
            StoreError: the disk refused, and the old configuration stays.
        """
        ...

    def save_later(self, config: StreamConfig, created_ns: int) -> None:
        """Have the next sync of `folder` save the configuration, and the ones after it when the disk refuses."""
        ...

    def release(self) -> None:
        """Let a stream that was created held become durable with `folder`."""
        ...

    def load_ids(self) -> SavedIds | None:
        """Load the message ids of the last clean stop; None when the stream never had any."""
        ...

    def expect_ids(self) -> None:
        """Save that there are message ids; it is durable before a message that is stored from now on.

        Raises:
            StoreError: the disk refused.
        """
        ...

    def save_ids(self, ids: SavedIds) -> None:
        """Save the message ids, durably."""
        ...

    def load_lifetimes(self) -> SavedLifetimes | None:
        """Load the deadlines of the last clean stop; None when there are none, or none that can be read."""
        ...

    def save_lifetimes(self, lifetimes: SavedLifetimes) -> None:
        """Save the deadlines, durably."""
        ...

    def load_positions(self) -> SavedPositions | None:
        """Load the positions of sources; None when there are none, or none that can be read."""
        ...

    def save_positions(self, positions: SavedPositions) -> None:
        """Save the positions of sources, durably."""
        ...

    def load_schedules(self) -> SavedSchedules | None:
        """Load the schedules that were saved last; None when there are none, or none that can be read."""
        ...

    def save_schedules(self, schedules: SavedSchedules) -> None:
        """Save the schedules, durably."""
        ...

    def create_consumer(self, record: ConsumerRecord) -> ConsumerStorage:
        """Create the storage of a new consumer, whose record is durable once its `folder` is; `missing` forgets it."""
        ...

    def recover_consumers(self) -> Iterable[tuple[ConsumerRecord, ConsumerStorage]]:
        """Open the stream's consumers; unreadable ones are `missing`, and reported."""
        ...

    def set_aside(self, name: str, reason: str) -> None:
        """Add a consumer that cannot be restored to `missing`, and report it."""
        ...

    def remove_missing(self, name: str) -> bool:
        """Remove the files of a missing consumer; False when there is none of that name."""
        ...

    def close(self) -> None:
        """Stop cleanly."""
        ...

    def delete(self) -> Syncable | None:
        """Remove the stream, and return what is durable once it is gone for good.

        Raises:
            StoreError: the stream could not be removed, and is unchanged.
        """
        ...


class Storage(Protocol):
    """The storage of all streams."""

    set_aside: dict[tuple[str, str], str]
    """Errors of streams that could not be opened, by account and folder; an empty folder stands for a whole account."""
    removals: FolderRemovals | None
    """Removes folders; None in memory."""

    def create(self, account: str, config: StreamConfig, created_ns: int, *, held: bool = False) -> StreamStorage:
        """Create the storage of a new stream, whose configuration is durable once its `folder` is.

        Args:
            held: a restart removes the stream with all that it holds, unless `release` and a sync of `folder` came
                before.
        """
        ...

    def recover(self, account: str) -> Iterable[tuple[StreamConfig, int, StreamStorage]]:
        """Open the account's streams: configuration, time of creation, storage."""
        ...


class MemoryStreamStorage(StreamStorage):
    """The storage of a stream in memory."""

    folder: Syncable | None = None
    is_adopted = False

    def __init__(self) -> None:
        self.store: MessageStore = MemoryStore()
        self.id_log: IdLog | None = None
        self.missing: set[str] = set()
        self._ids: SavedIds | None = None
        self._lifetimes: SavedLifetimes | None = None

    def save(self, config: StreamConfig, created_ns: int) -> None:
        """Save nothing."""

    def save_later(self, config: StreamConfig, created_ns: int) -> None:
        """Save nothing."""

    def release(self) -> None:
        """Release nothing."""

    def load_ids(self) -> SavedIds | None:
        """Return the saved value; None without one."""
        return self._ids

    def expect_ids(self) -> None:
        """Keep an empty set of ids."""
        self._ids = SavedIds()

    def save_ids(self, ids: SavedIds) -> None:
        """Keep the ids in memory."""
        self._ids = ids

    def load_lifetimes(self) -> SavedLifetimes | None:
        """Return the saved value; None without one."""
        return self._lifetimes

    def save_lifetimes(self, lifetimes: SavedLifetimes) -> None:
        """Keep the deadlines in memory."""
        self._lifetimes = lifetimes

    def load_positions(self) -> SavedPositions | None:
        """Return None: nothing is stored."""
        return None

    def save_positions(self, positions: SavedPositions) -> None:
        """Save nothing."""

    def load_schedules(self) -> SavedSchedules | None:
        """Return None: nothing is stored."""
        return None

    def save_schedules(self, schedules: SavedSchedules) -> None:
        """Save nothing."""

    def create_consumer(self, record: ConsumerRecord) -> ConsumerStorage:
        """Create the storage of a consumer in memory."""
        return MemoryConsumerStorage()

    def recover_consumers(self) -> Iterable[tuple[ConsumerRecord, ConsumerStorage]]:
        """Return nothing to recover."""
        return ()

    def set_aside(self, name: str, reason: str) -> None:
        """Do nothing: nothing is recovered."""

    def remove_missing(self, name: str) -> bool:
        """Return False: no consumer is ever missing."""
        return False

    def close(self) -> None:
        """Stop cleanly."""
        self.store.close()

    def delete(self) -> Syncable | None:
        """Remove the stream."""
        self.store.delete()
        return None


class MemoryStorage:
    """A storage in memory, for tests."""

    def __init__(self) -> None:
        self.set_aside: dict[tuple[str, str], str] = {}
        self.removals: FolderRemovals | None = None

    def create(self, account: str, config: StreamConfig, created_ns: int, *, held: bool = False) -> StreamStorage:
        """Create the storage of a new stream, in memory whatever its configuration says."""
        return MemoryStreamStorage()

    def recover(self, account: str) -> Iterable[tuple[StreamConfig, int, StreamStorage]]:
        """Return nothing to recover."""
        return ()
