"""Compaction: segments without a living message are removed, mostly dead ones are rewritten."""

from __future__ import annotations

import threading
from functools import partial

from jetlake.errors import StoreError
from jetlake.store.index.block import DamagedBlockError
from jetlake.store.index.index import Index
from jetlake.store.log.compaction.rewrite import Rewrite
from jetlake.store.log.log import Log
from jetlake.store.log.segment import Segment
from jetlake.store.log.spiller import Spiller
from jetlake.store.steps import Steps

__all__ = ["Compactor"]

_DROPS_PER_FLUSH = 8


class Compactor:
    """Gives the disk back what removed messages took of it.

    Args:
        rewrite_bytes_min: a segment that is shorter is not worth a rewrite.
    """

    def __init__(self, index: Index[Segment], log: Log, spiller: Spiller, rewrite_bytes_min: int) -> None:
        self._index = index
        self._log = log
        self._durability = log.durability
        self._segments = log.files.segments
        self._snapshot = log.files.snapshot
        self._spiller = spiller
        self._rewrite_bytes_min = rewrite_bytes_min
        self._rewrite: Rewrite | None = None
        self._steps: Steps[None]
        self._write_lock = threading.Lock()

    # Removing

    def drop_dead_segments(self) -> None:
        """Remove the files of segments in which nothing lives any more, a few at a time."""
        dead = self._log.chain.dead
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
                if segment.tombstones.low and segment is not self._index.blocks[0]:
                    self._snapshot.drop()
                self._spiller.forget(segment)
                self._log.disk.remove(segment.file.path)
            except OSError:
                # It holds nothing; a later flush tries again.
                dead.append(segment)
                return
            self._forget(segment)

    def waits_for_sync(self) -> bool:
        """Return whether a segment is dead and not yet struck off the list for good."""
        return bool(self._log.chain.dead) and self._segments.needs_sync()

    def _may_drop(self, segment: Segment) -> bool:
        durability, active = self._durability, self._index.active
        if segment is active or not durability.is_safe(segment) or self._is_held_back(segment):
            return False
        if not 0 < active.birth_generation <= durability.synced:
            # The newest file must be safe: it knows the stream's key and last sequence.
            return False
        if not self._may_replace(segment):
            return False
        if not segment.tombstones.low:
            return True
        # A file that the tombstones speak of might come back, as long as its removal is not safe.
        return durability.names_are_safe() and not self._is_needed(
            segment, segment.tombstones.low, segment.tombstones.high
        )

    def _forget(self, segment: Segment) -> None:
        self._segments.forget(segment.number)
        self._log.files.open_files.forget((segment,))
        segment.file.close()
        self._index.drop_block(segment)
        self._durability.forget(segment)

    def _is_held_back(self, segment: Segment) -> bool:
        """Return whether a removal from the segment waits for what caused it."""
        removals = self._log.removals
        return bool(removals.held_back) and removals.hold_any(segment.first, self._index.last_of(segment))

    def _is_needed(self, segment: Segment, first: int, last: int) -> bool:
        """Return whether an older file needs a tombstone of this segment, for records it still holds or never held.

        A rewritten segment has its own tombstones, but none for later segments that were dropped since.
        """
        for position, other in enumerate(self._index.blocks):
            if other is segment or other.first > last:
                return False
            following = self._index.starts[position + 1]
            if following > first and not _explains_itself(other, min(last, following - 1)):
                return True
        return False

    def _may_forget(self, segment: Segment) -> bool:
        may_forget = self._index.hooks.may_forget
        return may_forget is None or may_forget(segment.first, self._index.last_of(segment))

    # Rewriting

    def is_worth_rewriting(self, segment: Segment) -> bool:
        """Return whether a full segment is mostly dead, and nothing keeps it from being rewritten."""
        return (
            segment.live_bytes < segment.worth_below
            and segment.size > self._rewrite_bytes_min
            and self._durability.is_safe(segment)
            and not self._is_held_back(segment)
            and self._may_replace(segment)
        )

    def begin_rewrite(self, segment: Segment) -> None:
        """Begin to rewrite a segment without what died in it."""
        last = self._index.last_of(segment)
        self._rewrite = Rewrite(segment, last, self._index.last_time_ns, partial(self._is_needed, segment))
        self._steps = self._rewrite.build()

    def step(self) -> bool:
        """Take the next step of the rewrite that was begun; False when there is none.

        Once it is built, `write` has to follow before the next step can be taken.

        Raises:
            StoreError: the disk refused; the segment is as it was.
        """
        rewrite = self._rewrite
        if rewrite is None:
            return False
        segment = rewrite.segment
        try:
            if not self._may_go_on(rewrite):
                self.cancel()
            elif rewrite.is_written:
                self._install(rewrite)
                self._rewrite = None
            elif not rewrite.is_built:
                self._log.use((segment,))
                next(self._steps, None)
        except DamagedBlockError:
            # House-keeping looks at the segment again, and tells what is lost.
            segment.verified = False
            self.cancel()
        except OSError as error:
            self.cancel()
            raise StoreError.of(f"rewrite segment {segment.number}", error) from error
        return True

    def _may_go_on(self, rewrite: Rewrite) -> bool:
        segment, index = rewrite.segment, self._index
        if segment is index.active or segment not in index.blocks or rewrite.is_outdated():
            return False
        return self._may_replace(segment)

    def _may_replace(self, segment: Segment) -> bool:
        """Return whether records may go and no message is lost: it would count as removed, or be back with the disk."""
        return self._may_forget(segment) and not self._log.lost.any_between(segment.first, self._index.last_of(segment))

    def _install(self, rewrite: Rewrite) -> None:
        if rewrite.drops_tombstones:
            self._snapshot.drop()
        rewrite.install()
        self._spiller.replaced(rewrite.segment)
        self._durability.renamed()

    def waits_for_write(self) -> bool:
        """Return whether a rewritten segment waits to be written."""
        return self._rewrite is not None and self._rewrite.is_built and not self._rewrite.is_written

    def write(self) -> None:
        """Write a rewritten segment to its file; may run in another thread."""
        # One at a time: a rewrite that is started over has the same file.
        with self._write_lock:
            rewrite = self._rewrite
            if rewrite is not None and rewrite.is_built:
                rewrite.write(self._durability.sync_names)

    def cancel(self) -> None:
        """Give up the rewrite that was begun."""
        rewrite, self._rewrite = self._rewrite, None
        if rewrite is not None:
            rewrite.cancel()


def _explains_itself(segment: Segment, last: int) -> bool:
    """Return whether a file's own tombstones cover every sequence up to this one that is missing in it."""
    if not segment.generation or segment.dead_records:
        return False
    return last <= max(segment.explained, segment.last_row_sequence)
