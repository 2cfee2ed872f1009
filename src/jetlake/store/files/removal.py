"""The way out of a folder: renamed aside, made safe, then removed in steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

from jetlake.errors import StoreError
from jetlake.store.files.disk import Disk
from jetlake.store.files.unsynced_names import UnsyncedNames

__all__ = ["Removal", "Remover", "remove_tree"]

_STEP = 128
"""How many files and folders one step removes."""


class Removal:
    """A folder that goes: `flush` renames it, `sync` makes that safe, and it cannot come back from then on.

    Args:
        path: of the folder; its name is free after `flush`.
        rename: moves the folder aside and returns its new path; None when there is nothing to move.
        before_sync: called first by every sync, in the same thread.
    """

    changes_names = True
    failure: StoreError | None = None

    def __init__(
        self,
        path: Path,
        names: UnsyncedNames,
        rename: Callable[[], Path | None],
        before_sync: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = path
        self.aside: Path | None = None
        """Where the folder is until it is removed; None before `flush`, and when there is none."""
        self.is_moved = False
        """Whether the folder's name is free, and whatever has it now is another one's."""
        self._names = names
        self._rename = rename
        self._before_sync = before_sync

    def flush(self) -> None:
        """Rename the folder.

        Raises:
            StoreError: the disk refused; it is still there.
        """
        if not self.is_moved:
            try:
                self.aside = self._rename()
            except OSError as error:
                raise StoreError.of(f"remove {self.path}", error) from error
            self.is_moved = True

    def move_with_parent(self) -> None:
        """Leave the folder alone: it went with one above it."""
        self.is_moved = True

    def sync(self) -> None:
        """Return when no power cut can bring the folder back under its name.

        Raises:
            StoreError: the disk refused.
        """
        try:
            self._before_sync()
            self._names.sync(self.path.parent)
        except OSError as error:
            raise StoreError.of(f"make the removal of {self.path} safe", error) from error

    def retry(self) -> None:
        """Try again after the disk refused.

        Raises:
            StoreError: it still does.
        """
        self.flush()


class Remover:
    """Removes folders that were renamed, in steps: each `sync` is one."""

    changes_names = True
    failure: StoreError | None = None

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._paths: deque[Path] = deque()

    def add(self, path: Path) -> None:
        """Remove that folder too."""
        self._paths.append(path)

    def has_more(self) -> bool:
        """Return whether there is something left to remove."""
        return bool(self._paths)

    def flush(self) -> None:
        """Nothing is written."""

    def retry(self) -> None:
        """Nothing to do: what the disk refused is left alone."""

    def sync(self) -> None:
        """Remove some files.

        Raises:
            StoreError: the disk refused; the next start removes the rest of the folder.
        """
        left = _STEP
        while left > 0 and self._paths:
            path = self._paths[0]
            try:
                left = remove_tree(self._disk, path, left)
            except FileNotFoundError:
                pass  # A folder above it was renamed, and is removed with all that is in it.
            except OSError as error:
                self._paths.popleft()
                raise StoreError.of(f"remove {path}", error) from error
            if left > 0:
                self._paths.popleft()


def remove_tree(disk: Disk, path: Path, count_max: int) -> int:
    """Remove a folder with all that is in it, of a link only the link, but no more than this many files and folders.

    Returns:
        How many more may be removed; 0 when the folder is not gone.

    Raises:
        OSError: the disk refused.
    """
    for name in disk.names(path):
        if count_max <= 0:
            return 0
        if disk.is_folder(path / name):
            count_max = remove_tree(disk, path / name, count_max)
        else:
            disk.remove(path / name)
            count_max -= 1
    if count_max <= 0:
        return 0
    disk.remove_folder(path)
    return max(count_max - 1, 1)
