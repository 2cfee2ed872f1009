"""The replay of the redo log: a start writes to segments what they lack of it, before anybody opens them.

The reasons are in decision 26 (docs/decisions).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from jetlake.errors import StoreError
from jetlake.store.files.checksum import Checksum
from jetlake.store.files.disk import Disk
from jetlake.store.log.durability import MARK_NAME, Mark, MarkFile
from jetlake.store.log.record import checksum_of, unpack
from jetlake.store.log.scan import scan
from jetlake.store.log.segment import table_of
from jetlake.store.log.segment_header import HEADER_SIZE, SegmentHeader, segment_name
from jetlake.store.redo.redo_format import (
    FORMAT_VERSION,
    Header,
    RedoPart,
    find_entries,
    find_header,
    is_shortened,
    is_unused,
    newer_version,
    unpack_parts,
)
from jetlake.store.redo.redo_log import FILE_BYTES, FILE_NAMES, MADE_NAME, unmark

__all__ = ["replay"]

_DAMAGED_SUFFIX = ".damaged"
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


def replay(disk: Disk, folder: Path, report: Callable[[str], None]) -> frozenset[str]:
    """Write what the redo log has to the segments that lack it, make it safe, and remove the redo log.

    A crash in the middle does no harm: the next start begins again. A damaged file is set aside. Where the disk refuses
    a segment, another attempt follows once a file no longer needed has made room, otherwise with the next start.

    Args:
        folder: the server's; no store of it is open.
        report: logs what may be lost.

    Returns:
        The folders of stores that lack something and must not be opened: their sequences would be used again.

    Raises:
        StoreError: a later release wrote the redo log. Nothing was changed.
    """
    _refuse_newer(disk, folder)
    _report_missing(disk, folder, report)
    while names := [name for name in FILE_NAMES if name in disk.names(folder)]:
        behind, refusals = _replay_files(disk, folder, names, report)
        if not refusals or set(names) <= set(disk.names(folder)):
            for refusal in refusals:
                report(refusal)
            return behind
    return frozenset()


def _refuse_newer(disk: Disk, folder: Path) -> None:
    """Refuse a redo log that holds acknowledged messages in a form that only a later release knows."""
    names = disk.names(folder)
    for path in (folder / name for name in FILE_NAMES if name in names):
        try:
            data = _read(disk, path)
        except OSError:
            continue  # It is reported below.
        if version := newer_version(data or b""):
            raise StoreError(
                f"read {path}",
                f"it has version {version}, and this release knows up to {FORMAT_VERSION}: start the release that "
                "wrote it, or a later one",
            )


def _report_missing(disk: Disk, folder: Path, report: Callable[[str], None]) -> None:
    """Report missing files."""
    names = disk.names(folder)
    missing = [name for name in FILE_NAMES if name not in names] if MADE_NAME in names else []
    for name in missing:
        report(f"{folder / name}: acknowledged messages may be lost, the file of the redo log is gone")
    if missing:
        with suppress(OSError):  # Otherwise it is reported again.
            unmark(disk, folder)


def _replay_files(
    disk: Disk, folder: Path, names: list[str], report: Callable[[str], None]
) -> tuple[frozenset[str], list[str]]:
    """Replay these files; the folders of stores that lack something, and what the disk refused."""
    damaged: set[str] = set()
    needed: set[str] = set()
    behind: set[str] = set()
    refusals: list[str] = []

    def refuse(name: str, reason: object) -> None:
        damaged.add(name)
        report(f"{folder / name}: acknowledged messages may be lost, {reason}")

    contents = {}
    for name in names:
        try:
            data = _read(disk, folder / name)
        except OSError as error:
            refuse(name, f"the redo log cannot be read: {error}")
            continue
        header = find_header(data) if data is not None else None
        if fault := _fault_of(data, header):
            refuse(name, fault)
        if data is not None and header is not None:
            contents[header.turn] = (name, *find_entries(data, header.salt))
    for _, (name, bodies, damaged_bytes) in sorted(contents.items()):
        if damaged_bytes:
            refuse(name, f"{damaged_bytes} bytes of the redo log are damaged")
        for store, parts in _by_segment(bodies).items():
            try:
                _replay_segment(disk, folder, parts)
            except OSError as error:
                needed.add(name)
                if error.errno not in _READ_ONLY:  # A read-only store can be read as it is.
                    behind.add(parts[0].folder)
                refusals.append(f"{folder / name}: what the redo log has of {store} waits for the next start: {error}")
    try:
        if set(names) - needed:
            unmark(disk, folder)
        for name in names:
            if name in needed:
                continue
            if name in damaged:
                disk.replace(folder / name, folder / (name + _DAMAGED_SUFFIX))
            else:
                disk.remove(folder / name)
        disk.sync_folder(folder)
    except OSError as error:
        report(f"{folder}: the redo log cannot be removed: {error}")
    return frozenset(behind), refusals


def _read(disk: Disk, path: Path) -> bytes | None:
    """Return what is in a file; None when the file is longer than one of the redo log."""
    handle = disk.open(path)
    try:
        size = disk.size(handle)
        return disk.read(handle, size, 0) if size <= FILE_BYTES else None
    finally:
        disk.close(handle)


def _fault_of(data: bytes | None, header: Header | None) -> str:
    """Return what is wrong with a file as a whole; nothing where its entries tell all."""
    if data is None or (header is None and not is_unused(data)):
        return "what is there is no redo log of this version"
    if header is not None and is_shortened(data, header):
        return "the redo log is shorter than it was made"
    return ""


def _by_segment(bodies: list[bytes]) -> dict[str, list[RedoPart]]:
    """Return the parts of entries by segment, in order."""
    found: dict[tuple[str, int, int, int], list[RedoPart]] = {}
    for body in bodies:
        for part in unpack_parts(body):
            found.setdefault(part[:4], []).append(part)
    return {
        f"{folder}/{segment_name(number)} ({key:x}, {generation})": parts
        for (folder, key, number, generation), parts in found.items()
    }


def _replay_segment(disk: Disk, folder: Path, parts: list[RedoPart]) -> None:
    """Write what a segment lacks, unless its stream is gone or the segment was rewritten, which needs none of it.

    Raises:
        OSError: the disk refused.
    """
    first = parts[0]
    store_folder = _store_folder(disk, folder, first.folder)
    if store_folder is None or not disk.is_file(path := store_folder / segment_name(first.number)):
        return
    handle = disk.open(path)
    try:
        header = SegmentHeader.unpack(disk.read(handle, HEADER_SIZE, 0), disk.hashing)
        if header is None or (header.key, header.number, header.generation) != (
            first.key,
            first.number,
            first.generation,
        ):
            return
        if table_of(disk, handle) is not None:
            return  # Compressed, as only a segment is that was synced.
        # What the mark says was synced may have been overwritten since.
        mark_file = MarkFile(disk, store_folder / MARK_NAME, first.key)
        mark = mark_file.read(first.key)
        if mark.key != first.key:
            mark = Mark()
        is_whole = True
        last = mark.synced
        for part in parts:
            if (part.number, part.offset + len(part.data)) > mark.safe_end:
                # Also what is there already: it is unknown whether that is safe.
                # sometimes: the redo log is replayed
                there = disk.read(handle, len(part.data), part.offset)
                data = _merged(part, there, checksum_of(disk.hashing, part.key, part.number))
                disk.write(handle, data, part.offset)
                is_whole = is_whole and len(data) == len(part.data)
                last = max(last, scan(data, 0, checksum_of(disk.hashing, part.key, part.number), 0).highest)
        disk.sync(handle)
    finally:
        disk.close(handle)
    if is_whole:
        # All before was acknowledged: what a damaged entry does not return is lost, and not merely unwritten.
        end = max(part.offset + len(part.data) for part in parts)
        mark_file.synced(last, max(mark.safe_end, (first.number, end)))
        mark_file.sync()
    mark_file.close()


def _store_folder(disk: Disk, folder: Path, name: str) -> Path | None:
    """Return a store's folder; None when there is none, or the name is not one that a store has."""
    parts = name.split("/")
    if len(parts) != 4 or any(part in ("", ".", "..") or "\0" in part for part in parts):
        return None
    for part in parts:
        folder = folder / part
        if not disk.is_folder(folder):
            return None
    return folder


def _merged(part: RedoPart, there: bytes, checksum: Checksum) -> bytes:
    """Return a part's records, replaced by the segment's own where these are good: some may have been erased since."""
    if there == part.data:
        return there
    parts = []
    at = 0
    while (record := unpack(part.data, at, checksum)) is not None:
        if (other := unpack(there, at, checksum)) is None:
            parts.append(part.data[at : record.end])
        elif other.end == record.end:
            parts.append(there[at : record.end])
        else:
            break  # Another log than the one that these records are of.
        at = record.end
    return b"".join(parts)
