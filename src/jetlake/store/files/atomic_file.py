"""Replacing a small file so that a crash leaves either the old one or the new one, whole."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from jetlake.store.files.disk import Disk

__all__ = ["ASIDE_SUFFIX", "SMALL_FILE_BYTES_MAX", "read_file", "replace_file", "sync_file", "write_file"]

ASIDE_SUFFIX = ".tmp"
"""The suffix of unfinished files, which may be removed after a crash."""
SMALL_FILE_BYTES_MAX = 256 * 1024 * 1024
"""A file that is read whole and is longer than this was not written by the store."""


def replace_file(disk: Disk, path: Path, data: bytes, *, durable: bool = True) -> None:
    """Put `data` in the place of the file: write aside, sync, rename, sync the folder.

    Args:
        durable: return only when the disk has it; otherwise it may be missing or torn after a power cut.

    Raises:
        OSError: the disk refused; the old file is still there.
    """
    aside = path.with_name(path.name + ASIDE_SUFFIX)
    try:
        write_file(disk, aside, data)
    except OSError:
        with suppress(OSError):  # What is half written takes no room.
            disk.remove(aside)
        raise
    if durable:
        sync_file(disk, aside)
    disk.replace(aside, path)
    if durable:
        disk.sync_folder(path.parent)


def write_file(disk: Disk, path: Path, data: bytes) -> None:
    """Give a file this content, which a power cut may undo.

    Raises:
        OSError: the disk refused.
    """
    handle = disk.open(path, create=True)
    try:
        disk.truncate(handle, 0)
        disk.write(handle, data, 0)
    finally:
        disk.close(handle)


def sync_file(disk: Disk, path: Path) -> None:
    """Return when everything written to a file is durable.

    Raises:
        OSError: the disk refused.
    """
    handle = disk.open(path)
    try:
        disk.sync(handle)
    finally:
        disk.close(handle)


def read_file(disk: Disk, path: Path, max_bytes: int = SMALL_FILE_BYTES_MAX) -> bytes:
    """Return all of a file.

    Raises:
        OSError: it is not there, the disk refused, or the file is longer than any that the store writes.
    """
    handle = disk.open(path)
    try:
        size = disk.size(handle)
        if size > max_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return disk.read(handle, size, 0)
    finally:
        disk.close(handle)
