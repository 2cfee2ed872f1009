"""The files of a tar archive that arrives in pieces."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator

from jetlake.errors import DecodeError

__all__ = ["TarReader"]

_BLOCK = tarfile.BLOCKSIZE
_UNEXPECTED = "unexpected content"
# Records that extend the next file's header, and nothing else.
_EXTENDED_BYTES_MAX = 64 * 1024


class TarReader:
    """Reads regular files, one after the other.

    Args:
        bytes_max: the longest file.

    Attributes:
        is_ended: the archive's end was read.
    """

    def __init__(self, bytes_max: int) -> None:
        self.is_ended = False
        self._bytes_max = bytes_max
        self._waiting = bytearray()
        self._file: tarfile.TarInfo | None = None
        self._records: dict[str, str] = {}

    def feed(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        """Take a piece, and yield name and content of the files that it completes.

        Raises:
            DecodeError: the archive is damaged, or holds something else than regular files.
        """
        if self.is_ended:
            return  # Writers fill the last block up.
        self._waiting += data
        while (content := self._next()) is not None:
            file, self._file = self._file, None
            assert file is not None
            if file.type == tarfile.XHDTYPE:
                self._records = _records_of(content)
            else:
                self._records = {}
                yield file.name, content

    def _next(self) -> bytes | None:
        """Return the content of the next file, header read; None when it is not complete."""
        waiting = self._waiting
        if self._file is None:
            if len(waiting) < _BLOCK:
                return None
            head = bytes(waiting[:_BLOCK])
            del waiting[:_BLOCK]
            if not any(head):
                self.is_ended = True
                waiting.clear()
                return None
            self._file = self._header(head)
        size = self._file.size
        padded = -(-size // _BLOCK) * _BLOCK
        if len(waiting) < padded:
            return None
        content = bytes(waiting[:size])
        del waiting[:padded]
        return content

    def _header(self, head: bytes) -> tarfile.TarInfo:
        try:
            file = tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
            file.name = self._records.get("path", file.name)
            file.size = int(self._records.get("size", file.size))
        except (tarfile.TarError, ValueError) as error:
            raise DecodeError(f"archive/tar: invalid tar header: {error}") from None
        extends = file.type == tarfile.XHDTYPE
        if not (extends or file.isreg()) or not _stays_inside(file.name):
            raise DecodeError(_UNEXPECTED)
        if not 0 <= file.size <= (_EXTENDED_BYTES_MAX if extends else self._bytes_max):
            raise DecodeError(f"{file.name[:100]} is too large")
        return file


def _stays_inside(name: str) -> bool:
    return bool(name) and not name.startswith("/") and "\\" not in name and ".." not in name.split("/")


def _records_of(content: bytes) -> dict[str, str]:
    """Return the records of an extended header: `<length> <key>=<value>` a line."""
    records: dict[str, str] = {}
    while content:
        length, _, _ = content.partition(b" ")
        if not length.isdigit() or not len(length) < int(length) <= len(content):
            raise DecodeError("archive/tar: invalid tar header")
        key, _, value = content[len(length) + 1 : int(length) - 1].partition(b"=")
        records[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        content = content[int(length) :]
    return records
