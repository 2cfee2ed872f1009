"""The newest bytes of a segment, kept in memory for those who read what was just written."""

from __future__ import annotations

from bisect import bisect_right

__all__ = ["Tail"]


class Tail:
    """Pieces of a file that follow each other, the oldest of which go when there are too many bytes.

    Attributes:
        offsets: where in the file each piece begins.
    """

    __slots__ = ("_pieces", "_size", "offsets")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self._pieces: list[bytes] = []
        self._size = 0

    def keep(self, offset: int, data: bytes, max_bytes: int) -> None:
        """Keep what was written at that offset, behind all that is here."""
        self._pieces.append(data)
        self.offsets.append(offset)
        self._size += len(data)
        if self._size <= 2 * max_bytes:
            return
        # Many at once: a list is slow to shorten at its front.
        drop = 0
        while self._size > max_bytes and drop < len(self._pieces) - 1:
            self._size -= len(self._pieces[drop])
            drop += 1
        del self._pieces[:drop], self.offsets[:drop]

    def find(self, start: int, end: int) -> tuple[bytes, int] | None:
        """Bytes that hold those between two written offsets, and where they begin; None when they are not here."""
        offsets = self.offsets
        if not offsets or start < offsets[0]:
            return None
        place = bisect_right(offsets, start) - 1
        data = self._pieces[place]
        if end <= offsets[place] + len(data):
            return data, offsets[place]
        last = bisect_right(offsets, end - 1)
        return b"".join(self._pieces[place:last]), offsets[place]

    def clear(self) -> None:
        """Keep nothing: what is asked for next is read from the disk."""
        self.offsets.clear()
        self._pieces.clear()
        self._size = 0
