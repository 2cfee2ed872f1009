"""Everything that can be asked of a store: decided by the index, and loaded from wherever the bytes lie."""

from __future__ import annotations

from abc import ABC
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import compress
from typing import Generic, TypeVar

from jetlake.protocol.subjects import has_wildcards
from jetlake.store.index.block import Block
from jetlake.store.index.subject_index import SubjectIndex
from jetlake.store.interface import Run
from jetlake.store.message import StoredMessage
from jetlake.store.steps import Steps, finish, in_groups, sort_in_steps
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["BlockType", "IndexReader"]

_SCAN_ROWS = 1024
_SCAN_PATIENCE = 4096
_GROUP = 1024

BlockType = TypeVar("BlockType", bound=Block)


class IndexReader(ABC, Generic[BlockType]):
    """The questions of `interface.MessageStore`, answered from blocks of rows and an index of subjects."""

    def __init__(self, first_block: BlockType) -> None:
        self.first_sequence = 0
        self.last_sequence = 0
        self.messages = 0
        self.bytes = 0
        self.last_time_ns = 0
        self.lost: list[int] = []
        self.lost_bytes = 0
        self._subjects = SubjectIndex()
        self._blocks: list[BlockType] = [first_block]
        self._starts: list[int] = [first_block.first]
        self._active = first_block

    def _trust(self, block: BlockType) -> bool:
        """Make sure that a block's living rows can be loaded; False when some could not and were removed as lost."""
        return True

    # State

    @property
    def first_time_ns(self) -> int:
        found = self._locate(self.first_sequence)
        return found[0].times[found[1]] if found is not None else 0

    @property
    def subject_count(self) -> int:
        return len(self._subjects.ids)

    @property
    def deleted_count(self) -> int:
        return self.last_sequence - self.first_sequence + 1 - self.messages if self.messages else 0

    def _block_index(self, sequence: int) -> int:
        """The place of the block that has the sequence, if any has it."""
        starts = self._starts
        if len(starts) == 1 or sequence >= starts[-1]:
            return len(starts) - 1
        # The newest and the oldest block are asked for most.
        return 0 if sequence < starts[1] else bisect_right(starts, sequence) - 1

    def _locate(self, sequence: int) -> tuple[BlockType, int] | None:
        """Block and row of a message that is there."""
        if not self.first_sequence <= sequence <= self.last_sequence:
            return None
        block = self._blocks[self._block_index(sequence)]
        row = block.row_of(sequence)
        return (block, row) if row >= 0 and block.live[row] else None

    # One message

    def has(self, sequence: int) -> bool:
        return self._locate(sequence) is not None

    def get(self, sequence: int) -> StoredMessage | None:
        found = self._locate(sequence)
        if found is None:
            return None
        if not self._trust(found[0]):
            return self.get(sequence)
        return found[0].load(found[1], self._subjects.names)

    def last_for(self, pattern: bytes) -> StoredMessage | None:
        sequence = self.last_sequence_for(pattern)
        while sequence:
            message = self.get(sequence)
            if message is not None:
                return message
            sequence = self.last_sequence_for(pattern)
        return None

    def last_sequence_for(self, pattern: bytes) -> int:
        index = self._subjects
        number = index.ids.get(pattern)
        if number is not None and not has_wildcards(pattern):
            return index.last(number)
        return max(map(index.last, index.covered(pattern)), default=0)

    def first_at_or_after(self, time_ns: int) -> int:
        for block in self._blocks:
            if block.live_count and block.times[-1] >= time_ns:
                row = block.next_live(bisect_left(block.times, time_ns))
                if row >= 0:
                    return block.sequence_of(row)
        return self.last_sequence + 1

    # Runs of messages

    def read(
        self,
        first_sequence: int,
        subject_filter: SubjectFilter | None,
        max_messages: int,
        max_bytes: int,
        last_sequence: int | None = None,
    ) -> Run:
        end = self.last_sequence
        if last_sequence is not None and last_sequence < end:
            end = last_sequence
        start = max(first_sequence, self.first_sequence)
        if start > end or not self.messages:
            return Run([], max(first_sequence, end + 1))
        if subject_filter is None:
            return self._read_all(start, end, max_messages, max_bytes)
        passing = self._subjects.passing(subject_filter)
        if len(passing) == len(self._subjects.ids):
            return self._read_all(start, end, max_messages, max_bytes)
        if len(passing) > 1:
            return self._read_several(passing, start, end, max_messages, max_bytes)
        for number in passing:
            return self._read_subject(number, start, end, max_messages, max_bytes)
        return Run([], end + 1)

    def _read_all(self, start: int, end: int, max_messages: int, max_bytes: int) -> Run:
        messages: list[StoredMessage] = []
        names = self._subjects.names
        index = self._block_index(start)
        while index < len(self._blocks):
            block = self._blocks[index]
            if block.first > end:
                break
            limit = block.row_at_or_after(end + 1)
            row = block.next_live(block.row_at_or_after(start))
            if row < 0 or row >= limit:
                index += 1
                continue
            if not self._trust(block):
                continue
            wanted = max_messages - len(messages)
            if block.live_count == len(block.live):
                asked = min(limit - row, wanted)
                got = block.load_run(row, row + asked, max_bytes, names)
            else:
                rows = block.live_rows(row, min(limit, row + wanted + _SCAN_ROWS))[:wanted]
                asked = len(rows)
                got = block.load_rows(rows, max_bytes, names)
            messages += got
            start = got[-1].sequence + 1
            max_bytes -= _stored_bytes(block, row, got)
            if len(got) < asked or len(messages) >= max_messages or max_bytes <= 0:
                return Run(messages, start)
        return Run(messages, end + 1)

    def _read_subject(self, number: int, start: int, end: int, max_messages: int, max_bytes: int) -> Run:
        sequences = self._subjects.from_(number, start, max_messages)
        if sequences and sequences[-1] > end:
            del sequences[bisect_right(sequences, end) :]
        complete = len(sequences) < max_messages
        messages, cut = self._load_sequences(sequences, max_bytes)
        if messages and (cut or not complete):
            return Run(messages, messages[-1].sequence + 1)
        if sequences and not messages:
            # What was found turned out to be lost.
            return self.read(start, SubjectFilter((self._subjects.names[number],)), max_messages, max_bytes, end)
        return Run(messages, end + 1)

    def _load_sequences(self, sequences: list[int], max_bytes: int) -> tuple[list[StoredMessage], bool]:
        """The messages of these sequences and whether the bytes did not suffice for all."""
        messages: list[StoredMessage] = []
        names = self._subjects.names
        place = 0
        while place < len(sequences):
            index = self._block_index(sequences[place])
            block = self._blocks[index]
            if not self._trust(block):
                sequences = [sequence for sequence in sequences[place:] if self._locate(sequence)]
                place = 0
                continue
            last = index + 1 == len(self._blocks)
            stop = len(sequences) if last else bisect_left(sequences, self._starts[index + 1], place)
            if block.sequences is None:
                rows = [sequence - block.first for sequence in sequences[place:stop]]
            else:
                rows = [block.row_of(sequence) for sequence in sequences[place:stop]]
            got = block.load_rows(rows, max_bytes, names)
            messages += got
            if len(got) < len(rows):
                return messages, True
            max_bytes -= sum(block.sizes[row] for row in rows)
            place = stop
            if max_bytes <= 0 and place < len(sequences):
                return messages, True
        return messages, False

    def _read_several(
        self, passing: set[int] | tuple[int, ...], start: int, end: int, max_messages: int, max_bytes: int
    ) -> Run:
        """Look at row after row; after a long stretch without a hit, ask each subject where it goes on."""
        numbers = passing if isinstance(passing, set) else set(passing)
        messages: list[StoredMessage] = []
        patience_rows = patience = _SCAN_PATIENCE + 4 * len(passing)
        while start <= end:
            index = self._block_index(start)
            block = self._blocks[index]
            row = block.row_at_or_after(start)
            limit = min(block.row_at_or_after(end + 1), row + _SCAN_ROWS)
            if row >= limit:
                if index + 1 == len(self._blocks):
                    break
                start = max(self._starts[index + 1], start)
                continue
            rows = [
                at
                for at, number, live in zip(
                    range(row, limit), block.subject_ids[row:limit], block.live[row:limit], strict=True
                )
                if live and number in numbers
            ]
            if rows and not self._trust(block):
                continue
            if not rows:
                start = block.sequence_of(limit - 1) + 1
                patience -= limit - row
                if patience <= 0:
                    patience = patience_rows
                    start = self._next_of(passing, start)
                    if not start:
                        break
                continue
            patience = patience_rows
            wanted = rows[: max_messages - len(messages)]
            got = block.load_rows(wanted, max_bytes, self._subjects.names)
            messages += got
            start = got[-1].sequence + 1
            if len(got) < len(wanted) or len(messages) >= max_messages:
                return Run(messages, start)
            max_bytes -= sum(block.sizes[at] for at in wanted)
            if max_bytes <= 0:
                return Run(messages, start)
            start = block.sequence_of(limit - 1) + 1
        return Run(messages, end + 1)

    def _next_of(self, passing: Iterable[int], sequence: int) -> int:
        """The lowest sequence from this one on that one of the subjects has, or 0."""
        index = self._subjects
        return min(filter(None, (index.at_or_after(number, sequence) for number in passing)), default=0)

    # Subjects and counts

    def prepare(self, subject_filter: SubjectFilter | None) -> Steps[None]:
        if subject_filter is not None:
            yield from self._subjects.prepare(subject_filter)

    def last_per_subject(
        self, subject_filter: SubjectFilter | None = None, up_to_sequence: int | None = None
    ) -> list[int]:
        return finish(self.last_per_subject_in_steps(subject_filter, up_to_sequence))

    def last_per_subject_in_steps(
        self, subject_filter: SubjectFilter | None = None, up_to_sequence: int | None = None
    ) -> Steps[list[int]]:
        yield from self.prepare(subject_filter)
        index = self._subjects
        last = self.last_sequence if up_to_sequence is None else min(up_to_sequence, self.last_sequence)
        numbers = index.ids.values() if subject_filter is None else index.passing(subject_filter)
        found: list[int] = []
        for group in in_groups(list(numbers), _GROUP):
            for number in group:
                sequence = index.last(number) if index.has(number) else 0
                if sequence > last:
                    sequence = index.at_or_before(number, last)
                if sequence:
                    found.append(sequence)
            yield
        return (yield from sort_in_steps(found))

    def subjects(self, pattern: bytes | None = None) -> dict[bytes, int]:
        return {name: self.count_on(name) for name in finish(self.subjects_in_steps(pattern))}

    def subjects_in_steps(self, pattern: bytes | None = None) -> Steps[list[bytes]]:
        index = self._subjects
        names: list[bytes]
        if pattern is None or pattern == b">":
            names = list(index.ids)
        else:
            yield from self.prepare(SubjectFilter((pattern,)))
            names = [index.names[number] for number in index.covered(pattern)]
        return (yield from sort_in_steps(names))

    def count_on(self, subject: bytes) -> int:
        number = self._subjects.ids.get(subject)
        return self._subjects.count(number) if number is not None else 0

    def count(self, first_sequence: int, subject_filter: SubjectFilter | None = None) -> int:
        if first_sequence > self.last_sequence:
            return 0
        index = self._subjects
        if subject_filter is not None:
            passing = index.passing(subject_filter)
            if len(passing) < len(index.ids):
                if first_sequence <= self.first_sequence:
                    return sum(map(index.count, passing))
                return sum(index.count_from(number, first_sequence) for number in passing)
        if first_sequence <= self.first_sequence:
            return self.messages
        if not self.deleted_count:
            return self.last_sequence - first_sequence + 1
        place = self._block_index(first_sequence)
        block = self._blocks[place]
        later = sum(self._blocks[at].live_count for at in range(place + 1, len(self._blocks)))
        return block.count_live(block.row_at_or_after(first_sequence), len(block.live)) + later

    def deleted(self) -> list[int]:
        gone: list[int] = []
        if not self.messages:
            return gone
        at = self.first_sequence
        for block in self._blocks:
            if not block.live_count:
                continue
            row = block.row_at_or_after(at)
            if block.live_count == len(block.live) and block.sequences is None:
                gone.extend(range(at, block.first + row))
                at = block.first + len(block.live)
                continue
            for sequence in compress(block.sequence_slice(row, len(block.live)), block.live[row:]):
                gone.extend(range(at, sequence))
                at = sequence + 1
        gone.extend(range(at, self.last_sequence + 1))
        return gone


def _stored_bytes(block: Block, row: int, messages: list[StoredMessage]) -> int:
    """What the messages of a run take, the first of which is in that row."""
    last = block.row_of(messages[-1].sequence)
    if last - row + 1 == len(messages):
        return sum(block.sizes[row : last + 1])
    return sum(block.sizes[block.row_of(message.sequence)] for message in messages)
