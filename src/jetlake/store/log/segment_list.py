"""The list of a log's segments, beside the folder that holds them, so that one that vanished is missed.

A segment is listed when it is safe, and struck off before its file goes: what is listed and not there was taken by
another program. Where no listed segment follows a segment at once, the list tells with which sequence that one ended.
The list also remembers which messages were lost, until they are removed, and which segments a crash has left with
remains of records that no client was promised. It is appended to, and rewritten when it was damaged, a start found it
different, or more or less is lost than before.

The reasons are in decision 5 (docs/decisions).
"""

from __future__ import annotations

import struct
import threading
from contextlib import suppress
from pathlib import Path

import msgspec

from jetlake.store.files.atomic_file import read_file, replace_file
from jetlake.store.files.checksum import Hashing
from jetlake.store.files.disk import NO_ROOM, Disk
from jetlake.store.sequence_ranges import Range

__all__ = ["FORMAT_VERSION", "Listed", "SegmentList"]

FORMAT_VERSION = 1
_MAGIC = b"JLSL"
_HEADER = struct.Struct("<4sHHQ")
_ENTRY = struct.Struct("<IIQQ")
_HASH = struct.Struct("<Q")
_ENTRY_SIZE = _ENTRY.size + _HASH.size
_HEADER_SIZE = _HEADER.size + _HASH.size
_BEGUN, _REMOVED, _LOST, _TORN = 1, 2, 3, 4


class Listed(msgspec.Struct, gc=False, frozen=True):
    """The list's content.

    Attributes:
        key: the stream's.
        segments: each segment's first sequence, by its number.
        ends: the last sequences of segments whose successor is struck off or has not the next number, as far as known.
        lost: the lost sequences.
        torn: the numbers of segments with remains of records that no client was promised.
    """

    key: int
    segments: dict[int, int]
    ends: dict[int, int]
    lost: list[Range]
    torn: frozenset[int]

    def end_of(self, number: int) -> int:
        """Return the last sequence that is a segment's; 0 when it is not known."""
        following = self.segments.get(number + 1, 0)
        return self.ends.get(number) or max(following - 1, 0)


class _Change(msgspec.Struct, gc=False, frozen=True):
    """A change to write: entries to append to the file, or all segments, as (number, first, end), for a new file.

    An entry that lists a segment need not be durable; one that strikes a segment off must be.
    """

    number: int
    is_urgent: bool
    entries: list[bytes]
    segments: list[tuple[int, int, int]] | None
    lost: list[Range]
    torn: frozenset[int]


class SegmentList:
    """Keeps the list; the thread that flushes changes it, the one that syncs writes it.

    The log does not depend on it: where the disk refuses, segments that hold nothing stay a little longer.

    Attributes:
        is_refused: whether the disk did not return the file, which is there, when it was read.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self.is_refused = False
        self._key = 0
        self._segments: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._lost: list[Range] = []
        self._torn: frozenset[int] = frozenset()
        self._size = 0
        self._is_whole = False  # whether the file says all that it should but for what is pending
        self._pending: list[bytes] = []
        self._is_urgent = False
        self._name_is_safe = False
        # How often the list has changed, and up to which change it is safe; of struck segments, with which change.
        self._changed = 0
        self._synced = 0
        self._struck: dict[int, int] = {}
        self._lock = threading.Lock()

    def read(self) -> Listed | None:
        """Read the list; None when the file is missing or damaged."""
        self.is_refused = False
        try:
            data = read_file(self._disk, self._path)
        except OSError as error:
            self.is_refused = not isinstance(error, FileNotFoundError)
            return None
        if len(data) < _HEADER_SIZE or not _is_good(data, 0, _HEADER.size, 0, self._disk.hashing):
            return None
        magic, version, _, key = _HEADER.unpack_from(data)
        if (magic, version) != (_MAGIC, FORMAT_VERSION):
            return None
        segments: dict[int, int] = {}
        ends: dict[int, int] = {}
        lost: list[Range] = []
        torn: set[int] = set()
        offsets = range(_HEADER_SIZE, len(data), _ENTRY_SIZE)
        good = [_is_good(data, offset, _ENTRY.size, key, self._disk.hashing) for offset in offsets]
        count = good.index(False) if False in good else len(good)
        if any(good[count:]):
            return None
        # A power cut may tear the entries appended last: they list existing segments, which a start finds anyway.
        for offset in offsets[:count]:
            number, kind, first, last = _ENTRY.unpack_from(data, offset)
            if kind == _BEGUN:
                segments[number] = first
                if last:
                    ends[number] = last
            elif kind == _REMOVED:
                _strike(number, segments, ends)
            elif kind == _TORN:
                torn.add(number)
            else:
                lost.append((first, last))
        self._torn = frozenset(torn & segments.keys())
        self._key, self._segments, self._ends, self._lost, self._size = key, segments, ends, lost, len(data)
        # A list that is mostly struck-off segments is worth rewriting.
        is_short = len(data) <= _HEADER_SIZE + 4 * _ENTRY_SIZE * (len(segments) + len(lost) + 16)
        self._is_whole = is_short and count == len(good)
        return Listed(key, dict(segments), dict(ends), lost, self._torn)

    def use(self, key: int, segments: dict[int, int], lost: list[Range], torn: set[int] | None = None) -> None:
        """Take over what recovery found; the next sync writes it.

        Args:
            torn: the segments in which torn records were found; segments that were not read keep their entry.
        """
        all_torn = (self._torn | (torn or set())) & segments.keys()
        known = self._key, self._segments, self._lost, self._torn
        if not segments and not lost and not self._size:
            self._key = key
        elif (key, segments, lost, all_torn) != known or not self._is_whole:
            for number in self._segments.keys() - segments.keys():
                _strike(number, self._segments, self._ends)
            self._key, self._segments, self._lost, self._torn = key, dict(segments), lost, all_torn
            self._is_whole = False
            self._changed += 1

    def lose(self, lost: list[Range]) -> None:
        """Replace the lost sequences."""
        with self._lock:
            self._lost = lost
            self._is_whole = False
            self._changed += 1

    def add(self, number: int, first: int) -> None:
        """List a segment that was written."""
        with self._lock:
            before = max(self._segments, default=number - 1)
            if before != number - 1 and before not in self._ends:
                self._ends[before] = first - 1
                self._change(before, _BEGUN, self._segments[before], first - 1)
            self._segments[number] = first
            self._change(number, _BEGUN, first)

    def strike(self, number: int) -> None:
        """Remove a segment from the list, before its file is removed."""
        if number not in self._struck:
            with self._lock:
                _strike(number, self._segments, self._ends)
                self._change(number, _REMOVED, 0)
                self._is_urgent = True
                self._struck[number] = self._changed

    def is_struck(self, number: int) -> bool:
        """Return whether the segment's removal from the list is synced, so that its file may be removed."""
        return self._struck.get(number, self._synced + 1) <= self._synced

    def forget(self, number: int) -> None:
        """Forget a removed segment, whose file is gone."""
        self._struck.pop(number, None)

    def _change(self, number: int, kind: int, first: int, last: int = 0) -> None:
        self._changed += 1
        self._pending.append(_ENTRY.pack(number, kind, first, last))

    # Sync

    def needs_sync(self) -> bool:
        """Return whether a change is not synced yet."""
        return self._changed > self._synced

    def take(self) -> _Change | None:
        """Take the unwritten change; segments that it adds must be synced before `write`."""
        with self._lock:
            if self._changed == self._synced:
                return None
            pending, self._pending = self._pending, []
            is_whole, self._is_whole = self._is_whole, False
            is_urgent, self._is_urgent = self._is_urgent, False
            segments = None
            if not is_whole:
                ends = self._ends
                segments = [(number, first, ends.get(number, 0)) for number, first in sorted(self._segments.items())]
            return _Change(self._changed, is_urgent, pending, segments, self._lost, self._torn)

    def write(self, change: _Change) -> None:
        """Write and sync a change, if the disk takes it; one thread at a time."""
        try:
            if change.segments is None:
                size = self._append(change)
            else:
                size = self._rewrite(change.segments, change.lost, change.torn)
        except OSError as error:
            if error.errno in NO_ROOM:
                self._give_up(change.number)
            else:
                self._is_urgent = self._is_urgent or change.is_urgent
            return
        with self._lock:
            self._is_whole = self._lost is change.lost
            self._size = size
            self._synced = change.number

    def _append(self, change: _Change) -> int:
        data = self._sealed_entries(change.entries, self._size)
        handle = self._disk.open(self._path)
        try:
            self._disk.write(handle, data, self._size)
            if change.is_urgent:
                self._disk.sync(handle)
        finally:
            self._disk.close(handle)
        if change.is_urgent and not self._name_is_safe:
            # Or the list that this one took the place of might be back.
            self._disk.sync_folder(self._path.parent)
            self._name_is_safe = True
        return self._size + len(data)

    def _rewrite(self, segments: list[tuple[int, int, int]], lost: list[Range], torn: frozenset[int]) -> int:
        entries = [_ENTRY.pack(number, _BEGUN, first, end) for number, first, end in segments]
        entries += [_ENTRY.pack(0, _LOST, first, last) for first, last in lost]
        entries += [_ENTRY.pack(number, _TORN, 0, 0) for number, _, _ in segments if number in torn]
        data = _sealed(_HEADER.pack(_MAGIC, FORMAT_VERSION, 0, self._key), 0, 0, self._disk.hashing)
        data += self._sealed_entries(entries)
        # Complete after a power cut: it alone shows which segments were removed.
        replace_file(self._disk, self._path, data)
        self._name_is_safe = True
        return len(data)

    def _sealed_entries(self, entries: list[bytes], offset: int = _HEADER_SIZE) -> bytes:
        key, hashing = self._key, self._disk.hashing
        offsets = range(offset, offset + len(entries) * _ENTRY_SIZE, _ENTRY_SIZE)
        return b"".join(_sealed(entry, at, key, hashing) for entry, at in zip(entries, offsets, strict=True))

    def drop(self) -> None:
        """Remove the file, unless it records losses; the next sync writes it again if the disk allows it."""
        with self._lock, suppress(OSError):
            if not self._lost:
                self._disk.remove(self._path)
                self._is_whole = False
                self._changed += 1

    def _give_up(self, changed: int) -> None:
        """Remove the list while the disk is full, so that empty segments can be removed."""
        with suppress(OSError):
            self._disk.remove(self._path)
            self._disk.sync_folder(self._path.parent)
            self._synced = changed


def _strike(number: int, segments: dict[int, int], ends: dict[int, int]) -> None:
    """Take a segment out of the list: from now on it does not tell where the one before it ends."""
    first = segments.pop(number, 0)
    ends.pop(number, None)
    if first and number - 1 in segments:
        ends.setdefault(number - 1, first - 1)


def _sealed(body: bytes, offset: int, key: int, hashing: Hashing) -> bytes:
    """Return a header or an entry with its hash, which depends on where it stands and on the stream's key."""
    checksum = hashing.checksum(b"segment list", (key + offset) % (1 << 64))
    return body + _HASH.pack(checksum.number(body))


def _is_good(data: bytes, offset: int, size: int, key: int, hashing: Hashing) -> bool:
    sealed = data[offset : offset + size + _HASH.size]
    return sealed == _sealed(sealed[:size], offset, key, hashing)
