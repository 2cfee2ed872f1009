"""Replacing a small file so that a crash leaves either the old one or the new one, whole."""

from __future__ import annotations

from pathlib import Path

from jetlake.store.disk import Disk

__all__ = ["ASIDE_SUFFIX", "read_file", "replace_file"]

ASIDE_SUFFIX = ".tmp"
"""Ends the names of files that are not finished; whoever finds one after a crash may remove it."""


def replace_file(disk: Disk, path: Path, data: bytes, *, durable: bool = True) -> None:
    """Put `data` in the place of the file: write aside, sync, rename, sync the folder.

    Args:
        durable: return only when the disk has it; otherwise it may be missing or torn after a power cut.

    Raises:
        OSError: the disk refused; the old file is still there.
    """
    aside = path.with_name(path.name + ASIDE_SUFFIX)
    handle = disk.open(aside, create=True)
    try:
        disk.truncate(handle, 0)
        disk.write(handle, data, 0)
        if durable:
            disk.sync(handle)
    finally:
        disk.close(handle)
    disk.replace(aside, path)
    if durable:
        disk.sync_folder(path.parent)


def read_file(disk: Disk, path: Path) -> bytes:
    """All of a file.

    Raises:
        OSError: it is not there, or the disk refused.
    """
    handle = disk.open(path)
    try:
        return disk.read(handle, disk.size(handle), 0)
    finally:
        disk.close(handle)
