"""The ids of messages whose records are no longer in a stream's log, kept until their window has passed.

A record in the log tells the id of its message, also when the message was removed. Before the record itself goes, with
its file or by a rewrite, its id is written here: each once, in files that go when all their ids have expired. A start
writes what still counts to a new file.
"""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from jetlake.errors import StoreError
from jetlake.store.files.atomic_file import read_file
from jetlake.store.files.checksum import Checksum
from jetlake.store.files.disk import Disk

__all__ = ["FORMAT_VERSION", "IdEntry", "IdLog"]

FORMAT_VERSION = 1

IdEntry = tuple[bytes, int, int]
"""A message id, the sequence of its message, and the time from which its window counts."""

_FILE_BYTES = 1024 * 1024
_NAME = re.compile(r"ids\.([0-9]{10})")
_MAGIC = b"JLID"
_HEADER = struct.Struct("<4sHHQ")
_HEAD = struct.Struct("<I")
_HASH_BYTES = 8
_HEADER_BYTES = _HEADER.size + _HASH_BYTES
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(list[IdEntry]).decode


class _Block(NamedTuple):
    """Ids as they are written, with the newest of their times and the first of their sequences."""

    data: bytes
    newest_ns: int
    first_sequence: int


class IdLog:
    """A stream's log of ids: appended to and flushed on the loop, synced in any thread.

    What a failed sync leaves in doubt is written again, to a new file, with the next flush.

    Args:
        folder: the stream's; it must be there.
        key: the stream's; a file with another one is left alone.
        flush_messages: flushes the stream's messages; called before ids are written, so that no id is written of a
            message that the disk refused.
        note: logs files that are not the stream's.
        file_bytes: a new file begins when one is this long.
    """

    changes_names = False
    failure: StoreError | None = None

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        *,
        key: int = 0,
        flush_messages: Callable[[], None] = lambda: None,
        note: Callable[[str], None] = lambda _text: None,
        file_bytes: int = _FILE_BYTES,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._key = key
        header = _HEADER.pack(_MAGIC, FORMAT_VERSION, 0, key)
        self._header = header + disk.hashing.checksum(b"ids header").of(header)
        self._checksum = disk.hashing.checksum(b"ids block", key)
        self._flush_messages = flush_messages
        self._note = note
        self._file_bytes = file_bytes
        self._pending: list[_Block] = []  # wait for a flush
        self._newest_ns: dict[int, int] = {}  # of each file's ids, by its number
        self._number = 0
        self._size = 0
        # The lock guards what the thread that syncs touches as well.
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._handles: dict[int, int] = {}
        self._unsynced: list[_Block] = []
        self._in_doubt: list[_Block] = []  # flushed once, and not synced
        self._is_new = False

    def load(self) -> list[IdEntry]:
        """Return everything in the files, in the order in which it was written; a torn end is left out."""
        entries: list[IdEntry] = []
        for name in self._disk.names(self._folder):
            found = _NAME.fullmatch(name)
            if found is None:
                continue
            number = int(found[1])
            self._number = max(self._number, number)
            try:
                data = read_file(self._disk, self._folder / name)
            except OSError as error:
                raise StoreError.of(f"read {self._folder / name}", error) from error
            if not self._is_own(data):
                self._note(f"{self._folder / name} is not of this stream, or damaged: it is left alone")
                continue
            loaded = _read_blocks(data, self._checksum)
            self._newest_ns[number] = max((time_ns for _, _, time_ns in loaded), default=0)
            entries += loaded
        self._size = self._file_bytes  # What comes next goes to a file of its own.
        return entries

    def _is_own(self, data: bytes) -> bool:
        """Return whether a file has the stream's header, or a crash cut the header off."""
        return data.startswith(self._header) if len(data) >= _HEADER_BYTES else self._header.startswith(data)

    def adopt(self, entries: list[IdEntry]) -> None:
        """Write the loaded ids that still count to a new file, and remove the old files.

        A failed sync may have left them in doubt; and ids of messages that were never stored must not stay.
        """
        old = list(self._newest_ns)
        if not old:
            return
        if entries:
            self.append(entries)
        with suppress(StoreError):  # The files stay, and so does what waits for the next flush.
            self.flush()
            self.sync()
            for number in old:
                self._remove(number)

    def append(self, entries: list[IdEntry]) -> None:
        """Have these ids written with the next flush."""
        body = _encode(entries)
        block = _HEAD.pack(len(body)) + body
        newest_ns = max(time_ns for _, _, time_ns in entries)
        first_sequence = min(sequence for _, sequence, _ in entries)
        self._pending.append(_Block(block + self._checksum.of(block), newest_ns, first_sequence))

    def forget_from(self, first_sequence: int) -> None:
        """Forget the ids of undone messages, which were not flushed."""
        self._pending = [block for block in self._pending if block.first_sequence < first_sequence]

    def flush(self) -> None:
        """Hand everything appended to the operating system.

        Raises:
            StoreError: the disk refused; the appended ids are kept for the next flush.
        """
        if self._pending:
            with suppress(StoreError):  # The publishers of the messages get the error, and their ids are forgotten.
                self._flush_messages()
        with self._lock:
            if self._in_doubt:
                self._pending[:0] = self._in_doubt
                self._in_doubt = []
                self._size = self._file_bytes
        if not self._pending:
            return
        try:
            self._write(self._pending)
        except OSError as error:
            # What a failed write left is torn, and nothing is read behind it.
            self._size = self._file_bytes
            raise StoreError.of("write the stream's message ids", error) from error
        newest_ns = max(block.newest_ns for block in self._pending)
        self._newest_ns[self._number] = max(newest_ns, self._newest_ns.get(self._number, 0))
        with self._lock:
            self._unsynced += self._pending
        self._pending = []

    def _write(self, blocks: Iterable[_Block]) -> None:
        data = b"".join(block.data for block in blocks)
        if not self._number or self._size >= self._file_bytes:
            self._number += 1
            self._size = 0
            with self._lock:
                self._is_new = True
        if not self._size:
            data = self._header + data
        with self._lock:
            handle = self._handles.get(self._number)
            if handle is None:
                handle = self._handles[self._number] = self._disk.open(self._path(self._number), create=True)
            self._disk.write(handle, data, self._size)
        self._size += len(data)

    def sync(self) -> None:
        """Return when everything flushed before the call is on the disk.

        Raises:
            StoreError: the disk failed; the next flush rewrites the unsynced ids.
        """
        with self._sync_lock:
            with self._lock:
                handles, self._handles = self._handles, {}
                unsynced, self._unsynced = self._unsynced, []
                is_new, self._is_new = self._is_new, False
            try:
                try:
                    for handle in handles.values():
                        self._disk.sync(handle)
                    if is_new:
                        self._disk.sync_folder(self._folder)
                finally:
                    for handle in handles.values():
                        self._disk.close(handle)
            except OSError as error:
                with self._lock:
                    self._in_doubt += unsynced
                    self._is_new = self._is_new or is_new
                raise StoreError.of("make the stream's message ids safe", error) from error

    def retry(self) -> None:
        """Try again after the disk refused.

        Raises:
            StoreError: it still does.
        """
        self.flush()

    def needs_flush(self) -> bool:
        """Return whether something was appended since the last flush."""
        return bool(self._pending or self._in_doubt)

    def forget_before(self, time_ns: int) -> None:
        """Remove the files all of whose ids are older."""
        for number in [number for number, newest_ns in self._newest_ns.items() if newest_ns < time_ns]:
            if number == self._number:
                self._size = self._file_bytes
            self._remove(number)

    def clear(self) -> None:
        """Remove all files: another file has their content."""
        self.close()
        for number in list(self._newest_ns):
            self._remove(number)
        self._size = self._file_bytes

    def close(self) -> None:
        """Give the handles back."""
        with self._lock:
            handles, self._handles = self._handles, {}
        for handle in handles.values():
            self._disk.close(handle)

    def _remove(self, number: int) -> None:
        try:
            self._disk.remove(self._path(number))
        except OSError:
            # It is ignored from now on, and removed another time.
            return
        del self._newest_ns[number]

    def _path(self, number: int) -> Path:
        return self._folder / f"ids.{number:010d}"


def _read_blocks(data: bytes, checksum: Checksum) -> list[IdEntry]:
    entries: list[IdEntry] = []
    at = _HEADER_BYTES
    while at + _HEAD.size <= len(data):
        end = at + _HEAD.size + _HEAD.unpack_from(data, at)[0]
        if data[end : end + _HASH_BYTES] != checksum.of(data[at:end]):
            break
        try:
            entries += _decode(data[at + _HEAD.size : end])
        except msgspec.DecodeError:
            break
        at = end + _HASH_BYTES
    return entries
