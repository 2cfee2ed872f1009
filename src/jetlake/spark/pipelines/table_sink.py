"""Adds micro-batches to a table, each once: the part that tables of every kind share.

A batch is written aside by the tasks, its files are noted, and then the table takes them in one commit. The table's own
record says whether it has the batch, and a file of ours never does: a batch that is repeated is known to be done by the
table, or finished from the files aside. A crash before the note leaves files that the repeated batch replaces; a crash
after it leaves the rows there, when the stream may have lost their messages. Up to where the table was seen to be whole
is noted as well, for a table that was taken back to an older version would have a hole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from jetlake.spark.pipelines.file_system import FileSystem
from jetlake.spark.pipelines.folder_sink import BATCHES, STAGING, batch_note
from jetlake.spark.source.lake import NOTES

TABLE = f"{NOTES}/table.json"
"""Says that the table was begun, and up to where it had all batches."""


class TableSink(ABC):
    """A table to which the batches of one query are added.

    Args:
        path: the folder with the notes.
        application: names the query for ever; the table remembers its last batch.
    """

    def __init__(self, spark: SparkSession, path: str, application: str) -> None:
        self.files = FileSystem(spark, path)
        self._path = path
        self._application = application

    def add(self, frame: DataFrame, batch: int) -> bool:
        """Add the rows of a batch, unless the table has them or they are aside already; says whether it computed them.

        Raises:
            SparkError: the table is gone, was taken back to an older version, or somebody has changed its columns.
        """
        table = self.check()
        done = self._last_batch(table) if table is not None else None
        is_new = False
        if done is None or done < batch:
            # Rows that are aside are not computed again: by now the stream may have lost their messages.
            is_new = not self._is_staged(batch)
            if is_new:
                self.files.delete(batch_note(batch))
                self.files.write_json(batch_note(batch), self._stage(frame, batch))
            note = self.files.read_json(batch_note(batch))
            if note["files"]:
                self._append(note, batch)
                self.check()
        self.files.delete(f"{STAGING}/{batch}")
        # The note stays until the next batch: of one without rows the table knows nothing.
        for path in self.files.files(BATCHES):
            if path != batch_note(batch):
                self.files.delete(path)
        return is_new

    @abstractmethod
    def check(self) -> Any:
        """Return the table, after making sure that it holds every batch so far; None before the first one.

        Raises:
            SparkError: it is gone, or was taken back to an older version.
        """

    @abstractmethod
    def _last_batch(self, table: Any) -> int | None:
        """Return the number of the last batch that the table has."""

    @abstractmethod
    def _is_staged(self, batch: int) -> bool:
        """Return whether the rows of a batch are aside, as they were written."""

    @abstractmethod
    def _stage(self, frame: DataFrame, batch: int) -> Mapping[str, Any]:
        """Write the rows of a batch aside; return its note, with `files` and their sizes, and `rows`."""

    @abstractmethod
    def _append(self, note: Mapping[str, Any], batch: int) -> None:
        """Commit what is aside, in one transaction that records the batch."""
