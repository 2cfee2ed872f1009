"""Folders on their way out: the group commit makes their renaming durable, and then their files go in steps."""

from __future__ import annotations

from functools import partial

from jetlake.errors import JetlakeError
from jetlake.server.engine.core.commit import Commit, Syncable
from jetlake.store.files.removal import Removal, Remover
from jetlake.store.interface import MessageStore
from jetlake.store.stream_folder import ConsumerFolder, StreamFolder

__all__ = ["FolderRemovals"]


class FolderRemovals:
    """Removes folders of streams and consumers.

    Attributes:
        commit: the engine's; given by it before anything is removed.

    Args:
        remover: removes the files.
    """

    def __init__(self, remover: Remover) -> None:
        self.commit = Commit(always=True)
        self._remover = remover
        self._waiting: dict[str, Removal] = {}  # by path; those that may not be renamed yet

    def remove(self, folder: StreamFolder | ConsumerFolder, after: Syncable | None) -> Syncable:
        """Remove a folder; when the syncable is durable, it is gone for good.

        Args:
            after: what must be on disk before the folder goes; None when it goes at once.

        Raises:
            StoreError: the disk refused; the folder is still there.
        """
        removal = folder.removal()
        if after is None:
            removal.flush()
        else:
            self._waiting = {path: other for path, other in self._waiting.items() if other.aside is None}
            self._waiting[str(folder.path)] = removal
            self.commit.order(after, removal)
        self.commit.mark_now(removal)
        self.commit.when_durable(removal, partial(self._go_on, removal))
        return removal

    def make_way(self, folder: ConsumerFolder, store: MessageStore) -> None:
        """Free the folder's name for a new one.

        A consumer that was deleted a moment ago may wait for the stream's log: that is waited for here, since the new
        one cannot be before the old one is gone.

        Raises:
            StoreError: the disk refused; the folder is still there.
        """
        waiting = self._waiting.pop(str(folder.path), None)
        if waiting is not None and waiting.aside is None:
            store.flush()
            store.sync()
            waiting.flush()
        elif folder.exists():
            self.remove(folder, None)

    def _go_on(self, removal: Removal | None, error: JetlakeError | None) -> None:
        """Remove some more files, once nothing can bring them back."""
        if error is not None:
            return  # What is left is removed at the next start.
        if removal is not None and removal.aside is not None:
            self._remover.add(removal.aside)
        if self._remover.has_more():
            self.commit.mark_now(self._remover)
            self.commit.when_durable(self._remover, partial(self._go_on, None))
