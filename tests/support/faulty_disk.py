"""A disk in memory that does what disks do on a bad day: it forgets what was not synced, tears, flips, fills up, fails.

Everything it decides comes from the random numbers it is given, so that a seed replays a bad day exactly.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

from jetlake.store.files.checksum import PLAIN_HASHING
from jetlake.store.files.disk import Kind

__all__ = ["FaultyDisk", "PowerCut"]

_SECTOR = 512


class PowerCut(BaseException):
    """The power went in the middle of an operation; nothing in the process should survive it."""


class _File:
    """The bytes of a file as they are now, as they are safe, and the writes in between."""

    __slots__ = ("data", "end", "safe", "writes")

    def __init__(self) -> None:
        self.data = bytearray()
        self.end = 0
        """Behind the last byte that was written; a hole follows."""
        self.safe = bytearray()
        self.writes: list[tuple[int, bytes | None]] = []
        """Not synced: where and what; None stands for a cut at that place."""


class _Folder:
    """The names in a folder as they are now, as they are safe, and the changes in between, in their order.

    A change has each name's new file or folder, or None for a name that goes.
    """

    __slots__ = ("changes", "names", "safe")

    def __init__(self) -> None:
        self.names: dict[str, _File | _Folder] = {}
        self.safe: dict[str, _File | _Folder] = {}
        self.changes: list[dict[str, _File | _Folder | None]] = []

    def change(self, change: dict[str, _File | _Folder | None]) -> None:
        """Change names, which a power cut may undo."""
        _rename(self.names, change)
        self.changes.append(change)

    def sync(self, count: int | None = None) -> None:
        """Make the first so many changes safe, or all."""
        for change in self.changes[:count]:
            _rename(self.safe, change)
        self.changes.clear()


_Node = _File | _Folder


class FaultyDisk:
    """A `Disk` whose faults are set from outside.

    Attributes:
        operations: how many changes were asked of it so far.
        cut_at: the number of the change in which the power goes; None for never.
        capacity: how many bytes it takes before it is full; None for any number.
        block_bytes: what a file takes of the capacity is a multiple of this.
        fault: asked before every operation, with its name and its path; raises `OSError` to make it fail.
        drops_failed_syncs: whether a failed sync may drop what was written before it, although it can still be read.
        bad_sectors: places, as (path, sector), that cannot be read.
    """

    hashing = PLAIN_HASHING

    def __init__(self, random: Random) -> None:
        self.operations = 0
        self.cut_at: int | None = None
        self.capacity: int | None = None
        self.block_bytes = 1
        self.fault: Callable[[str, Path], None] | None = None
        self.drops_failed_syncs = False
        self.bad_sectors: set[tuple[Path, int]] = set()
        self._random = random
        self._root = _Folder()
        self._handles: dict[int, tuple[_File, Path]] = {}
        self._next_handle = 1000

    # Files

    def open(self, path: Path, *, create: bool = False) -> int:
        self._before("open", path)
        node = self._node(path)
        if node is None:
            if not create:
                raise _error(errno.ENOENT, path)
            self._before("create", path)
            self._change("create", path)
            node = _File()
            self._folder(path.parent).change({path.name: node})
        if isinstance(node, _Folder):
            raise _error(errno.EISDIR, path)
        self._next_handle += 1
        self._handles[self._next_handle] = (node, path)
        return self._next_handle

    def close(self, handle: int) -> None:
        self._file(handle)
        del self._handles[handle]

    def size(self, handle: int) -> int:
        return len(self._file(handle)[0].data)

    def data_size(self, handle: int) -> int:
        return self._file(handle)[0].end

    def read(self, handle: int, size: int, offset: int) -> bytes:
        file, path = self._file(handle)
        self._before("read", path)
        if self.bad_sectors:
            for sector in range(offset // _SECTOR, (offset + max(size, 1) - 1) // _SECTOR + 1):
                if (path, sector) in self.bad_sectors:
                    raise _error(errno.EIO, path)
        return bytes(file.data[offset : offset + size])

    def write(self, handle: int, data: bytes, offset: int) -> None:
        file, path = self._file(handle)
        self._before("write", path)
        if self.capacity is not None:
            room = self.capacity - self.used() + self._in_blocks(file.end) - file.end
            growth = max(offset + len(data) - file.end, 0)
            if growth > room:
                # A full disk takes what it can, then refuses.
                self._put(file, offset, data[: max(len(data) - growth + max(room, 0), 0)])
                raise _error(errno.ENOSPC, path)
        self._change("write", path, lambda: self._put(file, offset, data[: self._random.randint(0, len(data))]))
        self._put(file, offset, data)

    def used(self) -> int:
        """Return how much of its capacity all files take."""
        return sum(self._in_blocks(file.end) for file in self._files().values())

    def _in_blocks(self, size: int) -> int:
        return -(-size // self.block_bytes) * self.block_bytes

    def _put(self, file: _File, offset: int, data: bytes) -> None:
        if data:
            file.writes.append((offset, data))
            _apply(file.data, offset, data)
            file.end = max(file.end, offset + len(data))

    def truncate(self, handle: int, size: int) -> None:
        file, path = self._file(handle)
        self._before("truncate", path)
        self._change("truncate", path)
        file.writes.append((size, None))
        _apply(file.data, size, None)
        file.end = min(file.end, size)

    def begin_writeback(self, handle: int, offset: int, size: int) -> None:
        file, path = self._file(handle)
        self._before_writing("writeback", file, path)

    def sync(self, handle: int) -> None:
        file, path = self._file(handle)
        self._before_writing("sync", file, path)
        self._change("sync", path)
        for offset, written in file.writes:
            _apply(file.safe, offset, written)
        file.writes.clear()

    def _before_writing(self, operation: str, file: _File, path: Path) -> None:
        try:
            self._before(operation, path)
        except OSError:
            # A system that could not write drops what it held, and knows nothing of it at the next sync.
            if self.drops_failed_syncs and self._random.random() < 0.5:
                file.writes.clear()
            raise

    # Names

    def sync_folder(self, path: Path) -> None:
        self._before("sync_folder", path)
        self._change("sync_folder", path)
        self._folder(path).sync()

    def replace(self, source: Path, target: Path) -> None:
        self._before("replace", source)
        self._change("replace", source)
        node = self._node(source)
        if node is None:
            raise _error(errno.ENOENT, source)
        if source.parent == target.parent:
            self._folder(source.parent).change({source.name: None, target.name: node})
        else:
            self._folder(target.parent).change({target.name: node})
            self._folder(source.parent).change({source.name: None})

    def remove(self, path: Path) -> None:
        self._before("remove", path)
        if self._node(path) is not None:
            self._change("remove", path)
            self._folder(path.parent).change({path.name: None})

    def remove_folder(self, path: Path) -> None:
        self._before("remove_folder", path)
        self._change("remove_folder", path)
        if self._folder(path).names:
            raise _error(errno.ENOTEMPTY, path)
        self._folder(path.parent).change({path.name: None})

    def make_folder(self, path: Path) -> None:
        self._before("make_folder", path)
        for folder in (*reversed(path.parents), path):
            if self._node(folder) is None:
                self._change("make_folder", folder)
                self._folder(folder.parent).change({folder.name: _Folder()})
                self._folder(folder.parent).sync()

    def add_folder(self, path: Path) -> None:
        self._before("add_folder", path)
        self._change("add_folder", path)
        if self._node(path) is not None:
            raise _error(errno.EEXIST, path)
        self._folder(path.parent).change({path.name: _Folder()})

    def names(self, path: Path) -> list[str]:
        self._before("names", path)
        node = self._node(path)
        return sorted(node.names) if isinstance(node, _Folder) else []

    def kinds(self, path: Path) -> dict[str, Kind]:
        self._before("names", path)
        node = self._node(path)
        if not isinstance(node, _Folder):
            return {}
        return {name: Kind.FILE if isinstance(node.names[name], _File) else Kind.FOLDER for name in sorted(node.names)}

    def is_folder(self, path: Path) -> bool:
        return isinstance(self._node(path), _Folder)

    def is_file(self, path: Path) -> bool:
        return isinstance(self._node(path), _File)

    # Bad days

    def kill(self) -> None:
        """The process is gone, the machine runs on: all that was written is there."""
        self._handles.clear()
        self.cut_at = None

    def cut_power(self) -> None:
        """Keep what was synced, and of everything else what chance leaves."""
        self._handles.clear()
        self.cut_at = None
        folders = [self._root]
        for folder in folders:
            folder.sync(self._random.randint(0, len(folder.changes)))
            folder.names = dict(folder.safe)
            for node in folder.names.values():
                if isinstance(node, _Folder):
                    folders.append(node)
                else:
                    self._forget_writes(node)

    def _forget_writes(self, file: _File) -> None:
        """Each write that was not synced is there, torn, or not; the disk may have taken them in any order."""
        random = self._random
        data = bytearray(file.safe)
        style = random.random()
        for offset, written in file.writes:
            if written is None:
                if random.random() < 0.5:
                    _apply(data, offset, None)
            elif style < 0.25 or random.random() < 0.5:
                _apply(data, offset, written)
            elif random.random() < 0.5:
                self._tear(data, offset, written)
        file.data = data
        file.end = len(data)  # Not every file system knows its holes.
        file.safe = bytearray(data)
        file.writes.clear()

    def _tear(self, data: bytearray, offset: int, written: bytes) -> None:
        """Some sectors of a write arrived."""
        at = 0
        while at < len(written):
            stop = min(len(written), at + _SECTOR - (offset + at) % _SECTOR)
            if self._random.random() < 0.5:
                _apply(data, offset + at, written[at:stop])
            at = stop

    def flip(self, path: Path, offset: int, mask: int = 0x01) -> None:
        """Flip bits of a byte, on the platter."""
        file = self._file_at(path)
        file.data[offset] ^= mask
        if offset < len(file.safe):
            file.safe[offset] ^= mask

    def cut(self, path: Path, size: int) -> None:
        """Shorten a file, as somebody with an editor might."""
        file = self._file_at(path)
        del file.data[size:]
        file.end = min(file.end, size)
        del file.safe[size:]

    def content(self, path: Path) -> bytes:
        """What a file holds now, without a hole at its end."""
        file = self._file_at(path)
        return bytes(file.data[: file.end])

    def put(self, path: Path, data: bytes) -> None:
        """Give a file this content, safely."""
        file = self._node(path)
        if not isinstance(file, _File):
            file = _File()
            folder = self._folder(path.parent)
            folder.names[path.name] = folder.safe[path.name] = file
        file.data = bytearray(data)
        file.end = len(data)
        file.safe = bytearray(data)
        file.writes.clear()

    def files(self) -> list[Path]:
        """All files, in order."""
        return sorted(self._files())

    def open_handles(self) -> int:
        """How many handles were not given back."""
        return len(self._handles)

    # Inside

    def _file(self, handle: int) -> tuple[_File, Path]:
        found = self._handles.get(handle)
        if found is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return found

    def _file_at(self, path: Path) -> _File:
        node = self._node(path)
        if not isinstance(node, _File):
            raise _error(errno.ENOENT, path)
        return node

    def _node(self, path: Path) -> _Node | None:
        node: _Node | None = self._root
        for name in path.parts[1:]:
            node = node.names.get(name) if isinstance(node, _Folder) else None
        return node

    def _folder(self, path: Path) -> _Folder:
        node = self._node(path)
        if not isinstance(node, _Folder):
            raise _error(errno.ENOENT, path)
        return node

    def _files(self) -> dict[Path, _File]:
        files: dict[Path, _File] = {}
        folders = [(Path("/"), self._root)]
        for path, folder in folders:
            for name, node in folder.names.items():
                if isinstance(node, _Folder):
                    folders.append((path / name, node))
                else:
                    files[path / name] = node
        return files

    def _before(self, operation: str, path: Path) -> None:
        if self.fault is not None:
            self.fault(operation, path)

    def _change(self, operation: str, path: Path, half: Callable[[], None] | None = None) -> None:
        """Count a change; the power may go in the middle of it, when perhaps half of it was done."""
        self.operations += 1
        if self.operations == self.cut_at:
            if half is not None:
                half()
            raise PowerCut(f"{operation} {path}")


def _apply(data: bytearray, offset: int, written: bytes | None) -> None:
    if written is None:
        del data[offset:]
        data.extend(bytes(offset - len(data)))
        return
    if offset > len(data):
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(written)] = written


def _rename(names: dict[str, _Node], change: dict[str, _Node | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
