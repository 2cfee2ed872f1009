"""The high-water mark: the last sequence in use, beside the log, so that a cut log never gives a sequence twice.

Four slots of one sector each: two for the flushed sequence and two for the synced one, each pair written in turns, so
that a torn write leaves the one before. Nothing waits for this file: it is there for the day when the log is not.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import msgspec
from xxhash import xxh3_64_intdigest

from jetlake.store.files.disk import Disk

__all__ = ["FORMAT_VERSION", "MARK_NAME", "Mark", "MarkFile"]

FORMAT_VERSION = 1
MARK_NAME = "mark"
_MAGIC = b"JLMK"
_SLOT_SIZE = 512
_SLOT = struct.Struct("<4sHHQQQII")
_HASH = struct.Struct("<Q")
_FLUSHED, _SYNCED = 0, 1


class Mark(msgspec.Struct, gc=False, frozen=True):
    """The high-water marks of a stream.

    Attributes:
        key: the stream's; 0 when unknown.
        flushed: the last sequence written.
        synced: the last sequence synced.
        safe_end: how far the log is synced: a segment's number and how many of its bytes; (0, 0) when unknown.
    """

    key: int = 0
    flushed: int = 0
    synced: int = 0
    safe_end: tuple[int, int] = (0, 0)


class MarkFile:
    """The file of the high-water mark; write errors are ignored, since the log itself has taken the messages.

    Attributes:
        is_refused: whether the disk did not return the file, which is there, when it was read.
    """

    def __init__(self, disk: Disk, path: Path, key: int) -> None:
        self._disk = disk
        self._path = path
        self._key = key
        self._handle: int | None = None
        self.is_refused = False
        self._turns = [0, 0]
        # What an earlier process wrote may not be durable either.
        self._is_safe = False

    def flushed(self, last_sequence: int) -> None:
        """Write the last sequence that was flushed."""
        self._write(_FLUSHED, last_sequence)

    def synced(self, last_sequence: int, safe_end: tuple[int, int]) -> None:
        """Write the last sequence that was synced, and the position up to which the log is synced."""
        self._write(_SYNCED, last_sequence, safe_end)

    def sync(self) -> None:
        """Sync the mark, if the disk allows it."""
        if self._is_safe:
            return
        with suppress(OSError):
            if self._handle is None:
                self._handle = self._disk.open(self._path)
            # A write of another thread from here on may miss this sync.
            self._is_safe = True
            try:
                self._disk.sync(self._handle)
            except OSError:
                self._is_safe = False
                raise

    def _write(self, kind: int, last_sequence: int, safe_end: tuple[int, int] = (0, 0)) -> None:
        turn = self._turns[kind] = self._turns[kind] + 1
        body = _SLOT.pack(_MAGIC, FORMAT_VERSION, kind, self._key, turn, last_sequence, *safe_end)
        try:
            if self._handle is None:
                self._handle = self._disk.open(self._path, create=True)
            self._disk.write(
                self._handle, body + _HASH.pack(xxh3_64_intdigest(body)), (2 * kind + turn % 2) * _SLOT_SIZE
            )
            self._is_safe = False
        except OSError:
            pass

    def read(self, key: int = 0) -> Mark:
        """Read the newest valid slots; without one, the mark is zero.

        Args:
            key: the stream's, when it is known: slots of another stream count only when there are no others.
        """
        self.is_refused = False
        try:
            handle = self._disk.open(self._path)
            try:
                data = self._disk.read(handle, 4 * _SLOT_SIZE, 0)
            finally:
                self._disk.close(handle)
        except OSError as error:
            self.is_refused = not isinstance(error, FileNotFoundError)
            return Mark()
        marks: dict[int, list[int]] = {}
        ends: dict[int, tuple[int, int]] = {}
        for slot in range(4):
            body = data[slot * _SLOT_SIZE : slot * _SLOT_SIZE + _SLOT.size]
            stored = data[slot * _SLOT_SIZE + _SLOT.size : slot * _SLOT_SIZE + _SLOT.size + 8]
            if len(stored) < 8 or _HASH.unpack(stored)[0] != xxh3_64_intdigest(body):
                continue
            magic, version, kind, slot_key, turn, sequence, *end = _SLOT.unpack(body)
            if magic != _MAGIC or version != FORMAT_VERSION or kind not in (_FLUSHED, _SYNCED):
                continue
            self._turns[kind] = max(self._turns[kind], turn)
            last = marks.setdefault(slot_key, [0, 0])
            last[kind] = max(last[kind], sequence)
            ends[slot_key] = max(ends.get(slot_key, (0, 0)), (end[0], end[1]))
        if key not in marks:
            key = next(reversed(marks), 0)
        flushed, synced = marks.get(key, (0, 0))
        return Mark(key, flushed, synced, ends.get(key, (0, 0)))

    def use_key(self, key: int) -> None:
        """Write under this key from now on."""
        self._key = key

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        if self._handle is not None:
            self._disk.close(self._handle)
            self._handle = None
