"""A stream's messages on disk: a log in segments, indexed in memory, synced on request."""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from jetlake.errors import StoreError
from jetlake.store.files.disk import Disk
from jetlake.store.files.folders import FolderOwner
from jetlake.store.index.block import Block
from jetlake.store.index.index import Index
from jetlake.store.index.message_remover import MessageRemover
from jetlake.store.index.packed_rows import dead_ranges
from jetlake.store.interface import Incoming, StoreHooks
from jetlake.store.log.compaction.compactor import Compactor
from jetlake.store.log.compaction.compressor import Compressor
from jetlake.store.log.durability import MARK_NAME, MarkFile
from jetlake.store.log.log import Log, LogFiles, LogOptions
from jetlake.store.log.lost_messages import LOST_MAX, LostMessages
from jetlake.store.log.open_files import OpenFiles, files_max
from jetlake.store.log.overwriting import write_from
from jetlake.store.log.recovery.recovered import Recovered
from jetlake.store.log.recovery.recovery import recover
from jetlake.store.log.scan import headers_in
from jetlake.store.log.segment import Segment
from jetlake.store.log.segment_chain import SegmentNumbers
from jetlake.store.log.segment_checker import SegmentChecker
from jetlake.store.log.segment_header import HEADER_SIZE
from jetlake.store.log.segment_index.index_cache import IndexCache
from jetlake.store.log.segment_list import SegmentList
from jetlake.store.log.snapshot.index_file import IndexFile
from jetlake.store.log.snapshot.index_snapshot import IndexSnapshot
from jetlake.store.log.spiller import Spiller
from jetlake.store.message_store import MessageStore
from jetlake.store.redo.redo_format import pack_part
from jetlake.store.sequence_ranges import merged, ranges_of, without

__all__ = ["FileStore"]

SEGMENT_BYTES = 8 * 1024 * 1024
"""When a segment is this long, the next one begins."""
TAIL_BYTES = 1024 * 1024
"""The size of the newest data that stays in memory, for readers that are nearly caught up."""
SNAPSHOT_BYTES = 64 * 1024 * 1024
"""House-keeping writes a snapshot of the index after this many bytes, and half of the store's size, were written."""

_SNAPSHOT_STEPS = 128
_HEADERS_RUN = 512
"""How many records a run of headers is read from."""
_INDEX_NAME = "index"
_LIST_NAME = "segments"


class FileStore(MessageStore):
    """A store in a folder of its own; see `MessageStore` for the promises.

    Opening it recovers what the folder holds, whatever state that is in. A message takes 30 bytes and what it consists
    of, 34 with a header.

    Args:
        disk: where the folder is.
        folder: made when it is not there.
        segment_bytes: how long a segment grows.
        tail_bytes: how much of the newest data stays in memory.
        snapshot_bytes: how much is written before house-keeping writes the index down.
        open_files: bounds the open files, of all stores that share it; None for a store alone.
        index_cache: bounds the memory for the index of full segments, of all stores that share it; None for a store
            alone.
        random_bytes: makes the stream's key and what erased messages are overwritten with.
        segment_list: where the list of segments is, outside the folder, so that it outlives that; None for inside.
        owner: the owner of the folder; its `before_sync` is called by the first sync, and after `prepare_again`.
        reuses_sequences: sequences that were written and never synced are free again after a crash, because they can
            only be used for the same messages, as in a mirror.
        redo_name: the folder's name in the redo log, under which a start finds it.
        is_unwritten: nothing is in the folder, and there is no list of segments.
        marks_flushes: sequences that were written and never synced are not used again after a crash: readers may have
            seen them. Without, they are used again if the crash took their messages.

    Raises:
        StoreError: the folder can be neither found nor made, or the disk does not return what is in it.
    """

    durable = True
    changes_names = False
    compresses = False
    torn_sequence = 0

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        tail_bytes: int = TAIL_BYTES,
        snapshot_bytes: int = SNAPSHOT_BYTES,
        open_files: OpenFiles | None = None,
        index_cache: IndexCache | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
        segment_list: Path | None = None,
        owner: FolderOwner | None = None,
        reuses_sequences: bool = False,
        redo_name: str = "",
        is_unwritten: bool = False,
        marks_flushes: bool = True,
    ) -> None:
        owner = owner or FolderOwner()
        segments = SegmentList(disk, segment_list or folder / _LIST_NAME)
        mark = MarkFile(disk, folder / MARK_NAME, 0)
        found = _recover(
            disk,
            folder,
            segments,
            mark,
            random_bytes,
            owner.note,
            is_empty=is_unwritten or owner.before_write is not None,
            reuses_sequences=reuses_sequences,
        )
        index = Index(found.segments[-1], StoreHooks())
        self._index_file = IndexFile(disk, folder / _INDEX_NAME, snapshot_bytes // _SNAPSHOT_STEPS)
        self._log = log = Log(
            index,
            LogFiles(mark, segments, self._index_file, open_files or OpenFiles(files_max())),
            LostMessages(folder, segments, owner.report),
            SegmentNumbers(found.next_number, found.taken_numbers),
            LogOptions(segment_bytes, tail_bytes, random_bytes, owner, marks_flushes),
        )
        log.durability.is_gone = owner.is_gone
        self._checker = SegmentChecker(index, log)
        super().__init__(index, MessageRemover(index, log))
        self._lost = log.lost
        self._disk = disk
        self._folder = folder
        self.key = found.key
        """The stream's, in all its files."""
        self._segments = segments
        self._snapshot_bytes = snapshot_bytes
        self._spiller = Spiller(index, log, index_cache or IndexCache())
        self._compactor = Compactor(index, log, self._spiller, segment_bytes // 64)
        self._compressor = Compressor(index, log)
        self._closed = False
        self._is_compacting = False
        self._redo_name = redo_name.encode()
        self._adopt(found)
        unsure = [segment for segment in found.unsynced if segment.size and segment.number >= found.safe_end[0]]
        self.unsure_since_ns = min((segment.oldest_time_ns for segment in unsure), default=0)
        self._make_safe(found.unsynced, found.safe_end)

    # Opening

    def _adopt(self, found: Recovered) -> None:
        """Take over what recovery found, apply its tombstones, and continue from there."""
        index, removals = self._index, self._log.removals
        index.blocks = found.segments
        index.starts = [segment.first for segment in found.segments]
        index.subjects = found.subjects
        self._spiller.begin(found.segments)
        index.messages = sum(segment.live_count for segment in found.segments)
        index.bytes = sum(segment.live_bytes for segment in found.segments)
        index.last_time_ns = found.last_time_ns
        index.last_sequence = found.last_sequence
        index.first_sequence = 1 if found.last_sequence else 0
        self._log.durability.begin(found.last_sequence)
        unsaid = found.incomplete + found.half_erased
        gone = merged(found.tombstones + unsaid)
        self._lost.expect_removed(gone)
        index.update_first_sequence()
        for first, last in gone:
            index.kill_range(first, last)
        index.update_first_sequence()
        missing = [sequence for sequence in without(found.missing, gone, LOST_MAX) if not index.has(sequence)]
        safe = bisect_right(missing, found.safe_sequence)
        self._lost.begin(missing[:safe], found.lost_bytes)
        if index.messages:
            # A tombstone speaks of messages in its own segment and in older ones.
            oldest = index.blocks[index.block_index(index.first_sequence)].number
            unsure = {
                number
                for number, missing in found.unsure
                if number >= oldest and (missing is None or self._lost.any_between(*missing))
            }
            self._lost.report_lost_removals(unsure)
        listed = {segment.number: segment.first for segment in found.segments if segment.size}
        self._segments.use(self.key, listed, ranges_of(self._lost.sequences), found.torn)
        self._log.chain.dead = [segment for segment in index.blocks[:-1] if not segment.live_count]
        self.torn_sequence = missing[safe] if safe < len(missing) else 0
        # Said in the log, so that the next start does not take them for lost.
        for first, last in ranges_of(missing[safe:]):
            removals.add(first, last)
        if found.dropped is not None:
            removals.add(*found.dropped)
        for first, last in unsaid:
            removals.add(first, last)
        # A power cut may take a tombstone and leave the segment index that was written after it.
        dead = [
            each
            for segment in found.by_index
            for each in dead_ranges(segment.first, segment.pack_live_rows(), segment.packed_sequences)
        ]
        for first, last in ranges_of(without(dead, gone, sys.maxsize)):
            removals.add(first, last)
        self._log.resume()

    def _make_safe(self, unsynced: list[Segment], safe_end: tuple[int, int]) -> None:
        """Sync what a killed process had written: from now on it is as good as acknowledged.

        A sync of that process may have failed. The system then dropped what it could not write, still gives it back to
        readers and knows nothing of it at the next sync: what no sync is known to have made safe is written again.
        """
        log = self._log
        if unsynced:
            try:
                for segment in unsynced:
                    if segment.number >= safe_end[0]:
                        write_from(segment, safe_end[1] if segment.number == safe_end[0] else 0)
            except OSError as error:
                log.durability.failure = StoreError.of("make the stream's log safe", error)
            number = log.durability.wrote(unsynced, self._index.last_sequence, new_names=True)
            for segment in unsynced:
                segment.birth_generation = number if segment.size else 0
        if log.needs_flush() or log.durability.needs_sync():
            try:
                # Of the log alone: no file is removed before its records could be read.
                log.flush()
                log.sync()
            except StoreError:
                # The next append raises; everything stored can be read.
                pass
        # Many streams are opened at once, and few of them are used at once.
        log.close_files()

    @property
    def lost(self) -> list[int]:
        return self._lost.sequences

    @property
    def lost_bytes(self) -> int:
        return self._lost.bytes

    # Reading

    def headers_since(self, time_ns: int) -> Iterator[list[tuple[int, int, bytes]]]:
        segments = list(self._index.blocks)
        for index, segment in enumerate(segments):
            following = segments[index + 1] if index + 1 < len(segments) else None
            if not segment.size or (following is not None and 0 < following.oldest_time_ns < time_ns):
                continue
            if segment not in self._index.blocks:
                # Its file was removed since the last run.
                continue
            data = self._log.read_all(segment)
            starts = [offset for offset in segment.offsets[_HEADERS_RUN::_HEADERS_RUN] if offset < len(data)]
            for start, end in pairwise((HEADER_SIZE, *starts, len(data))):
                yield headers_in(data[start:end], segment.checksum, time_ns)

    def _prepare(self, block: Segment) -> None:
        if block.file.handle is None:
            self._log.use((block,))

    def _trust(self, block: Segment) -> bool:
        self._prepare(block)
        if block.spilled is not None and not block.bring_back():
            return False
        return block.verified or self._checker.check(block)

    def _look_again(self, block: Segment, checked: Block | None) -> Segment:
        if self._checker.check(block, by_records=True) and block is checked:
            raise StoreError(f"read segment {block.number}", "the disk does not return the same bytes every time")
        return block

    # Writing

    @property
    def failure(self) -> StoreError | None:
        return self._log.durability.failure

    def append(self, subject: bytes, header: bytes, payload: bytes, time_ns: int) -> int:
        return self._log.append(subject, header, payload, time_ns)

    def append_run(self, messages: Sequence[Incoming], time_ns: int | Sequence[int]) -> int:
        return self._log.append_run(messages, time_ns)

    def begin_group(self, count: int) -> None:
        self._log.begin_group(count)

    def roll_back(self, error: StoreError) -> None:
        self._log.roll_back(error)

    def retry(self) -> None:
        self._log.retry()

    def needs_flush(self) -> bool:
        return self._log.needs_flush()

    def flush(self) -> None:
        self._log.flush()
        if self._log.chain.dead:
            self._compactor.drop_dead_segments()

    def sync(self) -> None:
        self._log.sync()
        self._compactor.write()
        self._compressor.write()

    def prepare_again(self) -> None:
        """Have `before_sync` called by the next sync, which otherwise only the first one does."""
        self._log.is_prepared = False

    def begin_writeback(self) -> None:
        """Let the disk begin with what a sync is about to wait for, if that is little."""
        self._log.durability.begin_writeback()

    def sync_if_short(self) -> bool:
        """Sync on the calling thread if that is the sync of one open file with a short append; whether it was.

        Raises:
            StoreError: the disk failed.
        """
        return not self._is_compacting and not self._waits_for_write() and self._log.sync_if_short()

    def take_redo(self) -> bytes | None:
        """Return the records that were flushed and are neither synced nor in the redo log, as a part of an entry.

        None when only a sync makes the store durable; empty when there is nothing. When the entry fails, the
        store must be synced.
        """
        log = self._log
        if self._is_compacting or not log.is_prepared or not self._redo_name or not log.keeps_handle():
            return None
        tail = log.durability.take_redo()
        return None if tail is None else pack_part(self._redo_name, *tail) if tail.data else b""

    def redo_synced(self) -> None:
        """Note that what `take_redo` returned is durable."""
        self._log.durability.redo_synced()

    def needs_checkpoint(self) -> bool:
        """Return whether the redo log has something of the store that is not synced."""
        return self._log.durability.needs_checkpoint()

    def checkpoint(self) -> None:
        """Sync what the redo log has of the store; may run in another thread.

        Raises:
            StoreError: the disk failed, now or before.
        """
        self._log.durability.sync()

    def needs_sync(self) -> bool:
        return self._log.durability.needs_sync() or self._compactor.waits_for_sync() or self._waits_for_write()

    def _waits_for_write(self) -> bool:
        return self._compactor.waits_for_write() or self._compressor.waits_for_write()

    def compact_step(self, *, sync_here: bool = True) -> bool:
        self._is_compacting = True  # What is under way may have files to write, in a thread that syncs.
        self._is_compacting = self._compact_step(sync_here)
        return self._is_compacting

    def is_behind(self) -> bool:
        return self._spiller.is_behind()

    def _compact_step(self, sync_here: bool) -> bool:
        """Take the first step that has work to do.

        The order is the design: memory is bounded first, a rewrite that has begun ends before another begins, a segment
        is verified before it is rewritten and rewritten before it is compressed, and the snapshot comes last, since
        every step before it changes what a snapshot describes.
        """
        log = self._log
        if self.failure is not None or self._closed:
            return False
        # Every step reads or replaces files, so that nothing may wait in memory to be written to them.
        self.flush()
        # A snapshot that has begun describes the moment of its beginning: the sooner it ends, the less a start reads.
        # Names are unpacked first because until then the first request that needs one waits for all of them.
        if self._index_file.step() or self._index.subjects.numbers.unpack_step():
            return True
        # Before all that saves only disk: until a full segment is spilled, its rows take memory.
        if self._spiller.step():
            return True
        # Files that are ready are installed by the thread that syncs, and dead segments removed after their removal is
        # in the synced list. No more of either is prepared until then: each takes room on the disk twice.
        if self._compactor.waits_for_sync() or self._waits_for_write():
            if sync_here:
                self.sync()
            return True
        # One rewrite at a time, to its end.
        if self._compactor.step():
            return True
        for segment in self._index.blocks:
            if segment is self._index.active or not segment.size:
                continue
            if not segment.verified:
                # A damaged record is found and reported here, before a rewrite would copy its segment.
                self._checker.check_step(segment)
                return True
            if self._compactor.is_worth_rewriting(segment):
                self._compactor.begin_rewrite(segment)
                return True
        # After the rewrites: a compressed segment that is rewritten would be compressed twice.
        if self.compresses and self._compressor.step():
            return True
        if not sync_here and log.durability.needs_sync():
            # Segment indexes will do: a busy store is not made to wait.
            return False
        # A snapshot keeps the per-subject counters, which therefore have to be exact, and no removal that a crash may
        # still undo: one that is held back waits for the message that caused it.
        if not self._index.is_counted:
            return False
        if log.written_bytes > max(self._snapshot_bytes, self._index.bytes // 2) and not log.removals.held_back:
            log.sync()
            self._index_file.begin(self._snapshot())
            log.written_bytes = 0
            return True
        return False

    def _snapshot(self) -> IndexSnapshot:
        """Return a snapshot of the index; no write may be pending."""
        snapshot = IndexSnapshot()
        snapshot.key = self.key
        snapshot.last_sequence = self._index.last_sequence
        snapshot.last_time_ns = self._index.last_time_ns
        snapshot.lost = self._lost.sequences
        snapshot.lost_bytes = self._lost.bytes
        snapshot.segments = [segment for segment in self._index.blocks if segment.size]
        subjects = self._index.subjects
        subjects.finish_spill()
        snapshot.names = subjects.numbers.names
        snapshot.spilled_end, snapshot.dead_high = subjects.spilled.end, subjects.spilled.dead_high
        snapshot.totals = [
            subjects.spilled.counts,
            subjects.spilled.ever_spilled,
            subjects.spilled.lows,
            subjects.spilled.highs,
        ]
        return snapshot

    # The end

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if self.failure is None:
                self._write_and_sync()
                self._write_and_sync()  # removals that were held back until the first sync
                if self._index.is_counted:
                    self._index_file.write(self._snapshot, self._log.durability.flushed)
                self._log.cut_zeros()
        finally:
            self._close_files()

    def _write_and_sync(self) -> None:
        """Write and sync what has changed; nothing of a store that was only read."""
        self.flush()
        if self.needs_sync() or self._segments.needs_sync():
            self.sync()

    def _close_files(self) -> None:
        self._index_file.cancel()
        self._spiller.close()
        self._compactor.cancel()
        self._compressor.cancel()
        self._log.close_files()

    def discard(self) -> None:
        """Write nothing more and give every handle back: the folder is being removed."""
        self._closed = True
        self._log.durability.discard()
        self._close_files()

    def delete(self) -> None:
        self.discard()
        try:
            for name in self._disk.names(self._folder):
                self._disk.remove(self._folder / name)
            self._disk.remove_folder(self._folder)
        except OSError as error:
            raise StoreError.of(f"remove the folder {self._folder}", error) from error


def _recover(
    disk: Disk,
    folder: Path,
    segments: SegmentList,
    mark_file: MarkFile,
    random_bytes: Callable[[int], bytes],
    note: Callable[[str], None],
    *,
    is_empty: bool,
    reuses_sequences: bool,
) -> Recovered:
    """Recover what the folder holds, with at least one segment; a missing folder is created, unless `is_empty`."""

    def new_key() -> int:
        return int.from_bytes(random_bytes(8), "little") | 1

    if is_empty:
        # A look-up in a folder waits for threads that create or rename files in it.
        found = Recovered()
        found.key = new_key()
        return _begun(found, disk, folder, mark_file)
    listed = segments.read()
    try:
        if not disk.is_folder(folder):
            if listed is not None and listed.segments:
                raise StoreError(f"read {folder}", "it is gone, though there were messages in it")
            disk.make_folder(folder)
    except OSError as error:
        raise StoreError.of(f"make the folder {folder}", error) from error
    mark = mark_file.read(listed.key if listed is not None else 0)
    if segments.is_refused and mark_file.is_refused:
        # Either of them would tell whose the segments are, and which sequences were used.
        raise StoreError(f"read {folder}", "the disk returns neither the list of segments nor the mark")
    try:
        found = recover(
            disk,
            folder,
            mark,
            listed,
            new_key,
            _INDEX_NAME,
            note,
            reuses_sequences=reuses_sequences,
        )
    except OSError as error:
        raise StoreError.of(f"read what is in {folder}", error) from error
    return _begun(found, disk, folder, mark_file)


def _begun(found: Recovered, disk: Disk, folder: Path, mark_file: MarkFile) -> Recovered:
    """Write the mark under the stream's key from now on, and begin a segment where there is none."""
    mark_file.use_key(found.key)
    if not found.segments:
        found.segments.append(Segment(disk, folder, found.key, found.next_number, found.last_sequence + 1))
        found.next_number += 1
    return found
