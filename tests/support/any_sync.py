"""Syncs as the committer runs them: by the store itself, or by whoever carries out the sync of its one file."""

from __future__ import annotations

from random import Random

from jetlake.errors import JetlakeError
from jetlake.server.engine.core.commit import Syncable, sync
from jetlake.store.file_store import FileStore
from jetlake.store.log.durability import FileSync
from tests.support.faulty_disk import FaultyDisk

__all__ = ["AnySync"]


class AnySync:
    """A sync that was begun in one of the two ways, where there are two."""

    def __init__(self, syncable: Syncable, disk: FaultyDisk, random: Random) -> None:
        self.syncable = syncable
        self._disk = disk
        self._error: JetlakeError | None = None
        self._file_sync: FileSync | None = None
        if isinstance(syncable, FileStore) and random.random() < 0.5:
            syncable.begin_writeback()
        if isinstance(syncable, FileStore) and random.random() < 0.8:
            self._file_sync = syncable.begin_file_sync()
            if self._file_sync is not None:
                self._file_sync.wait = self._carry_out

    def run(self) -> JetlakeError | None:
        """Carry it out, unless somebody waited for it; the error if that failed."""
        if self._file_sync is None:
            return sync(self.syncable)
        if not self._file_sync.has_ended:
            self._carry_out(self._file_sync)
        return self._error

    def _carry_out(self, file_sync: FileSync) -> None:
        refusal = None
        try:
            self._disk.sync(file_sync.handle)
        except OSError as error:
            refusal = error
        self._error = file_sync.end(refusal)
