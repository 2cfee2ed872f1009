"""The end of segments: removing those in which nothing lives, and rewriting those that are mostly dead."""

from __future__ import annotations

from jetlake.errors import StoreError
from jetlake.store.files.disk import Disk
from jetlake.store.index.index import Index
from jetlake.store.log.compaction import rewrite, tombstones_in
from jetlake.store.log.index_file import IndexFile
from jetlake.store.log.log import Log
from jetlake.store.log.lost_messages import LostMessages
from jetlake.store.log.open_files import OpenFiles
from jetlake.store.log.segment import Segment
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
                self._disk.remove(segment.path)
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
        segment.close()
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
            data = segment.read_all(segment.size)
            tombstones = tombstones_in(segment, data)
            foreign = [(first, end) for first, end in merged(tombstones) if self._is_needed(segment, first, end)]
            if foreign != tombstones:
                self._index_file.drop()
            # The tombstones of a file that is gone may go when it cannot come back.
            self._durability.sync_names()
            rewrite(segment, data, self._index.last_of(segment), foreign, self._index.last_time_ns)
            segment.write_generation = 0
            self._durability.renamed()
            self._durability.sync_names()
        except OSError as error:
            raise StoreError.of(f"rewrite segment {segment.number}", error) from error
