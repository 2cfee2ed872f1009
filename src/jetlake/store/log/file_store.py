"""A stream's messages on disk: a log in segments, indexed in memory, synced when somebody asks for it."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from jetlake.errors import StoreError
from jetlake.store.files.disk import Disk
from jetlake.store.interface import Run
from jetlake.store.log.compaction import rewrite, tombstones_in
from jetlake.store.log.index_file import IndexFile
from jetlake.store.log.index_snapshot import IndexSnapshot
from jetlake.store.log.logged_store import LoggedStore
from jetlake.store.log.mark import MarkFile
from jetlake.store.log.open_files import OpenFiles, files_max
from jetlake.store.log.recovery import Recovered, recover
from jetlake.store.log.scan import headers_in, scan
from jetlake.store.log.segment import HEADER_SIZE, DamagedSegmentError, Segment
from jetlake.store.log.segment_list import SegmentList
from jetlake.store.message import StoredMessage
from jetlake.store.sequence_ranges import merged, ranges_of, told, without
from jetlake.store.steps import Steps
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["FileStore"]

SEGMENT_BYTES = 8 * 1024 * 1024
"""When a segment is this long, the next one begins."""
TAIL_BYTES = 1024 * 1024
"""How much of what was written last stays in memory for those who read it next."""
SNAPSHOT_BYTES = 64 * 1024 * 1024
"""When so much was written, and half of what the store holds, house-keeping writes the index down."""
LOST_MAX = 100_000
"""How many lost sequences are told by their number."""

_DROPS_PER_FLUSH = 8
_SNAPSHOT_STEPS = 32
_MARK_NAME = "mark"
_INDEX_NAME = "index"
_LIST_NAME = "segments"


class FileStore(LoggedStore):
    """A store in a folder of its own; see `interface.MessageStore` for the promises.

    Opening it recovers what the folder holds, whatever state that is in. A message takes 30 bytes and what it consists
    of, 34 with a header.

    Args:
        disk: where the folder is.
        folder: made when it is not there.
        segment_bytes: how long a segment grows.
        tail_bytes: how much of the newest data stays in memory.
        snapshot_bytes: how much is written before house-keeping writes the index down.
        open_files: which of its files are open, and those of the stores that share it; None for a store alone.
        random_bytes: makes the stream's key and what erased messages are overwritten with.
        segment_list: where the list of segments is, outside the folder, so that it outlives that; None for inside.
        note: told of what recovery removed, and of what is not the store's.
        report: told of messages that are found to be lost.
        before_write: makes a folder that is not there, before the first write; None when it is to be made at once.
        before_sync: called first by every sync, in the same thread; what it raises is the sync's failure.
        is_gone: whether the folder was moved away, so that no disk has to take what was in it.

    Raises:
        StoreError: the folder can be neither found nor made, or the disk does not give back what is in it.
    """

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        tail_bytes: int = TAIL_BYTES,
        snapshot_bytes: int = SNAPSHOT_BYTES,
        open_files: OpenFiles | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
        segment_list: Path | None = None,
        note: Callable[[str], None] = lambda _text: None,
        report: Callable[[str], None] = lambda _text: None,
        before_write: Callable[[], None] | None = None,
        before_sync: Callable[[], None] = lambda: None,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> None:
        self._before_sync = before_sync
        self._open_files = open_files or OpenFiles(files_max())
        self._report = report
        segments = SegmentList(disk, segment_list or folder / _LIST_NAME)
        listed = segments.read()
        try:
            if before_write is None and not disk.is_folder(folder):
                if listed is not None and listed.segments:
                    raise StoreError(f"read {folder}", "it is gone, though there were messages in it")
                disk.make_folder(folder)
        except OSError as error:
            raise StoreError.of(f"make the folder {folder}", error) from error
        self._mark = MarkFile(disk, folder / _MARK_NAME, 0)
        mark = self._mark.read(listed.key if listed is not None else 0)
        try:
            found = recover(
                disk, folder, mark, listed, lambda: int.from_bytes(random_bytes(8), "little") | 1, _INDEX_NAME, note
            )
        except OSError as error:
            raise StoreError.of(f"read what is in {folder}", error) from error
        self._mark.use_key(found.key)
        if not found.segments:
            found.segments.append(Segment(disk, folder, found.key, found.next_number, found.last_sequence + 1))
            found.next_number += 1
        super().__init__(
            found.segments[-1],
            self._mark,
            segments,
            next_number=found.next_number,
            taken_numbers=found.taken_numbers,
            segment_bytes=segment_bytes,
            tail_bytes=tail_bytes,
            random_bytes=random_bytes,
            before_write=before_write,
        )
        self._durability.is_gone = is_gone
        self._snapshot_bytes = snapshot_bytes
        self._index_file = IndexFile(disk, folder / _INDEX_NAME, snapshot_bytes // _SNAPSHOT_STEPS)
        self._closed = False
        self._adopt(found)

    # Opening

    def _adopt(self, found: Recovered) -> None:
        """Take over what recovery found, apply its tombstones, and go on from there."""
        self._blocks = found.segments
        self._starts = [segment.first for segment in found.segments]
        self._subjects = found.subjects
        self.messages = sum(segment.live_count for segment in found.segments)
        self.bytes = sum(segment.live_bytes for segment in found.segments)
        self.last_time_ns = self._flushed_time_ns = found.last_time_ns
        self.last_sequence = self._flushed_sequence = found.last_sequence
        self.first_sequence = 1 if found.last_sequence else 0
        self._durability.begin(found.last_sequence)
        self._settle_first()
        gone = merged(found.tombstones)
        for first, last in gone:
            self._kill_range(first, last)
        self._settle_first()
        missing = [sequence for sequence in without(found.missing, gone, LOST_MAX) if not self.has(sequence)]
        safe = bisect_right(missing, found.safe_sequence)
        self.lost = missing[:safe]
        self.lost_bytes = found.lost_bytes
        if self.lost:
            self._report_lost(self.lost)
        listed = {segment.number: segment.first for segment in found.segments if segment.size}
        self._segments.use(self._key, listed, ranges_of(self.lost))
        self._dead = [segment for segment in self._blocks[:-1] if not segment.live_count]
        # Said in the log, so that the next start does not take them for lost.
        for first, last in ranges_of(missing[safe:]):
            self._removals.add(first, last)
        if found.dropped is not None:
            self._removals.add(*found.dropped)
        self._resume()
        self._make_safe(found.unsynced)

    def _report_lost(self, sequences: list[int]) -> None:
        count = f"{len(sequences):,} messages" if len(sequences) > 1 else "1 message"
        self._report(
            f"{count} in {self._folder} can not be read and are lost: sequences {told(ranges_of(sequences))}. "
            "A purge up to the last of them ends this report"
        )

    def _kill_range(self, first: int, last: int) -> None:
        if first <= self.first_sequence <= last and self.messages:
            self._kill_below(last + 1)
            self._settle_first()
            return
        index = self._block_index(first)
        while index < len(self._blocks) and self._blocks[index].first <= last:
            block = self._blocks[index]
            for row in block.live_rows(block.row_at_or_after(first), block.row_at_or_after(last + 1)):
                self._kill(block, row, block.sequence_of(row))
            index += 1

    def _resume(self) -> None:
        """Make the last segment ready for the next append, or begin a new one."""
        active = self._active
        if not active.live and active.sequences is None:
            active.first = self.last_sequence + 1
            self._starts[-1] = active.first
        elif active.sequences is not None or active.first + len(active.live) <= self.last_sequence:
            self._roll()
            self._seal_full()

    def _make_safe(self, unsynced: list[Segment]) -> None:
        """Sync what a killed process had written: from now on it is as good as acknowledged."""
        if unsynced:
            number = self._durability.wrote(unsynced, self.last_sequence, new_names=True)
            for segment in unsynced:
                segment.birth_generation = number if segment.size else 0
        if self.needs_flush() or self.needs_sync():
            try:
                # Of this class: no file goes before somebody could look at its records.
                LoggedStore.flush(self)
                self.sync()
            except StoreError:
                # Whoever appends will be told; all that is there can be read.
                pass
        # Many streams are opened at once, and few of them are used at once.
        for segment in self._blocks:
            segment.close()
        self._mark.close()

    # Reading

    def get(self, sequence: int) -> StoredMessage | None:
        while True:
            try:
                return super().get(sequence)
            except DamagedSegmentError as damage:
                self._check(damage.segment)
            except OSError as error:
                raise StoreError.of(f"read message {sequence}", error) from error

    def read(
        self,
        first_sequence: int,
        subject_filter: SubjectFilter | None,
        max_messages: int,
        max_bytes: int,
        last_sequence: int | None = None,
    ) -> Run:
        while True:
            try:
                return super().read(first_sequence, subject_filter, max_messages, max_bytes, last_sequence)
            except DamagedSegmentError as damage:
                self._check(damage.segment)
            except OSError as error:
                raise StoreError.of(f"read messages from {first_sequence} on", error) from error

    def headers_since(self, time_ns: int) -> Iterator[tuple[int, int, bytes]]:
        for index, segment in enumerate(self._blocks):
            following = self._blocks[index + 1] if index + 1 < len(self._blocks) else None
            if not segment.size or (following is not None and following.times and following.times[0] < time_ns):
                continue
            self._open_files.use(segment, self._let_go)
            try:
                data = segment.read_all(segment.size)
            except OSError as error:
                raise StoreError.of(f"read segment {segment.number}", error) from error
            yield from headers_in(data, HEADER_SIZE, segment.seed, time_ns)

    def _trust(self, block: Segment) -> bool:
        if block.handle is None:
            self._open_files.use(block, self._let_go)
        return block.verified or self._check(block)

    def _check(self, segment: Segment) -> bool:
        """Look at a segment's bytes; rows whose records are damaged are lost. False when there are such rows."""
        self._open_files.use(segment, self._let_go)
        try:
            data = segment.read_all(segment.size)
        except OSError as error:
            raise StoreError.of(f"read segment {segment.number}", error) from error
        segment.verified = True
        if segment.matches_digest(data):
            return True
        content = scan(data, HEADER_SIZE, segment.seed, segment.first - 1)
        good = dict(zip(content.sequences, content.offsets, strict=True))
        lost = [
            row
            for row in segment.live_rows(0, len(segment.live))
            if segment.offsets[row] < segment.size and good.get(segment.sequence_of(row)) != segment.offsets[row]
        ]
        lost_sequences = [segment.sequence_of(row) for row in lost]
        for row, sequence in zip(lost, lost_sequences, strict=True):
            self.lost_bytes += segment.sizes[row]
            insort(self.lost, sequence)
            self._kill(segment, row, sequence)
        if lost:
            self._report_lost(lost_sequences)
            self._segments.lose(ranges_of(self.lost))
        self._settle_first()
        return not lost

    # Removing

    def _purge(
        self, subject_filter: SubjectFilter | None, below: int | None, keep: int | None, follows_append: bool, step: int
    ) -> Steps[int]:
        count = yield from super()._purge(subject_filter, below, keep, follows_append, step)
        if self.lost and subject_filter is None:
            self._forget_lost(self.first_sequence if below is None or keep else below)
        return count

    def _remove_below(self, sequence: int, follows_append: bool) -> int:
        count = super()._remove_below(sequence, follows_append)
        if self.lost and count:
            self._forget_lost(sequence)
        return count

    def _forget_lost(self, below: int) -> None:
        """Take lost messages for removed: they would be gone now if they had not been lost."""
        place = bisect_left(self.lost, below)
        for first, last in ranges_of(self.lost[:place]):
            self._removals.add(first, last)
        self.lost = self.lost[place:]
        self._segments.lose(ranges_of(self.lost))

    # Handles

    def _about_to_write(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            self._open_files.use(segment, self._let_go)

    def _let_go(self, segment: Segment) -> None:
        """Give a segment's handle back, and the mark's if nobody is about to use it.

        What was written through a handle is synced through it: what went wrong in between is told to no other.
        """
        durability = self._durability
        if durability.flushed > durability.synced and (segment is self._active or not durability.is_safe(segment)):
            with suppress(StoreError):
                # The next flush says so.
                self.sync()
        with suppress(OSError):
            segment.close()
            if durability.flushed == durability.synced:
                self._mark.close()

    # The end of segments

    def flush(self) -> None:
        super().flush()
        if self._dead:
            self._drop_dead_segments()

    def _drop_dead_segments(self) -> None:
        """Remove the files of segments that hold nothing any more, a few at a time."""
        for segment in self._dead[:_DROPS_PER_FLUSH]:
            self._dead.remove(segment)
            if not self._can_go(segment):
                self._dead.append(segment)
                continue
            # Off the list first, and for good, or its absence would be taken for a loss.
            self._segments.strike(segment.number)
            if not self._segments.is_struck(segment.number):
                self._dead.append(segment)
                continue
            try:
                if segment.tombstones_low and segment is not self._blocks[0]:
                    self._index_file.drop()
                self._disk.remove(segment.path)
            except OSError:
                # It holds nothing; a later flush tries again.
                self._dead.append(segment)
                return
            self._forget_segment(segment)

    def _can_go(self, segment: Segment) -> bool:
        durability = self._durability
        if segment is self._active or not durability.is_safe(segment) or self._is_held_back(segment):
            return False
        if not 0 < self._active.birth_generation <= durability.synced:
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

    def _last_of(self, segment: Segment) -> int:
        """The last sequence that a segment can hold."""
        place = self._blocks.index(segment) + 1
        return self._starts[place] - 1 if place < len(self._blocks) else self.last_sequence

    def _is_held_back(self, segment: Segment) -> bool:
        """Whether a removal from the segment waits for what caused it."""
        return bool(self._removals.held_back) and self._removals.hold_any(segment.first, self._last_of(segment))

    def _is_needed(self, segment: Segment, first: int, last: int) -> bool:
        """Whether an older file needs a tombstone of this segment, for records it still holds or never held.

        One that was rewritten explains itself.
        """
        for place, other in enumerate(self._blocks):
            if other is segment or other.first > last:
                return False
            explains_itself = other.generation > 0 and not other.dead_records
            if not explains_itself and self._starts[place + 1] > first:
                return True
        return False

    def _forget_segment(self, segment: Segment) -> None:
        self._segments.forget(segment.number)
        self._open_files.forget((segment,))
        segment.close()
        place = self._blocks.index(segment)
        del self._blocks[place], self._starts[place]
        self._durability.forget(segment)

    # House-keeping

    def compact_step(self) -> bool:
        if self._durability.failure is not None or self._closed:
            return False
        self.flush()
        if self._index_file.go_on():
            return True
        if self._dead and self._segments.needs_sync():
            self.sync()
            return True
        for segment in self._blocks:
            if segment is self._active or not segment.size:
                continue
            if not segment.verified:
                self._check(segment)
                return True
            if segment.live_bytes < segment.worth_below and self._may_rewrite(segment):
                self._rewrite(segment)
                return True
        if self._log_bytes > max(self._snapshot_bytes, self.bytes // 2) and not self._removals.held_back:
            self.sync()
            self._index_file.begin(self._snapshot())
            self._log_bytes = 0
            return True
        return False

    def _may_rewrite(self, segment: Segment) -> bool:
        return (
            segment.size > self._segment_bytes // 64
            and self._durability.is_safe(segment)
            and not self._is_held_back(segment)
            and self._may_forget(segment)
            and not self._lost_in(segment)
        )

    def _may_forget(self, segment: Segment) -> bool:
        return self.may_forget is None or self.may_forget(segment.first, self._last_of(segment))

    def _lost_in(self, segment: Segment) -> bool:
        """Whether messages of the segment are lost: a rewritten one would say that they were removed."""
        place = bisect_left(self.lost, segment.first)
        return place < len(self.lost) and self.lost[place] <= self._last_of(segment)

    def _rewrite(self, segment: Segment) -> None:
        """Write a segment anew without what died in it."""
        self._open_files.use(segment, self._let_go)
        try:
            data = segment.read_all(segment.size)
            tombstones = tombstones_in(segment, data)
            foreign = [(first, end) for first, end in merged(tombstones) if self._is_needed(segment, first, end)]
            if foreign != tombstones:
                self._index_file.drop()
            # The tombstones of a file that is gone may go when it cannot come back.
            self._durability.sync_names()
            rewrite(segment, data, self._last_of(segment), foreign, self.last_time_ns)
            segment.write_generation = 0
            self._durability.renamed()
            self._durability.sync_names()
        except OSError as error:
            raise StoreError.of(f"rewrite segment {segment.number}", error) from error

    def _snapshot(self) -> IndexSnapshot:
        """How things stand; nothing may be waiting."""
        snapshot = IndexSnapshot()
        snapshot.key = self._key
        snapshot.last_sequence = self.last_sequence
        snapshot.last_time_ns = self.last_time_ns
        snapshot.lost = self.lost
        snapshot.lost_bytes = self.lost_bytes
        snapshot.segments = [segment for segment in self._blocks if segment.size]
        snapshot.subjects = self._subjects
        return snapshot

    def sync(self) -> None:
        self._before_sync()
        super().sync()

    # The end

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if self._durability.failure is None:
                self.flush()
                self.sync()
                # What was held back until that sync.
                self.flush()
                self.sync()
                self._index_file.write(self._snapshot(), self._durability.flushed)
        finally:
            self._close_files()

    def _close_files(self) -> None:
        self._index_file.cancel()
        self._open_files.forget(self._blocks)
        for segment in self._blocks:
            segment.close()
        self._mark.close()

    def discard(self) -> None:
        """Write nothing more and give every handle back: the folder is being removed."""
        self._closed = True
        self._durability.discard()
        self._close_files()

    def delete(self) -> None:
        self.discard()
        try:
            for name in self._disk.names(self._folder):
                self._disk.remove(self._folder / name)
            self._disk.remove_folder(self._folder)
        except OSError as error:
            raise StoreError.of(f"remove the folder {self._folder}", error) from error
