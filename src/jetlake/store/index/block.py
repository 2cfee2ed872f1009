"""A stretch of a stream's sequences as columns: the sequence half of a store's index, without an object a message.

The reasons are in decision 6 (docs/decisions).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left
from collections.abc import Callable
from itertools import compress

import msgspec

from jetlake.store.index.postings import Posted, Postings, bloom_filter, gather_in_steps
from jetlake.store.message import MessageColumns, StoredMessage
from jetlake.store.steps import Steps

__all__ = ["Block", "DamagedBlockError", "SpilledRows"]


class SpilledRows(msgspec.Struct, gc=False, frozen=True):
    """What stays in memory of a block whose columns may be released.

    Attributes:
        rows: how many rows there are.
        last_sequence: of the last row.
        first_time_ns, last_time_ns: the times of the first and the last row.
        Bloom filter: of the subjects that the rows have, see `postings.bloom_filter`.
    """

    rows: int
    last_sequence: int
    first_time_ns: int
    last_time_ns: int
    bloom: bytes


class DamagedBlockError(Exception):
    """A row's bytes are damaged; the store must look at the whole block first."""

    def __init__(self, block: Block) -> None:
        super().__init__(block.first)
        self.block = block


class Block(ABC):
    """One row for each sequence, ascending: its size, its subject's number, its time, and whether it lives.

    A dense block has a row for every sequence from `first` on, so that a sequence gives its row by subtraction. A
    sparse one, from which dead rows were cleared, has its sequences in a column of their own.

    Attributes:
        first: the sequence of the first row, or of the row to come.
        sequences: the sequence of each row when the block is sparse, else None.
        live_count: how many rows live.
        live_bytes: the sum of their sizes.
        spilled: what stays in memory of a block whose columns may be released; None for a block that has them.
    """

    __slots__ = ("first", "live", "live_bytes", "live_count", "sequences", "sizes", "spilled", "subject_ids", "times")

    def __init__(self, first: int) -> None:
        self.first = first
        self.sequences: array[int] | None = None
        self.sizes: array[int] = array("I")
        self.subject_ids: array[int] = array("I")
        self.times: array[int] = array("q")
        self.live = bytearray()
        self.live_count = 0
        self.live_bytes = 0
        self.spilled: SpilledRows | None = None

    @property
    def is_ready(self) -> bool:
        """Whether living rows can be loaded at once: nothing has to be opened, read back or verified before."""
        return True

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return len(self.live) if self.spilled is None else self.spilled.rows

    @property
    def last_row_sequence(self) -> int:
        """The sequence of the last row; 0 without one."""
        if self.spilled is not None:
            return self.spilled.last_sequence
        return self.sequence_of(len(self.live) - 1) if self.live else 0

    @property
    def newest_time_ns(self) -> int:
        """The time of the last row; 0 without one."""
        if self.spilled is not None:
            return self.spilled.last_time_ns
        return self.times[-1] if self.times else 0

    @property
    def oldest_time_ns(self) -> int:
        """The time of the first row; 0 without one."""
        if self.spilled is not None:
            return self.spilled.first_time_ns
        return self.times[0] if self.times else 0

    @property
    def bloom(self) -> bytes:
        """The Bloom filter of the subjects in a spilled block."""
        assert self.spilled is not None
        return self.spilled.bloom

    def described(self, bloom: bytes | None = None) -> SpilledRows:
        """Return what stays in memory when the columns are released, which must be there now.

        Args:
            bloom: a Bloom filter of the living rows' subjects, and perhaps more; None to make one.
        """
        if bloom is None:
            bloom = bloom_filter(set(compress(self.subject_ids, self.live)))
        rows = len(self.live)
        if not rows:
            return SpilledRows(0, 0, 0, 0, bloom)
        return SpilledRows(rows, self.sequence_of(rows - 1), self.times[0], self.times[-1], bloom)

    def postings(self) -> Postings:
        """Return the living sequences of each subject."""
        live = self.live
        sequences = compress(self.sequence_slice(0, len(live)), live)
        return Postings.of_rows(zip(compress(self.subject_ids, live), sequences, strict=True))

    def postings_in_steps(self) -> Steps[Postings]:
        """Return the same in steps; at the last one, some sequences may be dead."""
        return gather_in_steps(self)

    def posted(self, number: int) -> Posted:
        """Return the postings of one subject."""
        return self.postings().of(number)

    def load_columns(self) -> bool:
        """Bring columns back that were released; False when none were."""
        return False

    def size_and_subject(self, row: int, numbers: dict[bytes, int]) -> tuple[int, int]:
        """Return the size of a living row and its subject's number.

        Args:
            numbers: of all subjects.
        """
        return self.sizes[row], self.subject_ids[row]

    def lives(self, sequence: int) -> bool:
        """Return whether a message of this sequence is here."""
        row = self.row_of(sequence)
        return row >= 0 and bool(self.live[row])

    def row_of(self, sequence: int) -> int:
        """Return the row of a sequence, or -1 when the block has none for it."""
        if self.sequences is None:
            row = sequence - self.first
            return row if 0 <= row < len(self.live) else -1
        row = bisect_left(self.sequences, sequence)
        return row if row < len(self.sequences) and self.sequences[row] == sequence else -1

    def row_at_or_after(self, sequence: int) -> int:
        """Return the first row whose sequence is not below this one; the number of rows when there is none."""
        if self.sequences is None:
            return min(max(sequence - self.first, 0), self.row_count)
        return bisect_left(self.sequences, sequence)

    def sequence_of(self, row: int) -> int:
        """Return the sequence of a row."""
        return self.first + row if self.sequences is None else self.sequences[row]

    def next_live(self, row: int) -> int:
        """Return the first living row from this one on, or -1."""
        return self.live.find(1, row)

    def live_rows(self, start: int, end: int) -> list[int]:
        """Return the living rows between two rows."""
        if self.live_count == self.row_count:
            return list(range(start, end))
        return list(compress(range(start, end), self.live[start:end]))

    def count_live(self, start: int, end: int) -> int:
        """Return how many rows live between two rows."""
        if start <= 0 and end >= self.row_count:
            return self.live_count
        return self.live.count(1, start, end)

    def sequence_slice(self, start: int, end: int) -> range | array[int]:
        """Return the sequences between two rows."""
        if self.sequences is None:
            return range(self.first + start, self.first + end)
        return self.sequences[start:end]

    def add_dead(self, count: int, time_ns: int) -> None:
        """Append rows for sequences without a message."""
        if self.sequences is not None:
            # A sparse block simply has no rows for them.
            return
        self.sizes.frombytes(bytes(4 * count))
        self.subject_ids.frombytes(bytes(4 * count))
        self.times.extend(array("q", (time_ns,)) * count)
        self.live.extend(bytes(count))

    def pop(self) -> None:
        """Take the last row away; it must be dead by now."""
        if self.sequences is not None:
            self.sequences.pop()
        self.sizes.pop()
        self.subject_ids.pop()
        self.times.pop()
        self.live.pop()

    @abstractmethod
    def forget(self, start: int, end: int) -> None:
        """Release what the rows between two hold, which have died."""

    @abstractmethod
    def load(self, row: int, name_of: Callable[[int], bytes]) -> StoredMessage:
        """Return the message of a living row.

        Args:
            name_of: gives the subject of a number, where the message does not tell it.
        """

    @abstractmethod
    def load_run_columns(self, start: int, end: int, max_bytes: int, names: list[bytes]) -> MessageColumns:
        """Return the messages between two rows, which all live: as many as fit, at least one."""

    def load_run(self, start: int, end: int, max_bytes: int, names: list[bytes]) -> list[StoredMessage]:
        """Return the messages of `load_run_columns` one by one."""
        return self.load_run_columns(start, end, max_bytes, names).messages()

    @abstractmethod
    def load_rows(self, rows: list[int], max_bytes: int, names: list[bytes]) -> list[StoredMessage]:
        """Return the messages of these living rows: as many as fit, at least one."""

    def fitting(self, rows: list[int], max_bytes: int) -> list[int]:
        """As many of these rows as fit into this many bytes, at least one."""
        sizes = self.sizes
        total = 0
        for position, row in enumerate(rows):
            total += sizes[row]
            if total > max_bytes and position:
                return rows[:position]
        return rows
