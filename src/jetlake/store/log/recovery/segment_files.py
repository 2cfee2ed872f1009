"""Which files in a store's folder are segments of its log: by name, by header, and by the list of segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from jetlake.errors import StoreError
from jetlake.store.files.disk import Disk
from jetlake.store.files.own_files import format_names
from jetlake.store.log.durability import Mark
from jetlake.store.log.segment import LogFile, table_of
from jetlake.store.log.segment_header import HEADER_SIZE, SegmentHeader, segment_name, segment_number
from jetlake.store.log.segment_list import Listed

__all__ = ["SegmentFile", "SegmentFiles", "data_size", "find_segments"]

_ZEROS_BYTES = 16 * 1024 * 1024

# A crash leaves no longer one that was never written.
_UNWRITTEN_BYTES_MAX = 1024 * 1024


class SegmentFile(msgspec.Struct):
    """A segment's file before it is read.

    Attributes:
        size: of a compressed one, how long it is uncompressed.
        header: None when it is damaged.
        is_plain: whether it is known not to be compressed.
        is_unwritten: whether there is no more than the beginning of a header and zeros, as a crash leaves it.
        is_refused: whether the disk did not return the header.
    """

    number: int
    name: str
    size: int
    header: SegmentHeader | None
    is_plain: bool = False
    is_unwritten: bool = False
    is_refused: bool = False


class SegmentFiles(msgspec.Struct):
    """The files found.

    Attributes:
        key: the stream's, 0 when nothing tells it.
        own: the stream's files by the numbers of their segments, which are not always those in their names.
        numbers: those in the names of all files, whosever they are.
        mark: of the stream; an empty one when the file is another stream's.
    """

    key: int
    own: dict[int, SegmentFile]
    numbers: set[int]
    mark: Mark


def find_segments(
    disk: Disk, folder: Path, names: list[str], mark: Mark, listed: Listed | None, note: Callable[[str], None]
) -> SegmentFiles:
    """Look at every file with a segment's name; what is not the stream's is left alone and named.

    Args:
        names: all plain files in the folder.
        note: logs files that are another's or have a wrong name.

    Raises:
        OSError: a file is there and the disk does not let it be opened.
        StoreError: the list and the files are of different streams, a listed segment is no plain file, or the disk
            returns nothing that tells whose the files are.
    """
    numbers = sorted(number for name in names if (number := segment_number(name)) is not None)
    if listed is not None:
        _check_listed(disk, folder, numbers, listed)
    files = [file for number in numbers if (file := _look_at(disk, folder, number)) is not None]
    keys = Counter(file.header.key for file in files if file.header is not None)
    if mark.key:
        keys[mark.key] += 1
    key = listed.key if listed is not None else max(keys, key=lambda each: (keys[each], each == mark.key), default=0)
    if not key and any(file.is_refused for file in files):
        raise StoreError(f"read what is in {folder}", "the disk does not tell whose the segments are")
    if keys and key not in keys:
        raise StoreError(f"read what is in {folder}", "it is another stream's: none of it fits the list of segments")
    if mark.key not in (key, 0):
        note(f"{folder / 'mark'} is another stream's, and is rewritten")
        mark = Mark()
    own, foreign = _sort_out(files, key, folder, note)
    if foreign:
        note(f"{folder} holds segments that are not the stream's, and leaves them alone: {format_names(foreign)}")
    return SegmentFiles(key, own, set(numbers), mark)


def _check_listed(disk: Disk, folder: Path, numbers: list[int], listed: Listed) -> None:
    absent = listed.segments.keys() - set(numbers)
    names = set(disk.names(folder)) if absent else set()
    for number in absent:
        if segment_name(number) in names:
            raise StoreError(f"read {folder / segment_name(number)}", "it is not a plain file, although it was one")


def _look_at(disk: Disk, folder: Path, number: int) -> SegmentFile | None:
    name = segment_name(number)
    try:
        handle = disk.open(folder / name)
    except FileNotFoundError:
        return None
    try:
        table = table_of(disk, handle)
        size = table.size if table is not None else disk.size(handle)
        data = disk.read(handle, HEADER_SIZE, 0)
        header = SegmentHeader.unpack(data, disk.hashing)
        is_unwritten = header is None and _is_unwritten(disk, handle, size)
        return SegmentFile(number, name, size, header, table is None, is_unwritten)
    except OSError:
        return SegmentFile(number, name, 0, None, is_refused=True)
    finally:
        disk.close(handle)


def _is_unwritten(disk: Disk, handle: int, size: int) -> bool:
    """Return whether a file has no more than the beginning of a header, and perhaps zeros behind it."""
    if size > _UNWRITTEN_BYTES_MAX:
        return False
    data = disk.read(handle, size, 0).rstrip(b"\0")
    return len(data) < HEADER_SIZE and SegmentHeader.begins_with(data)


def _sort_out(
    files: list[SegmentFile], key: int, folder: Path, note: Callable[[str], None]
) -> tuple[dict[int, SegmentFile], list[str]]:
    """Give the stream's files by number, and the names of others; a damaged header leaves it to the records to tell."""
    own: dict[int, SegmentFile] = {}
    foreign: list[str] = []
    elsewhere: list[SegmentFile] = []
    for file in files:
        if file.header is None or (file.header.key, file.header.number) == (key, file.number):
            own[file.number] = file
        elif file.header.key == key:
            elsewhere.append(file)
        else:
            foreign.append(file.name)
    for file in elsewhere:
        assert file.header is not None
        if file.header.number in own:
            foreign.append(file.name)
        else:
            note(f"{folder / file.name} is segment {file.header.number} of its stream under a wrong name; it is used")
            own[file.header.number] = file
    return own, foreign


def data_size(file: LogFile) -> int:
    """Return a file's length without a hole at its end, and of a long file without zeros there.

    Raises:
        OSError: the file cannot be opened, or the disk refused.
    """
    disk, handle = file.disk, file.open()
    if file.blocks is not None:
        return file.blocks.size
    size = disk.size(handle)
    end = min(disk.data_size(handle) + 8, size)
    if end <= _ZEROS_BYTES:
        return end
    while end > 0:
        start = max(end - _ZEROS_BYTES, 0)
        data = file.read_all(end - start, start)
        if data.count(0) < len(data):
            # A record ends with a hash, whose last bytes may be zeros.
            return min(start + len(data.rstrip(b"\0")) + 8, size)
        end = start
    return 0
