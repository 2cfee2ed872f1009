"""The index piece of a segment: a file beside it from which its rows and its subjects are read when they are needed.

A piece tells how a full segment stood when the piece was written. It is derived from the log and never synced: where
one is missing, torn, or does not fit its segment, the segment is read instead.

The reasons are in decision 23 (docs/decisions).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from itertools import accumulate, pairwise
from pathlib import Path

import msgspec
from xxhash import xxh3_64_intdigest

from jetlake.store.columns import column_bytes, read_column
from jetlake.store.files.disk import Disk
from jetlake.store.index.block import Filed
from jetlake.store.index.postings import MASK_BYTES, Postings
from jetlake.store.log.segment import PieceParts, Segment, pack_live
from jetlake.store.sequence_ranges import Range

__all__ = [
    "FORMAT_VERSION",
    "Names",
    "PieceHead",
    "piece_path",
    "read_columns",
    "read_head",
    "read_place",
    "read_subjects",
    "subject_names",
    "write_piece",
]

FORMAT_VERSION = 1
_MAGIC = b"JLIP"
_HEAD = struct.Struct("<4sHHQIIQQQQIIQQQQQqqqIIIIIIQQ")
_HASH = struct.Struct("<Q")
_DEAD_RECORDS, _HAS_DIGEST, _COUNTS_EARLIER = 1, 2, 4
_ROW_BYTES, _SUBJECT_BYTES = 20, 20


class PieceHead(msgspec.Struct):
    """The head of a piece.

    Attributes:
        segment: as it stood, with its columns released.
        last: the last sequence that is the segment's.
        last_time_ns: the log's newest time when the piece was written.
        tombstones: the sequences that the segment's tombstones speak of.
    """

    segment: Segment
    last: int
    last_time_ns: int
    tombstones: list[Range]


class Names:
    """The names of a piece's subjects, in the order of its postings.

    Attributes:
        lengths: of each name.
        texts: all names, in any number of parts.
    """

    __slots__ = ("lengths", "texts")

    def __init__(self, names: Iterable[bytes] = ()) -> None:
        self.lengths: array[int] = array("I")
        self.texts: list[bytes] = []
        self.extend(list(names))

    def extend(self, names: list[bytes]) -> None:
        """Add more names at the end."""
        self.lengths.extend(map(len, names))
        self.texts.append(b"".join(names))


def piece_path(segment_path: Path) -> Path:
    """Return the path of a segment's piece."""
    return segment_path.with_suffix(".idx")


def write_piece(
    disk: Disk, segment: Segment, postings: Postings, names: Names, last: int, last_time_ns: int
) -> PieceParts:
    """Write the piece of a segment, whose columns must be in memory.

    Args:
        names: those of the postings' subjects.
        last: the last sequence that is the segment's.
        last_time_ns: the log's newest time.

    Raises:
        OSError: the disk refused; what it took of the piece has no good hash.
    """
    filed = segment.filed
    assert filed is not None
    columns = b"".join(
        column_bytes(column) for column in (segment.sizes, segment.subject_ids, segment.times, segment.offsets)
    )
    count = len(names.lengths)
    earlier = postings.earlier if postings.earlier is not None else array("Q", bytes(8 * count))
    subjects = b"".join(
        (
            column_bytes(postings.numbers),
            column_bytes(postings.counts),
            column_bytes(earlier),
            column_bytes(names.lengths),
            column_bytes(postings.sequences),
            *names.texts,
        )
    )
    live = pack_live(segment.live, segment.live_count)
    flags = (
        (_DEAD_RECORDS if segment.dead_records else 0)
        | (_HAS_DIGEST if segment.digest is not None else 0)
        | (_COUNTS_EARLIER if postings.earlier is not None else 0)
    )
    head = _HEAD.pack(
        _MAGIC,
        FORMAT_VERSION,
        flags,
        segment.key,
        segment.number,
        segment.generation,
        segment.first,
        last,
        segment.size,
        segment.high_water,
        filed.rows,
        segment.live_count,
        segment.live_bytes,
        segment.tombstones.low,
        segment.tombstones.high,
        segment.digest or 0,
        filed.last_sequence,
        filed.first_time_ns,
        filed.last_time_ns,
        last_time_ns,
        count,
        len(segment.tombstones.ranges) // 2,
        len(live),
        len(segment.packed_sequences),
        len(columns),
        len(subjects),
        xxh3_64_intdigest(columns),
        xxh3_64_intdigest(subjects),
    )
    head = b"".join((head, filed.mask, column_bytes(segment.tombstones.ranges), live, segment.packed_sequences))
    head += _HASH.pack(xxh3_64_intdigest(head))
    path = piece_path(segment.file.path)
    # A file that is written over is synced by some file systems there and then.
    disk.remove(path)
    handle = disk.open(path, create=True)
    try:
        # The head comes last: without it nobody looks at the rest.
        disk.write(handle, subjects, len(head) + len(columns))
        disk.write(handle, columns, len(head))
        disk.write(handle, head, 0)
    finally:
        disk.close(handle)
    return _parts(head, len(head))


def _parts(head: bytes, head_size: int) -> PieceParts:
    *_, count, _, _, _, columns_size, subjects_size, columns_hash, subjects_hash = fields = _HEAD.unpack_from(head)
    subjects_at = head_size + columns_size
    counts_earlier = bool(fields[2] & _COUNTS_EARLIER)
    return PieceParts(
        head_size, columns_size, columns_hash, subjects_at, subjects_size, subjects_hash, count, counts_earlier
    )


def read_head(disk: Disk, folder: Path, segment_name: str) -> PieceHead | None:
    """Return the head of a segment's piece; None when there is none that is whole.

    Raises:
        OSError: the disk refused.
    """
    segment_path = folder / segment_name
    try:
        handle = disk.open(piece_path(segment_path))
    except FileNotFoundError:
        return None
    try:
        head = disk.read(handle, _HEAD.size, 0)
        if len(head) < _HEAD.size:
            return None
        fields = _HEAD.unpack(head)
        tombstone_count, live_size, sequences_size = fields[21:24]
        rest_size = MASK_BYTES + 16 * tombstone_count + live_size + sequences_size
        if fields[:2] != (_MAGIC, FORMAT_VERSION) or rest_size > disk.size(handle):
            return None
        rest = disk.read(handle, rest_size + _HASH.size, _HEAD.size)
    finally:
        disk.close(handle)
    if len(rest) < rest_size + _HASH.size:
        return None
    if _HASH.unpack(rest[rest_size:])[0] != xxh3_64_intdigest(head + rest[:rest_size]):
        return None
    return _unpack_head(disk, segment_path, head, rest[:rest_size])


def _unpack_head(disk: Disk, segment_path: Path, head: bytes, rest: bytes) -> PieceHead:
    (_, _, flags, key, number, generation, first, last, size, high_water, rows, *more) = _HEAD.unpack(head)
    live_count, live_bytes, tombstones_low, tombstones_high, digest, last_sequence, *more = more
    first_time_ns, newest_time_ns, last_time_ns, _, tombstone_count, live_size, *_ = more
    segment = Segment(disk, segment_path.parent, key, number, first)
    segment.file.path = segment_path
    segment.generation = generation
    segment.size = segment.end = size
    segment.high_water = high_water
    segment.live_count, segment.live_bytes = live_count, live_bytes
    segment.tombstones.low, segment.tombstones.high = tombstones_low, tombstones_high
    segment.dead_records = bool(flags & _DEAD_RECORDS)
    segment.digest = digest if flags & _HAS_DIGEST else None
    segment.hasher = None
    segment.verified = False
    filed = Filed(rows, last_sequence, first_time_ns, newest_time_ns, rest[:MASK_BYTES])
    at = MASK_BYTES + 16 * tombstone_count
    parts = _parts(head, len(head) + len(rest) + _HASH.size)
    segment.begin_released(filed, rest[at : at + live_size], rest[at + live_size :], parts)
    flat = read_column("Q", rest[MASK_BYTES:at])
    return PieceHead(segment, last, last_time_ns, list(zip(flat[::2], flat[1::2], strict=True)))


def _read(disk: Disk, path: Path, at: int, size: int, digest: int) -> bytes | None:
    """Return a part of a piece; None when it is not there as it was written."""
    try:
        handle = disk.open(path)
        try:
            data = disk.read(handle, size, at)
        finally:
            disk.close(handle)
    except OSError:
        return None
    return data if len(data) == size and xxh3_64_intdigest(data) == digest else None


def read_columns(disk: Disk, path: Path, parts: PieceParts, rows: int) -> list[array[int]] | None:
    """Return the columns in a piece: sizes, subject numbers, times, offsets; None when they are damaged."""
    data = _read(disk, path, parts.columns_at, parts.columns_size, parts.columns_hash)
    if data is None or len(data) != _ROW_BYTES * rows:
        return None
    view = memoryview(data)
    return [
        read_column("I", view[: 4 * rows]),
        read_column("I", view[4 * rows : 8 * rows]),
        read_column("q", view[8 * rows : 16 * rows]),
        read_column("I", view[16 * rows :]),
    ]


def read_place(disk: Disk, path: Path, parts: PieceParts, rows: int, row: int) -> tuple[int, int] | None:
    """Offset and size of one row, which nothing vouches for but the record that is there; None where it is not told."""
    try:
        handle = disk.open(path)
        try:
            size = disk.read(handle, 4, parts.columns_at + 4 * row)
            offset = disk.read(handle, 4, parts.columns_at + 16 * rows + 4 * row)
        finally:
            disk.close(handle)
    except OSError:
        return None
    return int.from_bytes(offset, "little"), int.from_bytes(size, "little")


def read_subjects(disk: Disk, path: Path, parts: PieceParts) -> tuple[Postings, bytes] | None:
    """Return the postings in a piece and, for `subject_names`, the rest; None when they are damaged."""
    data = _read(disk, path, parts.subjects_at, parts.subjects_size, parts.subjects_hash)
    count = parts.subject_count
    if data is None or len(data) < _SUBJECT_BYTES * count:
        return None
    view = memoryview(data)
    numbers = read_column("I", view[: 4 * count])
    counts = read_column("I", view[4 * count : 8 * count])
    earlier = read_column("Q", view[8 * count : 16 * count]) if parts.counts_earlier else None
    at = _SUBJECT_BYTES * count
    end = at + 8 * sum(counts)
    if end > len(data):
        return None
    lengths = data[16 * count : at]
    return Postings(numbers, counts, read_column("Q", view[at:end]), earlier), lengths + data[end:]


def subject_names(rest: bytes, count: int) -> list[bytes]:
    """Return the names of a piece's subjects, by what `read_subjects` left."""
    lengths = read_column("I", rest[: 4 * count])
    return [rest[start:end] for start, end in pairwise(accumulate(lengths, initial=4 * count))]
