"""A file of the log: its handle, its bytes in whatever state they are, and the newest of them in memory."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

from jetlake.store.files.disk import Disk

__all__ = ["LogFile", "Tail"]

_PIECE = 4096
_ZEROS_BYTES = 16 * 1024 * 1024


class Tail:
    """The tail of a file in memory: consecutive pieces, the oldest of which are dropped above a size.

    Attributes:
        offsets: where in the file each piece begins.
    """

    __slots__ = ("_pieces", "_size", "offsets")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self._pieces: list[bytes] = []
        self._size = 0

    def keep(self, offset: int, data: bytes, max_bytes: int) -> None:
        """Append what was written at that offset."""
        self._pieces.append(data)
        self.offsets.append(offset)
        self._size += len(data)
        if self._size <= 2 * max_bytes:
            return
        # Many at once: a list is slow to shorten at its front.
        drop = 0
        while self._size > max_bytes and drop < len(self._pieces) - 1:
            self._size -= len(self._pieces[drop])
            drop += 1
        del self._pieces[:drop], self.offsets[:drop]

    def find(self, start: int, end: int) -> tuple[bytes, int] | None:
        """Return bytes that hold those between two offsets, and where they begin; None when they are not in memory."""
        offsets = self.offsets
        if not offsets or start < offsets[0]:
            return None
        place = bisect_right(offsets, start) - 1
        data = self._pieces[place]
        if end <= offsets[place] + len(data):
            return data, offsets[place]
        last = bisect_right(offsets, end - 1)
        return b"".join(self._pieces[place:last]), offsets[place]

    def clear(self) -> None:
        """Drop everything: the next read goes to the disk."""
        self.offsets.clear()
        self._pieces.clear()
        self._size = 0


class LogFile:
    """The file of a segment.

    Attributes:
        disk: where the file is.
        path: the file's name there.
        handle: None while the file is not open.
        tail: the newest written bytes, kept in memory.
    """

    __slots__ = ("disk", "handle", "path", "tail")

    def __init__(self, disk: Disk, path: Path) -> None:
        self.disk = disk
        self.path = path
        self.handle: int | None = None
        self.tail = Tail()

    def create(self) -> None:
        """Open an empty file of this name, unless the file is open."""
        if self.handle is None:
            self.handle = self.disk.open(self.path, create=True)
            self.disk.truncate(self.handle, 0)

    def open(self) -> int:
        """Open the file, unless it is open, and return its handle."""
        if self.handle is None:
            self.handle = self.disk.open(self.path)
        return self.handle

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self.disk.close(handle)

    def write(self, data: bytes, offset: int) -> None:
        """Write at an offset.

        Raises:
            OSError: the disk refused.
        """
        self.disk.write(self.open(), data, offset)

    def read(self, size: int, offset: int) -> bytes:
        """Read so many bytes at an offset, or fewer where the file ends.

        Raises:
            OSError: the disk refused.
        """
        return self.disk.read(self.open(), size, offset)

    def read_all(self, size: int, start: int = 0) -> bytes:
        """Read bytes of the file, with zeros for what the disk does not return.

        Raises:
            OSError: the file cannot even be opened, or the disk gives nothing of it back: it may do so another day.
        """
        handle = self.open()
        try:
            return self.disk.read(handle, size, start)
        except OSError as error:
            pieces = []
            is_readable = False
            for offset in range(start, start + size, _PIECE):
                length = min(_PIECE, start + size - offset)
                try:
                    pieces.append(self.disk.read(handle, length, offset).ljust(length, b"\0"))
                    is_readable = True
                except OSError:
                    pieces.append(bytes(length))
            if not is_readable:
                raise error
            return b"".join(pieces)

    def data_size(self) -> int:
        """Return the file's length without a hole or zeros at its end.

        Raises:
            OSError: the file cannot be opened, or the disk refused.
        """
        handle = self.open()
        size = self.disk.size(handle)
        if size <= _ZEROS_BYTES:
            return size
        end = min(self.disk.data_size(handle) + 8, size)
        while end > 0:
            start = max(end - _ZEROS_BYTES, 0)
            data = self.read_all(end - start, start)
            if data.count(0) < len(data):
                # A record ends with a hash, whose last bytes may be zeros.
                return min(start + len(data.rstrip(b"\0")) + 8, size)
            end = start
        return 0

    def cut(self, size: int) -> None:
        """Cut the file, if it is still there.

        Raises:
            OSError: the disk refused.
        """
        try:
            self.disk.truncate(self.open(), size)
        except FileNotFoundError:
            pass
