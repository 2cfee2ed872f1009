"""The subject half of recovery: which messages each subject has, by counters, index pieces, or rows."""

from __future__ import annotations

from itertools import compress
from pathlib import Path

from jetlake.store.files.disk import Disk
from jetlake.store.index.block import Block
from jetlake.store.index.postings import Postings
from jetlake.store.index.subject_index import SubjectIndex
from jetlake.store.log.pieces.index_piece import piece_path, read_names, read_postings
from jetlake.store.log.pieces.rows_from_log import read_rows
from jetlake.store.log.segment import LIVE, PieceParts, Segment
from jetlake.store.log.snapshot.index_snapshot import IndexSnapshot
from jetlake.store.sequence_ranges import Range, ranges_of
from jetlake.store.steps import finish

__all__ = ["RecoveredSubjects"]


class RecoveredSubjects:
    """Builds a store's subject index while recovery takes in one segment after the other.

    Filed segments add to the counters and leave no row in memory. The newest segments have all their rows; where a
    filed one follows, they are filed too, and get a piece later.

    Args:
        snapshot: whose names and numbers are the beginning.
        counters_hold: whether all filed segments of the snapshot are as they were, so that its counters hold for them.

    Attributes:
        index: what was found so far.
        missing: the sequences of messages that were found to be lost.
    """

    def __init__(self, disk: Disk, snapshot: IndexSnapshot, *, counters_hold: bool) -> None:
        self.index = SubjectIndex()
        self.index.adopt_names(snapshot.packed_names)
        self.missing: list[Range] = []
        self._disk = disk
        self._counted: set[Segment] = set()
        # Segments with all their rows in memory since the last filed one.
        self._in_memory: list[Segment] = []
        if counters_hold:
            known: list[Block] = [segment for segment in snapshot.segments if segment.filed is not None]
            self._counted.update(segment for segment in snapshot.segments if segment.filed is not None)
            self.index.filed.adopt(known, snapshot.filed_end, *snapshot.totals)
            self.index.filed.dead_high = snapshot.dead_high

    def claim(self, path: Path, parts: PieceParts) -> bool:
        """Give the subjects of a segment's piece their numbers; False when it is damaged, or others have them."""
        found = read_names(self._disk, piece_path(path), parts)
        return found is not None and self.index.claim(*found)

    def take(self, segment: Segment) -> None:
        """Take in the next segment."""
        if segment.filed is None:
            self._in_memory.append(segment)
        elif segment not in self._counted:
            self._file_in_memory()
            self._file(segment)

    def _file_in_memory(self) -> None:
        for segment in self._in_memory:
            segment.filed = segment.described()
            self._file(segment)
        self._in_memory = []

    def _file(self, segment: Segment) -> None:
        filed = self.index.filed
        postings = self._postings_of(segment)
        last = max(segment.last_row_sequence, segment.first)
        if postings.earlier is None or segment.live_count < segment.row_count:
            filed.dead_high = max(filed.dead_high, last)
        filed.add(segment, postings, last + 1)

    def _postings_of(self, segment: Segment) -> Postings:
        """Return the living sequences of each subject in a filed segment."""
        if segment.piece is None:
            return Block.postings(segment)
        postings = finish(read_postings(self._disk, piece_path(segment.file.path), segment.piece))
        if postings is None:
            self._read_rows(segment)
            return Block.postings(segment)
        if len(postings.sequences) > segment.live_count:
            postings = postings.only(segment.lives)
            segment.release(LIVE)
        return postings

    def _read_rows(self, segment: Segment) -> None:
        lost = read_rows(segment, self.index.number_of)
        segment.file.close()
        for row in lost:
            segment.live[row] = 0
        segment.live_count -= len(lost)
        segment.live_bytes = sum(compress(segment.sizes, segment.live))
        segment.is_damaged = bool(lost)
        self.missing += ranges_of(map(segment.sequence_of, lost))

    def finish(self, segments: list[Segment]) -> SubjectIndex:
        """Return the index, when all segments are taken in."""
        index = self.index
        if len(index.filed.blocks) < len(segments):
            index.filed.end = segments[len(index.filed.blocks)].first
        for segment in self._in_memory:
            sequences = compress(segment.sequence_slice(0, len(segment.live)), segment.live)
            index.append_rows(zip(compress(segment.subject_ids, segment.live), sequences, strict=True))
        index.release_unused()
        return index
