"""The index of a store in one file, so that a start need not read the log.

It tells how things stood at one moment: each segment with its length then. What the log holds behind that is read as
always, so that an old snapshot is as good as a new one, only slower. It is written when nothing waits, aside and
renamed, and never waited for: one that is torn has a wrong hash, and the log is read instead.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path

from xxhash import xxh3_64

from jetlake.store.atomic_file import ASIDE_SUFFIX, read_file
from jetlake.store.columns import column_bytes, read_column
from jetlake.store.disk import Disk
from jetlake.store.segment import Segment
from jetlake.store.subject_index import SubjectIndex

__all__ = ["FORMAT_VERSION", "IndexSnapshot", "read_snapshot", "write_snapshot"]

FORMAT_VERSION = 1
_MAGIC = b"JLIX"
_HEAD = struct.Struct("<4sHHQQqQIII")
_SEGMENT = struct.Struct("<IIQQQIIQQQQI")
_HASH = struct.Struct("<Q")
_WRITE_BYTES = 1024 * 1024
_ITEM_SIZES = {"I": 4, "q": 8, "Q": 8}
_SPARSE, _DEAD_RECORDS, _HAS_DIGEST = 1, 2, 4


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


def write_snapshot(disk: Disk, path: Path, snapshot: IndexSnapshot) -> None:
    """Write the file, in pieces.

    Raises:
        OSError: the disk refused; the old file is still there.
    """
    aside = path.with_name(path.name + ASIDE_SUFFIX)
    handle = disk.open(aside, create=True)
    hasher = xxh3_64()
    try:
        disk.truncate(handle, 0)
        offset = 0
        for piece in _gathered(_pieces(snapshot)):
            hasher.update(piece)
            disk.write(handle, piece, offset)
            offset += len(piece)
        disk.write(handle, _HASH.pack(hasher.intdigest()), offset)
    finally:
        disk.close(handle)
    disk.replace(aside, path)


def _gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in fewer pieces."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _WRITE_BYTES:
            yield b"".join(waiting)
            waiting.clear()
            size = 0
    yield b"".join(waiting)


def _pieces(snapshot: IndexSnapshot) -> Iterator[bytes]:
    subjects = snapshot.subjects
    yield _HEAD.pack(
        _MAGIC,
        FORMAT_VERSION,
        0,
        snapshot.key,
        snapshot.last_sequence,
        snapshot.last_time_ns,
        snapshot.lost_bytes,
        len(snapshot.segments),
        len(subjects.names),
        len(snapshot.lost),
    )
    yield column_bytes(array("Q", snapshot.lost))
    for segment in snapshot.segments:
        yield from _segment_pieces(segment)
    names = subjects.names
    yield column_bytes(array("I", map(len, names)))
    yield b"".join(names)
    counts = array("I", (subjects.count(number) if name else 0 for number, name in enumerate(names)))
    yield column_bytes(counts)
    for number, name in enumerate(names):
        if name:
            yield from map(column_bytes, subjects.chunks(number))


def _segment_pieces(segment: Segment) -> Iterator[bytes]:
    digest = segment.digest if segment.hasher is None else int(segment.hasher.intdigest())
    flags = (
        (_SPARSE if segment.sequences is not None else 0)
        | (_DEAD_RECORDS if segment.dead_records else 0)
        | (_HAS_DIGEST if digest is not None else 0)
    )
    yield _SEGMENT.pack(
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
    for column in (segment.sizes, segment.subject_ids, segment.times, segment.offsets):
        yield column_bytes(column)
    yield bytes(segment.live)
    if segment.sequences is not None:
        yield column_bytes(segment.sequences)


def read_snapshot(disk: Disk, folder: Path, name: str) -> IndexSnapshot | None:
    """The snapshot in a store's folder; None when there is none that is whole."""
    try:
        data = read_file(disk, folder / name)
    except OSError:
        return None
    if len(data) < _HEAD.size + _HASH.size:
        return None
    magic, version, _, key, last_sequence, last_time_ns, lost_bytes, segments, subjects, lost = _HEAD.unpack_from(data)
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
    _read_subjects(reader, subjects, snapshot.subjects)
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


def _read_subjects(reader: _Reader, count: int, index: SubjectIndex) -> None:
    lengths = reader.column("I", count)
    ends = list(accumulate(lengths, initial=0))
    blob = bytes(reader.bytes(ends[-1]))
    names = [blob[start:end] for start, end in pairwise(ends)]
    counts = reader.column("I", count)
    index.adopt(names, counts, reader.column("Q", sum(counts)))
