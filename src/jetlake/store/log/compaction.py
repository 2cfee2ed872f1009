"""The end of segments: removing those in which nothing lives, and rewriting those that are mostly dead."""

from __future__ import annotations

from array import array

from xxhash import xxh3_64_intdigest

from jetlake.errors import StoreError
from jetlake.store.files.atomic_file import ASIDE_SUFFIX
from jetlake.store.files.disk import Disk
from jetlake.store.index.index import Index
from jetlake.store.log.index_file import IndexFile
from jetlake.store.log.log import Log
from jetlake.store.log.lost_messages import LostMessages
from jetlake.store.log.open_files import OpenFiles
from jetlake.store.log.record import find_record, pack_tombstone, tombstone_range, unpack
from jetlake.store.log.segment import Segment
from jetlake.store.log.segment_header import HEADER_SIZE
from jetlake.store.log.segment_list import SegmentList
from jetlake.store.sequence_ranges import merged

__all__ = ["Compactor"]

_DROPS_PER_FLUSH = 8


class Compactor:
    """Gives the disk back what removed messages took of it.

    Args:
        rewrite_bytes_min: a segment that is shorter is not worth a rewrite.
    """

    def __init__(
        self,
        disk: Disk,
        index: Index[Segment],
        log: Log,
        lost: LostMessages,
        segments: SegmentList,
        index_file: IndexFile,
        open_files: OpenFiles,
        rewrite_bytes_min: int,
    ) -> None:
        self._disk = disk
        self._index = index
        self._log = log
        self._durability = log.durability
        self._lost = lost
        self._segments = segments
        self._index_file = index_file
        self._open_files = open_files
        self._rewrite_bytes_min = rewrite_bytes_min

    # Removing

    def drop_dead_segments(self) -> None:
        """Remove the files of segments in which nothing lives any more, a few at a time."""
        dead = self._log.dead
        for segment in dead[:_DROPS_PER_FLUSH]:
            dead.remove(segment)
            if not self._may_drop(segment):
                dead.append(segment)
                continue
            # Off the list first, and for good, or its absence would be taken for a loss.
            self._segments.strike(segment.number)
            if not self._segments.is_struck(segment.number):
                dead.append(segment)
                continue
            try:
                if segment.tombstones_low and segment is not self._index.blocks[0]:
                    self._index_file.drop()
                self._disk.remove(segment.file.path)
            except OSError:
                # It holds nothing; a later flush tries again.
                dead.append(segment)
                return
            self._forget(segment)

    def waits_for_sync(self) -> bool:
        """Whether a segment is dead and not yet struck off the list for good."""
        return bool(self._log.dead) and self._segments.needs_sync()

    def _may_drop(self, segment: Segment) -> bool:
        durability, active = self._durability, self._index.active
        if segment is active or not durability.is_safe(segment) or self._is_held_back(segment):
            return False
        if not 0 < active.birth_generation <= durability.synced:
            # The newest file must be safe: it knows the stream's key and last sequence.
            return False
        if not self._may_forget(segment):
            return False
        if not segment.tombstones_low:
            return True
        # A file that the tombstones speak of might come back, as long as its removal is not safe.
        return durability.names_are_safe() and not self._is_needed(
            segment, segment.tombstones_low, segment.tombstones_high
        )

    def _forget(self, segment: Segment) -> None:
        self._segments.forget(segment.number)
        self._open_files.forget((segment,))
        segment.file.close()
        self._index.drop_block(segment)
        self._durability.forget(segment)

    def _is_held_back(self, segment: Segment) -> bool:
        """Whether a removal from the segment waits for what caused it."""
        removals = self._log.removals
        return bool(removals.held_back) and removals.hold_any(segment.first, self._index.last_of(segment))

    def _is_needed(self, segment: Segment, first: int, last: int) -> bool:
        """Whether an older file needs a tombstone of this segment, for records it still holds or never held.

        One that was rewritten explains itself.
        """
        for place, other in enumerate(self._index.blocks):
            if other is segment or other.first > last:
                return False
            explains_itself = other.generation > 0 and not other.dead_records
            if not explains_itself and self._index.starts[place + 1] > first:
                return True
        return False

    def _may_forget(self, segment: Segment) -> bool:
        may_forget = self._index.hooks.may_forget
        return may_forget is None or may_forget(segment.first, self._index.last_of(segment))

    # Rewriting

    def is_worth_rewriting(self, segment: Segment) -> bool:
        """Whether a full segment is mostly dead, and nothing keeps it from being rewritten."""
        return (
            segment.live_bytes < segment.worth_below
            and segment.size > self._rewrite_bytes_min
            and self._durability.is_safe(segment)
            and not self._is_held_back(segment)
            and self._may_forget(segment)
            # A rewritten segment would say that its lost messages were removed.
            and not self._lost.any_between(segment.first, self._index.last_of(segment))
        )

    def rewrite(self, segment: Segment) -> None:
        """Write a segment anew without what died in it.

        Raises:
            StoreError: the disk refused; the segment is as it was.
        """
        self._log.use((segment,))
        try:
            data = segment.file.read_all(segment.size)
            tombstones = _tombstones_in(segment, data)
            foreign = [(first, end) for first, end in merged(tombstones) if self._is_needed(segment, first, end)]
            if foreign != tombstones:
                self._index_file.drop()
            # The tombstones of a file that is gone may go when it cannot come back.
            self._durability.sync_names()
            _rewrite(segment, data, self._index.last_of(segment), foreign, self._index.last_time_ns)
            segment.write_generation = 0
            self._durability.renamed()
            self._durability.sync_names()
        except OSError as error:
            raise StoreError.of(f"rewrite segment {segment.number}", error) from error


def _tombstones_in(segment: Segment, data: bytes) -> list[tuple[int, int]]:
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


def _rewrite(segment: Segment, data: bytes, last: int, foreign: list[tuple[int, int]], time_ns: int) -> None:
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
    disk = segment.file.disk
    aside = segment.file.path.with_name(segment.file.path.name + ASIDE_SUFFIX)
    handle = disk.open(aside, create=True)
    try:
        disk.truncate(handle, 0)
        disk.write(handle, content, 0)
        disk.sync(handle)
    finally:
        disk.close(handle)
    disk.replace(aside, segment.file.path)
    segment.file.close()
    segment.file.tail.clear()
