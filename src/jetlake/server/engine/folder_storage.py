"""Streams and consumers in folders: what a server with a store directory keeps, and finds again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
from xxhash import xxh3_64_digest

from jetlake.errors import DecodeError, StoreError
from jetlake.model.codec import decode, encode
from jetlake.model.enums import StorageType
from jetlake.model.stream import StreamConfig
from jetlake.server.engine.consumer_home import ConsumerHome, ConsumerRecord, TransientHome
from jetlake.server.engine.storage import MemoryHome, SavedIds, SavedLifetimes, StreamHome
from jetlake.store.atomic_file import read_file, replace_file
from jetlake.store.consumer_journal import ConsumerJournal
from jetlake.store.interface import MessageStore
from jetlake.store.stream_folder import ConsumerFolder, StoreFolder, StreamFolder

__all__ = ["FolderStorage", "StreamRecord"]

_IDS = "ids"
_LIFETIMES = "lifetimes"
_CHECKSUM_BYTES = 8

_decode_ids = msgspec.msgpack.Decoder(SavedIds).decode
_decode_lifetimes = msgspec.msgpack.Decoder(SavedLifetimes).decode


class StreamRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept about a stream besides its messages."""

    config: StreamConfig
    """With all defaults filled in."""
    created_ns: int
    """When it was created."""


class _ConsumerHome:
    """The folder of one consumer."""

    def __init__(self, folder: ConsumerFolder) -> None:
        self._folder = folder
        self.journal: ConsumerJournal = folder.open_journal()

    def save(self, record: ConsumerRecord) -> None:
        self._folder.write_meta(encode(record))

    def close(self) -> None:
        self.journal.close()

    def delete(self) -> None:
        # The folder first: with its first step the consumer is gone, and nothing needs to be written any more. It is
        # not there when the whole stream went.
        if self._folder.exists():
            self._folder.delete()
        with suppress(StoreError):
            self.journal.close()


class _StreamHome:
    """The folder of one stream."""

    def __init__(self, folder: StreamFolder, report: Callable[[str], None]) -> None:
        self._folder = folder
        self._report = report
        self.store: MessageStore = folder.open_store()
        self.missing: set[str] = set()

    def save(self, config: StreamConfig, created_ns: int) -> None:
        self._folder.write_meta(encode(StreamRecord(config=config, created_ns=created_ns)))

    def load_ids(self) -> SavedIds | None:
        body = self._load(_IDS)
        if body is None:
            return None
        with suppress(msgspec.DecodeError):
            return _decode_ids(body)
        return SavedIds()  # There were ids, and the messages' own headers tell which.

    def save_ids(self, ids: SavedIds) -> None:
        self._save(_IDS, msgspec.msgpack.encode(ids))

    def load_lifetimes(self) -> SavedLifetimes | None:
        with suppress(msgspec.DecodeError):
            return _decode_lifetimes(self._load(_LIFETIMES) or b"")
        return None

    def save_lifetimes(self, lifetimes: SavedLifetimes) -> None:
        self._save(_LIFETIMES, msgspec.msgpack.encode(lifetimes))

    def _load(self, name: str) -> bytes | None:
        """What a small file holds: None when it is not there, nothing when it is damaged."""
        try:
            data = read_file(self._folder.disk, self._folder.path / name)
        except OSError:
            return None
        body = data[_CHECKSUM_BYTES:]
        return body if data[:_CHECKSUM_BYTES] == xxh3_64_digest(body) else b""

    def _save(self, name: str, body: bytes) -> None:
        path = self._folder.path / name
        try:
            replace_file(self._folder.disk, path, xxh3_64_digest(body) + body)
        except OSError as error:
            raise StoreError.of(f"write {path}", error) from error

    def create_consumer(self, record: ConsumerRecord) -> ConsumerHome:
        if record.config.mem_storage:
            self.remove_missing(record.name)
            return TransientHome()
        folder = self._folder.consumer(record.name)
        if folder.exists():
            folder.delete()
        folder.write_meta(encode(record))
        self.missing.discard(folder.path.name)
        return _ConsumerHome(folder)

    def recover_consumers(self) -> Iterator[tuple[ConsumerRecord, ConsumerHome]]:
        for folder in self._folder.consumers():
            meta = folder.read_meta()
            if meta is None:
                if not folder.remove_stillborn():
                    self._miss(folder, "neither meta.json nor meta.copy.json in it can be read")
                continue
            try:
                record = decode(ConsumerRecord, meta)
            except DecodeError as error:
                self._miss(folder, str(error))
                continue
            yield record, _ConsumerHome(folder)

    def set_aside(self, name: str, reason: str) -> None:
        self._miss(self._folder.consumer(name), reason)

    def _miss(self, folder: ConsumerFolder, reason: str) -> None:
        self.missing.add(folder.path.name)
        self._report(
            f"Consumer in {folder.path} can not be opened: {reason}. The stream keeps every message that it may still "
            "need, until meta.json is put back before a restart, or the consumer is deleted or created anew"
        )

    def remove_missing(self, name: str) -> bool:
        folder = self._folder.consumer(name)
        if folder.path.name not in self.missing:
            return False
        if folder.exists():
            folder.delete()
        self.missing.discard(folder.path.name)
        return True

    def close(self) -> None:
        self.store.close()

    def delete(self) -> None:
        # The folder first: with its first step the stream is gone, whatever becomes of the rest.
        self._folder.delete()
        with suppress(StoreError):
            self.store.delete()


class FolderStorage:
    """A storage in a server's folder. Streams in memory have no place in it and are gone with the process.

    Args:
        folder: the server's.
        report: told of streams that are there and cannot be opened; they stay where they are.
    """

    def __init__(self, folder: StoreFolder, report: Callable[[str], None]) -> None:
        self._folder = folder
        self._report = report

    def create(self, account: str, config: StreamConfig, created_ns: int) -> StreamHome:
        """Make the place of a new stream.

        Raises:
            StoreError: the disk refused.
        """
        folder = self._folder.stream(account, config.name)
        if folder.exists() and not folder.remove_stillborn():
            raise StoreError("make the stream", f"{folder.path} holds one that could not be opened; move it away first")
        if config.storage is StorageType.MEMORY:
            return MemoryHome()
        folder.write_meta(encode(StreamRecord(config=config, created_ns=created_ns)))
        return _StreamHome(folder, self._report)

    def recover(self, account: str) -> Iterator[tuple[StreamConfig, int, StreamHome]]:
        """The streams that the account had in this folder."""
        for folder in self._folder.streams(account):
            meta = folder.read_meta()
            if meta is None:
                if not folder.remove_stillborn():
                    self._leave_alone(folder, "neither meta.json nor meta.copy.json in it can be read")
                continue
            try:
                record = decode(StreamRecord, meta)
                home = _StreamHome(folder, self._report)
            except (DecodeError, StoreError) as error:
                self._leave_alone(folder, str(error))
                continue
            yield record.config, record.created_ns, home

    def _leave_alone(self, folder: StreamFolder, reason: str) -> None:
        self._report(
            f"Stream in {folder.path} can not be opened: {reason}. Nothing in it was changed: mend it (a copy of "
            "meta.json is enough when only that is damaged) and restart, or move the folder away to free the name"
        )
