"""The hashes of eight bytes that all files of the store carry: xxh3, or a MAC on a disk that authenticates.

A format asks its disk for the checksum of a purpose, and of a seed that ties its bytes to a stream, a segment or a
place. In a plain store that is seeded xxh3, which detects accidents. In an encrypted store it is keyed BLAKE2b with the
purpose, the seed and the owner in its parameters: bytes that only the holder of the store's key can have written, for
this purpose and no other. A hash that does not match is damage in either store, and is recovered from in one way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from xxhash import xxh3_64, xxh3_64_digest

__all__ = ["PLAIN_HASHING", "Checksum", "Hasher", "Hashing", "KeyedHashing"]

_HASH_BYTES = 8
Data = bytes | bytearray | memoryview


class Hasher(Protocol):
    """A hash over parts."""

    def update(self, data: Data, /) -> None:
        """Hash one more part."""
        ...

    def intdigest(self) -> int:
        """Return the hash of all parts."""
        ...


class Checksum(NamedTuple):
    """The hash of one purpose and seed.

    Attributes:
        digest: takes data and `seed`, and returns eight bytes: loops call it themselves.
        is_keyed: whether nobody without the store's key can compute it.
    """

    digest: Callable[[Any, Any], bytes]
    seed: Any
    is_keyed: bool

    def of(self, data: Data) -> bytes:
        """Return the hash of some bytes."""
        return self.digest(data, self.seed)

    def number(self, data: Data) -> int:
        """Return the hash of some bytes as a number; the bytes of `of` are big-endian."""
        return int.from_bytes(self.digest(data, self.seed), "big")

    def hasher(self) -> Hasher:
        """Return a hasher that computes this hash over parts."""
        return _KeyedHasher(self.seed.copy()) if self.is_keyed else xxh3_64(seed=self.seed)


class Hashing(Protocol):
    """What computes the hashes of a disk's files."""

    def checksum(self, purpose: bytes, seed: int = 0, owner: str = "") -> Checksum:
        """Return the hash for a purpose.

        Args:
            purpose: which part of which file, in at most sixteen bytes; a plain store has one hash for all.
            seed: 64 bits that tie the hash to a stream, a segment or a place in a file.
            owner: whose file it is, where the file itself does not say; a plain store does not hash it.
        """
        ...


class _PlainHashing:
    def checksum(self, purpose: bytes, seed: int = 0, owner: str = "") -> Checksum:
        return Checksum(xxh3_64_digest, seed, False)


PLAIN_HASHING: Hashing = _PlainHashing()
"""Detects accidents."""


class KeyedHashing:
    """Detects accidents and forgeries.

    Args:
        key: 32 bytes, for this and nothing else.
    """

    def __init__(self, key: bytes) -> None:
        from hashlib import blake2b  # It loads OpenSSL, which takes a part of a start.

        self._key = key
        self._blake2b = blake2b

    def checksum(self, purpose: bytes, seed: int = 0, owner: str = "") -> Checksum:
        salt = seed.to_bytes(8, "little")
        if owner:
            salt += self._blake2b(owner.encode(), digest_size=8, key=self._key, person=b"owner").digest()
        begun = self._blake2b(digest_size=_HASH_BYTES, key=self._key, salt=salt, person=purpose)
        return Checksum(_keyed_digest, begun, is_keyed=True)


def _keyed_digest(data: Data, begun: Any) -> bytes:
    # A copy has the key hashed already: half the time of a new one.
    hasher = begun.copy()
    hasher.update(data)
    return bytes(hasher.digest())


class _KeyedHasher:
    def __init__(self, begun: Any) -> None:
        self._hasher = begun
        self.update = begun.update

    def intdigest(self) -> int:
        return int.from_bytes(self._hasher.digest(), "big")
