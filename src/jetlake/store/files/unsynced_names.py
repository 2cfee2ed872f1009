"""Names that a power cut may undo: which folders they are in, for all who make, rename and remove there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from jetlake.store.files.disk import Disk

__all__ = ["UnsyncedNames"]


class UnsyncedNames:
    """Remembers the folders whose names have changed since they were synced.

    All folders of a server share one: a name is durable only when the names of the folders above it are, and one
    sync of a folder serves all who have changed a name in it.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._changes: dict[Path, int] = {}
        self._count = 0
        self._lock = threading.Lock()

    def changed(self, folder: Path) -> None:
        """Note that a name in the folder was made, changed or removed."""
        with self._lock:
            self._count += 1
            self._changes[folder] = self._count

    def forget(self, folder: Path) -> None:
        """Note that the folder is gone."""
        with self._lock:
            self._changes.pop(folder, None)

    def move(self, folder: Path, rename: Callable[[], None], *within: Path) -> None:
        """Rename a folder, and forget it with those within it.

        Raises:
            OSError: the disk refused, and nothing has changed.
        """
        with self._lock:
            rename()
            self._count += 1
            self._changes[folder.parent] = self._count
            for path in (folder, *within):
                self._changes.pop(path, None)

    def sync(self, folder: Path) -> None:
        """Return when the names in the folder, its own name and the names of the folders above it are durable.

        Raises:
            OSError: the disk refused.
        """
        for path in (*reversed(folder.parents), folder):
            change = self._changes.get(path)
            if change is None:
                continue
            try:
                self._disk.sync_folder(path)
            except FileNotFoundError:
                with self._lock:
                    if path in self._changes:
                        raise
                # It was moved meanwhile: what counts now is the name of the folder that went.
                self.sync(folder)
                return
            with self._lock:
                if self._changes.get(path) == change:
                    del self._changes[path]
