"""A stream's messages on disk: a log in segments, indexed in memory, synced when somebody asks for it."""

from __future__ import annotations

import os
import struct
import threading
from array import array
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from xxhash import xxh3_64_digest

from jetlake.errors import StoreError
from jetlake.store.compaction import rewrite, tombstones_in
from jetlake.store.disk import Disk
from jetlake.store.index_snapshot import IndexSnapshot, write_snapshot
from jetlake.store.indexed_store import IndexedStore
from jetlake.store.interface import Incoming, Run
from jetlake.store.mark import MarkFile
from jetlake.store.message import StoredMessage
from jetlake.store.record import HEADER_FLAG, HEADER_OVERHEAD, OVERHEAD, pack_tombstone
from jetlake.store.recovery import Recovered, recover
from jetlake.store.scan import scan
from jetlake.store.segment import HEADER_SIZE, DamagedSegmentError, Segment
from jetlake.store.sequence_list import CHUNK
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["FileStore"]

SEGMENT_BYTES = 8 * 1024 * 1024
"""When a segment is this long, the next one begins."""
TAIL_BYTES = 1024 * 1024
"""How much of what was written last stays in memory for those who read it next."""
SNAPSHOT_BYTES = 64 * 1024 * 1024
"""When so much was written, and half of what the store holds, house-keeping writes the index down."""

_SKIP_ROWS_MAX = 4096
_HELD_BACK_MAX = 65536
_LOST_MAX = 100_000
_OPEN_FILES_MAX = 16
_MARK_NAME = "mark"
_INDEX_NAME = "index"
_pack_head = struct.Struct("<IQqH").pack
_pack_number = struct.Struct("<I").pack


class FileStore(IndexedStore[Segment]):
    """A store in a folder of its own; see `interface.MessageStore` for the promises.

    Opening it recovers what the folder holds, whatever state that is in. A message takes 30 bytes and what it consists
    of, 34 with a header.

    Args:
        disk: where the folder is.
        folder: made when it is not there.
        segment_bytes: how long a segment grows.
        tail_bytes: how much of the newest data stays in memory.
        snapshot_bytes: how much is written before house-keeping writes the index down.
        random_bytes: makes the stream's key and what erased messages are overwritten with.

    Raises:
        StoreError: the folder can be neither found nor made, or the disk does not give back what is in it.
    """

    durable = True

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        tail_bytes: int = TAIL_BYTES,
        snapshot_bytes: int = SNAPSHOT_BYTES,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._tail_bytes = tail_bytes
        self._snapshot_bytes = snapshot_bytes
        self._random_bytes = random_bytes
        try:
            if not disk.is_folder(folder):
                disk.make_folder(folder)
        except OSError as error:
            raise StoreError.of(f"make the folder {folder}", error) from error
        self._mark = MarkFile(disk, folder / _MARK_NAME, 0)
        mark = self._mark.read()
        try:
            found = recover(disk, folder, mark, lambda: int.from_bytes(random_bytes(8), "little") | 1, _INDEX_NAME)
        except OSError as error:
            self._mark.close()
            raise StoreError.of(f"read what is in {folder}", error) from error
        self._key = found.key
        self._mark.use_key(found.key)
        self._next_number = found.next_number

        # What changed since the last flush.
        self._unflushed: list[Segment] = []
        self._to_seal: list[Segment] = []
        self._removals: list[tuple[int, int]] = []
        # Removals that wait until what caused them is safe: the flush that wrote the cause, and the range.
        self._held_back: deque[tuple[int, int, int]] = deque()
        self._dead: list[Segment] = []
        self._opened: deque[Segment] = deque()
        self._failure: StoreError | None = None
        self._closed = False

        # Flushes are counted; a sync is good for all flushes before it. The lock guards what both threads touch.
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._dirty: dict[Segment, None] = {}
        # The same for the names in the folder.
        self._names_changed = 0
        self._names_synced = 0
        self._flushed_generation = 0
        self._synced_generation = 0

        super().__init__(found.segments[-1] if found.segments else self._new_segment(found.last_sequence + 1))
        self._adopt(found)
        self._flushed_sequence = self._marked_sequence = self.last_sequence
        self._flushed_time_ns = self.last_time_ns
        self._log_bytes = 0
        self._snapshot_generation = 0 if found.unsynced or found.dropped else self._flushed_generation
        self._make_safe()

    # Recovery

    def _make_safe(self) -> None:
        """Sync what a killed process had written: from now on it is as good as acknowledged."""
        if self.needs_flush() or self.needs_sync():
            try:
                self.flush()
                self.sync()
            except StoreError:
                # Whoever appends will be told; all that is there can be read.
                pass
        for segment in self._blocks[:-1]:
            segment.close()

    def _adopt(self, found: Recovered) -> None:
        """Take over what recovery found and apply its tombstones."""
        if found.segments:
            self._blocks = found.segments
            self._starts = [segment.first for segment in found.segments]
        self._subjects = found.subjects
        self.messages = sum(segment.live_count for segment in found.segments)
        self.bytes = sum(segment.live_bytes for segment in found.segments)
        self.last_time_ns = found.last_time_ns
        self.last_sequence = found.last_sequence
        self.first_sequence = 1 if found.last_sequence else 0
        gone = _merged(found.tombstones)
        self._settle_first()
        for first, last in gone:
            self._kill_range(first, last)
        self._settle_first()
        self.lost = [sequence for sequence in _without(found.missing, gone) if self._locate(sequence) is None]
        self.lost_bytes = found.lost_bytes
        self._dead = [segment for segment in self._blocks[:-1] if not segment.live_count]
        if found.dropped is not None:
            # Said in the log, so that the next start does not take them for lost.
            self._removals.append(found.dropped)
        self._resume()
        if found.unsynced:
            self._flushed_generation = 1
            for segment in found.unsynced:
                segment.write_generation = 1
                segment.birth_generation = int(segment.size > 0)
            self._dirty.update(dict.fromkeys(found.unsynced))
            self._names_changed += 1

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

    # Appending

    def append(self, subject: bytes, header: bytes, payload: bytes, time_ns: int) -> int:
        if self._failure is not None:
            raise self._failure
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
        if self._failure is not None:
            raise self._failure
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
        if self._failure is not None:
            raise self._failure
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

    # Removing

    def _log_removed(self, first: int, last: int, follows_append: bool) -> None:
        if self.lost:
            self.lost = [sequence for sequence in self.lost if not first <= sequence <= last]
        if not follows_append:
            removals = self._removals
            if removals and removals[-1][1] + 1 == first:
                first = removals.pop()[0]
            removals.append((first, last))
            return
        held_back = self._held_back
        cause = self._flushed_generation
        if held_back and held_back[-1][0] == cause and held_back[-1][2] + 1 == first:
            first = held_back.pop()[1]
        held_back.append((cause, first, last))

    def _emptied(self, block: Segment) -> None:
        if block is not self._active:
            self._dead.append(block)
        elif block.end > self._segment_bytes // 4 and self._failure is None:
            self._roll()

    def _erase(self, block: Segment, row: int, sequence: int) -> None:
        noise = self._random_bytes(block.erasable(row))
        # The file itself must not go with its last message before the bytes are overwritten.
        self._write_out()
        try:
            block.erase(row, noise)
        except OSError as error:
            raise StoreError.of(f"overwrite message {sequence}", error) from error
        with self._lock:
            self._flushed_generation += 1
            block.write_generation = self._flushed_generation
            self._dirty[block] = None

    # Flush

    def needs_flush(self) -> bool:
        return bool(self._unflushed or self._removals or (self._held_back and self._is_ripe()))

    def _is_ripe(self) -> bool:
        return self._held_back[0][0] <= self._synced_generation

    def flush(self) -> None:
        self._write_out()
        if self._dead:
            self._drop_dead_segments()

    def _write_out(self) -> None:
        if not self._unflushed and not self._removals and not (self._held_back and self._is_ripe()):
            return
        if self._failure is not None:
            raise self._failure
        if len(self._held_back) > _HELD_BACK_MAX:
            self.sync()
        removals, ripe = self._queue_tombstones()
        sizes = [segment.size for segment in self._unflushed]
        try:
            for segment in self._unflushed:
                segment.write_pending(self._tail_bytes)
        except OSError as error:
            self._undo(sizes)
            raise StoreError.of("write to the stream's log", error) from error
        for first, last in removals:
            self._active.note_tombstone(first, last)
        self._removals.clear()
        for _ in range(ripe):
            self._held_back.popleft()
        with self._lock:
            self._flushed_generation += 1
            for segment, size in zip(self._unflushed, sizes, strict=True):
                self._log_bytes += segment.size - size
                if not size:
                    segment.birth_generation = self._flushed_generation
                    self._names_changed += 1
                segment.write_generation = self._flushed_generation
            self._dirty.update(dict.fromkeys(self._unflushed))
        self._unflushed.clear()
        self._flushed_sequence = self.last_sequence
        self._flushed_time_ns = self.last_time_ns
        if self.last_sequence > self._marked_sequence:
            self._marked_sequence = self.last_sequence
            self._mark.flushed(self.last_sequence)
        if self._to_seal:
            self._seal_full()

    def _queue_tombstones(self) -> tuple[list[tuple[int, int]], int]:
        """Put a tombstone for every removal that is due behind the messages; the ranges, and how many were ripe."""
        removals = list(self._removals)
        for cause, first, last in self._held_back:
            if cause > self._synced_generation:
                break
            removals.append((first, last))
        if removals:
            active = self._active
            if not active.pending:
                self._unflushed.append(active)
            active.pending += [pack_tombstone(first, last, self.last_time_ns, active.seed) for first, last in removals]
        return removals, len(removals) - len(self._removals)

    def _seal_full(self) -> None:
        for segment in self._to_seal:
            segment.seal()
            if segment.handle is not None:
                self._note_open(segment)
        self._to_seal.clear()

    def _undo(self, sizes: list[int]) -> None:
        """Take back the appends that could not be written; `sizes` were those of the files before."""
        for segment, size in zip(self._unflushed, sizes, strict=True):
            try:
                segment.take_back(size)
            except OSError as error:
                # What the file now holds could be taken for messages, if their sequences were used again.
                self._failure = StoreError.of("cut off what a failed write left", error)
        self._unflushed.clear()
        self._to_seal.clear()
        target = self._flushed_sequence
        while self.last_sequence > target:
            self._undo_last(target)
        while len(self._blocks) > 1 and not self._active.size and not self._active.live:
            self._drop_newest()
        self.last_time_ns = self._flushed_time_ns
        if not self.messages:
            self.first_sequence = target + 1 if target else 0
        self._removals = [(first, min(last, target)) for first, last in self._removals if first <= target]
        self._enforced_sequence = min(self._enforced_sequence, target)

    def _undo_last(self, target: int) -> None:
        """Take back the newest row, or the newest segment when it has none."""
        active = self._active
        row = len(active.live) - 1
        if row < 0:
            if len(self._blocks) > 1 and not active.size:
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

    def _drop_newest(self) -> None:
        self._blocks.pop().close()
        self._starts.pop()
        self._active = self._blocks[-1]
        self._next_number = self._active.number + 1
        self._dead = [segment for segment in self._dead if segment is not self._active]

    # Sync

    def needs_sync(self) -> bool:
        return self._flushed_generation > self._synced_generation or self._names_changed > self._names_synced

    def sync(self) -> None:
        with self._sync_lock:
            with self._lock:
                if self._failure is not None:
                    raise self._failure
                generation = self._flushed_generation
                sequence = self._flushed_sequence
                dirty = list(self._dirty)
                names_changed = self._names_changed
                self._dirty.clear()
            try:
                for segment in dirty:
                    self._disk.sync(segment.open())
                if names_changed > self._names_synced:
                    self._disk.sync_folder(self._folder)
            except OSError as error:
                # Nobody knows any more what the disk has: promises end here, until a restart reads what is there.
                self._failure = StoreError.of("make the stream's log safe", error)
                raise self._failure from error
            self._synced_generation = generation
            self._names_synced = names_changed
            if dirty:
                self._mark.synced(sequence)

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

    def _trust(self, block: Segment) -> bool:
        if block.handle is None and block is not self._active:
            self._note_open(block)
        return block.verified or self._check(block)

    def _check(self, segment: Segment) -> bool:
        """Look at a segment's bytes; rows whose records are damaged are lost. False when there are such rows."""
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
        for row in lost:
            sequence = segment.sequence_of(row)
            self.lost_bytes += segment.sizes[row]
            insort(self.lost, sequence)
            self._kill(segment, row, sequence)
        self._settle_first()
        return not lost

    def _note_open(self, segment: Segment) -> None:
        """A sealed segment gets a handle; the one that got its own longest ago gives it back."""
        self._opened.append(segment)
        if len(self._opened) > _OPEN_FILES_MAX:
            oldest = self._opened.popleft()
            if oldest.write_generation > self._synced_generation:
                self._opened.append(oldest)
            elif oldest is not segment:
                oldest.close()

    # The end of segments

    def _drop_dead_segments(self) -> None:
        """Remove the files of segments that hold nothing any more."""
        for segment in list(self._dead):
            if self._can_go(segment):
                try:
                    if segment.tombstones_low and segment is not self._blocks[0]:
                        self._drop_snapshot()
                    self._disk.remove(segment.path)
                except OSError:
                    # It holds nothing; the next flush tries again.
                    return
                self._forget_segment(segment)

    def _can_go(self, segment: Segment) -> bool:
        synced = self._synced_generation
        active = self._active
        return (
            segment is not active
            and segment.write_generation <= synced
            and 0 < active.birth_generation <= synced
            and not self._is_held_back(segment)
            and not (
                segment.tombstones_low
                and (
                    self._names_changed > self._names_synced
                    or self._is_needed(segment, segment.tombstones_low, segment.tombstones_high)
                )
            )
        )

    def _last_of(self, segment: Segment) -> int:
        """The last sequence that a segment can hold."""
        place = self._blocks.index(segment) + 1
        return self._starts[place] - 1 if place < len(self._blocks) else self.last_sequence

    def _is_held_back(self, segment: Segment) -> bool:
        """Whether a removal from the segment waits for what caused it."""
        if not self._held_back:
            return False
        last = self._last_of(segment)
        return any(first <= last and end >= segment.first for _, first, end in self._held_back)

    def _forget_segment(self, segment: Segment) -> None:
        segment.close()
        self._dead.remove(segment)
        if self.lost:
            last = self._last_of(segment)
            self.lost = [sequence for sequence in self.lost if not segment.first <= sequence <= last]
        place = self._blocks.index(segment)
        del self._blocks[place], self._starts[place]
        with self._lock:
            self._dirty.pop(segment, None)
            self._names_changed += 1

    # House-keeping

    def compact_step(self) -> bool:
        if self._failure is not None or self._closed:
            return False
        self.flush()
        for segment in self._blocks:
            if segment is self._active or not segment.size:
                continue
            if not segment.verified:
                self._check(segment)
                return True
            if segment.live_bytes < segment.worth_below and self._may_rewrite(segment):
                self._rewrite(segment)
                return True
        if self._log_bytes > max(self._snapshot_bytes, self.bytes // 2) and not self._held_back:
            self.sync()
            self._write_snapshot()
        return False

    def _may_rewrite(self, segment: Segment) -> bool:
        return (
            segment.size > self._segment_bytes // 64
            and segment.write_generation <= self._synced_generation
            and not self._is_held_back(segment)
        )

    def _rewrite(self, segment: Segment) -> None:
        """Write a segment anew without what died in it."""
        try:
            data = segment.read_all(segment.size)
            tombstones = tombstones_in(segment, data)
            foreign = [(first, end) for first, end in _merged(tombstones) if self._is_needed(segment, first, end)]
            if foreign != tombstones:
                self._drop_snapshot()
            # The tombstones of a file that is gone may go when it cannot come back.
            self._sync_folder()
            rewrite(segment, data, self._last_of(segment), foreign, self.last_time_ns)
            segment.write_generation = 0
            self._names_changed += 1
            self._sync_folder()
        except OSError as error:
            raise StoreError.of(f"rewrite segment {segment.number}", error) from error

    def _sync_folder(self) -> None:
        """Make the names of the files safe, in this thread."""
        with self._sync_lock:
            if self._names_changed > self._names_synced:
                self._disk.sync_folder(self._folder)
                self._names_synced = self._names_changed

    def _is_needed(self, segment: Segment, first: int, last: int) -> bool:
        """Whether an older file needs a tombstone of this segment, for records it still holds or never held.

        One that was rewritten explains itself.
        """
        for other in self._blocks:
            if other is segment:
                return False
            explains_itself = other.generation > 0 and not other.dead_records
            if not explains_itself and other.first <= last and self._last_of(other) >= first:
                return True
        return False

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if self._failure is None:
                self.flush()
                self.sync()
                # What was held back until that sync.
                self.flush()
                self.sync()
                self._write_snapshot()
        finally:
            self._close_files()

    def _write_snapshot(self) -> None:
        """Write the index down, if it changed since the last time; nothing may be waiting."""
        if self._snapshot_generation == self._flushed_generation:
            return
        snapshot = IndexSnapshot()
        snapshot.key = self._key
        snapshot.last_sequence = self.last_sequence
        snapshot.last_time_ns = self.last_time_ns
        snapshot.lost = self.lost
        snapshot.lost_bytes = self.lost_bytes
        snapshot.segments = [segment for segment in self._blocks if segment.size]
        snapshot.subjects = self._subjects
        try:
            write_snapshot(self._disk, self._folder / _INDEX_NAME, snapshot)
        except OSError:
            # The next start reads the log instead.
            return
        self._snapshot_generation = self._flushed_generation
        self._log_bytes = 0

    def _drop_snapshot(self) -> None:
        """Remove the snapshot: tombstones go that explain to it where its messages have gone."""
        if self._snapshot_generation >= 0:
            self._disk.remove(self._folder / _INDEX_NAME)
            self._snapshot_generation = -1

    def _close_files(self) -> None:
        for segment in self._blocks:
            segment.close()
        self._mark.close()
        self._opened.clear()

    def delete(self) -> None:
        self._closed = True
        self._close_files()
        try:
            for name in self._disk.names(self._folder):
                self._disk.remove(self._folder / name)
            self._disk.remove_folder(self._folder)
        except OSError as error:
            raise StoreError.of(f"remove the folder {self._folder}", error) from error


def _record_size(message: Incoming) -> int:
    subject, _, header, payload = message
    return (HEADER_OVERHEAD if header else OVERHEAD) + len(subject) + len(header) + len(payload)


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same sequences in ascending ranges that do not touch."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            if last > merged[-1][1]:
                merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return merged


def _without(ranges: list[tuple[int, int]], gone: list[tuple[int, int]]) -> list[int]:
    """The sequences of `ranges` that no range of `gone` has; those are ascending and do not touch."""
    left: list[int] = []
    starts = [first for first, _ in gone]
    for first, last in _merged(ranges):
        at = first
        while at <= last:
            place = bisect_right(starts, at) - 1
            if place >= 0 and gone[place][1] >= at:
                at = gone[place][1] + 1
                continue
            stop = min(last, starts[place + 1] - 1) if place + 1 < len(starts) else last
            left.extend(range(at, min(stop + 1, at + _LOST_MAX - len(left))))
            at = stop + 1
    return left
