"""What both stores share: the index answers questions, the remover removes, and the reader loads messages.

The index decides which messages a read returns, and their blocks load them from wherever the bytes lie.
"""

from __future__ import annotations

import builtins
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Generic

from jetlake.store.index.block import Block
from jetlake.store.index.index import BlockType, Index
from jetlake.store.index.message_remover import MessageRemover
from jetlake.store.index.running_count import RunningCount
from jetlake.store.interface import Run, StoreHooks, StoreLimits
from jetlake.store.message import MessageColumns, StoredMessage
from jetlake.store.steps import Steps
from jetlake.store.subject_filter import SubjectFilter

__all__ = ["IndexedStore", "MessageReader"]


class IndexedStore(Generic[BlockType]):
    """State, questions and removals of a store; see `interface.MessageStore` for the promises.

    Attributes:
        removals_per_step: how many messages a step of a purge removes.
        unsure_since_ns: the time of the oldest message that may not have been synced before the start; 0 for none.
    """

    def __init__(
        self, index: Index[BlockType], remover: MessageRemover[BlockType], reader: MessageReader[BlockType]
    ) -> None:
        self._index = index
        self._remover = remover
        self._reader = reader
        self.hooks: StoreHooks = index.hooks
        self.removals_per_step = 128
        self.unsure_since_ns = 0

    # State

    @property
    def first_sequence(self) -> int:
        return self._index.first_sequence

    @property
    def last_sequence(self) -> int:
        return self._index.last_sequence

    @property
    def messages(self) -> int:
        return self._index.messages

    @property
    def bytes(self) -> int:
        return self._index.bytes

    @property
    def first_time_ns(self) -> int:
        return self._index.first_time_ns

    @property
    def last_time_ns(self) -> int:
        return self._index.last_time_ns

    @property
    def subject_count(self) -> int:
        return len(self._index.subjects)

    @property
    def deleted_count(self) -> int:
        return self._index.deleted_count

    @property
    def aging_sequence(self) -> int:
        return self._remover.aging_sequence

    @property
    def aging_time_ns(self) -> int:
        return self._remover.aging_time_ns

    # Questions

    def has(self, sequence: int) -> bool:
        return self._index.has(sequence)

    def get(self, sequence: int) -> StoredMessage | None:
        return self._reader.get(sequence)

    def read(
        self,
        first_sequence: int,
        subject_filter: SubjectFilter | None,
        max_messages: int,
        max_bytes: int,
        last_sequence: int | None = None,
    ) -> Run:
        return self._reader.read(first_sequence, subject_filter, max_messages, max_bytes, last_sequence)

    def read_columns(
        self, first_sequence: int, max_messages: int, max_bytes: int, last_sequence: int
    ) -> MessageColumns | None:
        return self._reader.read_columns(first_sequence, max_messages, max_bytes, last_sequence)

    def last_for(self, pattern: builtins.bytes) -> StoredMessage | None:
        while sequence := self.last_sequence_for(pattern):
            message = self.get(sequence)
            if message is not None:
                return message
        return None

    def last_sequence_for(self, pattern: builtins.bytes) -> int:
        return self._index.last_sequence_for(pattern)

    def first_at_or_after(self, time_ns: int) -> int:
        return self._index.first_at_or_after(time_ns)

    def last_per_subject(
        self, subject_filter: SubjectFilter | None = None, up_to_sequence: int | None = None
    ) -> list[int]:
        return self._index.last_per_subject(subject_filter, up_to_sequence)

    def subjects(self, pattern: builtins.bytes | None = None) -> dict[builtins.bytes, int]:
        return self._index.counts(pattern)

    def count_on(self, subject: builtins.bytes) -> int:
        return self._index.count_on(subject)

    def count(self, first_sequence: int, subject_filter: SubjectFilter | None = None) -> int:
        return self._index.count(first_sequence, subject_filter)

    def deleted(self, first: int, end: int) -> list[int]:
        return self._index.deleted(first, end)

    # Removals

    def skip(self, count: int = 1, time_ns: int = 0) -> None:
        self._remover.skip(count, time_ns)

    def advance_to(self, first_sequence: int) -> None:
        self._remover.advance_to(first_sequence)

    def remove(self, sequence: int, *, erase: bool = False) -> bool:
        return self._remover.remove(sequence, erase=erase)

    def purge(
        self,
        subject_filter: SubjectFilter | None = None,
        *,
        below: int | None = None,
        keep: int | None = None,
        follows_append: bool = False,
    ) -> int:
        return self._remover.purge(subject_filter, below=below, keep=keep, follows_append=follows_append)

    def enforce(self, limits: StoreLimits, now_ns: int, ageless: Sequence[int] = ()) -> int:
        return self._remover.enforce(limits, now_ns, ageless)

    # Long calls, in steps between which others are served

    def prepare(self, subject_filter: SubjectFilter | None) -> Steps[None]:
        return self._index.prepare(subject_filter)

    def last_per_subject_in_steps(
        self, subject_filter: SubjectFilter | None = None, up_to_sequence: int | None = None
    ) -> Steps[list[int]]:
        return self._index.last_per_subject_in_steps(subject_filter, up_to_sequence)

    def last_sequence_in_steps(self, pattern: builtins.bytes) -> Steps[int]:
        return self._index.last_sequence_in_steps(pattern)

    def subjects_in_steps(self, pattern: builtins.bytes | None = None) -> Steps[list[builtins.bytes]]:
        return self._index.subjects_in_steps(pattern)

    def purge_in_steps(
        self, subject_filter: SubjectFilter | None = None, *, below: int | None = None, keep: int | None = None
    ) -> Steps[int]:
        return self._remover.purge_in_steps(subject_filter, below, keep, self.removals_per_step)

    def enforce_in_steps(self, limits: StoreLimits) -> Steps[int]:
        return self._remover.enforce_in_steps(limits, self.removals_per_step)

    def running_count(self, first_sequence: int, subject_filter: SubjectFilter) -> RunningCount:
        return RunningCount(self._index, first_sequence, subject_filter)


_SCAN_ROWS = 1024
_SCAN_ROWS_MAX = 4096


class MessageReader(Generic[BlockType]):
    """Loads single messages and runs of them."""

    def __init__(self, index: Index[BlockType]) -> None:
        self._index = index

    def _trust(self, block: BlockType) -> bool:
        """Ensure that a block's living rows can be loaded; False when some can not and were removed as lost."""
        return True

    def _prepare(self, block: BlockType) -> None:
        """Get ready to load a single row of a block, which is verified by itself."""

    def get(self, sequence: int) -> StoredMessage | None:
        """Return the message of that sequence, if it is there."""
        found = self._index.locate(sequence)
        if found is None:
            return None
        self._prepare(found[0])
        return found[0].load(found[1], self._index.subjects.numbers.name_of)

    def read(
        self,
        first_sequence: int,
        subject_filter: SubjectFilter | None,
        max_messages: int,
        max_bytes: int,
        last_sequence: int | None = None,
    ) -> Run:
        """Return the next messages from `first_sequence` on that pass the filter, at least one if there is one."""
        index = self._index
        end = index.last_sequence
        if last_sequence is not None and last_sequence < end:
            end = last_sequence
        start = max(first_sequence, index.first_sequence)
        if start > end or not index.messages:
            return Run([], max(first_sequence, end + 1))
        if subject_filter is None:
            return self._read_all(start, end, max_messages, max_bytes)
        passing = index.subjects.numbers.matches.passing(subject_filter)
        if len(passing) == len(index.subjects.numbers.ids):
            return self._read_all(start, end, max_messages, max_bytes)
        if len(passing) > 1:
            return self._read_several(passing, start, end, max_messages, max_bytes)
        for number in passing:
            return self._read_subject(number, start, end, max_messages, max_bytes)
        return Run([], end + 1)

    def read_columns(
        self, first_sequence: int, max_messages: int, max_bytes: int, last_sequence: int
    ) -> MessageColumns | None:
        """Return the next messages from `first_sequence` on column by column, up to the end of their block.

        None: only `read` can tell which messages are next, because some are gone or must be looked at first.
        """
        index = self._index
        end = min(last_sequence, index.last_sequence)
        start = max(first_sequence, index.first_sequence)
        if start > end or not index.messages:
            return None
        blocks = index.blocks
        block = blocks[-1] if start >= index.starts[-1] else blocks[index.block_index(start)]
        if not self._trust(block) or block.live_count < len(block.live):
            return None
        row = block.row_at_or_after(start)
        stop = min(block.row_at_or_after(end + 1), row + max_messages)
        if row >= stop:
            return None
        return block.load_run_columns(row, stop, max_bytes, index.subjects.numbers.names)

    def _read_all(self, start: int, end: int, max_messages: int, max_bytes: int) -> Run:
        messages: list[StoredMessage] = []
        index = self._index
        names, blocks = index.subjects.numbers.names, index.blocks
        # Most runs are read from the newest block.
        position = len(blocks) - 1 if start >= index.starts[-1] else index.block_index(start)
        while position < len(blocks):
            block = blocks[position]
            if block.first > end:
                break
            limit = block.row_at_or_after(end + 1)
            row = block.next_live(block.row_at_or_after(start))
            if row < 0 or row >= limit:
                position += 1
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
        sequences = self._index.subjects.from_(number, start, max_messages)
        if sequences and sequences[-1] > end:
            del sequences[bisect_right(sequences, end) :]
        complete = len(sequences) < max_messages
        messages, cut = self._load_sequences(sequences, max_bytes)
        if messages and (cut or not complete):
            return Run(messages, messages[-1].sequence + 1)
        if sequences and not messages:
            # The messages found turned out to be lost.
            literal = SubjectFilter((self._index.subjects.numbers.names[number],))
            return MessageReader.read(self, start, literal, max_messages, max_bytes, end)
        return Run(messages, end + 1)

    def _load_sequences(self, sequences: list[int], max_bytes: int) -> tuple[list[StoredMessage], bool]:
        """Return the messages of these sequences and whether the bytes did not suffice for all."""
        messages: list[StoredMessage] = []
        if len(sequences) == 1:
            message = MessageReader.get(self, sequences[0])
            return [message] if message is not None else [], False
        index = self._index
        names = index.subjects.numbers.names
        position = 0
        while position < len(sequences):
            at = index.block_index(sequences[position])
            block = index.blocks[at]
            if not self._trust(block):
                sequences = [sequence for sequence in sequences[position:] if index.has(sequence)]
                position = 0
                continue
            is_last = at + 1 == len(index.blocks)
            stop = len(sequences) if is_last else bisect_left(sequences, index.starts[at + 1], position)
            if block.sequences is None:
                rows = [sequence - block.first for sequence in sequences[position:stop]]
            else:
                rows = [block.row_of(sequence) for sequence in sequences[position:stop]]
            got = block.load_rows(rows, max_bytes, names)
            messages += got
            if len(got) < len(rows):
                return messages, True
            max_bytes -= sum(block.sizes[row] for row in rows)
            position = stop
            if max_bytes <= 0 and position < len(sequences):
                return messages, True
        return messages, False

    def _read_several(
        self, passing: set[int] | tuple[int, ...], start: int, end: int, max_messages: int, max_bytes: int
    ) -> Run:
        """Look at row after row; after a long stretch without a hit, ask each subject where it continues."""
        numbers = passing if isinstance(passing, set) else set(passing)
        index = self._index
        messages: list[StoredMessage] = []
        rows_max = rows_left = _SCAN_ROWS_MAX + 4 * len(passing)
        while start <= end:
            position = index.block_index(start)
            block = index.blocks[position]
            row = block.row_at_or_after(start)
            limit = min(block.row_at_or_after(end + 1), row + _SCAN_ROWS)
            if row >= limit:
                if position + 1 == len(index.blocks):
                    break
                start = max(index.starts[position + 1], start)
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
                rows_left -= limit - row
                if rows_left <= 0:
                    rows_left = rows_max
                    start = self._next_of(passing, start)
                    if not start:
                        break
                continue
            rows_left = rows_max
            wanted = rows[: max_messages - len(messages)]
            got = block.load_rows(wanted, max_bytes, index.subjects.numbers.names)
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
        """Return the lowest sequence from this one on that one of the subjects has, or 0."""
        at_or_after = self._index.subjects.at_or_after
        return min(filter(None, (at_or_after(number, sequence) for number in passing)), default=0)


def _stored_bytes(block: Block, row: int, messages: list[StoredMessage]) -> int:
    """Return what the messages of a run take, the first of which is in that row."""
    last = block.row_of(messages[-1].sequence)
    if last - row + 1 == len(messages):
        return sum(block.sizes[row : last + 1])
    return sum(block.sizes[block.row_of(message.sequence)] for message in messages)
