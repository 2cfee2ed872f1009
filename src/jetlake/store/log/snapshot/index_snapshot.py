"""The index of a store in one file, so that a start need not read the log.

It tells how things stood at one moment: each segment with its length then. What the log holds behind that is read as
always, so that an old snapshot is as good as a new one, only slower. It is written when nothing waits, aside and
renamed, and never waited for: one that is torn has a wrong hash, and the log is read instead.

The index is on disk twice, for two moments. A segment index (`segment_index/format.py`) is for reads: it is written
once, when its segment is full, and holds what a read needs of that segment. The snapshot is for a start: it holds what
changes after that and belongs to no segment alone (which rows still live, the counters and names of all subjects), and
the newest segments, which have no segment index yet. Without snapshots, a start after a stop would open the index of
every segment, and scan the segments without one; without segment indexes, all rows would have to stay in memory.

The reasons are in decisions 6 and 23 (docs/decisions).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from jetlake.store.columns import column_bytes, read_column
from jetlake.store.files.atomic_file import ASIDE_SUFFIX, SMALL_FILE_BYTES_MAX, read_file
from jetlake.store.files.disk import Disk
from jetlake.store.index.block import SpilledRows
from jetlake.store.index.packed_names import PackedNames
from jetlake.store.index.postings import BLOOM_BYTES
from jetlake.store.log.segment import IndexParts, Segment

__all__ = ["FORMAT_VERSION", "IndexSnapshot", "SnapshotWriter", "read_snapshot"]

FORMAT_VERSION = 3
_MAGIC = b"JLIX"
_HEAD = struct.Struct("<4sHHQQqQQQIIII")
_SEGMENT = struct.Struct("<IIQQQIIQQQQI")
_SPILLED = struct.Struct("<QqqIIIIQQIIII")
_PURPOSE = b"index"
_HASH = struct.Struct("<Q")
_COUNT = struct.Struct("<I")
_WRITE_BYTES = 1024 * 1024
_ITEM_SIZES = {"I": 4, "q": 8, "Q": 8}
_SPARSE, _DEAD_RECORDS, _HAS_DIGEST, _IS_SPILLED, _HAS_INDEX, _IS_DAMAGED = 1, 2, 4, 8, 16, 32
_LOG_SHARE_MAX = 4
_ITEMS_PER_CHUNK = 32768


class IndexSnapshot:
    """What the file tells.

    Attributes:
        key: the stream's, as everywhere.
        segments: with their rows as they were; `size` is how far each was written. The first ones are spilled.
        last_sequence: the last one that was used.
        lost, lost_bytes: what recovery had found missing until then.
        names: the subject of each number, to be written; b"" for one that is free.
        packed_names: the same, as they were read.
        filed_end, dead_high, totals: the counters over spilled segments, see `SpilledSubjects`; the last are by number:
            counts, spilled, lows, highs.
    """

    def __init__(self) -> None:
        self.key = 0
        self.last_sequence = 0
        self.last_time_ns = 0
        self.lost: list[int] = []
        self.lost_bytes = 0
        self.segments: list[Segment] = []
        self.names: list[bytes] = []
        self.packed_names = PackedNames(array("I"), b"")
        self.spilled_end = 0
        self.dead_high = 0
        self.totals: list[array[int]] = [array("Q") for _ in range(4)]


class SnapshotWriter:
    """Writes a snapshot aside, in steps, and puts it in its place with the last one.

    It tells how things stood when it was made, whatever becomes of the store meanwhile.
    """

    def __init__(self, disk: Disk, path: Path, snapshot: IndexSnapshot) -> None:
        self._disk = disk
        self._path = path
        self._aside = path.with_name(path.name + ASIDE_SUFFIX)
        self._chunks = _chunks(
            _head(snapshot),
            [_FrozenSegment(segment) for segment in snapshot.segments],
            snapshot.names[:],
            [column[:] for column in snapshot.totals],
        )
        self._hasher = disk.hashing.checksum(_PURPOSE).hasher()
        self._offset = 0
        self._handle: int | None = None

    def step(self, size: int = _WRITE_BYTES) -> bool:
        """Write about this many bytes; whether there is more to do.

        Raises:
            OSError: the disk refused; the old file is still there, and this one is given up.
        """
        try:
            if self._handle is None:
                # A file that was truncated, or put in the place of another, is written out by some file systems there
                # and then, while the loop waits. No start depends on this file.
                self._disk.remove(self._aside)
                self._handle = self._disk.open(self._aside, create=True)
            if data := _gather(self._chunks, size):
                self._hasher.update(data)
                self._write(data)
                return True
            self._write(_HASH.pack(self._hasher.intdigest()))
        except OSError:
            self.cancel()
            with suppress(OSError):  # What is half written takes no room.
                self._disk.remove(self._aside)
            raise
        self.cancel()
        self._disk.remove(self._path)
        self._disk.replace(self._aside, self._path)
        return False

    def _write(self, data: bytes) -> None:
        assert self._handle is not None
        self._disk.write(self._handle, data, self._offset)
        self._offset += len(data)

    def cancel(self) -> None:
        """Close the file; the next start or snapshot removes the unfinished one."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._disk.close(handle)


def _gather(chunks: Iterator[bytes], size: int) -> bytes:
    """Return the next chunks, until they are that long."""
    taken: list[bytes] = []
    for chunk in chunks:
        taken.append(chunk)
        size -= len(chunk)
        if size <= 0:
            break
    return b"".join(taken)


def _head(snapshot: IndexSnapshot) -> bytes:
    head = _HEAD.pack(
        _MAGIC,
        FORMAT_VERSION,
        0,
        snapshot.key,
        snapshot.last_sequence,
        snapshot.last_time_ns,
        snapshot.lost_bytes,
        snapshot.spilled_end,
        snapshot.dead_high,
        len(snapshot.segments),
        len(snapshot.names),
        len(snapshot.lost),
        len(snapshot.totals[0]),
    )
    return head + column_bytes(array("Q", snapshot.lost))


def _chunks(
    head: bytes, segments: list[_FrozenSegment], names: list[bytes], totals: list[array[int]]
) -> Iterator[bytes]:
    yield head
    for segment in segments:
        yield from segment.chunks()
    for start in range(0, len(names), _ITEMS_PER_CHUNK):
        yield column_bytes(array("I", map(len, names[start : start + _ITEMS_PER_CHUNK])))
    for start in range(0, len(names), _ITEMS_PER_CHUNK):
        yield b"".join(names[start : start + _ITEMS_PER_CHUNK])
    for column in totals:
        for start in range(0, len(column), _ITEMS_PER_CHUNK):
            yield column_bytes(column[start : start + _ITEMS_PER_CHUNK])


class _FrozenSegment:
    """A segment as it stood: rows that are written do not change any more, but for whether they live."""

    __slots__ = ("_columns", "_head", "_live", "_sequences", "_tombstones")

    def __init__(self, segment: Segment) -> None:
        digest = segment.digest if segment.hasher is None else int(segment.hasher.intdigest())
        has_index = segment.index_parts is not None
        flags = (
            (_SPARSE if not has_index and segment.sequences is not None else 0)
            | (_DEAD_RECORDS if segment.dead_records else 0)
            | (_HAS_DIGEST if digest is not None else 0)
            | (_IS_SPILLED if segment.spilled is not None else 0)
            | (_HAS_INDEX if has_index else 0)
            | (_IS_DAMAGED if segment.is_damaged else 0)
        )
        self._head = _SEGMENT.pack(
            segment.number,
            segment.generation,
            segment.first,
            segment.size,
            segment.high_water,
            segment.row_count,
            segment.live_count,
            segment.live_bytes,
            segment.tombstones.low,
            segment.tombstones.high,
            digest or 0,
            flags,
        )
        self._columns: tuple[array[int], ...] = ()
        self._sequences: array[int] | None = None
        self._tombstones = segment.tombstones.ranges[:]
        if has_index:
            self._live = segment.pack_live_rows()
            self._head += _spilled_bytes(segment, len(self._live))
        else:
            self._columns = (segment.sizes, segment.subject_ids, segment.times, segment.offsets)
            self._live = bytes(segment.live)
            self._sequences = segment.sequences

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes of its part of the file."""
        yield self._head
        if not self._columns:
            yield self._live
            return
        rows = len(self._live)
        for column in self._columns:
            yield column_bytes(column[:rows])
        yield self._live
        if self._sequences is not None:
            yield column_bytes(self._sequences[:rows])
        yield _COUNT.pack(len(self._tombstones))
        yield column_bytes(self._tombstones)


def _spilled_bytes(segment: Segment, live_size: int) -> bytes:
    spilled, parts = segment.spilled, segment.index_parts
    assert spilled is not None
    assert parts is not None
    return (
        _SPILLED.pack(
            spilled.last_sequence,
            spilled.first_time_ns,
            spilled.last_time_ns,
            live_size,
            len(segment.packed_sequences),
            parts.columns_at,
            parts.columns_size,
            parts.columns_hash,
            parts.subjects_hash,
            parts.subjects_size,
            parts.subjects_at,
            parts.subject_count,
            int(parts.counts_earlier),
        )
        + spilled.bloom
        + segment.packed_sequences
    )


def read_snapshot(disk: Disk, folder: Path, name: str, log_bytes: int = 0) -> IndexSnapshot | None:
    """Return the snapshot in a store's folder; None when there is none that is whole.

    Args:
        log_bytes: how long the log is, to which no index is out of all proportion.
    """
    try:
        data = read_file(disk, folder / name, max(SMALL_FILE_BYTES_MAX, _LOG_SHARE_MAX * log_bytes))
    except OSError:
        return None
    if len(data) < _HEAD.size + _HASH.size:
        return None
    magic, version, _, key, last_sequence, last_time_ns, lost_bytes, *spilled_counts = _HEAD.unpack_from(data)
    spilled_end, dead_high, segments, subjects, lost, spilled_subjects = spilled_counts
    expected = disk.hashing.checksum(_PURPOSE).number(memoryview(data)[: -_HASH.size])
    if (magic, version) != (_MAGIC, FORMAT_VERSION) or _HASH.unpack(data[-8:])[0] != expected:
        return None
    snapshot = IndexSnapshot()
    snapshot.key = key
    snapshot.last_sequence = last_sequence
    snapshot.last_time_ns = last_time_ns
    snapshot.lost_bytes = lost_bytes
    snapshot.spilled_end, snapshot.dead_high = spilled_end, dead_high
    reader = _Reader(data, _HEAD.size)
    snapshot.lost = list(reader.column("Q", lost))
    snapshot.segments = [_read_segment(reader, disk, folder, key) for _ in range(segments)]
    lengths = reader.column("I", subjects)
    snapshot.packed_names = PackedNames(lengths, bytes(reader.bytes(sum(lengths))))
    snapshot.totals = [reader.column("Q", spilled_subjects) for _ in range(4)]
    return snapshot


class _Reader:
    """Takes one thing after the other out of the file's bytes."""

    __slots__ = ("_at", "_data", "_view")

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._view = memoryview(data)
        self._at = at

    def fields(self, layout: struct.Struct) -> tuple[int, ...]:
        at = self._at
        self._at += layout.size
        return layout.unpack_from(self._data, at)

    def bytes(self, size: int) -> memoryview:
        at = self._at
        self._at += size
        return self._view[at : at + size]

    def column(self, code: str, count: int) -> array[int]:
        return read_column(code, self.bytes(_ITEM_SIZES[code] * count))


def _read_segment(reader: _Reader, disk: Disk, folder: Path, key: int) -> Segment:
    (
        number,
        generation,
        first,
        size,
        high_water,
        rows,
        live_count,
        live_bytes,
        tombstones_low,
        tombstones_high,
        digest,
        flags,
    ) = reader.fields(_SEGMENT)
    segment = Segment(disk, folder, key, number, first)
    segment.generation = generation
    segment.size = segment.end = size
    segment.high_water = high_water
    segment.live_count = live_count
    segment.live_bytes = live_bytes
    segment.tombstones.low, segment.tombstones.high = tombstones_low, tombstones_high
    segment.dead_records = bool(flags & _DEAD_RECORDS)
    segment.digest = digest if flags & _HAS_DIGEST else None
    segment.hasher = None
    segment.verified = False
    segment.is_damaged = bool(flags & _IS_DAMAGED)
    if flags & _HAS_INDEX:
        _read_spilled(reader, segment, rows)
        return segment
    segment.sizes = reader.column("I", rows)
    segment.subject_ids = reader.column("I", rows)
    segment.times = reader.column("q", rows)
    segment.offsets = reader.column("I", rows)
    segment.live = bytearray(reader.bytes(rows))
    if flags & _SPARSE:
        segment.sequences = reader.column("Q", rows)
    segment.tombstones.ranges = reader.column("Q", reader.fields(_COUNT)[0])
    if flags & _IS_SPILLED:
        segment.spilled = segment.described()
    return segment


def _read_spilled(reader: _Reader, segment: Segment, rows: int) -> None:
    fields = reader.fields(_SPILLED)
    last_sequence, first_time_ns, last_time_ns, live_size, sequences_size, *parts = fields
    columns_at, columns_size, columns_hash, subjects_hash, subjects_size, subjects_at, count, counts_earlier = parts
    spilled = SpilledRows(rows, last_sequence, first_time_ns, last_time_ns, bytes(reader.bytes(BLOOM_BYTES)))
    packed_sequences = bytes(reader.bytes(sequences_size))
    index_parts = IndexParts(
        columns_at, columns_size, columns_hash, subjects_at, subjects_size, subjects_hash, count, bool(counts_earlier)
    )
    segment.begin_released(spilled, bytes(reader.bytes(live_size)), packed_sequences, index_parts)
