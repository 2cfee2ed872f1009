"""A stream's log on disk: messages and tombstones appended to segments, flushed, synced, and rolled back on failure.

    append, skip ──► segment.pending, index       flush            sync
    removed ───────► removals (asked) ──────────► written ───────► durable
            ───────► removals (held back, until their cause is durable) ─┘
                     refused by the disk: appends are rolled back, removals are kept

What is always true:

- A message is in the index from `append` on, so that it can be read at once; it is in its segment's file from `flush`
  on. `_unflushed` has exactly the segments with pending records.
- A flush writes the appends first and tombstones behind them, in the newest segment: a tombstone is never in the file
  without the messages that were flushed before it.
- A flush either counts as a whole, or leaves the index and the files as they were before the appends. A file that could
  not be truncated is kept in `durability.cuts`, and nothing is written before that has succeeded: records left behind
  would be taken for the messages that get their sequences next.
- A removal that an append caused (a limit, a roll-up) is written only when that append is durable: a power cut must not
  take the new message and leave the old one removed. Requested removals are written with the next flush.
- Sequences only rise. After a crash the mark, the segment list and the headers of segments keep the highest one that
  was used, even if its record is lost. (A mirror may use unsynced ones again: they can only be for the same messages.)
- A group is flushed and rolled back as a whole. Its records link to their neighbours, so that recovery drops a part of
  one.

One thread calls everything but `sync`, which may run in another one; `Durability` has the state that both share.
A crash before the flush loses the appends, a kill after it loses nothing, a power cut before the sync may take any
record written since the last one, of which no client has an acknowledgement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from jetlake.errors import StoreError
from jetlake.store.files.disk import NO_ROOM
from jetlake.store.files.folders import FolderOwner
from jetlake.store.index.index import Index
from jetlake.store.interface import Incoming, rising_times
from jetlake.store.log.durability import Durability, MarkFile
from jetlake.store.log.groups import links_of
from jetlake.store.log.lost_messages import LostMessages
from jetlake.store.log.open_files import OpenFiles
from jetlake.store.log.overwriting import erasable, erase, is_grouped
from jetlake.store.log.record import pack_message, pack_run, pack_tombstone, record_size
from jetlake.store.log.removals import Removals
from jetlake.store.log.segment import Segment
from jetlake.store.log.segment_chain import SegmentChain, SegmentNumbers
from jetlake.store.log.segment_list import SegmentList
from jetlake.store.log.snapshot.index_file import IndexFile
from jetlake.store.sequence_ranges import Range

__all__ = ["Log", "LogFiles", "LogOptions"]

_SKIP_ROWS_MAX = 4096
_HELD_BACK_MAX = 65536
_PROBE_NAME = "mark.tmp"
_PROBE_BYTES = 65536
_BUSY_FLUSHES = 8
_WORTH_DROPPING = 16 * 1024
"""On a full disk, a segment without messages that is longer than this is dropped."""


class _WriteAttempt:
    """One write of everything that waits; it knows where each file ended before.

    Attributes:
        segments: those in which something waits.
        removals: those whose tombstones wait behind the messages.
    """

    __slots__ = ("_sizes", "removals", "segments")

    def __init__(self, segments: list[Segment], removals: list[Range]) -> None:
        self.segments = segments
        self.removals = removals
        self._sizes = [segment.size for segment in segments]

    def write(self, tail_bytes: int) -> int:
        """Write what waits, and return how many bytes that was.

        Args:
            tail_bytes: how much of the newest data stays in memory for readers.

        Raises:
            OSError: the disk refused; `cut_off` removes what it has taken.
        """
        written = 0
        for segment in self.segments:
            written += segment.write_pending(tail_bytes)
        return written

    def new_segments(self) -> list[Segment]:
        """Return the segments whose files the attempt made."""
        if 0 not in self._sizes:
            return []
        return [segment for segment, size in zip(self.segments, self._sizes, strict=True) if not size]

    def cut_off(self, last_sequence: int, durability: Durability) -> None:
        """Drop what waits, and cut the files where they ended before.

        Args:
            last_sequence: the last one that stays used.
            durability: notes which files were cut, and which could not be.
        """
        for segment, size in zip(self.segments, self._sizes, strict=True):
            try:
                segment.roll_back(size, last_sequence)
            except OSError as error:
                # What the file now holds could be taken for messages, if their sequences were used again.
                durability.roll_back_failed("cut off what a failed write left", error, partial(segment.file.cut, size))
        # Their sequences go to other messages: the sync that makes those safe makes the cuts safe.
        cut = [segment for segment in self.segments if segment.file.handle is not None]
        durability.overwrote(cut, last_sequence)


class LogFiles(NamedTuple):
    """The files of a store beside its segments, and the bound on open files.

    Attributes:
        mark: the high-water mark.
        segments: the list of segments.
        snapshot: the snapshot of the index.
        open_files: shared by the stores of a server.
    """

    mark: MarkFile
    segments: SegmentList
    snapshot: IndexFile
    open_files: OpenFiles


class LogOptions(NamedTuple):
    """How a log is written; see `FileStore` for the fields."""

    segment_bytes: int
    tail_bytes: int
    random_bytes: Callable[[int], bytes]
    owner: FolderOwner
    marks_flushes: bool


class Log:
    """The segments of a `FileStore`, written to.

    Messages are packed and indexed when they are appended, and wait in their segment until the flush, which writes them
    and then a tombstone for each removal that is due.

    Args:
        index: of the segments; its active one is appended to.
        files: the files beside the segments.
        numbers: the numbers of new segments.

    Attributes:
        durability: which flushes are synced.
        chain: begins and seals segments; what is dead of them waits there.
        removals: which removals are not in the log yet.
        files: the files beside the segments.
        lost: the messages that the disk no longer returns.
        written_bytes: the number of bytes written since the last snapshot of the index.
        is_prepared: whether `before_sync` was called; False makes the next sync call it.
    """

    def __init__(
        self,
        index: Index[Segment],
        files: LogFiles,
        lost: LostMessages,
        numbers: SegmentNumbers,
        options: LogOptions,
    ) -> None:
        file = index.active.file
        self.disk, self.folder = file.disk, file.folder
        self.files = files
        self.lost = lost
        self.removals = Removals()
        self.written_bytes = 0
        self.is_prepared = False
        self._index = index
        self._options = options
        self._segment_bytes = options.segment_bytes
        self._is_begun = False  # whether `before_write` was called
        self.durability = Durability(
            self.disk, self.folder, files.mark, files.segments, marks_flushes=options.marks_flushes
        )
        self.chain = SegmentChain(index, self.durability, numbers)
        # What changed since the last flush.
        self._unflushed: list[Segment] = []
        self._flushed_sequence = 0
        self._flushed_time_ns = 0
        # The sequences of the group that is being appended; 0 for none.
        self._group_first = 0
        self._group_last = 0
        # The last sequence of the newest group.
        self._grouped_sequence = 0
        # The last flush before the newest segment gave its handle back.
        self._let_go_at = 0
        index.on_emptied = self._emptied

    def resume(self) -> None:
        """Continue after the messages in the index."""
        self._flushed_sequence = self._index.last_sequence
        self._flushed_time_ns = self._index.last_time_ns
        self.chain.resume()

    # Appending

    def append(self, subject: bytes, header: bytes, payload: bytes, time_ns: int) -> int:
        """Append a message under the next sequence, which is returned.

        Raises:
            StoreError: an earlier `sync` failed, so that nothing more can be promised.
        """
        self.durability.check()
        index = self._index
        segment = index.active
        if time_ns < index.last_time_ns:
            time_ns = index.last_time_ns
        sequence = index.last_sequence + 1
        marked = sequence | self._next_links(sequence) if self._group_last else sequence
        record = pack_message(marked, time_ns, subject, header, payload, segment.checksum)
        size = len(record)
        offset = segment.end
        if offset + size > self._segment_bytes and segment.live:
            segment = self.chain.roll()
            record = pack_message(marked, time_ns, subject, header, payload, segment.checksum)
            offset = segment.end
        if not segment.pending:
            self._unflushed.append(segment)
        segment.pending.append(record)
        segment.end = offset + size
        segment.offsets.append(offset)
        segment.sizes.append(size)
        segment.subject_ids.append(index.subjects.append(subject, sequence))
        segment.times.append(time_ns)
        segment.live.append(1)
        segment.live_count += 1
        segment.live_bytes += size
        index.last_sequence = sequence
        index.last_time_ns = time_ns
        index.bytes += size
        if not index.messages:
            index.first_sequence = sequence
        index.messages += 1
        return sequence

    def append_run(self, messages: Sequence[Incoming], time_ns: int | Sequence[int]) -> int:
        """Append messages under consecutive sequences and return the first.

        Raises:
            StoreError: as with `append`; none of them is appended.
        """
        self.durability.check()
        first = self._index.last_sequence + 1
        last_ns = self._index.last_time_ns
        if isinstance(time_ns, int):
            times = [max(time_ns, last_ns)] * len(messages)
        else:
            times = rising_times(time_ns, last_ns)
        done = 0
        while done < len(messages):
            rest = (messages[done:], times[done:]) if done else (messages, times)
            appended = self._append_fitting(*rest)
            if not appended:
                self.chain.roll()
            done += appended
        return first

    def begin_group(self, count: int) -> None:
        """Make the next `count` sequences atomic: after a crash all or none of them are there.

        They are used one by one, by `append` and `skip`, before the next flush.

        Raises:
            StoreError: an earlier `sync` failed; no group is begun.
        """
        self.durability.check()
        self._group_first = self._index.last_sequence + 1
        self._group_last = self._grouped_sequence = self._index.last_sequence + count

    def _next_links(self, sequence: int) -> int:
        links = links_of(sequence, self._group_first, self._group_last)
        if sequence >= self._group_last:
            self._group_last = 0
        return links

    def _append_fitting(self, messages: Sequence[Incoming], times: list[int]) -> int:
        """Append as many of the messages as the segment takes, with one visit to each column; how many."""
        index = self._index
        segment = index.active
        start = segment.end
        room = self._segment_bytes - start
        if not segment.live:
            subject, _, header, payload = messages[0]
            room = max(room, record_size(subject, header, payload))
        first = index.last_sequence + 1
        records, sizes = pack_run(messages, first, times, segment.checksum, room)
        count = len(sizes)
        if not count:
            return 0
        subjects = [message[0] for message in messages[:count]]
        numbers = index.subjects.append_run(subjects, range(first, first + count))
        offsets = list(accumulate(sizes, initial=start))
        end = offsets.pop()
        if not segment.pending:
            self._unflushed.append(segment)
        segment.pending += records
        segment.end = end
        segment.offsets.extend(offsets)
        segment.sizes.extend(sizes)
        segment.subject_ids.extend(numbers)
        segment.times.extend(times[:count])
        segment.live.extend(b"\x01" * count)
        segment.live_count += count
        segment.live_bytes += end - start
        if not index.messages:
            index.first_sequence = first
        index.last_sequence += count
        index.last_time_ns = times[count - 1]
        index.bytes += end - start
        index.messages += count
        return count

    def skip(self, count: int) -> None:
        """Use up sequences: a tombstone says that they have no message."""
        self.durability.check()
        index = self._index
        segment = index.active
        first = index.last_sequence + 1
        last = index.last_sequence + count
        if not segment.pending:
            self._unflushed.append(segment)
        links = self._next_links(first) if self._group_last else 0
        record = pack_tombstone(first, last, index.last_time_ns, segment.checksum, links)
        segment.pending.append(record)
        segment.end += len(record)
        segment.tombstones.add(first, last)
        index.last_sequence = last
        if not segment.live:
            self.chain.move_on()
        elif count <= _SKIP_ROWS_MAX:
            segment.add_dead(count, index.last_time_ns)
        else:
            self.chain.roll()

    # Removing

    def sync_groups(self, last: int) -> None:
        """Make groups safe before messages up to `last` are removed: a tombstone says that its group was whole.

        When the disk refuses the sync, it is given no tombstone before a sync has succeeded.
        """
        synced = self.durability.synced_sequence
        if self._grouped_sequence <= synced or last <= synced:
            return
        with suppress(StoreError):
            self.flush()
        with suppress(StoreError):
            self.sync()

    def removed(self, first: int, last: int, follows_append: bool) -> None:
        """Have a tombstone written: nothing is left from `first` to `last`.

        Args:
            follows_append: an append made it necessary: the tombstone is held back until the append is synced.
        """
        self.lost.forget(first, last)
        if follows_append:
            self.removals.hold_back(first, last, self.durability.flushed)
        else:
            self.removals.add(first, last)

    def removed_below(self, sequence: int) -> None:
        """Take lost messages below a sequence for removed: they would be gone now if they had not been lost."""
        for first, last in self.lost.forget_below(sequence):
            self.removals.add(first, last)

    def _emptied(self, segment: Segment) -> None:
        if segment is not self._index.active:
            self.chain.dead.append(segment)
        elif segment.end > self._segment_bytes // 4 and self.durability.failure is None:
            self.chain.roll()

    def erase(self, segment: Segment, row: int, sequence: int) -> None:
        """Overwrite the record of a row that has died.

        Raises:
            StoreError: the disk refused.
        """
        size = segment.sizes[row]
        noise = self._options.random_bytes(erasable(segment, row))
        try:
            self.flush()
        except StoreError:
            # The refused messages may be others, which were rolled back; then the removal is written.
            if sequence > self._flushed_sequence or self.durability.failure is not None or self.needs_flush():
                raise
        self.use((segment,))
        try:
            if sequence >= self.durability.synced_sequence or is_grouped(segment, row):
                # An overwrite that a power cut tears must neither free the last sequence that was safe, nor make a
                # group that was safe look unfinished.
                self.durability.sync_mark()
            erase(segment, row, noise)
        except OSError as error:
            segment.damaged_bytes += size  # What is half overwritten keeps nothing else from being safe.
            raise StoreError.of(f"overwrite message {sequence}", error) from error
        self.durability.overwrote((segment,), self._flushed_sequence)

    # Flush

    def needs_flush(self) -> bool:
        """Return whether `flush` would write something."""
        removals = self.removals
        if self._unflushed or not (removals.asked or removals.held_back):
            return bool(self._unflushed)
        return removals.are_due(self.durability.durable)

    def flush(self) -> None:
        """Write everything that waits.

        Raises:
            StoreError: the disk refused. The appends since the last flush are rolled back, removals are kept.
        """
        if not self.needs_flush():
            return
        self.durability.check()
        has_appends = bool(self._unflushed)
        attempt = self._new_attempt()
        try:
            self._write(attempt)
        except OSError as error:
            refusal = StoreError.of("write to the stream's log", error)
            is_full = error.errno in NO_ROOM
            if is_full and not has_appends:
                # Nothing but removals, which are kept.
                self._cut_off(attempt)
                if self._make_room():
                    return
            else:
                self._roll_back(attempt)
                try:
                    if is_full:
                        self._make_room()
                finally:
                    # Who waits for a removal can see by now whether that was written.
                    if has_appends:
                        self._report_rolled_back(refusal)
            raise refusal from error

    def flush_appends(self) -> None:
        """Write everything that waits, if there are appends: removals alone can wait for a disk that takes them.

        Raises:
            StoreError: as with `flush`.
        """
        if self._unflushed:
            self.flush()

    def _new_attempt(self) -> _WriteAttempt:
        """Put the tombstones that are due behind the appends, for all of them to be written."""
        due = self._queue_tombstones() if self.removals.asked or self.removals.held_back else []
        return _WriteAttempt(self._unflushed, due)

    def _write(self, attempt: _WriteAttempt) -> None:
        """Write an attempt, and count it as flushed.

        Raises:
            OSError: the disk refused. Nothing is counted, and the attempt must be rolled back or cut off.
        """
        if not self._is_begun:
            if (before_write := self._options.owner.before_write) is not None:
                before_write()
            self._is_begun = True
        self.use(attempt.segments)
        self.written_bytes += attempt.write(self._options.tail_bytes)
        index = self._index
        if attempt.removals:
            for first, last in attempt.removals:
                index.active.tombstones.add(first, last)
            self.removals.written(len(attempt.removals))
        new = attempt.new_segments()
        number = self.durability.wrote(attempt.segments, index.last_sequence, new_names=bool(new))
        for segment in new:
            segment.birth_generation = number
            self.files.segments.add(segment.number, segment.first)
        self._unflushed = []
        self._flushed_sequence = index.last_sequence
        self._flushed_time_ns = index.last_time_ns
        if self.chain.full:
            self.chain.seal_full()
        active = index.active
        if active.size > active.file.ahead:
            active.file.extend(active.size, self._segment_bytes)

    def _make_room(self) -> bool:
        """Write waiting removals to a full disk, in a new segment if no message is left; return whether that was done.

        Users make room by purges and deletes: files that a start can do without are removed for them.

        Raises:
            StoreError: the disk refuses these too.
        """
        active = self._index.active
        if self.durability.failure is not None:
            return False
        if active.live and not active.live_count and active.size > _WORTH_DROPPING:
            if not self.removals.asked:
                # The new file has to say where the stream stands.
                self.removals.add(active.first, self._index.last_sequence)
            self.chain.roll()
        if not self.removals.asked:
            return False  # Removals by limits can wait.
        self._drop_spares()
        attempt = self._new_attempt()
        try:
            self._write(attempt)
        except OSError as error:
            refusal = StoreError.of("write to the stream's log", error)
            self._roll_back(attempt)
            raise refusal from error
        return True

    def _drop_spares(self) -> None:
        """Remove the files that a start can do without, while the disk is full."""
        self.files.segments.drop()
        with suppress(OSError):
            self.files.snapshot.drop()

    def _queue_tombstones(self) -> list[Range]:
        """Put a tombstone behind the messages for every removal that is due, and return those removals."""
        if len(self.removals.held_back) > _HELD_BACK_MAX:
            self.durability.sync()
        due = self.removals.due(self.durability.durable)
        if due:
            active = self._index.active
            if not active.pending:
                self._unflushed.append(active)
            time_ns = self._index.last_time_ns
            active.pending += [pack_tombstone(first, last, time_ns, active.checksum) for first, last in due]
        return due

    def roll_back(self, error: StoreError) -> None:
        """Roll back the appends since the last flush, because of an error."""
        if self._unflushed:
            self._roll_back(_WriteAttempt(self._unflushed, []))
            self._report_rolled_back(error)

    def _roll_back(self, attempt: _WriteAttempt) -> None:
        """Roll back the appends that could not be written."""
        self._cut_off(attempt)
        self._group_last = 0
        index = self._index
        self.chain.roll_back_above(self._flushed_sequence)
        index.last_time_ns = self._flushed_time_ns
        if not index.messages:
            index.first_sequence = self._flushed_sequence + 1 if self._flushed_sequence else 0
        self.removals.roll_back_above(self._flushed_sequence)

    def _report_rolled_back(self, refusal: StoreError) -> None:
        index = self._index
        if index.hooks.on_rolled_back is not None:
            index.hooks.on_rolled_back(refusal)

    def _cut_off(self, attempt: _WriteAttempt) -> None:
        attempt.cut_off(self._flushed_sequence, self.durability)
        self._unflushed = []

    # Sync

    def sync(self) -> None:
        """Make everything flushed before the call durable; may run in another thread than `flush`.

        Raises:
            StoreError: the disk failed, now or before.
        """
        if not self.is_prepared:
            self.is_prepared = True  # Before: another thread may set it back meanwhile.
            try:
                self._options.owner.before_sync()
            except BaseException:
                self.is_prepared = False
                raise
        self.durability.sync()

    def sync_if_short(self) -> bool:
        """Sync if that is the sync of one open file with a short append, and return whether it was.

        Raises:
            StoreError: the disk failed.
        """
        return self.is_prepared and self.durability.sync_if_short()

    def retry(self) -> None:
        """Try again after the disk refused; the next sync decides whether all is well.

        Raises:
            StoreError: the disk still refuses.
        """
        try:
            if (failure := self.durability.failure) is not None:
                # Messages appended when the sync failed were refused to their publishers: they must not be stored.
                self.roll_back(failure)
                self.durability.retry()
            # Nothing may be waiting to be written: write a probe.
            path = self.folder / _PROBE_NAME
            handle = self.disk.open(path, create=True)
            try:
                self.disk.write(handle, bytes(_PROBE_BYTES), 0)
                self.disk.sync(handle)
            finally:
                self.disk.close(handle)
                self.disk.remove(path)
            self.disk.sync_folder(self.folder)
        except OSError as error:
            raise StoreError.of("write to the stream's folder", error) from error

    # Handles

    def use(self, segments: Iterable[Segment]) -> None:
        """Note that these segments are about to need their handles."""
        for segment in segments:
            if segment is not self.files.open_files.newest:
                self.files.open_files.use(segment, self._let_go)

    def read_all(self, segment: Segment) -> bytes:
        """Return all bytes of a segment that are written.

        Raises:
            StoreError: the disk does not answer.
        """
        self.use((segment,))
        try:
            return segment.file.read_all(segment.size)
        except OSError as error:
            raise StoreError.of(f"read segment {segment.number}", error) from error

    def _let_go(self, segment: Segment) -> None:
        """Close a segment's file, and the mark's unless it is about to be used.

        Bytes are synced through the handle that wrote them: the system reports a write error to no other handle.
        """
        durability = self.durability
        is_written = segment is self._index.active or not durability.is_safe(segment)
        if durability.flushed > durability.synced and is_written:
            with suppress(StoreError):
                # The next flush says so.
                self.sync()
        if segment is self._index.active:
            self._let_go_at = durability.flushed
        with suppress(OSError):
            segment.file.close()
            if durability.flushed == durability.synced:
                self.files.mark.close()

    def keeps_handle(self) -> bool:
        """Return whether the newest segment is not likely to give its handle back soon, which has to wait for a sync.

        Where there are fewer handles than segments, those keep theirs that are written to often.
        """
        return not self.files.open_files.is_full or self.durability.flushed - self._let_go_at >= _BUSY_FLUSHES

    def cut_zeros(self) -> None:
        """End the newest segment's file where its records end."""
        active = self._index.active
        active.file.cut_zeros(active.size)

    def close_files(self) -> None:
        """Give every handle back; the next use opens its file again."""
        self.files.open_files.forget(self._index.blocks)
        for segment in self._index.blocks:
            segment.file.close()
        self.files.mark.close()
