"""Bytes in use and set aside, in memory and on disk, against a limit for each."""

from __future__ import annotations

from jetlake.model.enums import StorageType

__all__ = ["UNLIMITED", "Usage"]

UNLIMITED = -1


class Usage:
    """What a server or an account holds and may hold.

    Args:
        max_memory: bytes in memory; -1 is unlimited.
        max_storage: bytes on disk; -1 is unlimited.
    """

    def __init__(self, max_memory: int = UNLIMITED, max_storage: int = UNLIMITED) -> None:
        self._limits = {StorageType.MEMORY: max_memory, StorageType.FILE: max_storage}
        self._used = {StorageType.MEMORY: 0, StorageType.FILE: 0}
        self._reserved = {StorageType.MEMORY: 0, StorageType.FILE: 0}

    def limit(self, storage: StorageType) -> int:
        """The most bytes; -1 is unlimited."""
        return self._limits[storage]

    def used(self, storage: StorageType) -> int:
        """Bytes that messages take."""
        return self._used[storage]

    def reserved(self, storage: StorageType) -> int:
        """Bytes that streams have set aside by their `max_bytes`."""
        return self._reserved[storage]

    def add(self, storage: StorageType, count: int) -> None:
        """Messages came (or went, when negative)."""
        self._used[storage] += count

    def reserve(self, storage: StorageType, count: int) -> None:
        """A stream with `max_bytes` came (or went, when negative)."""
        self._reserved[storage] += count

    def room(self, storage: StorageType) -> int | None:
        """Bytes until the limit, negative beyond it; None when there is no limit."""
        limit = self._limits[storage]
        return None if limit < 0 else limit - self._used[storage]

    def can_reserve(self, storage: StorageType, count: int) -> bool:
        """Whether another `count` bytes can be set aside."""
        limit = self._limits[storage]
        return limit < 0 or self._reserved[storage] + count <= limit
