"""Spilling: a full segment gets an index file beside it, and its part of the index leaves memory until it is read."""

from __future__ import annotations

from contextlib import suppress
from itertools import compress

from jetlake.errors import StoreError
from jetlake.store.index.block import Block
from jetlake.store.index.index import Index
from jetlake.store.index.postings import Posted, Postings
from jetlake.store.log.log import Log
from jetlake.store.log.segment import COLUMNS, LIVE, POSTINGS, IndexParts, Segment
from jetlake.store.log.segment_index.draft import IndexDraft
from jetlake.store.log.segment_index.format import (
    IndexContent,
    find_posted,
    index_path,
    read_columns,
    read_offsets,
    read_postings,
    write_index,
)
from jetlake.store.log.segment_index.index_cache import IndexCache
from jetlake.store.log.segment_index.rows_from_log import read_rows
from jetlake.store.steps import Steps, finish

__all__ = ["Spiller"]

_PARTS = (COLUMNS, LIVE, POSTINGS)
_ROW_BYTES = 20
_IN_MEMORY_MAX = 3
"""Segments in memory that are no backlog: one that is written to, one being spilled, one that became full meanwhile."""


class Spiller:
    """Writes the segment indexes of a store's segments and reads them back.

    Args:
        cache: what bounds the memory of the parts that were read back.
    """

    def __init__(self, index: Index[Segment], log: Log, cache: IndexCache) -> None:
        self._disk = log.disk
        self._index = index
        self._log = log
        self._cache = cache
        # Spilled segments whose columns stay in memory until they have a segment index.
        self._without_index: list[Segment] = []
        # `written_bytes` when the disk last refused a segment index: the next attempt waits until more is written.
        self._refused_at = -1
        self._draft: IndexDraft | None = None
        self._writing: Steps[IndexParts] | None = None  # the draft's segment index

    # Writing

    def begin(self, segments: list[Segment]) -> None:
        """Take over the segments that recovery found."""
        for segment in segments:
            segment.loader = self
            if segment.spilled is not None and segment.index_parts is None:
                self._without_index.append(segment)

    def step(self) -> bool:
        """Take a step to spill a segment, to write a segment index, or to recount; False without work to do.

        Nothing may be waiting to be flushed.
        """
        for unread in list(self._index.unread):
            with suppress(StoreError):
                unread.bring_back()
        if self._index.subjects.spill_step() or self._index.recount_step():
            return True
        if self._log.written_bytes == self._refused_at:
            return False
        segment = self._next_to_draft()
        if segment is None:
            self._draft = None
            return False
        if self._draft is None or not self._draft.holds(segment):
            self._draft, self._writing = IndexDraft(segment, self._index), None
        content = self._draft.content
        if content is None:
            self._draft.step()
            return True
        if self._writing is None:
            if self._is_held_back(segment):
                return False
            last, newest_ns = self._index.last_of(segment), self._index.last_time_ns
            self._writing = write_index(self._disk, segment, content, last, newest_ns)
        if segment.is_damaged:
            self._install(self._draft, content, None)
        else:
            self._write_on(self._draft, content, self._writing)
        return True

    def is_behind(self) -> bool:
        """Return whether more full segments wait to be spilled than memory is meant for."""
        in_memory = len(self._index.blocks) - len(self._index.subjects.spilled.blocks)
        return in_memory > _IN_MEMORY_MAX and self._log.written_bytes != self._refused_at

    def _write_on(self, draft: IndexDraft, content: IndexContent, writing: Steps[IndexParts]) -> None:
        """Take a step to write a segment index, which tells how the segment was at the first step."""
        try:
            next(writing)
        except StopIteration as end:
            self._install(draft, content, end.value)
        except OSError:
            segment, self._draft = draft.segment, None
            self._refused_at = self._log.written_bytes
            with suppress(OSError):
                self._disk.remove(index_path(segment.file.path))
            if segment in self._without_index:
                self._without_index.remove(segment)
                self._without_index.append(segment)

    def _install(self, draft: IndexDraft, content: IndexContent, index_parts: IndexParts | None) -> None:
        """Release what a segment index has, and begin to spill a segment whose sequences are all in memory."""
        segment, self._draft = draft.segment, None
        is_new = segment.spilled is None
        segment.loader = self
        segment.spilled = content.spilled
        if segment in self._without_index:
            self._without_index.remove(segment)
        if index_parts is None:
            self._without_index.append(segment)
        else:
            self._cache.forget(segment, _PARTS)
            segment.release_all(index_parts, content.packed_sequences)
        if is_new:
            self._index.subjects.begin_spill(segment, draft.postings, self._index.last_of(segment) + 1)

    def _next_to_draft(self) -> Segment | None:
        """Return the segment that gets the next segment index: spilled ones without an index come first."""
        for segment in self._without_index:
            if not segment.is_damaged and not self._is_held_back(segment):
                return segment
        return self._oldest_in_memory()

    def _oldest_in_memory(self) -> Segment | None:
        """Return the segment to be spilled next: full and written."""
        blocks = self._index.blocks
        position = len(self._index.subjects.spilled.blocks)
        if position + 1 >= len(blocks) or not blocks[position + 1].size:
            # A segment behind which nothing is written may be gone on with.
            return None
        segment = blocks[position]
        return None if segment.pending else segment

    def _is_held_back(self, segment: Segment) -> bool:
        removals = self._log.removals
        return bool(removals.asked) or (
            bool(removals.held_back) and removals.hold_any(segment.first, self._index.last_of(segment))
        )

    def replaced(self, segment: Segment) -> None:
        """Note that a segment was rewritten: its rows are in memory, and its segment index fits no more."""
        if segment.spilled is None:
            return
        self._cache.forget(segment, (POSTINGS,))
        segment.release(POSTINGS)
        # The Bloom filter may have more subjects than are left; the next segment index has a Bloom filter of its own.
        segment.spilled = segment.described(segment.bloom)
        self._keep(segment)

    def forget(self, segment: Segment) -> None:
        """Remove the segment index of a segment whose file goes.

        Raises:
            OSError: the disk refused.
        """
        self._disk.remove(index_path(segment.file.path))
        self._cache.forget(segment, _PARTS)
        if segment in self._without_index:
            self._without_index.remove(segment)

    def close(self) -> None:
        """Give the memory back to the stores that share the cache."""
        for segment in self._index.blocks:
            self._cache.forget(segment, _PARTS)

    # Reading

    def hold(self, segment: Segment, part: str, size: int) -> None:
        """Count the memory of a part that was loaded."""
        if segment.index_parts is not None or part == POSTINGS:
            self._cache.hold(segment, part, size)

    def load_columns(self, segment: Segment) -> None:
        """Set the columns of a segment that were released."""
        assert segment.spilled is not None
        assert segment.index_parts is not None
        columns = read_columns(self._disk, index_path(segment.file.path), segment.index_parts, segment.spilled.rows)
        if columns is None:
            self._reread(segment)
            return
        segment.sizes, segment.subject_ids, segment.times, segment.offsets = columns
        self._cache.hold(segment, COLUMNS, _ROW_BYTES * segment.spilled.rows)
        if segment in self._index.unread:
            self._index.resolve_unread(segment)

    def offsets_of(self, segment: Segment, row: int) -> tuple[int, int] | None:
        """Return where a row's record begins and may end, without its columns; None when those must be loaded.

        Both may be wrong: only the record itself proves them.
        """
        if segment.index_parts is None or segment.spilled is None:
            return None
        self._log.use((segment,))
        return read_offsets(self._disk, index_path(segment.file.path), segment.index_parts, segment.spilled.rows, row)

    def find_posted(self, segment: Segment, number: int) -> Posted | None:
        """Return the postings of one subject in a segment; None when the postings of all subjects must be loaded."""
        if segment.index_parts is None:
            return None
        return find_posted(self._disk, index_path(segment.file.path), segment.index_parts, number)

    def load_postings(self, segment: Segment) -> Postings:
        """Return the postings of a segment."""
        if segment.index_parts is not None:
            found = finish(read_postings(self._disk, index_path(segment.file.path), segment.index_parts))
            if found is not None:
                return found
            # Columns may be there, but only the log has the tombstones that the next step needs.
            self._reread(segment)
        return Block.postings(segment)

    def load_postings_in_steps(self, segment: Segment) -> Steps[Postings]:
        """Return the same in steps; no postings when the segment was emptied between them."""
        if segment.index_parts is not None:
            found = yield from read_postings(self._disk, index_path(segment.file.path), segment.index_parts)
            if found is not None:
                return found
            # An emptied segment may have no file any more.
            return self.load_postings(segment) if segment.live_count else Postings.of_rows(())
        return (yield from Block.postings_in_steps(segment))

    def _keep(self, segment: Segment) -> None:
        """Keep a segment's columns, which are there, until it has another segment index."""
        self._cache.forget(segment, (COLUMNS, LIVE))
        segment.index_parts = None
        # Running counts continue behind a segment whose own are not known.
        spilled = self._index.subjects.spilled
        spilled.dead_high = max(spilled.dead_high, self._index.last_of(segment))
        if segment not in self._without_index:
            self._without_index.append(segment)

    def _reread(self, segment: Segment) -> None:
        """Read a segment's columns from the log, because its segment index is gone or damaged.

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
            self._index.resolve_unread(segment)
        if lost:
            segment.is_damaged = True
            live_bytes = sum(compress(segment.sizes, segment.live))
            self._log.lost.add(list(map(segment.sequence_of, lost)), segment.live_bytes - live_bytes)
            self._index.lose_unread(segment, lost, live_bytes)
