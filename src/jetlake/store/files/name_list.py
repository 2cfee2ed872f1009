"""The list of an account's streams, beside their folders, so that a folder that vanished is missed.

On a disk that authenticates, each line ends with a space and the hash of what is before it, in hexadecimal.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

from jetlake.store.files.atomic_file import read_file, replace_file
from jetlake.store.files.disk import Disk

__all__ = ["NameList"]


class NameList:
    """Names of folders in a text file: a line `+NAME` for one that was made, `-NAME` for one that goes.

    A name is added when its folder is safe, and struck off, safely, before the files of the folder go: the line is
    overwritten, which a full disk takes as well. Where the disk refuses to add a name, the folder is not missed when
    it vanishes.

    Attributes:
        damaged_lines: how many lines were not authentic when the file was last read; 0 on a disk that does not
            authenticate, where a torn line is all that can be wrong.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._checksum = disk.hashing.checksum(b"streams", owner=path.parent.name)
        self.damaged_lines = 0
        self._lock = threading.Lock()
        self._names: set[str] = set()
        self._unstruck: set[str] = set()
        """Names that the disk refused to strike off."""
        self._is_torn = False
        """Whether a refused line may be at the end of the file."""

    def read(self) -> set[str]:
        """Return the names that are listed; a torn last line counts for nothing."""
        names: set[str] = set()
        self.damaged_lines = 0
        for line in self._read().split(b"\n")[:-1]:
            if self._checksum.is_keyed:
                signed, _, stored = line.rpartition(b" ")
                is_good = stored == self._checksum.of(signed).hex().encode()
            else:
                signed, is_good = line, True
            name = signed[1:].decode("ascii", "replace")
            if is_good and signed.startswith(b"+"):
                names.add(name)
            elif is_good and signed.startswith(b"-"):
                names.discard(name)
            elif self._checksum.is_keyed:
                self.damaged_lines += 1
        return names

    def _line(self, sign: str, name: str) -> bytes:
        signed = f"{sign}{name}".encode()
        if self._checksum.is_keyed:
            signed += b" " + self._checksum.of(signed).hex().encode()
        return signed + b"\n"

    def _read(self) -> bytes:
        try:
            return read_file(self._disk, self._path)
        except OSError:
            return b""

    def replace(self, names: set[str]) -> None:
        """List these names and no others, safely."""
        data = b"".join(self._line("+", name) for name in sorted(names))
        self._names = set(names)
        with self._lock, suppress(OSError):
            self._unstruck.clear()
            if data != self._read():
                replace_file(self._disk, self._path, data)

    def add(self, name: str) -> None:
        """List a folder that is safe, unless it is listed."""
        if name not in self._names:
            self._names.add(name)
            with self._lock, suppress(OSError):
                self._unstruck.discard(name)
                self._append(self._line("+", name))

    def _append(self, line: bytes) -> None:
        is_torn, self._is_torn = self._is_torn, True
        handle = self._disk.open(self._path, create=True)
        try:
            end = self._read().rfind(b"\n") + 1 if is_torn else self._disk.size(handle)
            self._disk.write(handle, line, end)
        finally:
            self._disk.close(handle)
        self._is_torn = False

    def strike(self, name: str) -> None:
        """Strike off a folder that goes; `sync` makes that safe."""
        if name in self._names:
            self._names.discard(name)
            with self._lock, suppress(OSError):
                self._unstruck.add(name)
                self._strike()

    def _strike(self) -> None:
        """Overwrite each line with a removed name."""
        data = b"\n" + read_file(self._disk, self._path)
        handle = self._disk.open(self._path)
        try:
            for name in self._unstruck:
                line, struck = b"\n" + self._line("+", name), self._line("-", name)
                offset = data.find(line)
                while offset >= 0:
                    self._disk.write(handle, struck, offset)
                    offset = data.find(line, offset + 1)
        finally:
            self._disk.close(handle)
        self._unstruck.clear()

    def sync(self) -> None:
        """Return when the list is safe.

        Raises:
            OSError: the disk refused.
        """
        with self._lock:
            try:
                if self._unstruck:
                    self._strike()
                handle = self._disk.open(self._path)
            except FileNotFoundError:
                self._unstruck.clear()
                return
        try:
            self._disk.sync(handle)
        finally:
            self._disk.close(handle)
