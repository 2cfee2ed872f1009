"""The redo log: what many stores appended, written to one file, so that one sync makes all of it durable.

    loop:     take_redo of each store ──► append ──► file 1 (current) ... full or idle ──► rotate
    thread:   sync of the file                       file 2 ◄── checkpoint: sync the stores, new header, wipe

What is always true:

- An entry is a copy of bytes that are already written to segments. It is needed until those segments are synced, and no
  longer: replaying it again, or after its stream was deleted, changes nothing.
- Entries go to one file, `_current`. The other one is free, or `_retired` until its checkpoint has succeeded; so there
  is room for new entries during a checkpoint.
- A checkpoint syncs every store of a file before the file's new header is written. A crash between the two leaves the
  entries valid, and the next start replays them.
- A header has a new salt each time, and the hash of an entry is seeded with salt and position: entries of an earlier
  use of the file are not valid after it. Headers alternate between two places, so that a torn write leaves the old one.
- An entry that could not be synced proves nothing. Its stores are synced one by one, and the file takes no more entries
  until a checkpoint has emptied it.
- `redo.made` is there while both files must be: a start reports a missing one. It is removed before they are.
- Messages that are erased on request must not survive in old entries: after a pause the files are wiped.

The loop appends and rotates. Worker threads sync the current file, and checkpoint the retired one, which the loop
leaves alone until `reset`. When the files are made, `_current` is assigned last.

The reasons are in decision 26 (docs/decisions).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from jetlake.errors import StoreError
from jetlake.store.files.disk import Disk
from jetlake.store.redo.redo_format import BLOCK_BYTES, ENTRY_BYTES_MAX, FIRST_ENTRY, Header, pack_entry

if TYPE_CHECKING:
    from jetlake.store.file_store import FileStore

__all__ = ["FILE_BYTES", "FILE_NAMES", "MADE_NAME", "RedoFile", "RedoLog", "unmark"]

FILE_NAMES = ("redo-1.log", "redo-2.log")
MADE_NAME = "redo.made"
"""An empty file that is there while both files must be: it shows when one was taken away."""
FILE_BYTES = 8 * 1024 * 1024
"""How long each of the files is."""


class RedoFile:
    """One of the two files.

    Attributes:
        handle: of the open file.
        header: under which its entries are written.
        end: where the next entry goes.
        wipe_end: how far it holds entries, old ones too.
        stores: of which it has entries.
        is_free: whether it has no entry that a start needs.
    """

    def __init__(self, handle: int, header: Header) -> None:
        self.handle = handle
        self.header = header
        self.end = self.wipe_end = FIRST_ENTRY
        self.stores: dict[FileStore, None] = {}
        self.is_free = True


class RedoLog:
    """The redo log of a server; its files are made when they are first needed.

    Args:
        folder: where its files are.
        random_bytes: makes the salt of each file.
        file_bytes: how long each file is; with less than an entry may take, nothing is ever appended.
    """

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        *,
        random_bytes: Callable[[int], bytes] = os.urandom,
        file_bytes: int = FILE_BYTES,
        entry_bytes_max: int = ENTRY_BYTES_MAX,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._random_bytes = random_bytes
        self._file_bytes = file_bytes
        self._entry_bytes_max = entry_bytes_max
        self._turn = 0
        self._files: list[RedoFile] = []
        self._current: RedoFile | None = None
        self._retired: RedoFile | None = None  # until its checkpoint has succeeded
        self._has_rest = False  # a failed `make` has perhaps left files without an entry

    @property
    def is_made(self) -> bool:
        """Whether the files are there."""
        return self._current is not None

    @property
    def is_behind(self) -> bool:
        """Whether the checkpoint of a file has not succeeded yet."""
        return self._retired is not None

    @property
    def is_clean(self) -> bool:
        """Whether the files have no entries, not even old ones."""
        return all(file.is_free and file.wipe_end == FIRST_ENTRY for file in self._files)

    def make(self) -> None:
        """Make the files, full of zeros: a write that changes no length and allocates nothing is synced quickest.

        Raises:
            OSError: the disk refused.
        """
        if not self._has_rest and set(FILE_NAMES) & set(self._disk.names(self._folder)):
            raise OSError(errno.EEXIST, "there is one that could not be replayed", str(self._folder / FILE_NAMES[0]))
        files: list[RedoFile] = []
        try:
            for name in FILE_NAMES:
                handle = self._disk.open(self._folder / name, create=True)
                files.append(RedoFile(handle, self._next_header()))
                self._disk.truncate(handle, 0)
                self._disk.write(handle, bytes(self._file_bytes), 0)
                self._disk.write(handle, files[-1].header.pack(), files[-1].header.offset)
                self._disk.sync(handle)
            self._disk.sync_folder(self._folder)
            self._disk.close(self._disk.open(self._folder / MADE_NAME, create=True))
            self._disk.sync_folder(self._folder)
        except OSError:
            for file in files:
                self._disk.close(file.handle)
            self._has_rest = True
            with suppress(OSError):
                self._remove()
            raise
        self._has_rest = False
        self._files = files
        self._current = files[0]  # Last: from here on the loop appends.

    def _next_header(self, after: Header | None = None) -> Header:
        """Return a header for another place in the file than the one before."""
        self._turn += 1
        if after is not None and after.offset == Header(self._turn, 0).offset:
            self._turn += 1
        salt = int.from_bytes(self._random_bytes(8), "little")
        return Header(self._turn, salt, self._file_bytes // BLOCK_BYTES)

    def has_room(self) -> bool:
        """Return whether the next entry fits, whatever is in it."""
        return self._current is not None and self._current.end + self._entry_bytes_max <= self._file_bytes

    def append(self, stores: Sequence[FileStore], parts: list[bytes]) -> Callable[[], None]:
        """Write the parts of stores as one entry, and return a function that syncs it in another thread.

        Raises:
            OSError: the disk refused.
        """
        file = self._current
        assert file is not None
        file.is_free = False
        file.stores.update(dict.fromkeys(stores))
        entry = pack_entry(parts, file.header.salt, file.end)
        self._disk.write(file.handle, entry, file.end)
        file.end += len(entry)
        return partial(self._sync, file.handle)

    def _sync(self, handle: int) -> None:
        try:
            self._disk.sync(handle)
        except OSError as error:
            raise StoreError.of("sync the redo log", error) from error

    def rotate(self, *, wipes: bool) -> RedoFile | None:
        """Write to the other file from now on, and return the file to `checkpoint`; None when there is none.

        Not called while a checkpoint is under way. One that has failed is returned again.

        Args:
            wipes: what a file has of earlier entries is reason enough.
        """
        file = self._current
        if self._retired is None and file is not None and (not file.is_free or (wipes and file.wipe_end > FIRST_ENTRY)):
            self._retired = file
            self._current = next(other for other in self._files if other is not file)
        return self._retired

    def checkpoint(self, file: RedoFile, *, wipes: bool) -> list[tuple[FileStore, StoreError]]:
        """Sync the stores of a file that is written to no more, and reset the file; runs in another thread.

        Args:
            wipes: overwrite the entries too, so that nothing is left of messages that are erased later.

        Returns:
            The stores that could not be synced: a later attempt may succeed.

        Raises:
            OSError: the disk refused to reset the file.
        """
        refused = []
        for store in file.stores:
            try:
                if store.needs_checkpoint():
                    store.checkpoint()
            except StoreError as error:
                refused.append((store, error))
        if not refused:
            file.header = self._next_header(after=file.header)
            self._disk.write(file.handle, file.header.pack(), file.header.offset)
            self._disk.sync(file.handle)
            file.wipe_end = max(file.wipe_end, file.end)
            if wipes:
                self._disk.write(file.handle, bytes(file.wipe_end - FIRST_ENTRY), FIRST_ENTRY)
                self._disk.sync(file.handle)
                file.wipe_end = FIRST_ENTRY
        return refused

    def reset(self, file: RedoFile) -> None:
        """Let entries go to a file again whose checkpoint has succeeded."""
        file.stores = {}
        file.end = FIRST_ENTRY
        file.is_free = True
        self._retired = None

    def close(self) -> None:
        """Close the files, and remove them unless a start needs them."""
        is_needed = any(store.needs_checkpoint() for file in self._files for store in file.stores)
        was_made = bool(self._files)
        for file in self._files:
            self._disk.close(file.handle)
        self._files, self._current, self._retired = [], None, None
        if was_made and not is_needed:
            with suppress(OSError):
                self._remove()

    def _remove(self) -> None:
        unmark(self._disk, self._folder)
        for name in FILE_NAMES:
            self._disk.remove(self._folder / name)
        self._disk.sync_folder(self._folder)


def unmark(disk: Disk, folder: Path) -> None:
    """Have no file of the redo log missed from now on, before one is removed.

    Raises:
        OSError: the disk refused.
    """
    with suppress(FileNotFoundError):
        disk.remove(folder / MADE_NAME)
        disk.sync_folder(folder)
