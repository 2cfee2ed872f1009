"""The older sequences of one busy subject: ascending, in chunks, so that no operation touches more than a chunk."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

__all__ = ["CHUNK", "SequenceList"]

CHUNK = 1024
"""How many sequences a chunk holds: small enough to delete from its middle, large enough to have few of them."""


class SequenceList:
    """Ascending sequences in chunks of at most `CHUNK`; no chunk is empty.

    Attributes:
        count: how many sequences there are.
    """

    __slots__ = ("chunks", "count", "starts")

    def __init__(self) -> None:
        self.chunks: list[array[int]] = []
        # What separates the chunks: at most the first entry of each, above the last entry of the one before.
        self.starts: list[int] = []
        self.count = 0

    def push(self, chunk: array[int]) -> None:
        """Put a chunk at the end; all its sequences are above those here."""
        self.chunks.append(chunk)
        self.starts.append(chunk[0])
        self.count += len(chunk)

    def pop(self) -> array[int]:
        """Take the last chunk away."""
        self.starts.pop()
        chunk = self.chunks.pop()
        self.count -= len(chunk)
        return chunk

    def remove(self, sequence: int) -> None:
        """Remove a sequence; one that is not there is no error."""
        position = bisect_right(self.starts, sequence) - 1
        if position < 0:
            return
        chunk = self.chunks[position]
        at = bisect_left(chunk, sequence)
        if at == len(chunk) or chunk[at] != sequence:
            return
        self.count -= 1
        del chunk[at]
        if not chunk:
            del self.chunks[position], self.starts[position]

    def remove_below(self, sequence: int) -> None:
        """Remove every sequence below this one."""
        position = max(bisect_right(self.starts, sequence) - 1, 0)
        if not self.chunks:
            return
        chunk = self.chunks[position]
        at = bisect_left(chunk, sequence)
        self.count -= sum(map(len, self.chunks[:position])) + at
        if at == len(chunk):
            position += 1
        else:
            del chunk[:at]
        del self.chunks[:position], self.starts[:position]

    def first(self) -> int:
        """Return the lowest sequence."""
        return self.chunks[0][0]

    def at_or_after(self, sequence: int) -> int:
        """Return the lowest sequence that is not below this one, or 0."""
        position = max(bisect_right(self.starts, sequence) - 1, 0)
        for chunk in self.chunks[position : position + 2]:
            if chunk[-1] >= sequence:
                return chunk[bisect_left(chunk, sequence)]
        return 0

    def at_or_before(self, sequence: int) -> int:
        """Return the highest sequence that is not above this one, or 0."""
        position = bisect_right(self.starts, sequence) - 1
        for chunk in reversed(self.chunks[max(position - 1, 0) : position + 1]):
            at = bisect_right(chunk, sequence)
            if at:
                return chunk[at - 1]
        return 0

    def count_from(self, sequence: int) -> int:
        """Return how many sequences are not below this one."""
        if not self.chunks:
            return 0
        position = max(bisect_right(self.starts, sequence) - 1, 0)
        below = bisect_left(self.chunks[position], sequence)
        if position > len(self.chunks) // 2:
            return sum(map(len, self.chunks[position:])) - below
        return self.count - sum(map(len, self.chunks[:position])) - below

    def from_(self, sequence: int, limit: int) -> list[int]:
        """Up to `limit` sequences that are not below this one."""
        found: list[int] = []
        position = max(bisect_right(self.starts, sequence) - 1, 0)
        for index in range(position, len(self.chunks)):
            chunk = self.chunks[index]
            at = bisect_left(chunk, sequence) if index == position else 0
            found.extend(chunk[at : at + limit - len(found)])
            if len(found) >= limit:
                break
        return found

    def __iter__(self) -> Iterator[int]:
        for chunk in self.chunks:
            yield from chunk
