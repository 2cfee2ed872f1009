"""The index of a store in one file, so that a start need not read the log.

It tells how things stood at one moment: each segment with its length then. What the log holds behind that is read as
always, so that an old snapshot is as good as a new one, only slower. It is written when nothing waits, aside and
renamed, and never waited for: one that is torn has a wrong hash, and the log is read instead.

The reasons are in decision 6 (docs/decisions).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from itertools import accumulate, compress, pairwise
from pathlib import Path

from xxhash import xxh3_64

from jetlake.store.columns import column_bytes, read_column
from jetlake.store.files.atomic_file import ASIDE_SUFFIX, SMALL_FILE_BYTES_MAX, read_file
from jetlake.store.files.disk import Disk
from jetlake.store.index.subject_index import SubjectIndex
from jetlake.store.log.segment import Segment

__all__ = ["FORMAT_VERSION", "IndexSnapshot", "SnapshotWriter", "read_snapshot"]

FORMAT_VERSION = 1
_MAGIC = b"JLIX"
_HEAD = struct.Struct("<4sHHQQqQIII")
_SEGMENT = struct.Struct("<IIQQQIIQQQQI")
_HASH = struct.Struct("<Q")
_WRITE_BYTES = 1024 * 1024
_ITEM_SIZES = {"I": 4, "q": 8, "Q": 8}
_SPARSE, _DEAD_RECORDS, _HAS_DIGEST = 1, 2, 4
_NO_SEQUENCES = 1
_LOG_SHARE_MAX = 4


class IndexSnapshot:
    """What the file tells.

    Attributes:
        key: the stream's, as everywhere.
        segments: with their rows as they were; `size` is how far each was written.
        last_sequence: the last one that was used.
        lost, lost_bytes: what recovery had found missing until then.
    """

    def __init__(self) -> None:
        self.key = 0
        self.last_sequence = 0
        self.last_time_ns = 0
        self.lost: list[int] = []
        self.lost_bytes = 0
        self.segments: list[Segment] = []
        self.subjects = SubjectIndex()


class SnapshotWriter:
    """Writes a snapshot aside, in steps, and puts it in its place with the last one.

    Without the sequences of the subjects it tells how things stood when it was made, whatever becomes of the store
    meanwhile; a reader finds the sequences in the segments' rows, which takes it longer. With them, nothing may change
    until it is done.
    """

    def __init__(self, disk: Disk, path: Path, snapshot: IndexSnapshot, *, with_sequences: bool) -> None:
        self._disk = disk
        self._path = path
        self._aside = path.with_name(path.name + ASIDE_SUFFIX)
        self._pieces = _pieces(
            _head(snapshot, with_sequences),
            [_FrozenSegment(segment) for segment in snapshot.segments],
            snapshot.subjects.names[:],
            snapshot.subjects if with_sequences else None,
        )
        self._hasher = xxh3_64()
        self._offset = 0
        self._handle: int | None = None

    def step(self, size: int = _WRITE_BYTES) -> bool:
        """Write about so many bytes; whether there is more to do.

        Raises:
            OSError: the disk refused; the old file is still there, and this one is given up.
        """
        try:
            if self._handle is None:
                # A file that was truncated, or put in the place of another, is written out by some file systems there
                # and then, while the loop waits. Nobody needs this one so badly.
                self._disk.remove(self._aside)
                self._handle = self._disk.open(self._aside, create=True)
            if data := _gather(self._pieces, size):
                self._hasher.update(data)
                self._write(data)
                return True
            self._write(_HASH.pack(self._hasher.intdigest()))
        except OSError:
            self.cancel()
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
        """Give the handle back; what was written aside goes at the next start, or when the next one begins."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._disk.close(handle)


def _gather(pieces: Iterator[bytes], size: int) -> bytes:
    """The next pieces, until they are that long."""
    taken: list[bytes] = []
    for piece in pieces:
        taken.append(piece)
        size -= len(piece)
        if size <= 0:
            break
    return b"".join(taken)


def _head(snapshot: IndexSnapshot, with_sequences: bool) -> bytes:
    head = _HEAD.pack(
        _MAGIC,
        FORMAT_VERSION,
        0 if with_sequences else _NO_SEQUENCES,
        snapshot.key,
        snapshot.last_sequence,
        snapshot.last_time_ns,
        snapshot.lost_bytes,
        len(snapshot.segments),
        len(snapshot.subjects.names),
        len(snapshot.lost),
    )
    return head + column_bytes(array("Q", snapshot.lost))


def _pieces(
    head: bytes, segments: list[_FrozenSegment], names: list[bytes], subjects: SubjectIndex | None
) -> Iterator[bytes]:
    yield head
    for segment in segments:
        yield from segment.pieces()
    yield column_bytes(array("I", map(len, names)))
    yield b"".join(names)
    if subjects is None:
        return
    counts = array("I", (subjects.count(number) if name else 0 for number, name in enumerate(names)))
    yield column_bytes(counts)
    for number, name in enumerate(names):
        if name:
            yield from map(column_bytes, subjects.chunks(number))


class _FrozenSegment:
    """A segment as it stood: rows that are written do not change any more, but for whether they live."""

    __slots__ = ("_columns", "_head", "_live", "_sequences")

    def __init__(self, segment: Segment) -> None:
        digest = segment.digest if segment.hasher is None else int(segment.hasher.intdigest())
        flags = (
            (_SPARSE if segment.sequences is not None else 0)
            | (_DEAD_RECORDS if segment.dead_records else 0)
            | (_HAS_DIGEST if digest is not None else 0)
        )
        self._head = _SEGMENT.pack(
            segment.number,
            segment.generation,
            segment.first,
            segment.size,
            segment.high_water,
            len(segment.live),
            segment.live_count,
            segment.live_bytes,
            segment.tombstones_low,
            segment.tombstones_high,
            digest or 0,
            flags,
        )
        self._columns = (segment.sizes, segment.subject_ids, segment.times, segment.offsets)
        self._live = bytes(segment.live)
        self._sequences = segment.sequences

    def pieces(self) -> Iterator[bytes]:
        """The bytes of its part of the file."""
        rows = len(self._live)
        yield self._head
        for column in self._columns:
            yield column_bytes(column[:rows])
        yield self._live
        if self._sequences is not None:
            yield column_bytes(self._sequences[:rows])


def read_snapshot(disk: Disk, folder: Path, name: str, log_bytes: int = 0) -> IndexSnapshot | None:
    """The snapshot in a store's folder; None when there is none that is whole.

    Args:
        log_bytes: how long the log is, to which no index is out of all proportion.
    """
    try:
        data = read_file(disk, folder / name, max(SMALL_FILE_BYTES_MAX, _LOG_SHARE_MAX * log_bytes))
    except OSError:
        return None
    if len(data) < _HEAD.size + _HASH.size:
        return None
    magic, version, flags, key, last_sequence, last_time_ns, lost_bytes, segments, subjects, lost = _HEAD.unpack_from(
        data
    )
    hasher = xxh3_64(memoryview(data)[: -_HASH.size])
    if (magic, version) != (_MAGIC, FORMAT_VERSION) or _HASH.unpack(data[-8:])[0] != hasher.intdigest():
        return None
    snapshot = IndexSnapshot()
    snapshot.key = key
    snapshot.last_sequence = last_sequence
    snapshot.last_time_ns = last_time_ns
    snapshot.lost_bytes = lost_bytes
    reader = _Reader(data, _HEAD.size)
    snapshot.lost = list(reader.column("Q", lost))
    snapshot.segments = [_read_segment(reader, disk, folder, key) for _ in range(segments)]
    names = _read_names(reader, subjects)
    if flags & _NO_SEQUENCES:
        counts, sequences = _sequences_in(snapshot.segments, subjects)
    else:
        counts = reader.column("I", subjects)
        sequences = reader.column("Q", sum(counts))
    snapshot.subjects.adopt(names, counts, sequences)
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
    segment.tombstones_low, segment.tombstones_high = tombstones_low, tombstones_high
    segment.dead_records = bool(flags & _DEAD_RECORDS)
    segment.digest = digest if flags & _HAS_DIGEST else None
    segment.hasher = None
    segment.verified = False
    segment.sizes = reader.column("I", rows)
    segment.subject_ids = reader.column("I", rows)
    segment.times = reader.column("q", rows)
    segment.offsets = reader.column("I", rows)
    segment.live = bytearray(reader.bytes(rows))
    if flags & _SPARSE:
        segment.sequences = reader.column("Q", rows)
    return segment


def _read_names(reader: _Reader, count: int) -> list[bytes]:
    lengths = reader.column("I", count)
    ends = list(accumulate(lengths, initial=0))
    blob = bytes(reader.bytes(ends[-1]))
    return [blob[start:end] for start, end in pairwise(ends)]


def _sequences_in(segments: list[Segment], subjects: int) -> tuple[array[int], array[int]]:
    """How many sequences each subject has, and all of them, subject by subject, by what the rows say."""
    columns = [array("Q") for _ in range(subjects)]
    for segment in segments:
        live = segment.live
        numbers = compress(segment.subject_ids, live)
        for number, sequence in zip(numbers, compress(segment.sequence_slice(0, len(live)), live), strict=True):
            columns[number].append(sequence)
    sequences: array[int] = array("Q")
    for column in columns:
        sequences.extend(column)
    return array("I", map(len, columns)), sequences
