"""A stretch of a stream's sequences as columns: the sequence half of a store's index, without an object a message.

The reasons are in decision 6 (docs/decisions).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left
from itertools import compress

from jetlake.store.message import StoredMessage

__all__ = ["Block"]


class Block(ABC):
    """One row for each sequence, ascending: its size, its subject's number, its time, and whether it lives.

    A dense block has a row for every sequence from `first` on, so that a sequence gives its row by subtraction. A
    sparse one, from which dead rows were cleared, has its sequences in a column of their own.

    Attributes:
        first: the sequence of the first row, or of the row to come.
        sequences: the sequence of each row when the block is sparse, else None.
        live_count: how many rows live.
        live_bytes: the sum of their sizes.
    """

    __slots__ = ("first", "live", "live_bytes", "live_count", "sequences", "sizes", "subject_ids", "times")

    def __init__(self, first: int) -> None:
        self.first = first
        self.sequences: array[int] | None = None
        self.sizes: array[int] = array("I")
        self.subject_ids: array[int] = array("I")
        self.times: array[int] = array("q")
        self.live = bytearray()
        self.live_count = 0
        self.live_bytes = 0

    def row_of(self, sequence: int) -> int:
        """The row of a sequence, or -1 when the block has none for it."""
        if self.sequences is None:
            row = sequence - self.first
            return row if 0 <= row < len(self.live) else -1
        row = bisect_left(self.sequences, sequence)
        return row if row < len(self.sequences) and self.sequences[row] == sequence else -1

    def row_at_or_after(self, sequence: int) -> int:
        """The first row whose sequence is not below this one; the number of rows when there is none."""
        if self.sequences is None:
            return min(max(sequence - self.first, 0), len(self.live))
        return bisect_left(self.sequences, sequence)

    def sequence_of(self, row: int) -> int:
        """The sequence of a row."""
        return self.first + row if self.sequences is None else self.sequences[row]

    def next_live(self, row: int) -> int:
        """The first living row from this one on, or -1."""
        return self.live.find(1, row)

    def live_rows(self, start: int, end: int) -> list[int]:
        """The living rows between two rows."""
        if self.live_count == len(self.live):
            return list(range(start, end))
        return list(compress(range(start, end), self.live[start:end]))

    def count_live(self, start: int, end: int) -> int:
        """How many rows live between two rows."""
        if start <= 0 and end >= len(self.live):
            return self.live_count
        return self.live.count(1, start, end)

    def sequence_slice(self, start: int, end: int) -> range | array[int]:
        """The sequences between two rows."""
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

    def drop_dead_rows(self) -> None:
        """Become sparse: keep the rows that live."""
        live = self.live
        self.sequences = array("Q", compress(self.sequence_slice(0, len(live)), live))
        self.sizes = array("I", compress(self.sizes, live))
        self.subject_ids = array("I", compress(self.subject_ids, live))
        self.times = array("q", compress(self.times, live))
        self.live = bytearray(b"\x01") * self.live_count

    @abstractmethod
    def forget(self, start: int, end: int) -> None:
        """The rows between these two have died; what they hold may go."""

    @abstractmethod
    def load(self, row: int, names: list[bytes]) -> StoredMessage:
        """The message of a living row."""

    @abstractmethod
    def load_run(self, start: int, end: int, max_bytes: int, names: list[bytes]) -> list[StoredMessage]:
        """The messages between two rows, which all live: as many as fit, at least one."""

    @abstractmethod
    def load_rows(self, rows: list[int], max_bytes: int, names: list[bytes]) -> list[StoredMessage]:
        """The messages of these living rows: as many as fit, at least one."""

    def fitting(self, rows: list[int], max_bytes: int) -> list[int]:
        """As many of these rows as fit into so many bytes, at least one."""
        sizes = self.sizes
        total = 0
        for place, row in enumerate(rows):
            total += sizes[row]
            if total > max_bytes and place:
                return rows[:place]
        return rows
