"""A table of message ids: many small dicts, so that no insertion waits for a large one to grow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = ["IdTable"]

_PARTS = 256
# A table with fewer ids is one dict; dividing that takes about a millisecond.
_SMALL_TABLE_IDS = 4096


class IdTable:
    """Message ids with the sequences that they were stored under; the hash of an id selects the dict that has it."""

    def __init__(self) -> None:
        self._parts: list[dict[bytes, int]] = [{}]
        self._mask = 0

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def get(self, message_id: bytes) -> int:
        """Return the sequence of an id; 0 = unknown."""
        return self._parts[hash(message_id) & self._mask].get(message_id, 0)

    def getter(self) -> Callable[[bytes], int]:
        """Return a quicker `get`, valid until the next change."""
        parts, mask = self._parts, self._mask
        return lambda message_id: parts[hash(message_id) & mask].get(message_id, 0)

    def add_new(self, message_ids: list[bytes], sequences: list[int]) -> bool:
        """Add ids with their sequences, which no known id has; False, and no id added, when one of the ids is known."""
        found = list(map(dict.setdefault, self._parts_of(message_ids), message_ids, sequences))
        if found != sequences:
            for message_id, sequence in zip(message_ids, sequences, strict=True):
                self.discard(message_id, sequence)
            return False
        self._divide()
        return True

    def update(self, sequences: Mapping[bytes, int]) -> None:
        """Set the sequences of ids."""
        for part, message_id, sequence in zip(self._parts_of(sequences), sequences, sequences.values(), strict=True):
            part[message_id] = sequence
        self._divide()

    def _divide(self) -> None:
        """Divide a table that has become too large for one dict."""
        small = self._parts[0]
        if not self._mask and len(small) > _SMALL_TABLE_IDS:
            self._parts, self._mask = [{} for _ in range(_PARTS)], _PARTS - 1
            self.update(small)

    def _parts_of(self, message_ids: Iterable[bytes]) -> Iterator[dict[bytes, int]]:
        """Return the dict of each id."""
        return map(self._parts.__getitem__, map(self._mask.__and__, map(hash, message_ids)))

    def discard(self, message_id: bytes, sequence: int) -> None:
        """Remove an id, unless its sequence is another one by now."""
        part = self._parts[hash(message_id) & self._mask]
        if part.get(message_id) == sequence:
            del part[message_id]

    def clear(self) -> None:
        """Remove all ids, and give their memory back: an emptied dict keeps its size."""
        self._parts, self._mask = [{}], 0
