"""Where a server has its files: `<store_dir>/jetstream/<account>/streams/<stream>/…`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from jetlake.store.files.disk import Disk
from jetlake.store.files.folders import folder_name, is_there, list_folders
from jetlake.store.files.own_files import ACCOUNT, STREAMS
from jetlake.store.files.removal import Remover
from jetlake.store.files.unsynced_names import UnsyncedNames
from jetlake.store.log.open_files import OpenFiles, files_max
from jetlake.store.meta_folder import ignore
from jetlake.store.stream_folder import StreamFolder

__all__ = ["StoreFolder"]


class StoreFolder:
    """The folder of a server: `jetstream` in its store directory.

    Args:
        store_dir: as the server was told; nothing is made before the first stream.
    """

    def __init__(self, disk: Disk, store_dir: Path) -> None:
        self.disk = disk
        self.path = store_dir / "jetstream"
        self.names = UnsyncedNames(disk)
        self.remover = Remover(disk)
        self._open_files = OpenFiles(files_max())

    def accounts(self) -> list[str]:
        """The names of the accounts that have streams, in order."""
        return [unquote(name) for name in self.disk.names(self.path) if self.disk.is_folder(self.path / name)]

    def stream(self, account: str, name: str) -> StreamFolder:
        """The place of a stream, which may not be there yet."""
        return StreamFolder(self.disk, self._streams(account) / folder_name(name), self._open_files, self.names)

    def streams(self, account: str, note: Callable[[str], None] = ignore) -> list[StreamFolder]:
        """The places of all streams of an account; what a crash left half removed goes.

        Args:
            note: told of what was removed and of what is not the store's.

        Raises:
            StoreError: the disk refused, so that nobody knows which streams there are.
        """
        path = self._streams(account)
        list_folders(self.disk, path.parent, ACCOUNT, note)
        folders = list_folders(self.disk, path, STREAMS, note) if is_there(self.disk, path.parent) else []
        return [StreamFolder(self.disk, path, self._open_files, self.names) for path in folders]

    def _streams(self, account: str) -> Path:
        return self.path / folder_name(account) / "streams"
