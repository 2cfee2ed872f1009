"""The segment index of a segment: a file beside it from which its rows and its subjects are read when they are needed.

It shows the state of a full segment at the time of writing. It is derived from the log and never synced: where it is
missing or torn, or does not fit its segment, the segment is read instead. It serves reads, one segment at a time; what
a start needs of all segments is in the snapshot (`snapshot/index_snapshot.py`, which says why both are there).

The reasons are in decision 23 (docs/decisions).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from jetlake.store.columns import column_bytes, column_parts, read_column
from jetlake.store.files.checksum import Checksum
from jetlake.store.files.disk import Disk
from jetlake.store.index.block import SpilledRows
from jetlake.store.index.packed_rows import pack_live, pack_sequences
from jetlake.store.index.postings import BLOOM_BYTES, Posted, Postings
from jetlake.store.log.segment import IndexParts, Segment
from jetlake.store.log.segment_index.postings_part import PostingsPart, pack_postings, table_size
from jetlake.store.sequence_ranges import Range
from jetlake.store.steps import Steps

__all__ = [
    "FORMAT_VERSION",
    "IndexContent",
    "IndexHead",
    "Names",
    "find_posted",
    "index_path",
    "pack_in_steps",
    "read_columns",
    "read_head",
    "read_names",
    "read_offsets",
    "read_postings",
    "write_index",
]

FORMAT_VERSION = 2
_MAGIC = b"JLIP"
_HEAD = struct.Struct("<4sHHQIIQQQQIIQQQQQqqqIIIIIIQQ")
_HASH = struct.Struct("<Q")
_DEAD_RECORDS, _HAS_DIGEST, _COUNTS_EARLIER = 1, 2, 4
_ROW_BYTES = 20
# How much is packed, or written, in a step.
_PART = 256 * 1024
# More than this is not read for a record that may be short.
_BEHIND_MAX = 16 * 1024


class IndexHead(msgspec.Struct):
    """The head of a segment index.

    Attributes:
        segment: as it stood, with its columns released.
        last: the last sequence that is the segment's.
        last_time_ns: the log's newest time when the segment index was written.
        tombstones: the sequences that the segment's tombstones speak of.
    """

    segment: Segment
    last: int
    last_time_ns: int
    tombstones: list[Range]


class Names:
    """The names of a segment index's subjects, in the order of its postings.

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


def _checksum(disk: Disk) -> Checksum:
    return disk.hashing.checksum(b"segment index")


def index_path(segment_path: Path) -> Path:
    """Return the path of a segment index."""
    return segment_path.with_suffix(".idx")


class IndexContent(NamedTuple):
    """The parts of a segment index that stay as they are while messages of the segment are removed.

    Attributes:
        spilled: what stays in memory of the segment.
        packed_sequences: which sequences the segment has.
        columns: of the rows, in parts.
        columns_hash: of all of them.
        subjects: table and pages of the postings, and the names, in parts.
        pages_size: how long the pages are.
        table_hash: of the table.
        subject_count: how many subjects there are.
        counts_earlier: whether the postings know how many sequences were spilled before the segment.
    """

    spilled: SpilledRows
    packed_sequences: bytes
    columns: list[bytes]
    columns_hash: int
    subjects: list[bytes]
    pages_size: int
    table_hash: int
    subject_count: int
    counts_earlier: bool


def pack_in_steps(segment: Segment, postings: Postings, names: Names, bloom: bytes) -> Steps[IndexContent]:
    """Return what the index of a full segment consists of; the columns must be in memory.

    Args:
        names: of the postings' subjects.
        bloom: the Bloom filter of the postings' subjects.
    """
    checksum = _checksum(segment.file.disk)
    packed_sequences = yield from pack_sequences(segment.sequences, segment.first)
    columns = (segment.sizes, segment.subject_ids, segment.times, segment.offsets)
    row_parts = (part for column in columns for part in column_parts(column, _PART))
    rows, rows_hash = yield from _pack_parts(checksum, row_parts)
    table, pages = yield from pack_postings(postings, checksum)
    numbers = (part for column in (postings.numbers, names.lengths) for part in column_parts(column, _PART))
    texts, texts_hash = yield from _pack_parts(checksum, chain(numbers, names.texts))
    return IndexContent(
        segment.described(bloom),
        packed_sequences,
        rows,
        rows_hash,
        [table, *pages, *texts, _HASH.pack(texts_hash)],
        sum(map(len, pages)),
        checksum.number(table),
        len(names.lengths),
        postings.earlier is not None,
    )


def _pack_parts(checksum: Checksum, parts: Iterable[bytes]) -> Steps[tuple[list[bytes], int]]:
    """Return parts of about the same size that have the same bytes, and the hash of all of them."""
    packed: list[bytes] = []
    hasher = checksum.hasher()
    waiting: list[bytes] = []
    size = 0
    for part in parts:
        waiting.append(part)
        size += len(part)
        if size >= _PART:
            packed.append(b"".join(waiting))
            hasher.update(packed[-1])
            waiting.clear()
            size = 0
            yield
    packed.append(b"".join(waiting))
    hasher.update(packed[-1])
    return packed, hasher.intdigest()


def write_index(disk: Disk, segment: Segment, content: IndexContent, last: int, last_time_ns: int) -> Steps[IndexParts]:
    """Write the segment index of a segment, which tells how the segment is when the first step is taken.

    Args:
        last: the last sequence that is the segment's.
        last_time_ns: the log's newest time.

    Raises:
        OSError: the disk refused; what it took of the segment index has no good hash.
    """
    spilled, packed_sequences = content.spilled, content.packed_sequences
    flags = (
        (_DEAD_RECORDS if segment.dead_records else 0)
        | (_HAS_DIGEST if segment.digest is not None else 0)
        | (_COUNTS_EARLIER if content.counts_earlier else 0)
    )
    columns_size = sum(map(len, content.columns))
    fields = (
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
        spilled.rows,
        segment.live_count,
        segment.live_bytes,
        segment.tombstones.low,
        segment.tombstones.high,
        segment.digest or 0,
        spilled.last_sequence,
        spilled.first_time_ns,
        spilled.last_time_ns,
        last_time_ns,
        content.subject_count,
        len(segment.tombstones.ranges) // 2,
    )
    live = yield from pack_live(bytes(segment.live), segment.live_count)
    sizes = (len(live), len(packed_sequences), columns_size, content.pages_size)
    head = _HEAD.pack(*fields, *sizes, content.columns_hash, content.table_hash)
    head = b"".join((head, spilled.bloom, column_bytes(segment.tombstones.ranges), live, packed_sequences))
    head += _HASH.pack(_checksum(disk).number(head))
    path = index_path(segment.file.path)
    # A file that is written over is synced by some file systems there and then.
    disk.remove(path)
    disk.close(disk.open(path, create=True))
    at = len(head)
    for part in chain(content.columns, content.subjects):
        with _opened(disk, path) as handle:
            disk.write(handle, part, at)
        at += len(part)
        yield
    # The head is written last: without it the rest is ignored.
    with _opened(disk, path) as handle:
        disk.write(handle, head, 0)
    return _parts(head, len(head))


def _parts(head: bytes, head_size: int) -> IndexParts:
    *_, count, _, _, _, columns_size, subjects_size, columns_hash, subjects_hash = fields = _HEAD.unpack_from(head)
    subjects_at = head_size + columns_size
    counts_earlier = bool(fields[2] & _COUNTS_EARLIER)
    return IndexParts(
        head_size, columns_size, columns_hash, subjects_at, subjects_size, subjects_hash, count, counts_earlier
    )


def read_head(disk: Disk, folder: Path, segment_name: str) -> IndexHead | None:
    """Return the head of a segment index; None when there is none that is whole.

    Raises:
        OSError: the disk refused.
    """
    segment_path = folder / segment_name
    try:
        handle = disk.open(index_path(segment_path))
    except FileNotFoundError:
        return None
    try:
        head = disk.read(handle, _HEAD.size, 0)
        if len(head) < _HEAD.size:
            return None
        fields = _HEAD.unpack(head)
        tombstone_count, live_size, sequences_size = fields[21:24]
        rest_size = BLOOM_BYTES + 16 * tombstone_count + live_size + sequences_size
        if fields[:2] != (_MAGIC, FORMAT_VERSION) or rest_size > disk.size(handle):
            return None
        rest = disk.read(handle, rest_size + _HASH.size, _HEAD.size)
    finally:
        disk.close(handle)
    if len(rest) < rest_size + _HASH.size:
        return None
    if _HASH.unpack(rest[rest_size:])[0] != _checksum(disk).number(head + rest[:rest_size]):
        return None
    return _unpack_head(disk, segment_path, head, rest[:rest_size])


def _unpack_head(disk: Disk, segment_path: Path, head: bytes, rest: bytes) -> IndexHead:
    (_, _, flags, key, number, generation, first, last, size, high_water, rows, *more) = _HEAD.unpack(head)
    live_count, live_bytes, tombstones_low, tombstones_high, digest, last_sequence, *more = more
    first_time_ns, newest_time_ns, last_time_ns, _, tombstone_count, live_size, *_ = more
    segment = Segment(disk, segment_path.parent, key, number, first)
    segment.file.name = segment_path.name
    segment.generation = generation
    segment.size = segment.end = size
    segment.high_water = high_water
    segment.live_count, segment.live_bytes = live_count, live_bytes
    segment.tombstones.low, segment.tombstones.high = tombstones_low, tombstones_high
    segment.dead_records = bool(flags & _DEAD_RECORDS)
    segment.digest = digest if flags & _HAS_DIGEST else None
    segment.hasher = None
    segment.verified = False
    spilled = SpilledRows(rows, last_sequence, first_time_ns, newest_time_ns, rest[:BLOOM_BYTES])
    at = BLOOM_BYTES + 16 * tombstone_count
    parts = _parts(head, len(head) + len(rest) + _HASH.size)
    segment.begin_released(spilled, rest[at : at + live_size], rest[at + live_size :], parts)
    flat = read_column("Q", rest[BLOOM_BYTES:at])
    return IndexHead(segment, last, last_time_ns, list(zip(flat[::2], flat[1::2], strict=True)))


@contextmanager
def _opened(disk: Disk, path: Path) -> Iterator[int]:
    """Open a segment index; give its handle."""
    handle = disk.open(path)
    try:
        yield handle
    finally:
        disk.close(handle)


def read_columns(disk: Disk, path: Path, parts: IndexParts, rows: int) -> list[array[int]] | None:
    """Return the columns in a segment index: sizes, subject numbers, times, offsets; None when they are damaged."""
    try:
        with _opened(disk, path) as handle:
            data = disk.read(handle, parts.columns_size, parts.columns_at)
    except OSError:
        return None
    if len(data) != _ROW_BYTES * rows or _checksum(disk).number(data) != parts.columns_hash:
        return None
    view = memoryview(data)
    return [
        read_column("I", view[: 4 * rows]),
        read_column("I", view[4 * rows : 8 * rows]),
        read_column("q", view[8 * rows : 16 * rows]),
        read_column("I", view[16 * rows :]),
    ]


def read_offsets(disk: Disk, path: Path, parts: IndexParts, rows: int, row: int) -> tuple[int, int] | None:
    """Return where a row's record begins, and where the next one begins or this one ends; None when unknown.

    Nothing vouches for them but the record that is there.
    """
    try:
        with _opened(disk, path) as handle:
            position = disk.read(handle, 8 if row + 1 < rows else 4, parts.columns_at + 16 * rows + 4 * row)
            offset, end = int.from_bytes(position[:4], "little"), int.from_bytes(position[4:], "little")
            if not offset < end <= offset + _BEHIND_MAX:
                # The last row, one before rows without a record, a long record, or one with tombstones behind it.
                end = offset + int.from_bytes(disk.read(handle, 4, parts.columns_at + 4 * row), "little")
    except OSError:
        return None
    return offset, end


def read_postings(disk: Disk, path: Path, parts: IndexParts) -> Steps[Postings | None]:
    """Return the postings in a segment index; None when they are damaged, or are another's by now."""

    def read(size: int, offset: int) -> bytes:
        with _opened(disk, path) as handle:
            return disk.read(handle, size, offset)

    try:
        return (yield from PostingsPart(read, parts, _checksum(disk)).read_all())
    except OSError:
        return None


def find_posted(disk: Disk, path: Path, parts: IndexParts, number: int) -> Posted | None:
    """Return the postings of one subject in a segment index; None when they are damaged."""
    try:
        with _opened(disk, path) as handle:
            return PostingsPart(partial(disk.read, handle), parts, _checksum(disk)).find(number)
    except OSError:
        return None


def read_names(disk: Disk, path: Path, parts: IndexParts) -> tuple[array[int], list[bytes]] | None:
    """Return the numbers of a segment index's subjects, ascending, and their names; None when they are damaged."""
    count = parts.subject_count
    at = parts.subjects_at + table_size(count, parts.subjects_size) + parts.subjects_size
    try:
        with _opened(disk, path) as handle:
            data = disk.read(handle, max(disk.size(handle) - at, 0), at)
    except OSError:
        return None
    texts, digest = data[: -_HASH.size], data[-_HASH.size :]
    if len(texts) < 8 * count or digest != _HASH.pack(_checksum(disk).number(texts)):
        return None
    ends = accumulate(read_column("I", texts[4 * count : 8 * count]), initial=8 * count)
    return read_column("I", texts[: 4 * count]), [texts[start:end] for start, end in pairwise(ends)]
