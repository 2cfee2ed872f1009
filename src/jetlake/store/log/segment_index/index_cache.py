"""The memory that a server's stores spend on the index of spilled segments: bounded, the oldest parts go first."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

__all__ = ["INDEX_CACHE_BYTES", "IndexCache"]

INDEX_CACHE_BYTES = 64 * 1024 * 1024
"""How much of the index of spilled segments stays in memory."""


class Holder(Protocol):
    """An owner of parts that can be loaded again."""

    def release(self, part: str) -> None:
        """Give up a part."""
        ...


class IndexCache:
    """The parts that are in memory; beyond the limit, the part that was read first is released.

    All stores of a server share one; stores of different threads must not.

    Args:
        bytes_max: how much is held; the newest part is held whatever its size.

    Attributes:
        bytes: how much is held now.
    """

    def __init__(self, bytes_max: int = INDEX_CACHE_BYTES) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        self._held: OrderedDict[tuple[Holder, str], int] = OrderedDict()

    def hold(self, holder: Holder, part: str, size: int) -> None:
        """Note that a part was read and takes this many bytes."""
        self.bytes += size - self._held.pop((holder, part), 0)
        self._held[holder, part] = size
        while self.bytes > self.bytes_max and len(self._held) > 1:
            (oldest, its_part), its_size = self._held.popitem(last=False)
            self.bytes -= its_size
            oldest.release(its_part)

    def forget(self, holder: Holder, parts: tuple[str, ...]) -> None:
        """Count a holder's parts no more: they are gone, or stay in memory for good."""
        for part in parts:
            self.bytes -= self._held.pop((holder, part), 0)
