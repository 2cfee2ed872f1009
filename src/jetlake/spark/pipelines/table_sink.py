"""Adds micro-batches to a table, each once: the part that tables of every kind share.

A batch is written aside by the tasks, its files are noted, and then the table takes them in one commit. The table's own
record says whether it has the batch, and a file of ours never does: a batch that is repeated is known to be done by the
table, or finished from the files aside. A crash before the note leaves files that the repeated batch replaces; a crash
after it leaves the rows there, when the stream may have lost their messages. Up to where the table was seen to be whole
is noted as well, for a table that was restored to an older version would have a hole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyarrow import fs, parquet
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sql

from jetlake.client.tables.archived import NOTES, open_file_system
from jetlake.spark.pipelines.file_system import FileSystem
from jetlake.spark.pipelines.folder_sink import BATCHES, STAGING, batch_note

TABLE = f"{NOTES}/table.json"
"""Says that the table was begun, and up to where it had all batches."""


DELETED = "deleted"
"""The column of a batch of keys that says that a key has no value any more; tables do not have it."""

PIECE_ROWS = 4096
"""How many rows the driver holds at a time."""
# And how much of a column that is not decoded yet, and of a file.
_BUFFER_BYTES = 1 << 20
_ROW_GROUP_BYTES = 8 << 20


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
            SparkError: the table is gone, was restored to an older version, or its columns were changed.
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
            SparkError: it is gone, or was restored to an older version.
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


def is_parquet_staged(files: FileSystem, batch: int) -> bool:
    """Return whether the files of `stage_parquet` are aside, as they were written."""
    note = files.read_json(batch_note(batch))
    return note is not None and note["files"].items() <= files.files(f"{STAGING}/{batch}").items()


def stage_parquet(files: FileSystem, path: str, frame: DataFrame, batch: int) -> Mapping[str, Any]:
    """Write the rows of a batch aside as Spark writes Parquet; return its note."""
    staging = f"{STAGING}/{batch}"
    counted = Observation()
    observed = frame.observe(counted, sql.count("*").alias("rows"))
    observed.write.mode("overwrite").option("parquet.block.size", _ROW_GROUP_BYTES).parquet(files.path(staging))
    store, root = open_file_system(path)
    found = {
        name: size
        for name, size in files.files(staging).items()
        if name.endswith(".parquet") and _open(store, f"{root}/{name}").metadata.num_rows
    }
    return {"files": found, "rows": counted.get["rows"]}


def staged_rows(path: str, note: Mapping[str, Any]) -> pa.RecordBatchReader:
    """Return the rows that `stage_parquet` wrote, a few at a time."""
    store, root = open_file_system(path)
    filled = [f"{root}/{name}" for name in note["files"]]
    written = _open(store, filled[0])
    leaves = (written.schema.column(index).physical_type for index in range(len(written.schema)))
    schema = pa.schema([field.with_type(_in_utc(field.type, leaves)) for field in written.schema_arrow])

    def read() -> Iterator[pa.RecordBatch]:
        for name in filled:
            for piece in _open(store, name).iter_batches(PIECE_ROWS):
                yield piece.cast(schema)

    return pa.RecordBatchReader.from_batches(schema, read())


def _open(store: fs.FileSystem, path: str) -> parquet.ParquetFile:
    # Spark writes times as INT96, in UTC; Delta has microseconds.
    return parquet.ParquetFile(
        store.open_input_file(path), buffer_size=_BUFFER_BYTES, pre_buffer=False, coerce_int96_timestamp_unit="us"
    )


def _in_utc(kind: pa.DataType, leaves: Iterator[str]) -> pa.DataType:
    """Return a type in which times of Spark's `timestamp` are in UTC, at any depth; `timestamp_ntz` has no zone.

    Args:
        leaves: the types in the file of all values that are no struct, list or map, in their order: Spark writes the
            former as INT96, of which Arrow does not say that it is UTC.
    """
    if pa.types.is_struct(kind):
        return pa.struct([_field_in_utc(kind.field(index), leaves) for index in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_field_in_utc(kind.value_field, leaves))
    if pa.types.is_map(kind):
        return pa.map_(_field_in_utc(kind.key_field, leaves), _field_in_utc(kind.item_field, leaves))
    return pa.timestamp("us", "UTC") if next(leaves) == "INT96" else kind


def _field_in_utc(field: pa.Field, leaves: Iterator[str]) -> pa.Field:
    return field.with_type(_in_utc(field.type, leaves))
