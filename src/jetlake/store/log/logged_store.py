"""A store whose changes go through a log of segments: appending, removing, writing, taking back."""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

from xxhash import xxh3_64_digest

from jetlake.errors import StoreError
from jetlake.store.files.disk import Disk
from jetlake.store.index.indexed_store import IndexedStore
from jetlake.store.index.sequence_list import CHUNK
from jetlake.store.interface import Incoming
from jetlake.store.log.durability import Durability
from jetlake.store.log.mark import MarkFile
from jetlake.store.log.record import HEADER_FLAG, HEADER_OVERHEAD, OVERHEAD, pack_tombstone
from jetlake.store.log.removals import Removals
from jetlake.store.log.segment import Segment
from jetlake.store.log.segment_list import SegmentList
from jetlake.store.sequence_ranges import Range, ranges_of

__all__ = ["LoggedStore"]

_SKIP_ROWS_MAX = 4096
_HELD_BACK_MAX = 65536
_PROBE_NAME = "mark.tmp"
_PROBE_BYTES = 65536
_pack_head = struct.Struct("<IQqH").pack
_pack_number = struct.Struct("<I").pack


class LoggedStore(IndexedStore[Segment]):
    """The writing half of a `FileStore`.

    Messages are packed and indexed when they are appended, and wait in their segment until the flush, which writes them
    and then a tombstone for each removal that is due.

    Args:
        segment: the one to append to.
        segments: the list of them all.
        next_number: that of the segment after all that are there.
        taken_numbers: those that a file has which is not the store's.
        before_write: called before the first write.
    """

    durable = True

    def __init__(
        self,
        segment: Segment,
        mark: MarkFile,
        segments: SegmentList,
        *,
        next_number: int,
        taken_numbers: Collection[int],
        segment_bytes: int,
        tail_bytes: int,
        random_bytes: Callable[[int], bytes] = os.urandom,
        before_write: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(segment)
        self._disk: Disk = segment.disk
        self._folder: Path = segment.path.parent
        self._key = segment.key
        self._next_number = next_number
        self._taken_numbers = taken_numbers
        self._segments = segments
        self._segment_bytes = segment_bytes
        self._tail_bytes = tail_bytes
        self._random_bytes = random_bytes
        self._durability = Durability(self._disk, self._folder, mark, segments)
        self._before_write = before_write
        self._removals = Removals()
        # What changed since the last flush.
        self._unflushed: list[Segment] = []
        self._to_seal: list[Segment] = []
        self._flushed_sequence = 0
        self._flushed_time_ns = 0
        # Segments in which nothing lives any more.
        self._dead: list[Segment] = []
        self._log_bytes = 0

    # Appending

    def append(self, subject: bytes, header: bytes, payload: bytes, time_ns: int) -> int:
        self._durability.check()
        segment = self._active
        subject_length = len(subject)
        if header:
            size = HEADER_OVERHEAD + subject_length + len(header) + len(payload)
        else:
            size = OVERHEAD + subject_length + len(payload)
        offset = segment.end
        if offset + size > self._segment_bytes and segment.live:
            segment = self._roll()
            offset = segment.end
        if time_ns < self.last_time_ns:
            time_ns = self.last_time_ns
        sequence = self.last_sequence + 1
        if header:
            body = b"".join(
                (
                    _pack_head(size | HEADER_FLAG, sequence, time_ns, subject_length),
                    subject,
                    _pack_number(len(header)),
                    header,
                    payload,
                )
            )
        else:
            body = _pack_head(size, sequence, time_ns, subject_length) + subject + payload
        pending = segment.pending
        if not pending:
            self._unflushed.append(segment)
        pending.append(body + xxh3_64_digest(body, segment.seed))
        segment.end = offset + size
        index = self._subjects
        number = index.ids.get(subject)
        if number is None:
            number = index.add(subject, sequence)
        else:
            tail = index.tails[number]
            if type(tail) is array and len(tail) < CHUNK:
                tail.append(sequence)
            else:
                index.grow(number, sequence)
        segment.offsets.append(offset)
        segment.sizes.append(size)
        segment.subject_ids.append(number)
        segment.times.append(time_ns)
        segment.live.append(1)
        segment.live_count += 1
        segment.live_bytes += size
        self.last_sequence = sequence
        self.last_time_ns = time_ns
        self.bytes += size
        if not self.messages:
            self.first_sequence = sequence
        self.messages += 1
        return sequence

    def append_run(self, messages: Sequence[Incoming], time_ns: int) -> int:
        self._durability.check()
        first = self.last_sequence + 1
        time_ns = max(time_ns, self.last_time_ns)
        done = 0
        while done < len(messages):
            appended = self._append_fitting(messages[done:] if done else messages, time_ns)
            if not appended:
                self._roll()
            done += appended
        return first

    def _append_fitting(self, messages: Sequence[Incoming], time_ns: int) -> int:
        """Append as many of the messages as the segment takes, with one visit to each column; how many."""
        segment = self._active
        start = offset = segment.end
        end = self._segment_bytes if segment.live else max(self._segment_bytes, start + _record_size(messages[0]))
        seed = segment.seed
        sequence = self.last_sequence
        index = self._subjects
        find = index.ids.get
        tails = index.tails
        records: list[bytes] = []
        offsets: list[int] = []
        sizes: list[int] = []
        numbers: list[int] = []
        add_record, add_offset, add_size, add_number = records.append, offsets.append, sizes.append, numbers.append
        for subject, _, header, payload in messages:
            subject_length = len(subject)
            if header:
                size = HEADER_OVERHEAD + subject_length + len(header) + len(payload)
            else:
                size = OVERHEAD + subject_length + len(payload)
            if offset + size > end:
                break
            sequence += 1
            if header:
                head = _pack_head(size | HEADER_FLAG, sequence, time_ns, subject_length)
                body = b"".join((head, subject, _pack_number(len(header)), header, payload))
            else:
                body = _pack_head(size, sequence, time_ns, subject_length) + subject + payload
            add_record(body)
            add_record(xxh3_64_digest(body, seed))
            number = find(subject)
            if number is None:
                number = index.add(subject, sequence)
            else:
                tail = tails[number]
                if type(tail) is array and len(tail) < CHUNK:
                    tail.append(sequence)
                else:
                    index.grow(number, sequence)
            add_offset(offset)
            add_size(size)
            add_number(number)
            offset += size
        count = len(sizes)
        if not count:
            return 0
        if not segment.pending:
            self._unflushed.append(segment)
        segment.pending += records
        segment.end = offset
        segment.offsets.extend(offsets)
        segment.sizes.extend(sizes)
        segment.subject_ids.extend(numbers)
        segment.times.extend([time_ns] * count)
        segment.live.extend(b"\x01" * count)
        segment.live_count += count
        segment.live_bytes += offset - start
        if not self.messages:
            self.first_sequence = self.last_sequence + 1
        self.last_sequence = sequence
        self.last_time_ns = time_ns
        self.bytes += offset - start
        self.messages += count
        return count

    def _new_segment(self, first: int) -> Segment:
        while self._next_number in self._taken_numbers:
            self._next_number += 1
        segment = Segment(self._disk, self._folder, self._key, self._next_number, first)
        self._next_number += 1
        return segment

    def _roll(self) -> Segment:
        """Begin a new segment; the old one is closed off once it is written."""
        full = self._active
        segment = self._new_segment(self.last_sequence + 1)
        self._blocks.append(segment)
        self._starts.append(segment.first)
        self._active = segment
        self._to_seal.append(full)
        if not full.live_count:
            self._dead.append(full)
        return segment

    def _skip(self, count: int) -> None:
        self._durability.check()
        segment = self._active
        first = self.last_sequence + 1
        last = self.last_sequence + count
        if not segment.pending:
            self._unflushed.append(segment)
        record = pack_tombstone(first, last, self.last_time_ns, segment.seed)
        segment.pending.append(record)
        segment.end += len(record)
        segment.note_tombstone(first, last)
        self.last_sequence = last
        if not segment.live:
            segment.first = last + 1
            self._starts[-1] = last + 1
        elif count <= _SKIP_ROWS_MAX:
            segment.add_dead(count, self.last_time_ns)
        else:
            self._roll()

    def _about_to_write(self, segments: Iterable[Segment]) -> None:
        """These segments need their handles."""

    # Removing

    def _log_removed(self, first: int, last: int, follows_append: bool) -> None:
        if self.lost and any(first <= sequence <= last for sequence in self.lost):
            self.lost = [sequence for sequence in self.lost if not first <= sequence <= last]
            self._segments.lose(ranges_of(self.lost))
        if follows_append:
            self._removals.hold_back(first, last, self._durability.flushed)
        else:
            self._removals.add(first, last)

    def _emptied(self, block: Segment) -> None:
        if block is not self._active:
            self._dead.append(block)
        elif block.end > self._segment_bytes // 4 and self._durability.failure is None:
            self._roll()

    def _erase(self, block: Segment, row: int, sequence: int) -> None:
        noise = self._random_bytes(block.erasable(row))
        # Of this class: the file itself must not go with its last message before the bytes are overwritten.
        LoggedStore.flush(self)
        self._about_to_write((block,))
        try:
            block.erase(row, noise)
        except OSError as error:
            raise StoreError.of(f"overwrite message {sequence}", error) from error
        self._durability.wrote((block,), self._flushed_sequence)

    # Flush

    def needs_flush(self) -> bool:
        return bool(self._unflushed) or self._removals.are_due(self._durability.synced)

    def flush(self) -> None:
        if not self._unflushed and not self._removals.are_due(self._durability.synced):
            return
        self._durability.check()
        if self._removals.held_back > _HELD_BACK_MAX:
            self._durability.sync()
        due = self._removals.due(self._durability.synced)
        self._queue_tombstones(due)
        written = self._unflushed
        sizes = [segment.size for segment in written]
        try:
            if self._before_write is not None:
                self._before_write()
                self._before_write = None
            self._about_to_write(written)
            for segment in written:
                segment.write_pending(self._tail_bytes)
        except OSError as error:
            self._undo(sizes)
            refusal = StoreError.of("write to the stream's log", error)
            if self.on_undone is not None:
                self.on_undone(refusal)
            raise refusal from error
        for first, last in due:
            self._active.note_tombstone(first, last)
        self._removals.written(len(due))
        number = self._durability.wrote(written, self.last_sequence, new_names=0 in sizes)
        for segment, size in zip(written, sizes, strict=True):
            self._log_bytes += segment.size - size
            if not size:
                segment.birth_generation = number
                self._segments.add(segment.number, segment.first)
        self._unflushed = []
        self._flushed_sequence = self.last_sequence
        self._flushed_time_ns = self.last_time_ns
        if self._to_seal:
            self._seal_full()

    def _queue_tombstones(self, due: list[Range]) -> None:
        """Put a tombstone for every removal behind the messages."""
        if due:
            active = self._active
            if not active.pending:
                self._unflushed.append(active)
            active.pending += [pack_tombstone(first, last, self.last_time_ns, active.seed) for first, last in due]

    def _seal_full(self) -> None:
        for segment in self._to_seal:
            segment.seal()
        self._to_seal.clear()

    def _undo(self, sizes: list[int]) -> None:
        """Take back the appends that could not be written; `sizes` were those of the files before."""
        for segment, size in zip(self._unflushed, sizes, strict=True):
            try:
                segment.take_back(size)
            except OSError as error:
                # What the file now holds could be taken for messages, if their sequences were used again.
                self._durability.failure = StoreError.of("cut off what a failed write left", error)
                self._durability.cuts.append(partial(segment.cut, size))
        # Their sequences go to other messages: the sync that makes those safe makes the cuts safe.
        cut = [segment for segment in self._unflushed if segment.handle is not None]
        self._durability.wrote(cut, self._flushed_sequence)
        self._unflushed = []
        self._to_seal.clear()
        target = self._flushed_sequence
        while self.last_sequence > target:
            self._undo_last(target)
        while not self._active.size and not self._active.live and self._goes_on_in_previous(target):
            self._drop_newest()
        self.last_time_ns = self._flushed_time_ns
        if not self.messages:
            self.first_sequence = target + 1 if target else 0
        self._removals.undo_above(target)
        self._enforced_sequence = min(self._enforced_sequence, target)

    def _undo_last(self, target: int) -> None:
        """Take back the newest row, or the newest segment when it has none."""
        active = self._active
        row = len(active.live) - 1
        if row < 0:
            if not active.size and self._goes_on_in_previous(target):
                self.last_sequence = max(active.first - 1, target)
                self._drop_newest()
                self.last_sequence = max(self._active.first + len(self._active.live) - 1, target)
            else:
                active.first = self._starts[-1] = target + 1
                self.last_sequence = target
            return
        self.last_sequence = active.first + row
        if self.last_sequence <= target:
            return
        if active.live[row]:
            size = active.sizes[row]
            active.live_count -= 1
            active.live_bytes -= size
            self.messages -= 1
            self.bytes -= size
            self._subjects.remove(active.subject_ids[row], self.last_sequence)
        active.pop()
        self.last_sequence -= 1

    def _goes_on_in_previous(self, target: int) -> bool:
        """Whether the segment before the newest can take the message after `target`: rows follow each other there."""
        if len(self._blocks) < 2:
            return False
        previous = self._blocks[-2]
        return previous.sequences is None and previous.first + len(previous.live) > target

    def _drop_newest(self) -> None:
        """Remove the newest segment, to which nothing could be written.

        Its sequences go to other messages: the sync that makes those safe makes it safe that the file is gone.
        """
        segment = self._blocks.pop()
        segment.close()
        try:
            self._disk.remove(segment.path)
        except OSError as error:
            self._durability.failure = StoreError.of("remove what a failed write left", error)
            self._durability.cuts.append(partial(self._disk.remove, segment.path))
        self._durability.forget(segment)
        self._starts.pop()
        self._active = self._blocks[-1]
        self._next_number = self._active.number + 1
        self._dead = [segment for segment in self._dead if segment is not self._active]

    # Sync

    @property
    def failure(self) -> StoreError | None:
        return self._durability.failure

    def needs_sync(self) -> bool:
        return self._durability.needs_sync()

    def sync(self) -> None:
        self._durability.sync()

    def mend(self) -> None:
        try:
            if self.failure is not None:
                self._durability.mend()
            # Nothing may be waiting to be written: see for oneself.
            path = self._folder / _PROBE_NAME
            handle = self._disk.open(path, create=True)
            try:
                self._disk.write(handle, bytes(_PROBE_BYTES), 0)
                self._disk.sync(handle)
            finally:
                self._disk.close(handle)
                self._disk.remove(path)
            self._disk.sync_folder(self._folder)
        except OSError as error:
            raise StoreError.of("write to the stream's folder", error) from error


def _record_size(message: Incoming) -> int:
    subject, _, header, payload = message
    return (HEADER_OVERHEAD if header else OVERHEAD) + len(subject) + len(header) + len(payload)
