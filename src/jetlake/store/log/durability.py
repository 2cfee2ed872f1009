"""The durability of a log: which flushes are synced. The one part of a store that two threads share.

    flush (loop) ── wrote ──► _dirty, flushed ── sync (any thread) ──► synced, synced_sequence, mark
                                   └── take_redo (loop) ──► redo log, then checkpoint ──► synced

What is always true:

- `synced` <= `flushed`. Everything of the flushes up to `synced` is in synced segments, and of those up to `durable`
  there or in the redo log. Nothing else is promised.
- A sync takes numbers, segments and names before it asks the disk, and publishes them afterwards: flushes meanwhile
  wait for the next one. The order is segments, folder, list of segments, mark: what the mark says is there.
- `synced` is set last. From then on the flushing thread may close the files that the sync used.
- After a failed sync nothing is written: the system may have dropped the bytes and report success next time. `retry`
  first finishes the truncations in `cuts`; the sync after it rewrites the segments from what can be read back, and only
  that ends the failure.
- The redo log takes a tail that lies in one segment, directly behind `_safe_end` or `_redo_end`, with no overwrite and
  no changed name since: anything else needs a sync.
- `sync_if_short` is a `sync` on the loop's own thread, and nothing else, where it is the sync of one open file.

Locks, in the order in which they are taken:

1. `_sync_lock` for a whole sync: one at a time. `take_redo` and `sync_if_short`, on the loop, try it and never wait.
2. `_lock` for `_dirty`, `flushed`, `_end` and the numbers that go with them; held for a few statements, never over I/O.
3. `_end_lock` for the end of a sync, against `discard`: once discarded, no file of the folder is written, because its
   name may belong to another store.

A crash between two lines of a sync leaves files that are newer than mark and list, which recovery takes for unproven.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from jetlake.errors import StoreError
from jetlake.store.files.disk import Disk
from jetlake.store.log.overwriting import write_again
from jetlake.store.log.segment import Segment
from jetlake.store.log.segment_list import SegmentList

__all__ = ["FORMAT_VERSION", "MARK_NAME", "Durability", "Mark", "MarkFile", "RedoTail"]

_REDO_BYTES_MAX = 64 * 1024
"""What is longer is synced where it is, and not written twice."""
_SHORT_BYTES_MAX = 64 * 1024
"""What is longer takes the disk longer than a thread takes to wake, and the loop longer to hand over."""


class RedoTail(NamedTuple):
    """The records appended to the newest segment, for the redo log, and their position."""

    key: int
    number: int
    generation: int
    offset: int
    data: bytes


class Durability:
    """Counts flushes; a sync is good for all flushes before it.

    Args:
        marks_flushes: whether the mark has sequences that are not synced yet, because readers may have seen them.

    Attributes:
        flushed: the number of the last flush.
        synced: the last flush that is known to be safe.
        synced_sequence: the last sequence that a sync since the store was opened made safe; 0 without one.
        failure: set when a sync fails: the content of the disk is unknown until it was rewritten and synced.
        cuts: what could not be undone of a failed write, to be tried again before that.
        is_gone: whether the folder was moved away, so that its content need not be durable.
    """

    def __init__(
        self, disk: Disk, folder: Path, mark: MarkFile, segments: SegmentList, *, marks_flushes: bool = True
    ) -> None:
        self.flushed = 0
        self.synced = 0
        self.synced_sequence = 0
        self.failure: StoreError | None = None
        self._disk = disk
        self._folder = folder
        self._mark = mark
        self._segments = segments
        self._marks_flushes = marks_flushes
        self._last_sequence = 0
        self._end = (0, 0)  # of the log: the newest segment's number and size
        self.cuts: list[Callable[[], None]] = []
        self.is_gone: Callable[[], bool] = lambda: False
        self._may_retry = False
        self._dirty: dict[Segment, None] = {}
        # The same for the names in the folder: how often they changed, and up to which change they are safe.
        self._names_changed = 0
        self._names_synced = 0
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._end_lock = threading.Lock()
        self._is_discarded = False
        # How far the log is synced since the store was opened, and how far it is in the redo log: as `_end` has it.
        self._safe_end = (0, 0)
        self._redo_end = (0, 0)
        self._redo_flushed = self._redo_synced = (
            0  # the last flush in the redo log, and the last one that is durable there
        )
        self._overwritten = 0  # the last flush that was no append
        self._refusal: OSError | None = None  # of a writeback; the next sync fails with it

    def begin(self, last_sequence: int) -> None:
        """Begin behind the last sequence that recovery found in the log."""
        self._last_sequence = last_sequence

    def wrote(self, segments: Iterable[Segment], last_sequence: int, *, new_names: bool = False) -> int:
        """Count a flush that wrote to these segments, and return its number."""
        with self._lock:
            self.flushed += 1
            for segment in segments:
                segment.write_generation = self.flushed
                self._dirty[segment] = None
                if segment.size:
                    self._end = max(self._end, (segment.number, segment.size))
            self._names_changed += new_names
            # The redo log has the sequences of its entries too. A mark that is there before the first sync makes the
            # next start certain of the stream's key.
            tells_mark = (
                (self._marks_flushes or new_names)
                and last_sequence > self._last_sequence
                and self._redo_end <= self._safe_end
            )
            self._last_sequence = last_sequence
        if tells_mark:
            self._mark.flushed(last_sequence)
        return self.flushed

    def overwrote(self, segments: Iterable[Segment], last_sequence: int) -> None:
        """Count a flush that cut or overwrote segments: only a sync makes that durable."""
        self._overwritten = self.wrote(segments, last_sequence)

    def renamed(self) -> None:
        """Note that a file of the folder was renamed or removed, which the next sync makes durable."""
        self._names_changed += 1

    def forget(self, segment: Segment) -> None:
        """Sync a segment no more: its file was removed."""
        with self._lock:
            self._dirty.pop(segment, None)
            self._names_changed += 1

    def roll_back_failed(self, task: str, error: OSError, undo: Callable[[], None]) -> None:
        """Refuse writes: the disk has what a failed write left, and did not let it be undone.

        Args:
            task: what the disk refused.
            undo: tries again.
        """
        self.failure = StoreError.of(task, error)
        self.cuts.append(undo)

    def is_safe(self, segment: Segment) -> bool:
        """Return whether everything written to the segment is synced, and no sync is using its handle."""
        return segment.write_generation <= self.synced

    def names_are_safe(self) -> bool:
        """Return whether the folder itself is synced, so that no file name can change by a power cut."""
        return self._names_changed == self._names_synced

    @property
    def durable(self) -> int:
        """The last flush that no power cut can take."""
        return max(self.synced, self._redo_synced)

    def needs_sync(self) -> bool:
        """Return whether a flush or a file name is not synced yet."""
        return self.flushed > self.synced or not self.names_are_safe()

    def check(self) -> None:
        """Refuse writes after a failed sync.

        Raises:
            StoreError: a sync has failed.
        """
        if self.failure is not None:
            raise self.failure

    def sync_mark(self) -> None:
        """Make it safe how far the log is synced."""
        self._mark.sync()

    def sync(self) -> None:
        """Sync everything flushed before the call; may run beside the thread that flushes.

        Raises:
            StoreError: the disk failed, now or before.
        """
        with self._sync_lock:
            self._sync()

    def _sync(self) -> None:
        with self._lock:
            is_retry, self._may_retry = self._may_retry, False
            if not is_retry:
                self.check()
            flushed = self.flushed
            last_sequence = self._last_sequence
            end = self._end
            names_changed = self._names_changed
            listing = self._segments.take()
            dirty = list(self._dirty)
            self._dirty.clear()
            refusal, self._refusal = self._refusal, None
        try:
            if refusal is not None:
                raise refusal
            for segment in dirty:
                if is_retry:
                    write_again(segment)
                self._disk.sync(segment.file.open())
            if names_changed > self._names_synced:
                self._disk.sync_folder(self._folder)
        except OSError as error:
            if (failure := self._failed(dirty, error)) is None:
                return
            raise failure from error
        if is_retry:
            self.failure = None
        with self._end_lock:
            if self._is_discarded:
                return
            if listing is not None:
                self._segments.write(listing)
            if dirty:
                self._mark.synced(last_sequence, end)
        # Last: from here on the other thread may take the handles away.
        self._safe_end = end
        self._names_synced = names_changed
        self.synced_sequence = last_sequence
        self.synced = flushed

    def _failed(self, dirty: list[Segment], error: OSError) -> StoreError | None:
        """Note that the disk refused to sync these segments; None when they are gone."""
        if self._is_discarded or self.is_gone():
            return None
        with self._lock:
            self._dirty = dict.fromkeys((*dirty, *self._dirty))
        self.failure = StoreError.of("make the stream's log safe", error)
        return self.failure

    def begin_writeback(self) -> None:
        """Let the disk begin with a short append, which the sync that follows waits for.

        That sync fails where the disk refuses it here.
        """
        (number, start), (last_number, size) = self._safe_end, self._end
        if number != last_number or not 0 < size - start <= _SHORT_BYTES_MAX or self.failure is not None:
            return
        with self._lock:
            dirty = list(self._dirty)
        if len(dirty) == 1 and dirty[0].number == number and (handle := dirty[0].file.handle) is not None:
            try:
                self._disk.begin_writeback(handle, start, size - start)
            except OSError as error:
                self._refusal = error

    def sync_if_short(self) -> bool:
        """Sync if that is the sync of one open file with a short append, and return whether it was.

        Raises:
            StoreError: the disk failed.
        """
        if not self._sync_lock.acquire(blocking=False):
            return False
        try:
            if not self._is_short():
                return False
            self._sync()
            return True
        finally:
            self._sync_lock.release()

    def _is_short(self) -> bool:
        with self._lock:
            dirty = list(self._dirty)
        (number, start), (last_number, size) = self._safe_end, self._end
        return (
            len(dirty) == 1
            and dirty[0].number == number == last_number
            and dirty[0].file.handle is not None
            and 0 <= size - start <= _SHORT_BYTES_MAX
            and self.failure is None
            and self._refusal is None
            and self.names_are_safe()
            and not self._segments.needs_sync()
        )

    # The redo log

    def take_redo(self) -> RedoTail | None:
        """Return the records appended since the last sync that are not in the redo log, for an entry there.

        None when only a sync makes the log durable.
        """
        if not self._sync_lock.acquire(blocking=False):
            return None
        try:
            with self._lock:
                if (
                    len(self._dirty) != 1
                    or self._overwritten > self.synced
                    or self.failure is not None
                    or self._refusal is not None
                    or not self.names_are_safe()
                    or self._segments.needs_sync()
                ):
                    return None
                (segment,) = self._dirty
                number, start = max(self._safe_end, self._redo_end)
                size = segment.size
                if segment.number != number or not 0 <= size - start <= _REDO_BYTES_MAX:
                    return None
                if (found := segment.file.tail.find(start, size) if start < size else (b"", start)) is None:
                    return None
                data, base = found
                self._redo_end = (number, size)
                self._redo_flushed = self.flushed
                return RedoTail(segment.key, number, segment.generation, start, data[start - base : size - base])
        finally:
            self._sync_lock.release()

    def redo_synced(self) -> None:
        """Note that what was taken for the redo log is durable there."""
        self._redo_synced = self._redo_flushed

    def needs_checkpoint(self) -> bool:
        """Return whether the redo log has something that is not synced."""
        return self._redo_end > self._safe_end and not self._is_discarded and not self.is_gone()

    def retry(self) -> None:
        """Let the next sync rewrite what a failed sync left in doubt.

        The system may have dropped what it could not write and take the next sync for a success: only bytes that are
        written again are certain to be on the disk after it.

        Raises:
            OSError: what a failed write left could still not be undone.
        """
        # sometimes: a failed sync is retried
        while self.cuts:
            self.cuts[-1]()
            self.cuts.pop()
        self._may_retry = True

    def discard(self) -> None:
        """Write nothing more: the folder's name may belong to another store from now on."""
        with self._end_lock:
            self._is_discarded = True

    def sync_names(self) -> None:
        """Sync the folder; may run beside the thread that changes the names in it.

        Raises:
            OSError: the disk refused.
        """
        with self._sync_lock:
            if not self.names_are_safe():
                changed = self._names_changed
                self._disk.sync_folder(self._folder)
                self._names_synced = changed


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
        self._checksum = disk.hashing.checksum(b"mark")
        self._handle: int | None = None
        self._opening = threading.Lock()
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
            handle = self._open(create=False)
            # A write of another thread from here on may miss this sync.
            self._is_safe = True
            try:
                self._disk.sync(handle)
            except OSError:
                self._is_safe = False
                raise

    def _write(self, kind: int, last_sequence: int, safe_end: tuple[int, int] = (0, 0)) -> None:
        turn = self._turns[kind] = self._turns[kind] + 1
        body = _SLOT.pack(_MAGIC, FORMAT_VERSION, kind, self._key, turn, last_sequence, *safe_end)
        try:
            handle = self._open(create=True)
            self._disk.write(handle, body + _HASH.pack(self._checksum.number(body)), (2 * kind + turn % 2) * _SLOT_SIZE)
            self._is_safe = False
        except OSError:
            pass

    def _open(self, *, create: bool) -> int:
        # One thread writes what it flushed while another writes what it synced: both may find the file closed.
        with self._opening:
            if self._handle is None:
                self._handle = self._disk.open(self._path, create=create)
            return self._handle

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
            if len(stored) < 8 or _HASH.unpack(stored)[0] != self._checksum.number(body):
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
