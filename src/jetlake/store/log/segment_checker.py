"""The verification of segments: before their first use, and where a record turns out to be damaged."""

from __future__ import annotations

from contextlib import suppress

from xxhash import xxh3_64

from jetlake.store.index.index import Index
from jetlake.store.log.log import Log
from jetlake.store.log.overwriting import matches_digest
from jetlake.store.log.scan import scan
from jetlake.store.log.segment import Segment
from jetlake.store.log.segment_header import HEADER_SIZE

__all__ = ["SegmentChecker"]

# How much of a segment is looked at in a step.
_CHECKED_BYTES = 1024 * 1024


class _Check:
    """The verification of a segment's digest in steps, as long as the segment does not change."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.hasher = xxh3_64()
        self.position = 0
        self._version = segment.generation, segment.size, segment.digest

    def is_of(self, segment: Segment) -> bool:
        """Return whether it is this segment, unchanged, that is looked at."""
        return self.segment is segment and self._version == (segment.generation, segment.size, segment.digest)


class SegmentChecker:
    """Looks whether records are whole; messages that the disk does not return are counted as lost."""

    def __init__(self, index: Index[Segment], log: Log) -> None:
        self._index = index
        self._log = log
        self._check: _Check | None = None

    def check_step(self, segment: Segment) -> None:
        """Look at the next bytes of a segment that is not verified; it is, once they all were looked at.

        Raises:
            StoreError: the disk does not give them back.
        """
        check = self._check
        if check is None or not check.is_of(segment):
            check = self._check = _Check(segment)
        self._log.use((segment,))
        data = b""
        if segment.digest is not None:
            with suppress(OSError):
                data = segment.file.read(min(_CHECKED_BYTES, segment.size - check.position), check.position)
        check.hasher.update(data)
        check.position += len(data)
        if data and check.position < segment.size:
            return
        self._check = None
        if check.position == segment.size and check.hasher.intdigest() == segment.digest:
            segment.verified = True
        else:
            self.check(segment)

    def check(self, segment: Segment, *, by_records: bool = False) -> bool:
        """Look at a segment's bytes; rows whose records are damaged are lost. False when there are such rows.

        Args:
            by_records: look at every record, whatever the segment's digest says.
        """
        data = self._log.read_all(segment)
        segment.verified = True
        if not by_records and matches_digest(segment, data):
            return True
        segment.bring_back()
        content = scan(data, HEADER_SIZE, segment.checksum, segment.first - 1)
        segment.damaged_bytes = content.damaged_bytes
        good = dict(zip(content.sequences, content.offsets, strict=True))
        damaged = [
            row
            for row in segment.live_rows(0, len(segment.live))
            if segment.offsets[row] < segment.size and good.get(segment.sequence_of(row)) != segment.offsets[row]
        ]
        # An erased record is its own tombstone; a crash may have cut off the other tombstone at the end of the log.
        erased = {first for first, last in content.tombstones if first == last}.union(content.half_erased)
        for sequence in erased.intersection(map(segment.sequence_of, damaged)):
            self._log.removals.add(sequence, sequence)
        lost = [row for row in damaged if segment.sequence_of(row) not in erased]
        if lost:
            segment.is_damaged = True
            self._log.lost.add(list(map(segment.sequence_of, lost)), sum(segment.sizes[row] for row in lost))
        for row in damaged:
            self._index.kill(segment, row, segment.sequence_of(row))
        self._index.update_first_sequence()
        return not damaged
