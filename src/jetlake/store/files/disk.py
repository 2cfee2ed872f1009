"""What the store asks of a disk, and the real one."""

from __future__ import annotations

import errno
import os
import stat
from enum import Enum
from pathlib import Path
from typing import Protocol

from jetlake import platform
from jetlake.store.files.checksum import PLAIN_HASHING, Hashing

__all__ = ["NO_ROOM", "Disk", "Kind", "RealDisk"]

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""The errors of a disk that is full."""

_FILE_MODE = 0o600
_FOLDER_MODE = 0o700


class Kind(Enum):
    """What a name in a folder stands for; a symbolic link is something else, whatever it points to."""

    FILE = 1
    FOLDER = 2
    OTHER = 3


class Disk(Protocol):
    """Files by handle, folders by path. Every method raises `OSError` when the disk refuses.

    A write may be lost or torn by a power cut until `sync` has returned for its file, and a new, renamed or removed
    name until `sync_folder` has returned for its folder.
    """

    @property
    def hashing(self) -> Hashing:
        """What computes the hashes in the disk's files."""
        ...

    def open(self, path: Path, *, create: bool = False) -> int:
        """Return a handle of a file, never of a link, for reading and writing; for reading on a read-only disk."""
        ...

    def close(self, handle: int) -> None:
        """Give the handle back."""
        ...

    def size(self, handle: int) -> int:
        """Return how long the file is."""
        ...

    def data_size(self, handle: int) -> int:
        """Return the length of the file without an unwritten hole at its end."""
        ...

    def read(self, handle: int, size: int, offset: int) -> bytes:
        """This many bytes from there; fewer only at the end of the file."""
        ...

    def write(self, handle: int, data: bytes, offset: int) -> None:
        """Write all of it there. After an error any part of it may have been written."""
        ...

    def truncate(self, handle: int, size: int) -> None:
        """Cut the file."""
        ...

    def begin_writeback(self, handle: int, offset: int, size: int) -> None:
        """Begin to make this many bytes safe, which only `sync` promises: one that follows has less to wait for.

        What is refused here may be lost, and unknown to the next `sync`.
        """
        ...

    def sync(self, handle: int) -> None:
        """Return when all that was written to the file is safe."""
        ...

    def sync_folder(self, path: Path) -> None:
        """Return when the names in the folder are safe."""
        ...

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file or folder; an existing file is replaced."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file; one that is not there is no error."""
        ...

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        ...

    def make_folder(self, path: Path) -> None:
        """Make a folder and those above it, all of them safe when this returns; one that is there is no error."""
        ...

    def add_folder(self, path: Path) -> None:
        """Make a folder in one that is there; it is safe when that one is synced."""
        ...

    def names(self, path: Path) -> list[str]:
        """Return the names in a folder, in order; none when there is no such folder."""
        ...

    def kinds(self, path: Path) -> dict[str, Kind]:
        """Return the names in a folder, in order, and what each of them is; none when there is no such folder."""
        ...

    def is_folder(self, path: Path) -> bool:
        """Return whether there is a folder of that name; a symbolic link to one is none."""
        ...

    def is_file(self, path: Path) -> bool:
        """Return whether there is a plain file of that name; a symbolic link to one is none."""
        ...


class RealDisk:
    """The operating system's disk. Files are made for their owner alone."""

    hashing: Hashing = PLAIN_HASHING

    def open(self, path: Path, *, create: bool = False) -> int:
        if create:
            handle = os.open(path, platform.OPEN_FLAGS | os.O_RDWR | os.O_CREAT, _FILE_MODE)
        else:
            try:
                handle = os.open(path, platform.OPEN_FLAGS | os.O_RDWR)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise
                handle = os.open(path, platform.OPEN_FLAGS | os.O_RDONLY)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "not a plain file", str(path))
        return handle

    def close(self, handle: int) -> None:
        os.close(handle)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def data_size(self, handle: int) -> int:
        return platform.data_size(handle)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        data = platform.read_at(handle, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        while size > (got := sum(map(len, parts))):
            data = platform.read_at(handle, size - got, offset + got)
            if not data:
                break
            parts.append(data)
        return b"".join(parts)

    def write(self, handle: int, data: bytes, offset: int) -> None:
        try:
            written = platform.write_at(handle, data, offset)
        except OSError as error:
            raise platform.refused_write(handle, error) from None
        if written == len(data):
            return
        view = memoryview(data)
        while written < len(data):
            written += platform.write_at(handle, view[written:], offset + written)

    def truncate(self, handle: int, size: int) -> None:
        try:
            os.ftruncate(handle, size)
        except OSError as error:
            raise platform.refused_write(handle, error) from None

    def begin_writeback(self, handle: int, offset: int, size: int) -> None:
        platform.begin_writeback(handle, offset, size)

    def sync(self, handle: int) -> None:
        platform.sync_data(handle)

    def sync_folder(self, path: Path) -> None:
        platform.sync_directory(path)

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        path.rmdir()

    def make_folder(self, path: Path) -> None:
        missing = [path]
        while not missing[-1].parent.is_dir():
            missing.append(missing[-1].parent)
        for folder in reversed(missing):
            folder.mkdir(mode=_FOLDER_MODE, exist_ok=True)
            # What is synced inside a folder is lost all the same when the folder's own name is not safe.
            self.sync_folder(folder.parent)
        if not self.is_folder(path):
            raise NotADirectoryError(errno.ENOTDIR, "a symbolic link, which the store does not follow", str(path))

    def add_folder(self, path: Path) -> None:
        path.mkdir(mode=_FOLDER_MODE)

    def names(self, path: Path) -> list[str]:
        try:
            with os.scandir(path) as entries:
                return sorted(entry.name for entry in entries)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def kinds(self, path: Path) -> dict[str, Kind]:
        try:
            with os.scandir(path) as entries:
                return dict(sorted([(entry.name, _kind(entry)) for entry in entries]))
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def is_folder(self, path: Path) -> bool:
        return stat.S_ISDIR(_mode(path))

    def is_file(self, path: Path) -> bool:
        return stat.S_ISREG(_mode(path))


def _kind(entry: os.DirEntry[str]) -> Kind:
    if entry.is_file(follow_symlinks=False):
        return Kind.FILE
    return Kind.FOLDER if entry.is_dir(follow_symlinks=False) else Kind.OTHER


def _mode(path: Path) -> int:
    """Return what lies at the path itself, whatever it may point to; 0 when nothing does."""
    try:
        return path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
