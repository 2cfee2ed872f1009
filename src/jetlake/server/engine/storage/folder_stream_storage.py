"""The storage of one stream and its consumers in their folders.

The reasons are in decision 13 (docs/decisions).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

import msgspec

from jetlake.errors import DecodeError, StoreError
from jetlake.model.encoding.codec import decode, encode
from jetlake.model.stream import StreamConfig
from jetlake.server.engine.core.commit import Syncable
from jetlake.server.engine.storage.consumer_storage import ConsumerRecord, ConsumerStorage, MemoryConsumerStorage
from jetlake.server.engine.storage.folder_removals import FolderRemovals
from jetlake.server.engine.storage.storage import (
    SavedIds,
    SavedLifetimes,
    SavedPositions,
    SavedSchedules,
    StreamStorage,
)
from jetlake.store.files.atomic_file import read_file, replace_file
from jetlake.store.files.checksum import Checksum
from jetlake.store.files.folders import folder_name, folder_names
from jetlake.store.files.own_files import format_names
from jetlake.store.journal.consumer_journal import ConsumerJournal
from jetlake.store.journal.id_log import IdLog
from jetlake.store.message_store import MessageStore
from jetlake.store.meta_folder import META_VERSION, FolderWrite
from jetlake.store.stream_folder import ConsumerFolder, StreamFolder

__all__ = ["FolderStreamStorage", "StreamRecord", "check_name", "record_of", "tidy", "told"]

_IDS = "ids"
_LIFETIMES = "lifetimes"
_POSITIONS = "sources"
_SCHEDULES = "schedules"
_CHECKSUM_BYTES = 8
_NO_IDS = msgspec.msgpack.encode(SavedIds())

_decode_ids = msgspec.msgpack.Decoder(SavedIds).decode
_decode_lifetimes = msgspec.msgpack.Decoder(SavedLifetimes).decode
_decode_positions = msgspec.msgpack.Decoder(SavedPositions).decode
_decode_schedules = msgspec.msgpack.Decoder(SavedSchedules).decode


class StreamRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The stored configuration of a stream."""

    config: StreamConfig
    """Configuration with all defaults filled in."""
    created_ns: int
    """Time of creation."""


RecordType = TypeVar("RecordType", StreamRecord, ConsumerRecord)
Saved = TypeVar("Saved")


class _FolderConsumerStorage(ConsumerStorage):
    """The folder of one consumer."""

    def __init__(self, folder: ConsumerFolder, removals: FolderRemovals, note: Callable[[str], None]) -> None:
        self._folder = folder
        self._written = FolderWrite(folder)
        self._files = folder.open_journal(note)
        self.journal: ConsumerJournal = self._files
        self._removals = removals

    @property
    def folder(self) -> ConsumerFolder:
        return self._folder

    @property
    def written(self) -> FolderWrite:
        return self._written

    def save(self, record: ConsumerRecord) -> None:
        self._folder.stage_meta(encode(record))

    def save_later(self, record: ConsumerRecord) -> None:
        self._folder.stage_for_sync(encode(record))

    @property
    def is_adopted(self) -> bool:
        return self._folder.is_adopted

    def close(self) -> None:
        self._folder.close()
        self.journal.close()

    def delete(self, after: Syncable | None) -> Syncable:
        removal = self._removals.remove(self._folder, after)
        self._files.discard()
        return removal

    def discard(self) -> None:
        self._folder.discard()
        self._files.discard()


class FolderStreamStorage(StreamStorage):
    """The folder of one stream."""

    def __init__(
        self,
        folder: StreamFolder,
        removals: FolderRemovals,
        report: Callable[[str], None],
        note: Callable[[str], None],
        *,
        is_mirror: bool,
    ) -> None:
        self._folder = folder
        self._removals = removals
        self._report = report
        self._note = note
        # Before the messages: a stream whose consumers are unknown would take what they need for done.
        self._consumers = folder.consumers(note)
        self._ids_lock = threading.Lock()
        self._are_ids_expected = False
        self._files = folder.open_store(
            note=note, report=report, reuses_sequences=is_mirror, before_sync=self._sync_expected_ids
        )
        self.store: MessageStore = self._files
        self.id_log: IdLog | None = IdLog(
            folder.disk, folder.path, key=self._files.key, flush_messages=self._files.flush, note=note
        )
        self.missing: set[str] = set()

    @property
    def folder(self) -> StreamFolder:
        return self._folder

    def save(self, config: StreamConfig, created_ns: int) -> None:
        self._folder.stage_meta(encode(StreamRecord(config=config, created_ns=created_ns)))

    def save_later(self, config: StreamConfig, created_ns: int) -> None:
        self._folder.stage_for_sync(encode(StreamRecord(config=config, created_ns=created_ns)))

    @property
    def is_adopted(self) -> bool:
        return self._folder.is_adopted

    def release(self) -> None:
        self._folder.release()
        self._files.prepare_again()

    def load_ids(self) -> SavedIds | None:
        body = self._load(_IDS)
        if body is None:
            return None
        with suppress(msgspec.DecodeError):
            return _decode_ids(body)
        return SavedIds()  # There were ids, and the messages' own headers tell which.

    def expect_ids(self) -> None:
        # A killed process leaves this one; the store's next sync writes one that a power cut leaves as well.
        self._save(_IDS, _NO_IDS, durable=False)
        self._are_ids_expected = True
        self._files.prepare_again()

    def _sync_expected_ids(self) -> None:
        if self._are_ids_expected:
            with self._ids_lock:
                if self._are_ids_expected:
                    self._folder.keep_file(_IDS, self._checksum(_IDS).of(_NO_IDS) + _NO_IDS)
                    self._are_ids_expected = False

    def save_ids(self, ids: SavedIds) -> None:
        with self._ids_lock:
            self._save(_IDS, msgspec.msgpack.encode(ids))
            self._are_ids_expected = False

    def load_lifetimes(self) -> SavedLifetimes | None:
        return self._load_as(_decode_lifetimes, _LIFETIMES)

    def save_lifetimes(self, lifetimes: SavedLifetimes) -> None:
        self._save(_LIFETIMES, msgspec.msgpack.encode(lifetimes))

    def load_positions(self) -> SavedPositions | None:
        return self._load_as(_decode_positions, _POSITIONS)

    def save_positions(self, positions: SavedPositions) -> None:
        self._save(_POSITIONS, msgspec.msgpack.encode(positions))

    def load_schedules(self) -> SavedSchedules | None:
        return self._load_as(_decode_schedules, _SCHEDULES)

    def save_schedules(self, schedules: SavedSchedules) -> None:
        self._save(_SCHEDULES, msgspec.msgpack.encode(schedules))

    def _load_as(self, decode: Callable[[bytes], Saved], name: str) -> Saved | None:
        """Read what a small file tells; None when it is missing, damaged or another stream's."""
        with suppress(msgspec.DecodeError):
            return decode(self._load(name) or b"")
        return None

    def _load(self, name: str) -> bytes | None:
        """Read a small file; None when it is missing, empty when it is damaged or another stream's."""
        if not self._folder.is_made or self._folder.lacks(name):
            return None
        try:
            data = read_file(self._folder.disk, self._folder.path / name)
        except OSError:
            return None
        body = data[_CHECKSUM_BYTES:]
        return body if data[:_CHECKSUM_BYTES] == self._checksum(name).of(body) else b""

    def _checksum(self, name: str) -> Checksum:
        return self._folder.disk.hashing.checksum(name.encode(), self._files.key)

    def _save(self, name: str, body: bytes, *, durable: bool = True) -> None:
        path = self._folder.path / name
        self._folder.use()
        try:
            self._folder.make()
            replace_file(self._folder.disk, path, self._checksum(name).of(body) + body, durable=durable)
        except OSError as error:
            raise StoreError.of(f"write {path}", error) from error

    def create_consumer(self, record: ConsumerRecord) -> ConsumerStorage:
        if record.config.mem_storage or record.config.direct:
            self.remove_missing(record.name)
            return MemoryConsumerStorage()
        old, folder = self._folder.consumer(record.name), self._folder.consumer(record.name)
        self._removals.make_way(old, self.store, is_missing=old.path.name in self.missing)
        folder.stage_new(encode(record))
        self.missing.discard(folder.path.name)
        return _FolderConsumerStorage(folder, self._removals, self._note)

    def recover_consumers(self) -> Iterator[tuple[ConsumerRecord, ConsumerStorage]]:
        folders, self._consumers = self._consumers, []
        for folder in folders:
            try:
                folder.look()
                meta = folder.read_meta() or _read_unsynced(folder)
                if meta is None and folder.remove_stillborn(self._note):
                    continue
                record = record_of(folder, ConsumerRecord, meta)
                check_name(folder, record.name)
            except (OSError, DecodeError) as error:
                self._miss(folder, told(error))
                continue
            tidy(folder, self._note)
            yield record, _FolderConsumerStorage(folder, self._removals, self._note)
            folder.use()

    def set_aside(self, name: str, reason: str) -> None:
        self._miss(self._folder.consumer(name), reason)

    def _miss(self, folder: ConsumerFolder, reason: str) -> None:
        self.missing.add(folder.path.name)
        self._report(
            f"Consumer in {folder.path} can not be opened: {reason}. The stream keeps every message that it may still "
            "need, until meta.json is put back before a restart, or the consumer is deleted or created again"
        )

    def remove_missing(self, name: str) -> bool:
        folder = self._folder.consumer(name)
        if folder.path.name not in self.missing:
            return False
        self._removals.make_way(folder, self.store, is_missing=True)
        self.missing.discard(folder.path.name)
        return True

    def close(self) -> None:
        self._folder.close()
        self.store.close()

    def delete(self) -> Syncable:
        # The folder first: with its first step the stream is gone, whatever becomes of the rest.
        removal = self._removals.remove(self._folder, None)
        self._files.discard()
        return removal


def record_of(folder: StreamFolder | ConsumerFolder, kind: type[RecordType], meta: bytes | None) -> RecordType:
    if meta is None:
        if "meta.inf" in folder.disk.names(folder.path):
            raise DecodeError(
                "nats-server wrote it: run nats-server on its folder, and move the stream by jetlake migrate or backup"
            )
        if version := folder.newer_version():
            raise DecodeError(
                f"a later release wrote it in version {version}, and this one knows up to {META_VERSION}: start the "
                "release that wrote it, or a later one"
            )
        raise DecodeError("neither meta.json nor meta.copy.json in it can be read")
    return decode(kind, meta)


def _read_unsynced(folder: ConsumerFolder) -> bytes | None:
    """Return the record of a consumer without a durable name, whose creation may be answered before its sync."""
    meta = folder.read_unfinished()
    if meta is None or decode(ConsumerRecord, meta).config.durable_name:
        return None
    folder.finish()
    return meta


def check_name(folder: StreamFolder | ConsumerFolder, name: str) -> None:
    """Check that a folder belongs to the name, so that no two folders claim one stream or consumer."""
    found, expected = folder.path.name, folder_name(name)
    if found == expected:
        return
    # A store that was moved from another system may have the other form, as long as this system's is not there too.
    if found not in folder_names(name) or folder.disk.is_folder(folder.path.with_name(expected)):
        raise DecodeError(f"its meta.json is that of {name!r}, which belongs in the folder {expected}")


def tidy(folder: StreamFolder | ConsumerFolder, note: Callable[[str], None]) -> None:
    """Remove files that a crash left unfinished, and report foreign files."""
    with suppress(OSError):
        if foreign := folder.tidy(note):
            note(
                f"{folder.path} contains files that the store did not write and leaves untouched: "
                f"{format_names(foreign)}"
            )


def told(error: Exception) -> str:
    """Return an error's text without its errno."""
    return str(error.strerror or error) if isinstance(error, OSError) else str(error)
