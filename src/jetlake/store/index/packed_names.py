"""The names of a store's subjects as they stand in a file: by number, without an object for each."""

from __future__ import annotations

from array import array
from itertools import accumulate, pairwise

from jetlake.store.columns import positions_of
from jetlake.store.steps import Steps

__all__ = ["PackedNames"]

_NAMES_PER_STEP = 2048


class PackedNames:
    """Names by number, one behind the other.

    Args:
        lengths: of each name; 0 for a number that is free.
        text: all names.

    Attributes:
        free: the numbers that are free.
    """

    __slots__ = ("_lengths", "_text", "free")

    def __init__(self, lengths: array[int], text: bytes) -> None:
        self._lengths = lengths
        self._text = text
        self.free = list(positions_of(lengths, 0, len(lengths)))

    def __len__(self) -> int:
        return len(self._lengths)

    @property
    def used(self) -> int:
        """How many numbers are not free."""
        return len(self._lengths) - len(self.free)

    def has(self, number: int) -> bool:
        """Return whether a number has a name."""
        return number < len(self._lengths) and self._lengths[number] > 0

    def unpack(self) -> Steps[tuple[list[bytes], dict[bytes, int]]]:
        """Return the name of each number, b"" for one that is free, and the number of each name."""
        names: list[bytes] = []
        ids: dict[bytes, int] = {}
        text, at = self._text, 0
        for start in range(0, len(self._lengths), _NAMES_PER_STEP):
            ends = list(accumulate(self._lengths[start : start + _NAMES_PER_STEP], initial=at))
            at = ends[-1]
            part = [text[begin:end] for begin, end in pairwise(ends)]
            names += part
            ids.update(zip(part, range(start, start + len(part)), strict=True))
            yield
        ids.pop(b"", None)
        return names, ids
