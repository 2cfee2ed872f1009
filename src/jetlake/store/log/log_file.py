"""A file of the log: its handle, its bytes in whatever state they are, and the newest of them in memory."""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from jetlake.store.files.atomic_file import ASIDE_SUFFIX
from jetlake.store.files.disk import Disk
from jetlake.store.log.segment_header import HEADER_SIZE

if TYPE_CHECKING:  # Loaded with the first compressed file, as the library that reads it.
    from jetlake.store.log.compressed_blocks import CompressedBlocks

__all__ = ["SECOND_ASIDE_SUFFIX", "LogFile", "Tail", "table_of"]

SECOND_ASIDE_SUFFIX = f".2{ASIDE_SUFFIX}"
"""Of a file that is compressed or no longer compressed and not in place; a rewrite may have one of its own."""

_COMPRESSED = b"JLCB"

_AHEAD_BYTES = 64 * 1024
_READ_BYTES = 4096
_ZEROS_BYTES = 16 * 1024 * 1024


class Tail:
    """The tail of a file in memory: consecutive chunks, the oldest of which are dropped above a size.

    Attributes:
        offsets: where in the file each chunk begins.
    """

    __slots__ = ("_chunks", "_size", "offsets")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self._chunks: list[bytes] = []
        self._size = 0

    def keep(self, offset: int, data: bytes, max_bytes: int) -> None:
        """Append bytes that were written at an offset."""
        self._chunks.append(data)
        self.offsets.append(offset)
        self._size += len(data)
        if self._size <= 2 * max_bytes:
            return
        # Many at once: a list is slow to shorten at its front.
        drop = 0
        while self._size > max_bytes and drop < len(self._chunks) - 1:
            self._size -= len(self._chunks[drop])
            drop += 1
        del self._chunks[:drop], self.offsets[:drop]

    def find(self, start: int, end: int) -> tuple[bytes, int] | None:
        """Return bytes that hold those between two offsets, and where they begin; None when they are not in memory."""
        offsets = self.offsets
        if not offsets or start < offsets[0]:
            return None
        position = bisect_right(offsets, start) - 1
        data = self._chunks[position]
        if end <= offsets[position] + len(data):
            return data, offsets[position]
        last = bisect_right(offsets, end - 1)
        return b"".join(self._chunks[position:last]), offsets[position]

    def clear(self) -> None:
        """Drop everything: the next read goes to the disk."""
        self.offsets.clear()
        self._chunks.clear()
        self._size = 0


class LogFile:
    """The file of a segment.

    A file may be compressed: it is read as if it were not, and a write makes it uncompressed first.

    Attributes:
        disk: where the file is.
        folder, name: which file there.
        handle: None while the file is not open.
        tail: the newest written bytes, kept in memory.
        blocks: the blocks of a compressed file, while it is open.
        is_plain: whether the file is known not to be compressed; set to False when a compressed file replaces it.
        ahead: the file's length, if zeros follow what is written; 0 when that is not known.
    """

    __slots__ = ("ahead", "blocks", "disk", "folder", "handle", "is_plain", "name", "tail")

    def __init__(self, disk: Disk, folder: Path, name: str) -> None:
        self.disk = disk
        self.folder = folder
        self.name = name
        self.handle: int | None = None
        self.tail = Tail()
        self.blocks: CompressedBlocks | None = None
        self.is_plain = False
        self.ahead = 0

    @property
    def path(self) -> Path:
        """The file's whole name; of thousands of files, few are opened."""
        return self.folder / self.name

    def create(self) -> None:
        """Open an empty file of this name, unless the file is open."""
        if self.handle is None:
            self.handle = self.disk.open(self.path, create=True)
            self.disk.truncate(self.handle, 0)
            self.is_plain = True

    def open(self) -> int:
        """Open the file, unless it is open, and return its handle."""
        if self.handle is None:
            handle = self.disk.open(self.path)
            try:
                self.blocks = None if self.is_plain else table_of(self.disk, handle)
                self.is_plain = self.blocks is None
            except OSError:
                # A compressed file must not be taken for one that is not.
                self.disk.close(handle)
                raise
            self.handle = handle
        return self.handle

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        handle, self.handle = self.handle, None
        self.blocks = None
        if handle is not None:
            self.disk.close(handle)

    def write(self, data: bytes, offset: int) -> None:
        """Write at an offset.

        Raises:
            OSError: the disk refused.
        """
        handle = self.open() if self.handle is None else self.handle
        if self.blocks is not None:
            self._decompress()
            handle = self.open()
        self.disk.write(handle, data, offset)

    def truncate(self, size: int) -> None:
        """Cut an open file.

        Raises:
            OSError: the disk refused.
        """
        self._decompress()
        self.ahead = 0
        self.disk.truncate(self.open(), size)

    def extend(self, size: int, max_bytes: int) -> None:
        """Make an open file longer than the bytes that are written, unless the disk refuses.

        A sync after a write that changes no length has less to do. Nothing is allocated: zeros follow what is written.

        Args:
            size: how much is written.
            max_bytes: the greatest length.
        """
        ahead = min(size + max(_AHEAD_BYTES, size // 4), max_bytes)
        if size < ahead:
            with suppress(OSError):
                self.truncate(ahead)
                self.ahead = ahead

    def cut_zeros(self, size: int) -> None:
        """Roll back what `extend` did, unless the disk refuses."""
        if self.ahead > size:
            with suppress(OSError):
                self.truncate(size)

    def _decompress(self) -> None:
        """Rewrite a compressed file as it was, durably: the next write to it may be acknowledged."""
        if self.blocks is None:
            return
        content = self.read(self.blocks.size, 0)
        aside = self.folder / (self.name + SECOND_ASIDE_SUFFIX)
        handle = self.disk.open(aside, create=True)
        try:
            self.disk.truncate(handle, 0)
            self.disk.write(handle, content, 0)
            self.disk.sync(handle)
        finally:
            self.disk.close(handle)
        self.disk.replace(aside, self.path)
        self.disk.sync_folder(self.folder)
        self.close()

    def read(self, size: int, offset: int) -> bytes:
        """Read this many bytes at an offset, or fewer where the file ends.

        Raises:
            OSError: the disk refused.
        """
        handle = self.handle if self.handle is not None else self.open()
        if self.blocks is not None:
            return self.blocks.read(self.disk, handle, size, offset)
        return self.disk.read(handle, size, offset)

    def read_all(self, size: int, start: int = 0) -> bytes:
        """Read bytes of the file, with zeros for what the disk does not return.

        Raises:
            OSError: the file cannot even be opened, or the disk gives nothing of it back; a later attempt may succeed.
        """
        try:
            return self.read(size, start)
        except OSError as error:
            chunks = []
            is_readable = False
            if self.blocks is not None:
                # What is in memory says nothing of the disk.
                self.blocks.forget()
            for offset in range(start, start + size, _READ_BYTES):
                length = min(_READ_BYTES, start + size - offset)
                try:
                    chunks.append(self.read(length, offset).ljust(length, b"\0"))
                    is_readable = True
                except OSError:
                    chunks.append(bytes(length))
            if not is_readable:
                raise error
            return b"".join(chunks)

    def data_size(self) -> int:
        """Return the file's length without a hole at its end, and of a long file without zeros there.

        Raises:
            OSError: the file cannot be opened, or the disk refused.
        """
        handle = self.open()
        if self.blocks is not None:
            return self.blocks.size
        size = self.disk.size(handle)
        end = min(self.disk.data_size(handle) + 8, size)
        if end <= _ZEROS_BYTES:
            return end
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
            self.open()
            self.truncate(size)
        except FileNotFoundError:
            pass


def table_of(disk: Disk, handle: int) -> CompressedBlocks | None:
    """Return the table of a compressed file; None when the file is not compressed.

    Raises:
        OSError: the disk refused.
    """
    size = disk.size(handle)
    at_end = disk.read(handle, len(_COMPRESSED), max(size - len(_COMPRESSED), 0))
    if at_end != _COMPRESSED and disk.read(handle, len(_COMPRESSED), HEADER_SIZE) != _COMPRESSED:
        return None
    from jetlake.store.log.compressed_blocks import read_table

    return read_table(disk, handle)
