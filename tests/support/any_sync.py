"""Syncs as the committer runs them: on the loop's own thread where they are short, or in another one."""

from __future__ import annotations

from random import Random

from jetlake.errors import JetlakeError
from jetlake.server.engine.core.commit import Syncable, sync
from jetlake.store.file_store import FileStore

__all__ = ["AnySync"]


class AnySync:
    """A sync in one of the two ways, where there are two."""

    def __init__(self, syncable: Syncable, random: Random) -> None:
        self.syncable = syncable
        if isinstance(syncable, FileStore) and random.random() < 0.5:
            syncable.begin_writeback()
        self._may_be_short = random.random() < 0.8

    def run(self) -> JetlakeError | None:
        """Carry it out, and return the error if that failed."""
        if self._may_be_short and isinstance(self.syncable, FileStore):
            try:
                if self.syncable.sync_if_short():
                    return None
            except JetlakeError as error:
                return error
        return sync(self.syncable)
