"""A stream's log on disk: messages and tombstones appended to segments, flushed, synced, and taken back on failure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate

from jetlake.errors import StoreError
from jetlake.store.files.disk import NO_ROOM
from jetlake.store.index.index import Index
from jetlake.store.interface import Incoming, rising_times
from jetlake.store.log.durability import Durability, FileSync
from jetlake.store.log.groups import links_of
from jetlake.store.log.lost_messages import LostMessages
from jetlake.store.log.mark import MarkFile
from jetlake.store.log.open_files import OpenFiles
from jetlake.store.log.overwriting import erasable, erase, is_grouped
from jetlake.store.log.record import pack_message, pack_run, pack_tombstone, record_size
from jetlake.store.log.removals import Removals
from jetlake.store.log.segment import Segment
from jetlake.store.log.segment_list import SegmentList
from jetlake.store.sequence_ranges import Range

__all__ = ["Log"]

_SKIP_ROWS_MAX = 4096
_HELD_BACK_MAX = 65536
_PROBE_NAME = "mark.tmp"
_PROBE_BYTES = 65536
_BUSY_FLUSHES = 8
_WORTH_DROPPING = 16 * 1024
"""On a full disk, a segment without messages that is longer than this is given back."""


class Log:
    """The segments of a `FileStore`, written to.

    Messages are packed and indexed when they are appended, and wait in their segment until the flush, which writes them
    and then a tombstone for each removal that is due.

    Args:
        index: of the segments; its active one is appended to.
        mark: the high-water mark.
        segments: the list of segments.
        lost: the messages that the disk no longer gives back.
        next_number: that of the segment after all that are there.
        taken_numbers: those that a file has which is not the store's.
        random_bytes: makes what erased messages are overwritten with.
        before_write: called before the first write.
        before_sync: called by the first sync, in the same thread; what it raises is the sync's failure.
        give_up_spares: removes files that can be written anew, to make room on a full disk.

    Attributes:
        durability: which flushes are synced.
        removals: which removals are not in the log yet.
        dead: the segments in which nothing lives any more.
        written_bytes: how much was written; whoever writes the index down sets it to 0.
        is_prepared: whether `before_sync` has nothing to do; whoever gives it something sets it to False.
    """

    def __init__(
        self,
        index: Index[Segment],
        mark: MarkFile,
        segments: SegmentList,
        lost: LostMessages,
        open_files: OpenFiles,
        *,
        next_number: int,
        taken_numbers: Collection[int],
        segment_bytes: int,
        tail_bytes: int,
        random_bytes: Callable[[int], bytes],
        before_write: Callable[[], None] | None,
        before_sync: Callable[[], None],
        give_up_spares: Callable[[], None],
    ) -> None:
        active = index.active
        self.folder = active.file.folder
        self.removals = Removals()
        self.dead: list[Segment] = []
        self.written_bytes = 0
        self.is_prepared = False
        self._disk = active.file.disk
        self._key = active.key
        self._index = index
        self._mark = mark
        self._segments = segments
        self._lost = lost
        self._open_files = open_files
        self._next_number = next_number
        self._taken_numbers = taken_numbers
        self._segment_bytes = segment_bytes
        self._tail_bytes = tail_bytes
        self._random_bytes = random_bytes
        self._before_write = before_write
        self._before_sync = before_sync
        self._give_up_spares = give_up_spares
        self.durability = Durability(self._disk, self.folder, mark, segments)
        # What changed since the last flush.
        self._unflushed: list[Segment] = []
        self._sizes: list[int] = []  # those of the unflushed segments' files before the last write
        self._to_seal: list[Segment] = []
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
        """Go on behind what the index holds: make the last segment ready for the next append, or roll."""
        index = self._index
        active = index.active
        self._flushed_sequence = index.last_sequence
        self._flushed_time_ns = index.last_time_ns
        if active.filed is None and not active.live and active.sequences is None:
            index.move_active(index.last_sequence + 1)
        elif (
            active.filed is not None
            or active.sequences is not None
            or active.is_damaged
            or active.first + len(active.live) <= index.last_sequence
        ):
            self._roll()
            self._seal_full()

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
        record = pack_message(marked, time_ns, subject, header, payload, segment.seed)
        size = len(record)
        offset = segment.end
        if offset + size > self._segment_bytes and segment.live:
            segment = self._roll()
            record = pack_message(marked, time_ns, subject, header, payload, segment.seed)
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
                self._roll()
            done += appended
        return first

    def begin_group(self, count: int) -> None:
        """Have the next so many sequences kept all together or not at all, whatever a crash does.

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
        records, sizes = pack_run(messages, first, times, segment.seed, room)
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

    def _roll(self) -> Segment:
        """Begin a new segment; the old one is sealed once it is written."""
        full = self._index.active
        while self._next_number in self._taken_numbers:
            self._next_number += 1
        segment = Segment(self._disk, self.folder, self._key, self._next_number, self._index.last_sequence + 1)
        self._next_number += 1
        self._index.begin_block(segment)
        self._to_seal.append(full)
        if not full.live_count:
            self.dead.append(full)
        return segment

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
        record = pack_tombstone(first, last, index.last_time_ns, segment.seed, links)
        segment.pending.append(record)
        segment.end += len(record)
        segment.tombstones.add(first, last)
        index.last_sequence = last
        if not segment.live:
            index.move_active(last + 1)
        elif count <= _SKIP_ROWS_MAX:
            segment.add_dead(count, index.last_time_ns)
        else:
            self._roll()

    # Removing

    def settle_groups(self, last: int) -> None:
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
        self._lost.forget(first, last)
        if follows_append:
            self.removals.hold_back(first, last, self.durability.flushed)
        else:
            self.removals.add(first, last)

    def removed_below(self, sequence: int) -> None:
        """Take lost messages below a sequence for removed: they would be gone now if they had not been lost."""
        for first, last in self._lost.forget_below(sequence):
            self.removals.add(first, last)

    def _emptied(self, segment: Segment) -> None:
        if segment is not self._index.active:
            self.dead.append(segment)
        elif segment.end > self._segment_bytes // 4 and self.durability.failure is None:
            self._roll()

    def erase(self, segment: Segment, row: int, sequence: int) -> None:
        """Overwrite the record of a row that has died.

        Raises:
            StoreError: the disk refused.
        """
        size = segment.sizes[row]
        noise = self._random_bytes(erasable(segment, row))
        self.flush()
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
        return removals.are_due(self.durability.synced)

    def flush(self) -> None:
        """Write everything that waits.

        Raises:
            StoreError: the disk refused. The appends since the last flush are taken back, removals are kept.
        """
        if not self.needs_flush():
            return
        self.durability.check()
        has_appends = bool(self._unflushed)
        try:
            self._write_unflushed()
        except OSError as error:
            refusal = StoreError.of("write to the stream's log", error)
            is_full = error.errno in NO_ROOM
            if has_appends or not is_full:
                self._take_back(refusal)
            else:
                self._cut_off()
            if not is_full or not self._make_room() or has_appends:
                raise refusal from error

    def _write_unflushed(self) -> None:
        """Write appends and the tombstones that are due; after an error, all of them are still unflushed.

        Raises:
            OSError: the disk refused.
        """
        due = self._queue_tombstones() if self.removals.asked or self.removals.held_back else []
        written = self._unflushed
        self._sizes = sizes = [segment.size for segment in written]
        if self._before_write is not None:
            self._before_write()
            self._before_write = None
        self.use(written)
        for segment in written:
            segment.write_pending(self._tail_bytes)
        if due:
            for first, last in due:
                self._index.active.tombstones.add(first, last)
            self.removals.written(len(due))
        number = self.durability.wrote(written, self._index.last_sequence, new_names=0 in sizes)
        for segment, size in zip(written, sizes, strict=True):
            self.written_bytes += segment.size - size
            if not size:
                segment.birth_generation = number
                self._segments.add(segment.number, segment.first)
        self._unflushed = []
        self._flushed_sequence = self._index.last_sequence
        self._flushed_time_ns = self._index.last_time_ns
        if self._to_seal:
            self._seal_full()
        active = self._index.active
        if active.size > active.file.ahead:
            active.file.extend(active.size, self._segment_bytes)

    def _make_room(self) -> bool:
        """Write the removals that wait to a full disk, and begin anew where no message is left; whether that was done.

        Purges and deletes are how a user makes room: they get what files took that can be written anew.

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
            self._roll()
        if not self.removals.asked:
            return False  # Nobody waits for what limits removed.
        self._give_up_spares()
        try:
            self._write_unflushed()
        except OSError as error:
            refusal = StoreError.of("write to the stream's log", error)
            self._take_back(refusal)
            raise refusal from error
        return True

    def _queue_tombstones(self) -> list[Range]:
        """Put a tombstone behind the messages for every removal that is due, and return those removals."""
        if len(self.removals.held_back) > _HELD_BACK_MAX:
            self.durability.sync()
        due = self.removals.due(self.durability.synced)
        if due:
            active = self._index.active
            if not active.pending:
                self._unflushed.append(active)
            time_ns = self._index.last_time_ns
            active.pending += [pack_tombstone(first, last, time_ns, active.seed) for first, last in due]
        return due

    def _seal_full(self) -> None:
        for segment in self._to_seal:
            if segment.file.handle is not None:
                segment.file.cut_zeros(segment.size)
            segment.seal()
        if self._to_seal and (on_full := self._index.hooks.on_full) is not None:
            on_full()
        self._to_seal.clear()

    def take_back(self, error: StoreError) -> None:
        """Take back what was appended since the last flush, because of an error."""
        if self._unflushed:
            self._sizes = [segment.size for segment in self._unflushed]
            self._take_back(error)

    def _take_back(self, refusal: StoreError) -> None:
        """Take back the appends that could not be written."""
        self._cut_off()
        self._to_seal.clear()
        self._group_last = 0
        self._take_back_rows()
        if self._index.hooks.on_undone is not None:
            self._index.hooks.on_undone(refusal)

    def _cut_off(self) -> None:
        """Cut the files where they ended before the write that failed."""
        for segment, size in zip(self._unflushed, self._sizes, strict=True):
            try:
                segment.take_back(size, self._flushed_sequence)
            except OSError as error:
                # What the file now holds could be taken for messages, if their sequences were used again.
                self.durability.failure = StoreError.of("cut off what a failed write left", error)
                self.durability.cuts.append(partial(segment.file.cut, size))
        # Their sequences go to other messages: the sync that makes those safe makes the cuts safe.
        cut = [segment for segment in self._unflushed if segment.file.handle is not None]
        self.durability.overwrote(cut, self._flushed_sequence)
        self._unflushed = []

    def _take_back_rows(self) -> None:
        """Bring the index back to what was flushed last."""
        index = self._index
        target = self._flushed_sequence
        while index.last_sequence > target:
            self._take_back_last(target)
        while not index.active.size and not index.active.live and self._goes_on_in_previous(target):
            self._drop_newest()
        index.last_time_ns = self._flushed_time_ns
        if not index.messages:
            index.first_sequence = target + 1 if target else 0
        self.removals.undo_above(target)

    def _take_back_last(self, target: int) -> None:
        """Take back the newest row, or the newest segment when it has none."""
        index = self._index
        active = index.active
        if not active.live:
            if not active.size and self._goes_on_in_previous(target):
                self._drop_newest()
                index.last_sequence = max(index.active.first + len(index.active.live) - 1, target)
            else:
                index.move_active(target + 1)
                index.last_sequence = target
            return
        index.last_sequence = active.first + len(active.live) - 1
        if index.last_sequence > target:
            index.take_back_last()

    def _goes_on_in_previous(self, target: int) -> bool:
        """Return whether the segment before the newest can take the message after `target`: its rows are dense."""
        if len(self._index.blocks) < 2:
            return False
        previous = self._index.blocks[-2]
        if previous.filed is not None:
            return False
        return previous.sequences is None and previous.first + len(previous.live) > target

    def _drop_newest(self) -> None:
        """Remove the newest segment, to which nothing could be written.

        Its sequences go to other messages: the sync that makes those safe makes it safe that the file is gone.
        """
        segment = self._index.active
        segment.file.close()
        try:
            self._disk.remove(segment.file.path)
        except OSError as error:
            self.durability.failure = StoreError.of("remove what a failed write left", error)
            self.durability.cuts.append(partial(self._disk.remove, segment.file.path))
        self.durability.forget(segment)
        self._index.drop_block(segment)
        active = self._index.active
        self._next_number = active.number + 1
        self.dead = [segment for segment in self.dead if segment is not active]

    # Sync

    def sync(self) -> None:
        """Make safe what was flushed before the call; may run beside the thread that flushes.

        Raises:
            StoreError: the disk failed, now or before.
        """
        if not self.is_prepared:
            self.is_prepared = True  # Before: another thread may set it back meanwhile.
            try:
                self._before_sync()
            except BaseException:
                self.is_prepared = False
                raise
        self.durability.sync()

    def begin_file_sync(self) -> FileSync | None:
        """Begin a sync that somebody else carries out; None when only `sync` can do what there is to do."""
        return self.durability.begin_file_sync() if self.is_prepared else None

    def mend(self) -> None:
        """Try again after the disk refused; the next sync decides whether all is well.

        Raises:
            StoreError: the disk still refuses.
        """
        try:
            if (failure := self.durability.failure) is not None:
                # What was appended when the sync failed has been refused: it must not be stored after all.
                self.take_back(failure)
                self.durability.mend()
            # Nothing may be waiting to be written: write a probe.
            path = self.folder / _PROBE_NAME
            handle = self._disk.open(path, create=True)
            try:
                self._disk.write(handle, bytes(_PROBE_BYTES), 0)
                self._disk.sync(handle)
            finally:
                self._disk.close(handle)
                self._disk.remove(path)
            self._disk.sync_folder(self.folder)
        except OSError as error:
            raise StoreError.of("write to the stream's folder", error) from error

    # Handles

    def use(self, segments: Iterable[Segment]) -> None:
        """Note that these segments are about to need their handles."""
        for segment in segments:
            if segment is not self._open_files.newest:
                self._open_files.use(segment, self._let_go)

    def _let_go(self, segment: Segment) -> None:
        """Give a segment's handle back, and the mark's if nobody is about to use it.

        What was written through a handle is synced through it: what went wrong in between is told to no other.
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
                self._mark.close()

    def keeps_handle(self) -> bool:
        """Return whether the newest segment is not likely to give its handle back soon, which has to wait for a sync.

        Where there are fewer handles than segments, those keep theirs that are written to often.
        """
        return not self._open_files.is_full or self.durability.flushed - self._let_go_at >= _BUSY_FLUSHES

    def cut_zeros(self) -> None:
        """End the newest segment's file where its records end."""
        active = self._index.active
        active.file.cut_zeros(active.size)

    def close_files(self) -> None:
        """Give every handle back; the next use opens its file again."""
        self._open_files.forget(self._index.blocks)
        for segment in self._index.blocks:
            segment.file.close()
        self._mark.close()
