"""The subject half of recovery: which messages each subject has, by counters, segment indexes, or rows."""

from __future__ import annotations

from itertools import compress
from pathlib import Path

from jetlake.store.files.disk import Disk
from jetlake.store.index.block import Block
from jetlake.store.index.postings import Postings
from jetlake.store.index.subject_index import SubjectIndex
from jetlake.store.log.segment import LIVE, IndexParts, Segment
from jetlake.store.log.segment_index.format import index_path, read_names, read_postings
from jetlake.store.log.segment_index.rows_from_log import read_rows
from jetlake.store.log.snapshot.index_snapshot import IndexSnapshot
from jetlake.store.sequence_ranges import Range, ranges_of
from jetlake.store.steps import finish

__all__ = ["RecoveredSubjects"]


class RecoveredSubjects:
    """Builds a store's subject index while recovery takes in one segment after the other.

    Spilled segments add to the counters and leave no row in memory. The newest segments have all their rows; where a
    spilled one follows, they are spilled too, and get a segment index later.

    Args:
        snapshot: whose names and numbers are the beginning.
        counters_hold: whether the snapshot's counters are valid: all its spilled segments are unchanged.

    Attributes:
        index: the subjects found so far.
        missing: the sequences of messages that were found to be lost.
    """

    def __init__(self, disk: Disk, snapshot: IndexSnapshot, *, counters_hold: bool) -> None:
        self.index = SubjectIndex()
        self.index.adopt_names(snapshot.packed_names)
        self.missing: list[Range] = []
        self._disk = disk
        self._counted: set[Segment] = set()
        # Segments with all their rows in memory since the last spilled one.
        self._in_memory: list[Segment] = []
        if counters_hold:
            known: list[Block] = [segment for segment in snapshot.segments if segment.spilled is not None]
            self._counted.update(segment for segment in snapshot.segments if segment.spilled is not None)
            self.index.spilled.adopt(known, snapshot.spilled_end, *snapshot.totals)
            self.index.spilled.dead_high = snapshot.dead_high

    def claim(self, path: Path, parts: IndexParts) -> bool:
        """Give the subjects of a segment index their numbers; False when it is damaged, or others have them."""
        found = read_names(self._disk, index_path(path), parts)
        return found is not None and self.index.claim(*found)

    def take(self, segment: Segment) -> None:
        """Take in the next segment."""
        if segment.spilled is None:
            self._in_memory.append(segment)
        elif segment not in self._counted:
            self._spill_in_memory()
            self._add_spilled(segment)

    def _spill_in_memory(self) -> None:
        for segment in self._in_memory:
            segment.spilled = segment.described()
            self._add_spilled(segment)
        self._in_memory = []

    def _add_spilled(self, segment: Segment) -> None:
        spilled = self.index.spilled
        postings = self._postings_of(segment)
        last = max(segment.last_row_sequence, segment.first)
        if postings.earlier is None or segment.live_count < segment.row_count:
            spilled.dead_high = max(spilled.dead_high, last)
        spilled.add(segment, postings, last + 1)

    def _postings_of(self, segment: Segment) -> Postings:
        """Return the living sequences of each subject in a spilled segment."""
        if segment.index_parts is None:
            return Block.postings(segment)
        postings = finish(read_postings(self._disk, index_path(segment.file.path), segment.index_parts))
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
        if len(index.spilled.blocks) < len(segments):
            index.spilled.end = segments[len(index.spilled.blocks)].first
        for segment in self._in_memory:
            sequences = compress(segment.sequence_slice(0, len(segment.live)), segment.live)
            index.append_rows(zip(compress(segment.subject_ids, segment.live), sequences, strict=True))
        index.release_unused()
        return index
