"""The file of a store's index snapshot: written whole at a stop, in steps by house-keeping, removed when wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jetlake.store.files.disk import Disk
from jetlake.store.log.snapshot.index_snapshot import IndexSnapshot, SnapshotWriter

__all__ = ["IndexFile"]


class IndexFile:
    """The snapshot of the index on disk. No start depends on it: without one, the log is read.

    Args:
        step_bytes: about how much is written in one step.
    """

    def __init__(self, disk: Disk, path: Path, step_bytes: int) -> None:
        self._disk = disk
        self._path = path
        self._step_bytes = step_bytes
        # The flush at which the whole index was written down; 0 for an older one, -1 when there is none.
        self._generation = 0
        self._writer: SnapshotWriter | None = None

    def write(self, snapshot: Callable[[], IndexSnapshot], generation: int) -> None:
        """Write the whole index, as it is after this flush, unless that has been done."""
        self.cancel()
        if self._generation == generation:
            return
        writer = SnapshotWriter(self._disk, self._path, snapshot())
        try:
            while writer.step():
                pass
        except OSError:
            return
        self._generation = generation

    def begin(self, snapshot: IndexSnapshot) -> None:
        """Begin to write the index in its present state, while the store is used."""
        self._writer = SnapshotWriter(self._disk, self._path, snapshot)

    def step(self) -> bool:
        """Take the next step of the work in progress; False when there was nothing to do."""
        writer = self._writer
        if writer is None:
            return False
        try:
            if not writer.step(self._step_bytes):
                self._generation = 0
                self._writer = None
        except OSError:
            self._writer = None
        return True

    def drop(self) -> None:
        """Remove the file, and stop writing one: tombstones are about to go that account for messages in it.

        Raises:
            OSError: the disk refused, and the tombstones must stay.
        """
        self.cancel()
        if self._generation >= 0:
            self._disk.remove(self._path)
            self._generation = -1

    def cancel(self) -> None:
        """Give up the work in progress."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.cancel()
