"""Filing: full segments get an index piece beside them, and their part of the index leaves memory until it is used."""

from __future__ import annotations

from contextlib import suppress
from itertools import compress

from jetlake.errors import StoreError
from jetlake.store.files.disk import Disk
from jetlake.store.index.block import Block
from jetlake.store.index.index import Index
from jetlake.store.index.postings import Posted, Postings
from jetlake.store.log.log import Log
from jetlake.store.log.lost_messages import LostMessages
from jetlake.store.log.pieces.index_cache import IndexCache
from jetlake.store.log.pieces.index_piece import (
    PieceContent,
    find_posted,
    piece_path,
    read_columns,
    read_place,
    read_postings,
    write_piece,
)
from jetlake.store.log.pieces.piece_draft import PieceDraft
from jetlake.store.log.pieces.rows_from_log import read_rows
from jetlake.store.log.segment import COLUMNS, LIVE, POSTINGS, PieceParts, Segment
from jetlake.store.steps import Steps, finish

__all__ = ["Filing"]

_PARTS = (COLUMNS, LIVE, POSTINGS)
_ROW_BYTES = 20
_IN_MEMORY_MAX = 3
"""Segments in memory that are no backlog: one that is written to, one being filed, one that became full meanwhile."""


class Filing:
    """Writes the index pieces of a store's segments and reads them back; `segment.RowLoader` of all of them.

    Args:
        cache: what bounds the memory of the parts that were read back.
    """

    def __init__(self, disk: Disk, index: Index[Segment], log: Log, lost: LostMessages, cache: IndexCache) -> None:
        self._disk = disk
        self._index = index
        self._log = log
        self._lost = lost
        self._cache = cache
        # Filed segments whose columns stay in memory until they have a piece.
        self._without_piece: list[Segment] = []
        # How many bytes had been written when the disk last refused a piece: more have to follow before another try.
        self._refused_at = -1
        self._draft: PieceDraft | None = None
        self._writing: Steps[PieceParts] | None = None  # the draft's piece

    # Writing

    def begin(self, segments: list[Segment]) -> None:
        """Take over the segments that recovery found."""
        for segment in segments:
            segment.loader = self
            if segment.filed is not None and segment.piece is None:
                self._without_piece.append(segment)

    def go_on(self) -> bool:
        """Take a step to file a segment, to write a piece, or to count anew what one has; False without work to do.

        Nothing may be waiting to be flushed.
        """
        for unread in list(self._index.unread):
            with suppress(StoreError):
                unread.bring_back()
        if self._index.subjects.file_step() or self._index.recount_step():
            return True
        if self._log.written_bytes == self._refused_at:
            return False
        segment = self._next_to_draft()
        if segment is None:
            self._draft = None
            return False
        if self._draft is None or not self._draft.holds(segment):
            self._draft, self._writing = PieceDraft(segment, self._index), None
        content = self._draft.content
        if content is None:
            self._draft.go_on()
            return True
        if self._writing is None:
            if self._is_held_back(segment):
                return False
            last, newest_ns = self._index.last_of(segment), self._index.last_time_ns
            self._writing = write_piece(self._disk, segment, content, last, newest_ns)
        if segment.is_damaged:
            self._put_in_place(self._draft, content, None)
        else:
            self._write_on(self._draft, content, self._writing)
        return True

    def is_behind(self) -> bool:
        """Return whether more full segments wait to be filed than memory is meant for."""
        in_memory = len(self._index.blocks) - len(self._index.subjects.filed.blocks)
        return in_memory > _IN_MEMORY_MAX and self._log.written_bytes != self._refused_at

    def _write_on(self, draft: PieceDraft, content: PieceContent, writing: Steps[PieceParts]) -> None:
        """Take a step to write a piece, which tells how the segment was at the first step."""
        try:
            next(writing)
        except StopIteration as end:
            self._put_in_place(draft, content, end.value)
        except OSError:
            segment, self._draft = draft.segment, None
            self._refused_at = self._log.written_bytes
            with suppress(OSError):
                self._disk.remove(piece_path(segment.file.path))
            if segment in self._without_piece:
                self._without_piece.remove(segment)
                self._without_piece.append(segment)

    def _put_in_place(self, draft: PieceDraft, content: PieceContent, piece: PieceParts | None) -> None:
        """Release what a piece has, and begin to file a segment whose sequences are all in memory."""
        segment, self._draft = draft.segment, None
        is_new = segment.filed is None
        segment.loader = self
        segment.filed = content.filed
        if segment in self._without_piece:
            self._without_piece.remove(segment)
        if piece is None:
            self._without_piece.append(segment)
        else:
            self._cache.forget(segment, _PARTS)
            segment.release_all(piece, content.packed_sequences)
        if is_new:
            self._index.subjects.begin_filing(segment, draft.postings, self._index.last_of(segment) + 1)

    def _next_to_draft(self) -> Segment | None:
        """Return the segment that gets the next piece: a filed one that has none before one that is not filed."""
        for segment in self._without_piece:
            if not segment.is_damaged and not self._is_held_back(segment):
                return segment
        return self._oldest_in_memory()

    def _oldest_in_memory(self) -> Segment | None:
        """Return the segment to be filed next: full and written."""
        blocks = self._index.blocks
        place = len(self._index.subjects.filed.blocks)
        if place + 1 >= len(blocks) or not blocks[place + 1].size:
            # A segment behind which nothing is written may be gone on with.
            return None
        segment = blocks[place]
        return None if segment.pending else segment

    def _is_held_back(self, segment: Segment) -> bool:
        removals = self._log.removals
        return bool(removals.asked) or (
            bool(removals.held_back) and removals.hold_any(segment.first, self._index.last_of(segment))
        )

    def replaced(self, segment: Segment) -> None:
        """Note that a segment was rewritten: its rows are in memory, and its piece fits no more."""
        if segment.filed is None:
            return
        self._cache.forget(segment, (POSTINGS,))
        segment.release(POSTINGS)
        # The mask may have more subjects than are left; the next piece has a mask of its own.
        segment.filed = segment.described(segment.mask)
        self._keep(segment)

    def forget(self, segment: Segment) -> None:
        """Remove the piece of a segment whose file goes.

        Raises:
            OSError: the disk refused.
        """
        self._disk.remove(piece_path(segment.file.path))
        self._cache.forget(segment, _PARTS)
        if segment in self._without_piece:
            self._without_piece.remove(segment)

    def close(self) -> None:
        """Give the memory back to the stores that share the cache."""
        for segment in self._index.blocks:
            self._cache.forget(segment, _PARTS)

    # Reading

    def hold(self, segment: Segment, part: str, size: int) -> None:
        if segment.piece is not None or part == POSTINGS:
            self._cache.hold(segment, part, size)

    def load_columns(self, segment: Segment) -> None:
        assert segment.filed is not None
        assert segment.piece is not None
        columns = read_columns(self._disk, piece_path(segment.file.path), segment.piece, segment.filed.rows)
        if columns is None:
            self._read_anew(segment)
            return
        segment.sizes, segment.subject_ids, segment.times, segment.offsets = columns
        self._cache.hold(segment, COLUMNS, _ROW_BYTES * segment.filed.rows)
        if segment in self._index.unread:
            self._index.settle_unread(segment)

    def place_of(self, segment: Segment, row: int) -> tuple[int, int] | None:
        if segment.piece is None or segment.filed is None:
            return None
        self._log.use((segment,))
        return read_place(self._disk, piece_path(segment.file.path), segment.piece, segment.filed.rows, row)

    def find_posted(self, segment: Segment, number: int) -> Posted | None:
        if segment.piece is None:
            return None
        return find_posted(self._disk, piece_path(segment.file.path), segment.piece, number)

    def load_postings(self, segment: Segment) -> Postings:
        if segment.piece is not None:
            found = finish(read_postings(self._disk, piece_path(segment.file.path), segment.piece))
            if found is not None:
                return found
            # Columns may be there, but only the log has the tombstones that the next piece needs.
            self._read_anew(segment)
        return Block.postings(segment)

    def load_postings_in_steps(self, segment: Segment) -> Steps[Postings]:
        if segment.piece is not None:
            found = yield from read_postings(self._disk, piece_path(segment.file.path), segment.piece)
            if found is not None:
                return found
            # What was emptied may have no file any more.
            return self.load_postings(segment) if segment.live_count else Postings.of_rows(())
        return (yield from Block.postings_in_steps(segment))

    def _keep(self, segment: Segment) -> None:
        """Keep a segment's columns, which are there, until it has another piece."""
        self._cache.forget(segment, (COLUMNS, LIVE))
        segment.piece = None
        # Running counts go on behind a segment whose own are not known.
        filed = self._index.subjects.filed
        filed.dead_high = max(filed.dead_high, self._index.last_of(segment))
        if segment not in self._without_piece:
            self._without_piece.append(segment)

    def _read_anew(self, segment: Segment) -> None:
        """Read a segment's columns from the log, because its piece is gone or damaged.

        Raises:
            StoreError: the disk does not give the segment back.
        """
        find = self._index.subjects.numbers.ids.get
        try:
            self._log.use((segment,))
            lost = read_rows(segment, lambda subject: find(subject, 0))
        except OSError as error:
            raise StoreError.of(f"read segment {segment.number}", error) from error
        self._keep(segment)
        if segment in self._index.unread:
            self._index.settle_unread(segment)
        if lost:
            segment.is_damaged = True
            live_bytes = sum(compress(segment.sizes, segment.live))
            self._lost.add(list(map(segment.sequence_of, lost)), segment.live_bytes - live_bytes)
            self._index.lose_unread(segment, lost, live_bytes)
