"""The index of a stream: blocks of rows by sequence, an index by subject, and the counters over both.

    sequence ──► starts (bisect) ──► block ──► row: size, subject number, time, living or dead
    subject ──► number ──► tail and older sequences (newest blocks) + counters and postings (spilled blocks)

What is always true:

- `blocks` are ascending and do not overlap; `starts` has their first sequences; rows are appended to the last block,
  `active`. A sequence is in at most one block.
- A row that has died stays dead. `live_count` and `live_bytes` of a block count its living rows; `messages` and `bytes`
  are their sums over all blocks, but for `unread` rows, whose bytes are still counted.
- `first_sequence` is the oldest living row after `update_first_sequence`, which every removal ends with; when the
  stream is empty, it is the next sequence to be used.
- Every living row is known to the subject index once: in its subject's tail, if its block is not spilled, or else in
  the counters of spilled blocks and in the block's postings. Postings may contain rows that have died since.
- The counters are exact while `is_counted`. They are not after a segment was lost together with its index: then dead
  messages count until they are read (`unread`) or the recount has ended, and no snapshot is written.
- A method that reads columns of a spilled block may find messages lost on the way. Its caller reads them before it
  changes a counter, and looks at the row again afterwards.

The index is in memory only and belongs to one thread. What a start finds in snapshot and segment indexes is derived
from the log: where they are missing or wrong, the log decides.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import compress
from typing import Generic, TypeVar

from jetlake.errors import StoreError
from jetlake.protocol.subjects import has_wildcards
from jetlake.store.index.block import Block
from jetlake.store.index.subject_index import SubjectIndex
from jetlake.store.interface import StoreHooks
from jetlake.store.steps import Steps, finish, in_groups, sort_in_steps
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["BlockType", "Index"]

_GROUP = 1024
_NEWEST_ROWS = 64
"""How many rows are looked at for the newest of a pattern, before its subjects are."""
_NEIGHBOURS_MAX = 8 * 1024
"""How many rows of a block are removed at once, of few subjects."""
_RECOUNTED_AT_ONCE = 32
"""How many blocks are recounted before others go first, while a subject may count a message too many."""

BlockType = TypeVar("BlockType", bound=Block)


class Index(Generic[BlockType]):
    """Rows by sequence and sequences by subject; answers every question of `MessageStore` without the disk.

    Attributes:
        blocks: in the order of their sequences; the last one is `active`, to which rows are appended.
        starts: the first sequence of each block.
        hooks: notified of each message that is removed.
        unread: rows that were removed though the disk did not tell their sizes and subjects, which still count; a
            block with such rows is emptied when these are settled.
        on_emptied: called with a block whose last living row has died.
    """

    def __init__(self, first_block: BlockType, hooks: StoreHooks) -> None:
        self.first_sequence = 0
        self.last_sequence = 0
        self.messages = 0
        self.bytes = 0
        self.last_time_ns = 0
        self.subjects = SubjectIndex()
        self.blocks: list[BlockType] = [first_block]
        self.starts: list[int] = [first_block.first]
        self.active = first_block
        self.hooks = hooks
        self.unread: dict[BlockType, list[int]] = {}
        self.on_emptied: Callable[[BlockType], None] = lambda _block: None

    # Blocks

    def begin_block(self, block: BlockType) -> None:
        """Append rows to this block from now on."""
        self.blocks.append(block)
        self.starts.append(block.first)
        self.active = block

    def drop_block(self, block: BlockType) -> None:
        """Take a block out, which has no living row."""
        position = self.blocks.index(block)
        del self.blocks[position], self.starts[position]
        self.active = self.blocks[-1]
        if block.spilled is not None:
            self.subjects.spilled.drop(block)

    def move_active(self, first: int) -> None:
        """Let the active block, which has no row yet, begin with this sequence."""
        self.active.first = self.starts[-1] = first

    def block_index(self, sequence: int) -> int:
        """Return the place of the block that has the sequence, if any has it."""
        starts = self.starts
        if len(starts) == 1 or sequence >= starts[-1]:
            return len(starts) - 1
        # The newest and the oldest block are asked for most.
        return 0 if sequence < starts[1] else bisect_right(starts, sequence) - 1

    def last_of(self, block: BlockType) -> int:
        """Return the last sequence that a block can hold."""
        position = self.blocks.index(block) + 1
        return self.starts[position] - 1 if position < len(self.blocks) else self.last_sequence

    def locate(self, sequence: int) -> tuple[BlockType, int] | None:
        """Block and row of a message that is there."""
        if not self.first_sequence <= sequence <= self.last_sequence:
            return None
        block = self.blocks[self.block_index(sequence)]
        row = block.row_of(sequence)
        return (block, row) if row >= 0 and block.live[row] else None

    def lose_unread(self, block: BlockType, rows: list[int], live_bytes: int) -> None:
        """Remove rows of a spilled block of which nothing is known but that they lived.

        Args:
            live_bytes: what the other living rows of the block take.
        """
        for row in rows:
            block.live[row] = 0
        self.messages -= len(rows)
        self.bytes -= block.live_bytes - live_bytes
        block.live_count -= len(rows)
        block.live_bytes = live_bytes
        self.subjects.finish_spill()
        self.subjects.spilled.begin_recount()
        for _ in range(_RECOUNTED_AT_ONCE):
            if not self.recount_step():
                break
        self.update_first_sequence()
        if not block.live_count:
            self.on_emptied(block)

    @property
    def is_counted(self) -> bool:
        """Whether the per-subject counters are exact."""
        return not self.unread and not self.subjects.spilled.is_recounting

    def recount_step(self) -> bool:
        """Continue to recount spilled messages; False when that is not due, or the disk does not let it."""
        if self.unread or not self.subjects.spilled.is_recounting:
            return False
        try:
            self.subjects.recount_step()
        except StoreError:
            return False
        return True

    # Sequences and times

    @property
    def first_time_ns(self) -> int:
        """The time of the oldest message; 0 when there is none."""
        return self.time_of(self.first_sequence)

    def time_of(self, sequence: int) -> int:
        """Return the time of a message, or of its block when the disk refuses; 0 when there is no such message."""
        found = self.locate(sequence)
        if found is None:
            return 0
        block, row = found
        if row:
            with suppress(StoreError):
                return block.times[row]
        return block.oldest_time_ns

    @property
    def deleted_count(self) -> int:
        """How many sequences between the first and the last have no message."""
        return self.last_sequence - self.first_sequence + 1 - self.messages if self.messages else 0

    def has(self, sequence: int) -> bool:
        """Return whether there is a message of that sequence."""
        return self.locate(sequence) is not None

    def first_at_or_after(self, time_ns: int) -> int:
        """Return the first sequence with a message of that time or later; the one after the last when there is none."""
        for block in self.blocks:
            if block.live_count and block.newest_time_ns >= time_ns:
                row = block.next_live(bisect_left(block.times, time_ns))
                if row >= 0:
                    return block.sequence_of(row)
        return self.last_sequence + 1

    def live_between(self, first: int, end: int) -> Iterator[int]:
        """Yield the sequences of the messages from the first one on and below the end."""
        for index in range(self.block_index(first), len(self.blocks)):
            block = self.blocks[index]
            if block.first >= end:
                break
            last = block.row_at_or_after(end)
            for start in range(block.row_at_or_after(first), last, _GROUP):
                yield from map(block.sequence_of, block.live_rows(start, min(start + _GROUP, last)))

    def newest(self, count: int) -> int:
        """Return the first sequence of the newest `count` messages, or of all if there are fewer."""
        if count >= self.messages:
            return self.first_sequence
        if not self.deleted_count:
            return self.last_sequence - count + 1
        excess = self.messages - count
        for block in self.blocks:
            if block.live_count <= excess:
                excess -= block.live_count
                continue
            return block.sequence_of(block.live_rows(0, block.row_count)[excess])
        return self.last_sequence + 1

    def newest_bytes(self, limit: int, rows_max: int = sys.maxsize) -> int:
        """Return the first sequence of the newest messages that take at most `limit` bytes.

        Args:
            rows_max: of how many rows of one block the sizes are added up; where that does not do, an earlier sequence
                is returned.
        """
        excess = self.bytes - limit
        for block in self.blocks:
            if block.live_bytes < excess:
                excess -= block.live_bytes
                continue
            counted, sizes = block.live_bytes, block.sizes
            # Reading the sizes may settle rows that were removed unread.
            excess -= counted - block.live_bytes
            row = block.next_live(0)
            while row >= 0 and excess > 0 and rows_max:
                excess -= sizes[row]
                rows_max -= 1
                row = block.next_live(row + 1)
            if row >= 0:
                return block.sequence_of(row)
        return self.last_sequence + 1

    def count_below(self, sequence: int) -> int:
        """Return how many messages are below a sequence, counted from the front: mostly these are few."""
        count = 0
        for block in self.blocks:
            if block.first >= sequence:
                break
            count += block.count_live(0, block.row_at_or_after(sequence))
        return count

    def end_of_few(self, sequence: int, subjects_max: int) -> int:
        """Return a sequence up to this one, with messages of at most about `subjects_max` subjects below it.

        Raises:
            StoreError: the disk does not tell which subjects they have.
        """
        position = self.block_index(self.first_sequence)
        block = self.blocks[position]
        row = block.row_at_or_after(self.first_sequence)
        end = min(block.row_at_or_after(sequence), row + _NEIGHBOURS_MAX)
        subjects: set[int] = set()
        while row < end and len(subjects) < subjects_max:
            part = block.subject_ids[row : min(row + subjects_max, end)]
            subjects.update(part)
            row += len(part)
        if row < block.row_count:
            return min(block.sequence_of(row), sequence)
        return min(self.starts[position + 1], sequence) if position + 1 < len(self.starts) else sequence

    def deleted(self, first: int, end: int) -> list[int]:
        """Return the sequences from `first` up to before `end` that have no message."""
        gone: list[int] = []
        at = first
        for sequence in self.live_between(first, end):
            gone.extend(range(at, sequence))
            at = sequence + 1
        gone.extend(range(at, end))
        return gone

    # Subjects

    def prepare(self, subject_filter: SubjectFilter | None) -> Steps[None]:
        """Find in steps which subjects pass a filter, so that questions with that filter are quick."""
        if subject_filter is not None:
            yield from self.subjects.numbers.matches.prepare(subject_filter)

    def last_sequence_for(self, pattern: bytes) -> int:
        """Return the sequence of the newest message whose subject the pattern covers; 0 when there is none."""
        return finish(self.last_sequence_in_steps(pattern))

    def last_sequence_in_steps(self, pattern: bytes) -> Steps[int]:
        """Return the same in steps, as of one of them."""
        subjects = self.subjects
        number = subjects.numbers.ids.get(pattern)
        if number is not None and not has_wildcards(pattern):
            return subjects.last(number)
        if not has_wildcards(pattern):
            return 0
        subject_filter = SubjectFilter((pattern,))
        newest = self._newest_passing(subject_filter)
        if newest:
            return newest
        last = 0
        yield from self.prepare(subject_filter)
        for group in in_groups(list(subjects.numbers.matches.passing(subject_filter)), _GROUP):
            last = max(last, max((subjects.last(number) for number in group if subjects.has(number)), default=0))
            yield
        return last

    def _newest_passing(self, subject_filter: SubjectFilter) -> int:
        """Return the newest message that passes, where it is among the newest of all; else 0."""
        block, names, matches = self.active, self.subjects.numbers.names, subject_filter.matches
        for row in range(len(block.live) - 1, max(len(block.live) - _NEWEST_ROWS, 0) - 1, -1):
            if block.live[row] and matches(names[block.subject_ids[row]]):
                return block.sequence_of(row)
        return 0

    def last_per_subject(
        self, subject_filter: SubjectFilter | None = None, up_to_sequence: int | None = None
    ) -> list[int]:
        """Return the sequence of the newest message of every subject that passes, ascending."""
        return finish(self.last_per_subject_in_steps(subject_filter, up_to_sequence))

    def last_per_subject_in_steps(
        self, subject_filter: SubjectFilter | None = None, up_to_sequence: int | None = None
    ) -> Steps[list[int]]:
        """Return the same in steps; what is removed meanwhile may be among them or not."""
        yield from self.prepare(subject_filter)
        subjects = self.subjects
        last = self.last_sequence if up_to_sequence is None else min(up_to_sequence, self.last_sequence)
        matches = subjects.numbers.matches
        numbers = range(len(subjects.tails)) if subject_filter is None else list(matches.passing(subject_filter))
        found: list[int] = []
        for group in in_groups(numbers, _GROUP):
            for number in group:
                sequence = subjects.last(number) if subjects.has(number) else 0
                if sequence > last:
                    sequence = subjects.at_or_before(number, last)
                if sequence:
                    found.append(sequence)
            yield
        return (yield from sort_in_steps(found))

    def counts(self, pattern: bytes | None = None) -> dict[bytes, int]:
        """Return the subjects that the pattern covers, each with the number of its messages."""
        return {name: self.count_on(name) for name in finish(self.subjects_in_steps(pattern))}

    def subjects_in_steps(self, pattern: bytes | None = None) -> Steps[list[bytes]]:
        """Return the subjects that the pattern covers, sorted."""
        names: list[bytes]
        if pattern is None or pattern == b">":
            names = list(self.subjects.numbers.ids)
        else:
            yield from self.prepare(SubjectFilter((pattern,)))
            names = [self.subjects.numbers.names[number] for number in self.subjects.numbers.matches.covered(pattern)]
        return (yield from sort_in_steps(names))

    def count_on(self, subject: bytes) -> int:
        """Return how many messages one subject has."""
        number = self.subjects.numbers.ids.get(subject)
        return self.subjects.count(number) if number is not None else 0

    def count(self, first_sequence: int, subject_filter: SubjectFilter | None = None) -> int:
        """Return how many messages from `first_sequence` on pass the filter."""
        if first_sequence > self.last_sequence:
            return 0
        subjects = self.subjects
        if subject_filter is not None:
            passing = subjects.numbers.matches.passing(subject_filter)
            if len(passing) < len(subjects.numbers.ids):
                if first_sequence <= self.first_sequence:
                    return sum(map(subjects.count, passing))
                if self.last_sequence - first_sequence < len(passing):
                    wanted = passing if isinstance(passing, set) else set(passing)
                    return sum(number in wanted for number in self._numbers_above(first_sequence - 1))
                return sum(subjects.count_from(number, first_sequence) for number in passing)
        if first_sequence <= self.first_sequence:
            return self.messages
        if not self.deleted_count:
            return self.last_sequence - first_sequence + 1
        position = self.block_index(first_sequence)
        block = self.blocks[position]
        later = sum(self.blocks[at].live_count for at in range(position + 1, len(self.blocks)))
        return block.count_live(block.row_at_or_after(first_sequence), block.row_count) + later

    def subjects_above(self, sequence: int) -> set[int]:
        """Return the numbers of the subjects of messages above a sequence."""
        return set(self._numbers_above(sequence))

    def _numbers_above(self, sequence: int) -> Iterator[int]:
        """Yield the number of the subject of each message above a sequence."""
        for index in range(self.block_index(sequence + 1), len(self.blocks)):
            block = self.blocks[index]
            row = block.row_at_or_after(sequence + 1)
            yield from compress(block.subject_ids[row:], block.live[row:])

    # Taking messages out

    def kill(self, block: BlockType, row: int, sequence: int) -> None:
        """Take one living message out."""
        try:
            size, number = block.size_and_subject(row, self.subjects.numbers.ids)
        except StoreError:
            self._kill_unread(block, row)
            return
        if not block.live[row]:
            # The columns had to be read again, and the message turned out to be lost.
            return
        subject = self.subjects.numbers.names[number]
        block.live[row] = 0
        block.live_count -= 1
        block.live_bytes -= size
        self.messages -= 1
        self.bytes -= size
        self.subjects.remove(number, sequence)
        block.forget(row, row + 1)
        if not block.live_count and block not in self.unread:
            self.on_emptied(block)
        if self.hooks.on_removed is not None:
            self.hooks.on_removed(sequence, subject, size)

    def kill_below(self, sequence: int) -> None:
        """Take all messages below a sequence out, block by block, without a word to the hooks."""
        numbers: set[int] = set()
        keeps_some = sequence <= self.last_sequence
        if keeps_some:
            self.subjects.finish_spill()
        for block in [block for block in self.blocks if block.first < sequence and block.live_count]:
            end = block.row_at_or_after(sequence)
            try:
                # Read first: columns that have to be read again may show that messages are lost. And together, since
                # whatever else is read may take their place in memory.
                columns = (block.sizes, block.subject_ids) if keeps_some else None
            except StoreError:
                for row in block.live_rows(0, end):
                    self._kill_unread(block, row)
                continue
            if not block.live_count:
                continue
            start = min(block.next_live(0), end)
            live = block.live[start:end]
            count = block.count_live(0, end)
            is_emptied = count == block.live_count
            size = block.live_bytes if is_emptied or columns is None else sum(compress(columns[0][start:end], live))
            if columns is not None:
                gone = compress(columns[1][start:end], live)
                if block.spilled is None:
                    numbers.update(gone)
                else:
                    self.subjects.remove_spilled(Counter(gone), min(sequence, block.last_row_sequence + 1))
            block.live[start:end] = bytes(end - start)
            block.live_count -= count
            block.live_bytes -= size
            self.messages -= count
            self.bytes -= size
            block.forget(start, end)
            if not block.live_count and block not in self.unread:
                self.on_emptied(block)
        if self.messages or (self.unread and keeps_some):
            for number in numbers:
                self.subjects.remove_below(number, sequence)
        else:
            self.subjects.clear()
            self._forget_unread()

    def _kill_unread(self, block: BlockType, row: int) -> None:
        """Take a message out whose size and subject the disk does not tell: they are counted until it does."""
        block.live[row] = 0
        block.live_count -= 1
        self.messages -= 1
        block.forget(row, row + 1)
        self.unread.setdefault(block, []).append(row)
        if self.hooks.on_purged is not None:
            self.hooks.on_purged()

    def _forget_unread(self) -> None:
        """Subtract the messages that were removed unread: no other messages are left."""
        unread, self.unread = self.unread, {}
        for block in unread:
            self.bytes -= block.live_bytes
            block.live_bytes = 0
            self.on_emptied(block)

    def resolve_unread(self, block: BlockType) -> None:
        """Subtract sizes and subjects of messages that were removed while they could not be read."""
        for row in self.unread.pop(block, ()):
            block.live_bytes -= block.sizes[row]
            self.bytes -= block.sizes[row]
            self.subjects.remove(block.subject_ids[row], block.sequence_of(row))
        if not block.live_count:
            self.on_emptied(block)

    def kill_range(self, first: int, last: int) -> None:
        """Take the messages between two sequences out, as a tombstone says."""
        if first <= self.first_sequence <= last and self.messages:
            self.kill_below(last + 1)
            self.update_first_sequence()
            return
        index = self.block_index(first)
        while index < len(self.blocks) and self.blocks[index].first <= last:
            block = self.blocks[index]
            for row in block.live_rows(block.row_at_or_after(first), block.row_at_or_after(last + 1)):
                self.kill(block, row, block.sequence_of(row))
            index += 1

    def roll_back_last(self) -> None:
        """Take the newest row back, as if it had never been appended."""
        block = self.active
        row = len(block.live) - 1
        if block.live[row]:
            size = block.sizes[row]
            block.live_count -= 1
            block.live_bytes -= size
            self.messages -= 1
            self.bytes -= size
            self.subjects.remove(block.subject_ids[row], self.last_sequence)
        block.pop()
        self.last_sequence -= 1

    def update_first_sequence(self) -> None:
        """Move the first sequence to the oldest message that is left."""
        if not self.messages:
            if self.last_sequence:
                self.first_sequence = self.last_sequence + 1
            return
        index = self.block_index(self.first_sequence)
        block = self.blocks[index]
        row = block.next_live(block.row_at_or_after(self.first_sequence))
        while row < 0:
            index += 1
            block = self.blocks[index]
            row = block.next_live(0)
        self.first_sequence = block.sequence_of(row)
