"""The disk of Windows, where no file is renamed or removed while it is open.

A handle of this disk is a number of its own. The file behind it is closed while its name, or a directory's above it,
changes, and opened again by its new name when the handle is used next. So the store renames and removes what it holds
open, as it does everywhere. A handle of a file that was removed or replaced gives an error from then on.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from jetlake.store.files.disk import RealDisk


@dataclass(eq=False)
class _OpenFile:
    """A file that the store holds open.

    Attributes:
        path: its present name; None when it was removed.
        handle: the system's; None until it is used again.
        lock: held while the system's handle is used or closed.
    """

    path: Path | None
    handle: int | None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def release(self) -> None:
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


class WindowsDisk(RealDisk):
    """`RealDisk` for a system that locks the names of open files. Threads may share it."""

    def __init__(self) -> None:
        self._files: dict[int, _OpenFile] = {}
        self._names = threading.RLock()  # Held while names change, and taken before the locks of files.
        self._last = 0

    def open(self, path: Path, *, create: bool = False) -> int:
        with self._names:
            self._last += 1
            self._files[self._last] = _OpenFile(path, super().open(path, create=create))
            return self._last

    def close(self, handle: int) -> None:
        file = self._file(handle)
        with file.lock:
            del self._files[handle]
            file.release()

    def size(self, handle: int) -> int:
        with self._using(handle) as used:
            return super().size(used)

    def data_size(self, handle: int) -> int:
        with self._using(handle) as used:
            return super().data_size(used)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        with self._using(handle) as used:
            return super().read(used, size, offset)

    def write(self, handle: int, data: bytes, offset: int) -> None:
        with self._using(handle) as used:
            super().write(used, data, offset)

    def truncate(self, handle: int, size: int) -> None:
        with self._using(handle) as used:
            super().truncate(used, size)

    def begin_writeback(self, handle: int, offset: int, size: int) -> None:
        pass  # Windows has no such call.

    def sync(self, handle: int) -> None:
        with self._using(handle) as used:
            super().sync(used)

    def replace(self, source: Path, target: Path) -> None:
        with self._closed(target) as replaced, self._closed(source) as moved:
            super().replace(source, target)
            for file in replaced:
                file.path = None
            for file in moved:
                assert file.path is not None
                file.path = target / file.path.relative_to(source)

    def remove(self, path: Path) -> None:
        with self._closed(path) as removed:
            super().remove(path)
            for file in removed:
                file.path = None

    def _file(self, handle: int) -> _OpenFile:
        try:
            return self._files[handle]
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None

    @contextmanager
    def _using(self, handle: int) -> Iterator[int]:
        file = self._file(handle)
        with file.lock:
            if file.handle is None:
                if file.path is None:
                    raise OSError(errno.ENOENT, "the file was removed")
                file.handle = super().open(file.path)
            yield file.handle

    @contextmanager
    def _closed(self, path: Path) -> Iterator[list[_OpenFile]]:
        """Close this file, or all files in this directory, for as long as the block runs."""
        with self._names, ExitStack() as held:
            found = [
                file for file in list(self._files.values()) if file.path is not None and file.path.is_relative_to(path)
            ]
            for file in found:
                held.enter_context(file.lock)
                file.release()
            yield found
