"""Bytes used and reserved, in memory and on disk, against a limit for each."""

from __future__ import annotations

from collections.abc import Callable

from jetlake.model.enums import StorageType

__all__ = ["UNLIMITED", "StreamUsage", "Usage"]

UNLIMITED = -1


class Usage:
    """Used and reserved bytes of a server or an account, and its limits.

    Args:
        max_memory: bytes in memory; -1 is unlimited.
        max_storage: bytes on disk; -1 is unlimited.
        on_full: called when the limit of a storage is exceeded, once until there is room again.
    """

    def __init__(
        self,
        max_memory: int = UNLIMITED,
        max_storage: int = UNLIMITED,
        on_full: Callable[[StorageType], None] = lambda _storage: None,
    ) -> None:
        self._on_full = on_full
        self.limit_to(max_memory, max_storage)
        self._used = {StorageType.MEMORY: 0, StorageType.FILE: 0}
        self._reserved = {StorageType.MEMORY: 0, StorageType.FILE: 0}

    def limit_to(self, max_memory: int, max_storage: int) -> None:
        """Set the limits; what is used beyond them stays."""
        self._limits = {StorageType.MEMORY: max_memory, StorageType.FILE: max_storage}

    def limit(self, storage: StorageType) -> int:
        """Return the limit in bytes; -1 is unlimited."""
        return self._limits[storage]

    def used(self, storage: StorageType) -> int:
        """Return the bytes that messages take."""
        return self._used[storage]

    def reserved(self, storage: StorageType) -> int:
        """Return the bytes that streams reserve by their `max_bytes`."""
        return self._reserved[storage]

    def add(self, storage: StorageType, count: int) -> None:
        """Add the bytes of stored messages; a negative count subtracts the bytes of removed ones."""
        before = self._used[storage]
        self._used[storage] = before + count
        if before <= self._limits[storage] < before + count and self._limits[storage] >= 0:
            self._on_full(storage)

    def reserve(self, storage: StorageType, count: int) -> None:
        """Add to the reserved bytes; a negative count releases."""
        self._reserved[storage] += count

    def room(self, storage: StorageType) -> int | None:
        """Return the bytes left below the limit, negative when it is exceeded; None without a limit."""
        limit = self._limits[storage]
        return None if limit < 0 else limit - self._used[storage]

    def can_reserve(self, storage: StorageType, count: int) -> bool:
        """Return whether another `count` bytes can be reserved."""
        limit = self._limits[storage]
        return limit < 0 or self._reserved[storage] + count <= limit


class StreamUsage:
    """One stream's share of its account's and its server's usage.

    Args:
        server: the usage of the server.
        account: the usage of the stream's account.
        storage: where the stream keeps its messages.
    """

    def __init__(self, server: Usage, account: Usage, storage: StorageType) -> None:
        self._server = server
        self._account = account
        self._storage = storage
        self._used = 0
        self._reserved = 0

    def set_used(self, count: int) -> None:
        """Set the bytes that the stream's messages take."""
        change = count - self._used
        if change:
            self._used = count
            self._account.add(self._storage, change)
            self._server.add(self._storage, change)

    def set_reserved(self, count: int) -> None:
        """Set the bytes that the stream reserves: its `max_bytes`."""
        change = max(count, 0) - self._reserved
        if change:
            self._reserved += change
            self._account.reserve(self._storage, change)
            self._server.reserve(self._storage, change)

    def release(self) -> None:
        """Use and reserve nothing any more."""
        self.set_used(0)
        self.set_reserved(0)

    def has_room(self, count: int) -> bool:
        """Return whether `count` more bytes fit below the limits of account and server."""
        server, account = self._server.room(self._storage), self._account.room(self._storage)
        return (server is None or server >= count) and (account is None or account >= count)

    @property
    def server_room(self) -> int | None:
        """Bytes left below the server's limit; None without a limit."""
        return self._server.room(self._storage)

    @property
    def account_room(self) -> int | None:
        """Bytes left below the account's limit; None without a limit."""
        return self._account.room(self._storage)
