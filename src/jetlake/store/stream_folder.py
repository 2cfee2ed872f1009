"""Where streams and consumers have their files: `<store_dir>/jetstream/<account>/streams/<stream>/…`.

::

    streams/ORDERS/
      meta.json, meta.copy.json    the configuration, as the server's engine writes it
      msgs/                        the messages: a `file_store`
      consumers/worker/
        meta.json, meta.copy.json
        0000000001.journal         the consumer's journal
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from jetlake.errors import StoreError
from jetlake.store.file_store import SEGMENT_BYTES, TAIL_BYTES, FileStore
from jetlake.store.files.disk import Disk, Kind
from jetlake.store.files.folders import FolderOwner, folder_name, list_folders
from jetlake.store.files.name_list import NameList
from jetlake.store.files.own_files import CONSUMER_FILES, CONSUMERS, STREAM_FILES
from jetlake.store.files.removal import Removal
from jetlake.store.files.unsynced_names import UnsyncedNames
from jetlake.store.journal.file_journal import FileJournal
from jetlake.store.log.open_files import OpenFiles
from jetlake.store.log.segment_index.index_cache import IndexCache
from jetlake.store.meta_folder import CONSUMERS_NAME, MetaFolder, ignore

__all__ = ["ConsumerFolder", "SharedResources", "StreamFolder"]

_MESSAGES = "msgs"
_SEGMENTS = "segments"


class ConsumerFolder(MetaFolder):
    """The files of one consumer, whose parent is the folder of its stream."""

    layout = CONSUMER_FILES
    depth = 5

    def open_journal(self, note: Callable[[str], None] = ignore) -> FileJournal:
        """Return the consumer's journal.

        Args:
            note: logs that the files do not have the consumer's state.
        """
        return FileJournal(
            self.disk,
            self.path,
            tag=self.owner,
            identity=self.identity,
            owner=FolderOwner(self.make, self.ensure_made, self.is_gone, note),
            names=self._found,
        )

    def _add_folder(self) -> None:
        if self._parent is not None:
            self._parent.make()
        super()._add_folder()

    def _may_make(self, folder: Path) -> bool:
        # The stream's own folder may be gone, and its name another stream's.
        return folder == self.path.parent

    @property
    def owner(self) -> str:
        """Stream and consumer."""
        return f"{self.path.parents[1].name}/{self.path.name}"


class SharedResources(msgspec.Struct, gc=False, frozen=True):
    """What the stores of a server share; None for a store's own.

    Attributes:
        behind_redo: the names of folders in the redo log that lack something which only that has.
        root: the server's folder, if it was there at the start; should it vanish, as with a disk that is unmounted,
            it is not created again.
        marks_flushes: as `FileStore` has it.
    """

    open_files: OpenFiles | None = None
    index_cache: IndexCache | None = None
    behind_redo: frozenset[str] = frozenset()
    root: Path | None = None
    marks_flushes: bool = True


class StreamFolder(MetaFolder):
    """The files of one stream.

    Args:
        shared: what all streams of a server share; None for a stream alone.
        listed: the list of the account's streams; None for a stream alone.
    """

    layout = STREAM_FILES
    depth = 3
    inner = (_MESSAGES,)

    def __init__(
        self,
        disk: Disk,
        path: Path,
        shared: SharedResources | None = None,
        names: UnsyncedNames | None = None,
        listed: NameList | None = None,
    ) -> None:
        super().__init__(disk, path, names)
        self._shared = shared or SharedResources()
        self.listed = listed

    def _may_make(self, folder: Path) -> bool:
        return folder != self._shared.root

    def sync(self) -> None:
        was_new = self._is_new
        super().sync()
        with self._lock:
            if was_new and not self._is_new and not self._is_gone and self.listed is not None:
                self.listed.add(self.path.name)

    def _move_aside(self) -> Path | None:
        aside = super()._move_aside()
        if aside is not None and self.listed is not None:
            self.listed.strike(self.path.name)
        return aside

    def removal(self) -> Removal:
        # Once the files go, nothing but the list says that the folder was not taken by another program.
        before_sync = self.listed.sync if self.listed is not None else lambda: None
        return Removal(self.path, self.names, self._move_aside, before_sync)

    def open_store(
        self,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        tail_bytes: int = TAIL_BYTES,
        note: Callable[[str], None] = ignore,
        report: Callable[[str], None] = ignore,
        reuses_sequences: bool = False,
        before_sync: Callable[[], None] = lambda: None,
    ) -> FileStore:
        """Return the stream's messages, recovered if there are any.

        Args:
            note: logs what recovery removed, and what is not the store's.
            report: logs messages that are found to be lost.
            reuses_sequences: as `FileStore` has it.
            before_sync: called by the first sync and after `FileStore.prepare_again`, once the folder is on disk; what
                it raises is the sync's failure.

        Raises:
            StoreError: the folder cannot be made, the disk does not return what is in it, or refused to take what
                the redo log has for it.
        """
        folder = self.path / _MESSAGES
        redo_name = "/".join((*self.path.parts[-3:], _MESSAGES))
        if self.is_made and redo_name in self._shared.behind_redo:
            raise StoreError(f"open {folder}", "the disk refused what the redo log has for it")

        def prepare_sync() -> None:
            self.ensure_made()
            before_sync()

        return FileStore(
            self.disk,
            folder,
            segment_bytes=segment_bytes,
            tail_bytes=tail_bytes,
            open_files=self._shared.open_files,
            index_cache=self._shared.index_cache,
            segment_list=self.path / _SEGMENTS,
            owner=FolderOwner(None if self.is_made else self.make, prepare_sync, self.is_gone, note, report),
            reuses_sequences=reuses_sequences,
            redo_name=redo_name,
            is_unwritten=self._is_unwritten(folder),
            marks_flushes=self._shared.marks_flushes,
        )

    def _is_unwritten(self, folder: Path) -> bool:
        """Return whether a start saw that no message was ever written: the folder of messages is there, and empty."""
        if self._found is None or _SEGMENTS in self._found or self._found.get(_MESSAGES) is not Kind.FOLDER:
            return False
        try:
            return not self.disk.names(folder)
        except OSError:
            return False  # Opening the store reports the error.

    def consumer(self, name: str) -> ConsumerFolder:
        """Return the place of a consumer, which may not be there yet."""
        path = self.path / CONSUMERS_NAME / folder_name(name)
        return ConsumerFolder(self.disk, path, self.names, self)

    def consumers(self, note: Callable[[str], None] = ignore) -> list[ConsumerFolder]:
        """Return the places of all consumers; what a crash left half removed goes.

        Args:
            note: logs removed files, and files that are not the store's.

        Raises:
            StoreError: the disk refused, so that it is unknown which consumers there are.
        """
        if not self.is_made or self.lacks(CONSUMERS_NAME):
            return []
        paths = list_folders(self.disk, self.path / CONSUMERS_NAME, CONSUMERS, note)
        folders = [ConsumerFolder(self.disk, path, self.names, self) for path in paths]
        if folders:
            self.names.changed(self.path / CONSUMERS_NAME)
        for folder in folders:
            folder.adopt()
        return folders
