"""The list of an account's streams, beside their folders, so that a folder that vanished is missed."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

from jetlake.store.files.atomic_file import read_file, replace_file
from jetlake.store.files.disk import Disk

__all__ = ["NameList"]


class NameList:
    """Names of folders in a text file: a line `+NAME` for one that was made, `-NAME` for one that goes.

    A name is added when its folder is safe, and struck off, safely, before the files of the folder go. The store does
    not depend on the list: where the disk refuses, a folder that vanishes is not missed.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._lock = threading.Lock()
        self._names: set[str] = set()

    def read(self) -> set[str]:
        """Return the names that are listed; a torn last line counts for nothing."""
        names: set[str] = set()
        for line in self._read().split(b"\n")[:-1]:
            name = line[1:].decode("ascii", "replace")
            if line.startswith(b"+"):
                names.add(name)
            elif line.startswith(b"-"):
                names.discard(name)
        return names

    def _read(self) -> bytes:
        try:
            return read_file(self._disk, self._path)
        except OSError:
            return b""

    def replace(self, names: set[str]) -> None:
        """List these names and no others, safely."""
        data = "".join(f"+{name}\n" for name in sorted(names)).encode()
        self._names = set(names)
        with self._lock, suppress(OSError):
            if data != self._read():
                replace_file(self._disk, self._path, data)

    def add(self, name: str) -> None:
        """List a folder that is safe, unless it is listed."""
        if name not in self._names:
            self._names.add(name)
            self._append(f"+{name}\n")

    def strike(self, name: str) -> None:
        """Strike off a folder that goes; `sync` makes that safe."""
        if name in self._names:
            self._names.discard(name)
            self._append(f"-{name}\n")

    def _append(self, line: str) -> None:
        with self._lock, suppress(OSError):
            handle = self._disk.open(self._path, create=True)
            try:
                self._disk.write(handle, line.encode(), self._disk.size(handle))
            finally:
                self._disk.close(handle)

    def sync(self) -> None:
        """Return when the list is safe.

        Raises:
            OSError: the disk refused.
        """
        try:
            handle = self._disk.open(self._path)
        except FileNotFoundError:
            return
        try:
            self._disk.sync(handle)
        finally:
            self._disk.close(handle)
