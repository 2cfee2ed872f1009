"""The folders of streams and consumers within one: their names, the existing ones, removed ones, and their owner."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
from xxhash import xxh3_64_hexdigest

from jetlake import platform
from jetlake.errors import StoreError
from jetlake.store.files.disk import Disk
from jetlake.store.files.own_files import Layout, foreign_names, foreign_names_within, format_names
from jetlake.store.files.removal import remove_tree

__all__ = [
    "FolderOwner",
    "folder_name",
    "folder_names",
    "free_name",
    "is_there",
    "list_folders",
    "names_being_removed",
    "remove_all",
]

_DELETED = ".deleted"
_REMOVED_MAX = 1 << 30
_NAME_MAX = 120
_escape = re.compile(r"[^A-Za-z0-9_$=-]")


def folder_name(name: str) -> str:
    """Return a name escaped for a folder: it stays within its parent, and different names stay different.

    Where names ignore case, names that differ only in it are distinguished by a hash.
    """
    plain, hashed = folder_names(name)
    same_for_others = plain != plain.lower() or plain in platform.DEVICE_NAMES
    return hashed if platform.NAMES_IGNORE_CASE and same_for_others else plain


def folder_names(name: str) -> tuple[str, str]:
    """Return both forms in which a folder may have this name: as it is, and followed by its hash.

    A store may be moved to another system, so that both may be met on each.
    """
    safe = _escape.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)
    hashed = f"{safe[:_NAME_MAX]}~{xxh3_64_hexdigest(name.encode())}"
    return (safe or "%") if len(safe) <= _NAME_MAX else hashed, hashed


def list_folders(disk: Disk, path: Path, layout: Layout, note: Callable[[str], None]) -> list[Path]:
    """Return the folders of streams or consumers in a folder, except the ones being removed."""
    if not is_there(disk, path):
        return []
    try:
        kinds = disk.kinds(path)
    except OSError as error:
        raise StoreError.of(f"read {path}", error) from error
    foreign = foreign_names(layout, kinds)
    if foreign:
        note(f"{path} contains files that the store did not write and leaves untouched: {format_names(foreign)}")
    found = []
    for name in kinds:
        inner = layout.folder(name)
        if inner is None or name in foreign:
            continue
        if _DELETED in name:
            _finish_removal(disk, path / name, inner, note)
        else:
            found.append(path / name)
    return found


def names_being_removed(disk: Disk, path: Path) -> set[str]:
    """Return the names of folders that were renamed to be removed and are still there.

    Raises:
        OSError: the disk refused.
    """
    return {name.partition(_DELETED)[0] for name in disk.names(path) if _DELETED in name}


def is_there(disk: Disk, path: Path) -> bool:
    """Return whether there is a folder of that name.

    Raises:
        StoreError: something else has the name, or the disk refused.
    """
    try:
        if disk.is_folder(path):
            return True
        if path.name in disk.names(path.parent):
            raise StoreError(f"read {path}", "it is not a folder, and the store does not follow symbolic links")
    except OSError as error:
        raise StoreError.of(f"read {path}", error) from error
    return False


def _finish_removal(disk: Disk, path: Path, layout: Layout, note: Callable[[str], None]) -> None:
    """Remove the rest of a folder that was being removed, unless there is something in it that is not the store's."""
    try:
        if foreign := list(foreign_names_within(disk, path, layout)):
            note(
                f"{path} was being removed and stays, because of files that the store did not write: "
                f"{format_names(foreign)}"
            )
            return
        remove_all(disk, path)
    except OSError as error:
        # It does no harm.
        note(f"{path} was being removed, and the rest of it stays: {error.strerror}")
        return
    note(f"Removed {path}, the rest of a folder that was deleted before the last stop")


def free_name(disk: Disk, path: Path) -> Path:
    """Return a name for a folder that is being removed."""
    number = 0
    while disk.is_folder(target := path.with_name(f"{path.name}{_DELETED}{number}")):
        number += 1
    return target


def remove_all(disk: Disk, path: Path) -> None:
    while not remove_tree(disk, path, _REMOVED_MAX):
        pass


class FolderOwner(msgspec.Struct, frozen=True):
    """What the files of a store or a journal ask of the owner of their folder, and report to it.

    Attributes:
        before_write: makes a new folder before the first write, the disk being left alone until then; None for a
            folder that is there, or is made at once.
        before_sync: called first by a sync, in the same thread; what it raises is the sync's failure.
        is_gone: whether the folder was moved away, so that its content need not be durable.
        note: logs what recovery removed, and what is not the owner's.
        report: logs messages that are found to be lost.
    """

    before_write: Callable[[], None] | None = None
    before_sync: Callable[[], None] = lambda: None
    is_gone: Callable[[], bool] = lambda: False
    note: Callable[[str], None] = lambda _text: None
    report: Callable[[str], None] = lambda _text: None
