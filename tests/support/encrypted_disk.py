"""A faulty disk under encryption: the faults happen to the ciphertext, at the places where the store's bytes are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from jetlake.store.files.encrypted_disk import HEADER_BYTES, EncryptedDisk
from tests.support.faulty_disk import FaultyDisk

__all__ = ["EncryptedFaultyDisk"]

KEY = bytes(range(32))
_SECTOR = 512
_OF_PLATTER = ("operations", "cut_at", "capacity", "block_bytes", "fault", "drops_failed_syncs")


class EncryptedFaultyDisk(EncryptedDisk):
    """What `FaultyDisk` is, for tests that know nothing of encryption; capacities are those of the ciphertext.

    Attributes:
        platter: the disk with the ciphertext.
    """

    cipher = "chacha"

    def __init__(self, random: Random) -> None:
        self.platter = FaultyDisk(random)
        super().__init__(self.platter, KEY, self.cipher)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_PLATTER or name in ("used", "files", "open_handles", "_file"):
            return getattr(self.platter, name)
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OF_PLATTER:
            setattr(self.platter, name, value)
        elif name == "bad_sectors":
            self.platter.bad_sectors = {(path, sector + HEADER_BYTES // _SECTOR) for path, sector in value}
        else:
            super().__setattr__(name, value)

    @property
    def bad_sectors(self) -> _BadSectors:
        return _BadSectors(self.platter)

    def kill(self) -> None:
        self.platter.kill()
        self._forget()

    def cut_power(self) -> None:
        self.platter.cut_power()
        self._forget()

    def _forget(self) -> None:
        """Lose what the process knew."""
        self._handles.clear()
        self._headers.clear()
        self._own.clear()

    def flip(self, path: Path, offset: int, mask: int = 0x01) -> None:
        self.platter.flip(path, HEADER_BYTES + offset if offset >= 0 else offset, mask)

    def cut(self, path: Path, size: int) -> None:
        self.platter.cut(path, HEADER_BYTES + size)

    def content(self, path: Path) -> bytes:
        fault, self.platter.fault = self.platter.fault, None
        bad, self.platter.bad_sectors = self.platter.bad_sectors, set()
        handle = self.open(path)
        try:
            data = self.read(handle, self.data_size(handle), 0)
            # The zeros that fill the last block were not written by the store.
            return data[:-15] + data[-15:].rstrip(b"\0")
        finally:
            self.close(handle)
            self.platter.fault, self.platter.bad_sectors = fault, bad

    def put(self, path: Path, data: bytes) -> None:
        self.platter.put(path, b"")
        operations, cut_at = self.platter.operations, self.platter.cut_at
        capacity, fault = self.platter.capacity, self.platter.fault
        self.platter.cut_at = self.platter.capacity = self.platter.fault = None
        handle = self.open(path)
        try:
            self.truncate(handle, 0)
            self.write(handle, data, 0)
            self.sync(handle)
        finally:
            self.close(handle)
            self.platter.operations, self.platter.cut_at = operations, cut_at
            self.platter.capacity, self.platter.fault = capacity, fault


class _BadSectors:
    """The bad sectors by the places that the store knows."""

    def __init__(self, platter: FaultyDisk) -> None:
        self._platter = platter

    def add(self, place: tuple[Path, int]) -> None:
        self._platter.bad_sectors.add((place[0], place[1] + HEADER_BYTES // _SECTOR))

    def clear(self) -> None:
        self._platter.bad_sectors.clear()

    update: Callable[..., None] = lambda self, places: [self.add(place) for place in places] and None
