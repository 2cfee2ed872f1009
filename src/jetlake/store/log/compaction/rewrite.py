"""The rewrite of a segment: its new file is built in steps, written by the thread that syncs, then put in place."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, compress

from xxhash import xxh3_64

from jetlake.store.files.atomic_file import ASIDE_SUFFIX
from jetlake.store.index.block import DamagedBlockError
from jetlake.store.log.overwriting import matches_digest
from jetlake.store.log.record import find_record, pack_tombstone, tombstone_range, unpack, unpack_message
from jetlake.store.log.segment import Segment
from jetlake.store.log.segment_header import HEADER_SIZE
from jetlake.store.log.segment_tombstones import SegmentTombstones
from jetlake.store.sequence_ranges import Range
from jetlake.store.steps import Steps

__all__ = ["Rewrite"]

_RECORDS_PER_STEP = 512
_ROWS_PER_STEP = 32 * 1024
_PART_BYTES = 128 * 1024


class Rewrite:
    """A segment without the records that were dead when the rewrite began.

    Tombstones stand in the place of the records left out, so that a later reader misses nothing. Messages
    may be removed while the rewrite continues: their records are in the new file, as dead ones, and their tombstones
    where every removal is written.

    Args:
        segment: full, verified and safe on the disk.
        last: the last sequence that is the segment's.
        time_ns: for the tombstones.
        is_needed: tells whether a tombstone, as (first, last), is needed for other segments and has to stay.

    Attributes:
        is_built: the new file can be written.
        is_written: the new file is on the disk, or `error` tells why not.
        drops_tombstones: a tombstone for other segments is left out.
    """

    def __init__(self, segment: Segment, last: int, time_ns: int, is_needed: Callable[[int, int], bool]) -> None:
        self.segment = segment
        self.is_built = self.is_written = self.drops_tombstones = False
        self.error: OSError | None = None
        self._last = last
        self._time_ns = time_ns
        self._is_needed = is_needed
        # Columns may be released and read back meanwhile, and rows die; the rows stay the same.
        self._live = bytes(segment.live)
        self._offsets, self._sizes, self._sequences = segment.offsets, segment.sizes, segment.sequences
        self._columns = (segment.sizes, segment.subject_ids, segment.times)
        self._new_columns: list[array[int]] = []
        self._began = (segment.size, segment.generation, segment.write_generation)
        self._parts = [b""]  # the header, then records
        self._new_offsets: array[int] = array("I")
        self._new_sequences: array[int] = array("Q")
        self._foreign = SegmentTombstones()
        self._size = self._digest = 0
        self._aside = segment.file.folder / (segment.file.name + ASIDE_SUFFIX)
        self._handle: int | None = None
        self._lock = threading.Lock()  # the thread that takes the handle closes it

    def build(self) -> Steps[None]:
        """Build the content of the new file, and open it.

        Raises:
            OSError: the disk refused.
            DamagedBlockError: a living record is not there as it was written.
        """
        segment = self.segment
        data = segment.file.read_all(segment.size)
        is_sound = matches_digest(segment, data)
        yield
        for group in self._tombstones_in(data):
            kept = [found for found in group if self._is_needed(*found)]
            self.drops_tombstones |= len(kept) < len(group)
            for first, last in kept:
                self._foreign.add(first, last)
            yield
        yield from self._copy_living(data, is_sound=is_sound)
        for column in self._columns:
            self._new_columns.append(new := array(column.typecode))
            for start in range(0, len(column), _ROWS_PER_STEP):
                end = start + _ROWS_PER_STEP
                new.extend(compress(column[start:end], self._live[start:end]))
                yield
        ranges = self._foreign.ranges
        for start in range(0, len(ranges), 2 * _RECORDS_PER_STEP):
            end = start + 2 * _RECORDS_PER_STEP
            pairs = zip(ranges[start:end:2], ranges[start + 1 : end : 2], strict=True)
            self._add([pack_tombstone(first, last, self._time_ns, segment.checksum) for first, last in pairs])
            yield
        self._parts[0] = segment.header().at_generation(segment.generation + 1).pack(segment.file.disk.hashing)
        self._handle = segment.file.disk.open(self._aside, create=True)
        self.is_built = True

    def _tombstones_in(self, data: bytes) -> Iterator[list[Range]]:
        """Yield the ranges of all tombstones in the segment's bytes, in groups from a bounded number of records."""
        segment = self.segment
        if not segment.tombstones.low:
            return
        group: list[Range] = []
        at, seen = HEADER_SIZE, 0
        # What lies between the rows' records is a tombstone, or the record of a row that was cleared away.
        records = compress(zip(self._offsets, self._sizes, strict=True), self._sizes)
        for offset, size in chain(records, [(len(data), 0)]):
            while 0 <= at < offset:
                record = unpack(data, at, segment.checksum)
                if record is None:
                    at = find_record(data, at + 1, segment.checksum, segment.tombstones.high)
                    continue
                at = record.end
                if record.is_tombstone:
                    group.append(tombstone_range(record))
                seen += 1
                if seen % _RECORDS_PER_STEP == 0:
                    yield group
                    group = []
            if at < 0:
                break
            at = offset + size
            seen += 1
            if seen % _RECORDS_PER_STEP == 0:
                yield group
                group = []
        yield group

    def _copy_living(self, data: bytes, *, is_sound: bool) -> Steps[None]:
        """Copy the records that live, with a tombstone in the place of each gap between them.

        Args:
            is_sound: no record has to be looked at by itself.
        """
        segment, offsets, sizes = self.segment, self._offsets, self._sizes
        parts: list[bytes] = []
        at = HEADER_SIZE
        before = segment.first - 1
        sequences = range(segment.first, segment.first + len(sizes)) if self._sequences is None else self._sequences
        for count, row in enumerate(compress(range(len(sizes)), self._live), 1):
            sequence = sequences[row]
            if sequence > before + 1:
                tombstone = pack_tombstone(before + 1, sequence - 1, self._time_ns, segment.checksum)
                parts.append(tombstone)
                at += len(tombstone)
            record = data[offsets[row] : offsets[row] + sizes[row]]
            if not is_sound and unpack_message(record, segment.checksum) is None:
                raise DamagedBlockError(segment)
            parts.append(record)
            self._new_offsets.append(at)
            self._new_sequences.append(sequence)
            at += sizes[row]
            before = sequence
            if count % _RECORDS_PER_STEP == 0:
                self._add(parts)
                parts = []
                yield
        if self._last > before:
            parts.append(pack_tombstone(before + 1, self._last, self._time_ns, segment.checksum))
        if parts:
            self._add(parts)

    def _add(self, records: list[bytes]) -> None:
        """Add records to the new file, whose parts are long enough for a write and short enough for a step."""
        parts = self._parts
        if len(parts) == 1 or len(parts[-1]) >= _PART_BYTES:
            parts.append(b"")
        parts[-1] = b"".join((parts[-1], *records))

    def write(self, sync_names: Callable[[], None]) -> None:
        """Write the new file and sync it; may run in another thread.

        Args:
            sync_names: makes the names in the folder safe: tombstones of a file that is gone may go when it cannot come
                back.
        """
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is None:
            return
        disk = self.segment.file.disk
        try:
            try:
                sync_names()
                disk.truncate(handle, 0)
                hasher = xxh3_64()
                at = 0
                for part in self._parts:
                    # In parts, which keep the interpreter from the server's loop for a short time only.
                    hasher.update(part)
                    disk.write(handle, part, at)
                    at += len(part)
                self._size, self._digest = at, hasher.intdigest()
                disk.sync(handle)
            finally:
                disk.close(handle)
        except OSError as error:
            self.error = error
        self.is_written = True

    def cancel(self) -> None:
        """Give up a rewrite that is not in place; if its file cannot be removed, the next start does that."""
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is not None:
            self.segment.file.disk.close(handle)
        if self.is_built:
            with suppress(OSError):
                self.segment.file.disk.remove(self._aside)

    def is_outdated(self) -> bool:
        """Return whether the segment's file was changed since the rewrite began."""
        segment = self.segment
        return self._began != (segment.size, segment.generation, segment.write_generation)

    def install(self) -> None:
        """Put the new file in the place of the segment's, and its rows in the place of the segment's rows.

        The new name becomes durable with the next sync of the folder.

        Raises:
            OSError: the disk refused; the segment is as it was.
        """
        segment = self.segment
        if self.error is not None:
            raise self.error
        # Messages that were removed since are dead records of the new file.
        live = bytearray(compress(segment.live, self._live))
        segment.file.disk.replace(self._aside, segment.file.path)
        segment.file.close()
        segment.file.tail.clear()
        segment.generation += 1
        segment.tombstones = self._foreign
        segment.sizes, segment.subject_ids, segment.times = self._new_columns
        segment.live = live
        segment.offsets = self._new_offsets
        segment.sequences = self._new_sequences
        segment.size = segment.end = self._size
        segment.digest = self._digest
        segment.hasher = None
        segment.verified = True
        segment.is_compression_done = False
        segment.dead_records = segment.live_count < len(live)
        segment.worth_below = segment.live_bytes // 2
        segment.write_generation = 0
        segment.explained = self._last
