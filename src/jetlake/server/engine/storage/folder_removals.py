"""Removal of folders: the group commit syncs their renaming, and then their files are removed in steps."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from jetlake.errors import JetlakeError
from jetlake.server.engine.core.commit import Commit, Syncable
from jetlake.store.files.removal import Removal, Remover

if TYPE_CHECKING:
    from jetlake.store.message_store import MessageStore
    from jetlake.store.stream_folder import ConsumerFolder, StreamFolder

__all__ = ["FolderRemovals"]


class FolderRemovals:
    """Removes folders of streams and consumers.

    Attributes:
        commit: the engine's group commit, set before anything is removed.

    Args:
        remover: removes the files.
    """

    def __init__(self, remover: Remover) -> None:
        self.commit = Commit(always=True)
        self._remover = remover
        self._waiting: dict[Path, Removal] = {}  # by path; removals that may not be renamed yet

    def remove(self, folder: StreamFolder | ConsumerFolder, after: Syncable | None) -> Syncable:
        """Remove a folder; when the syncable is durable, it is gone for good.

        Args:
            after: what must be on disk before the folder goes; None when it goes at once.

        Raises:
            StoreError: the disk refused; the folder is still there.
        """
        from jetlake.store.stream_folder import StreamFolder

        removal = folder.removal()
        if after is None:
            removal.flush()
            if isinstance(folder, StreamFolder):
                for path in [path for path in self._waiting if folder.path in path.parents]:
                    self._waiting.pop(path).move_with_parent()
        else:
            self._waiting[folder.path] = removal
            self.commit.order(after, removal)
        self.commit.mark_now(removal)
        self.commit.when_durable(removal, partial(self._go_on, removal))
        return removal

    def make_way(self, folder: ConsumerFolder, store: MessageStore, *, is_missing: bool) -> None:
        """Free the folder's name for a new one.

        A consumer that was deleted a moment ago may wait for the stream's log: that is waited for here, since the new
        one cannot be before the old one is gone.

        Args:
            is_missing: a consumer that could not be opened is known to have the name.

        Raises:
            StoreError: the disk refused; the folder is still there.
        """
        waiting = self._waiting.get(folder.path)
        if waiting is not None:
            store.flush()
            store.sync()
            waiting.flush()
            del self._waiting[folder.path]
        elif is_missing and folder.exists():
            self.remove(folder, None)

    def _go_on(self, removal: Removal | None, error: JetlakeError | None) -> None:
        """Remove some more files, once the renaming is durable."""
        if error is not None:
            return  # The next start removes the rest.
        if removal is not None:
            if removal.is_moved and self._waiting.get(removal.path) is removal:
                del self._waiting[removal.path]
            if removal.aside is not None:
                self._remover.add(removal.aside)
        if self._remover.has_more():
            self.commit.mark_now(self._remover)
            self.commit.when_durable(self._remover, partial(self._go_on, None))
