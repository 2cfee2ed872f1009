"""Where a server has its files: `<store_dir>/jetstream/<account>/streams/<stream>/…`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from jetlake.errors import StoreError
from jetlake.store.files.disk import Disk
from jetlake.store.files.folders import folder_name, folder_names, is_there, list_folders, names_being_removed
from jetlake.store.files.name_list import NameList
from jetlake.store.files.own_files import ACCOUNT, STREAMS
from jetlake.store.files.removal import Remover
from jetlake.store.files.unsynced_names import UnsyncedNames
from jetlake.store.log.open_files import OpenFiles, files_max
from jetlake.store.log.segment_index.index_cache import INDEX_CACHE_BYTES, IndexCache

if TYPE_CHECKING:  # Loaded with the first stream: a server without streams starts without them.
    from jetlake.store.stream_folder import SharedResources, StreamFolder

__all__ = ["StoreFolder"]


class StoreFolder:
    """The folder of a server: `jetstream` in its store directory.

    Args:
        store_dir: the configured folder; nothing is created before the first stream.
        index_cache_bytes: how much of the index of full segments stays in memory, of all streams together.
        behind_redo: as `redo.replay` returns it.
        marks_flushes: as `FileStore` has it: whether messages are seen before they are synced.
    """

    def __init__(
        self,
        disk: Disk,
        store_dir: Path,
        index_cache_bytes: int = INDEX_CACHE_BYTES,
        behind_redo: frozenset[str] = frozenset(),
        *,
        marks_flushes: bool = True,
    ) -> None:
        self.disk = disk
        self.path = store_dir / "jetstream"
        self.names = UnsyncedNames(disk)
        self.remover = Remover(disk)
        self._root = self.path if disk.is_folder(self.path) else None
        self._index_cache_bytes = index_cache_bytes
        self._behind_redo = behind_redo
        self._marks_flushes = marks_flushes
        self._lists: dict[str, NameList] = {}

    @cached_property
    def _shared(self) -> SharedResources:
        from jetlake.store.stream_folder import SharedResources

        index_cache = IndexCache(self._index_cache_bytes)
        return SharedResources(OpenFiles(files_max()), index_cache, self._behind_redo, self._root, self._marks_flushes)

    def accounts(self) -> list[str]:
        """Return the names of the accounts that have streams, in order."""
        return [unquote(name) for name in self.disk.names(self.path) if self.disk.is_folder(self.path / name)]

    def stream(self, account: str, name: str) -> StreamFolder:
        """Return the place of a stream, which may not be there yet."""
        from jetlake.store.stream_folder import StreamFolder

        path = self._streams(account) / folder_name(name)
        return StreamFolder(self.disk, path, self._shared, self.names, self._list(account))

    def streams(self, account: str, note: Callable[[str], None] = lambda _text: None) -> list[StreamFolder]:
        """Return the places of all streams of an account; what a crash left half removed goes.

        Args:
            note: logs removed files, and files that are not the store's.

        Raises:
            StoreError: the disk refused, so that it is unknown which streams there are.
        """
        path = self._streams(account)
        list_folders(self.disk, path.parent, ACCOUNT, note)
        paths = list_folders(self.disk, path, STREAMS, note) if is_there(self.disk, path.parent) else []
        if not paths:
            return []
        from jetlake.store.stream_folder import StreamFolder

        listed = self._list(account)
        folders = [StreamFolder(self.disk, path, self._shared, self.names, listed) for path in paths]
        self.names.changed(path)
        self.names.changed(path.parent)
        self.names.changed(self.path)
        for folder in folders:
            folder.adopt()
        return folders

    def vanished(self, account: str) -> set[str]:
        """Return the folders of streams that are missing and were not deleted; called before `streams`.

        Raises:
            StoreError: the disk refused.
        """
        path = self._streams(account)
        if not is_there(self.disk, path.parent):
            return set()
        try:
            listed = self._list(account).read() - names_being_removed(self.disk, path)
            present = set(self.disk.names(path))
        except OSError as error:
            raise StoreError.of(f"read {path}", error) from error
        self._list(account).replace(listed)
        return listed - present

    def damaged_lines(self, account: str) -> int:
        """Return how many lines of the list of streams `vanished` could not read."""
        return self._list(account).damaged_lines

    def _list(self, account: str) -> NameList:
        if account not in self._lists:
            self._lists[account] = NameList(self.disk, self._streams(account).with_suffix(".list"))
        return self._lists[account]

    def _streams(self, account: str) -> Path:
        return self.path / folder_names(account)[0] / "streams"
