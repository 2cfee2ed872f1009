"""Rewriting a segment without the records that nobody needs any more."""

from __future__ import annotations

from array import array

from xxhash import xxh3_64_intdigest

from jetlake.store.files.atomic_file import ASIDE_SUFFIX
from jetlake.store.log.record import find_record, pack_tombstone, tombstone_range, unpack
from jetlake.store.log.segment import HEADER_SIZE, Segment

__all__ = ["rewrite", "tombstones_in"]


def tombstones_in(segment: Segment, data: bytes) -> list[tuple[int, int]]:
    """The ranges of all tombstones of a segment whose bytes these are."""
    if not segment.tombstones_low:
        return []
    ends = {offset: offset + size for offset, size in zip(segment.offsets, segment.sizes, strict=True) if size}
    found: list[tuple[int, int]] = []
    at = HEADER_SIZE
    while 0 <= at < len(data):
        end = ends.get(at)
        if end is None:
            record = unpack(data, at, segment.seed)
            if record is None:
                at = find_record(data, at + 1, segment.seed, segment.tombstones_high)
                continue
            end = record.end
            if record.is_tombstone:
                found.append(tombstone_range(record))
        at = end
    return found


def rewrite(segment: Segment, data: bytes, last: int, foreign: list[tuple[int, int]], time_ns: int) -> None:
    """Put a new file in the place of the segment's and its rows in the place of those here.

    What is left out is told by tombstones in its place, so that a later reader knows that nothing is missing. The new
    name is not yet safe when this returns: that is left to whoever syncs the folder.

    Args:
        data: the segment's bytes, known to be good.
        last: the last sequence that is the segment's.
        foreign: tombstones for other segments that have to stay, as (first, last).
        time_ns: for the tombstones.

    Raises:
        OSError: the disk refused; the segment is as it was.
    """
    offsets, sizes = segment.offsets, segment.sizes
    rows = segment.live_rows(0, len(segment.live))
    segment_header = segment.header()
    parts = [b""]
    new_offsets: array[int] = array("I")
    sequences: array[int] = array("Q")
    at = HEADER_SIZE
    before = segment.first - 1
    for row in rows:
        sequence = segment.sequence_of(row)
        if sequence > before + 1:
            tombstone = pack_tombstone(before + 1, sequence - 1, time_ns, segment.seed)
            parts.append(tombstone)
            at += len(tombstone)
        parts.append(data[offsets[row] : offsets[row] + sizes[row]])
        new_offsets.append(at)
        sequences.append(sequence)
        at += sizes[row]
        before = sequence
    gone = [(before + 1, last)] if last > before else []
    parts += [pack_tombstone(first, end, time_ns, segment.seed) for first, end in gone + foreign]
    generation = segment.generation + 1
    parts[0] = segment_header.at_generation(generation).pack()
    content = b"".join(parts)
    _replace(segment, content)

    segment.generation = generation
    segment.sizes = array("I", [sizes[row] for row in rows])
    segment.subject_ids = array("I", [segment.subject_ids[row] for row in rows])
    segment.times = array("q", [segment.times[row] for row in rows])
    segment.live = bytearray(b"\x01") * len(rows)
    segment.offsets = new_offsets
    segment.sequences = sequences
    segment.size = segment.end = len(content)
    segment.digest = int(xxh3_64_intdigest(content))
    segment.hasher = None
    segment.verified = True
    segment.dead_records = False
    segment.tombstones_low = segment.tombstones_high = 0
    for first, end in foreign:
        segment.note_tombstone(first, end)
    segment.worth_below = segment.live_bytes // 2


def _replace(segment: Segment, content: bytes) -> None:
    disk = segment.disk
    aside = segment.path.with_name(segment.path.name + ASIDE_SUFFIX)
    handle = disk.open(aside, create=True)
    try:
        disk.truncate(handle, 0)
        disk.write(handle, content, 0)
        disk.sync(handle)
    finally:
        disk.close(handle)
    disk.replace(aside, segment.path)
    segment.close()
    segment.drop_tail()
