"""Writes micro-batches into a Delta table, each once by the table's own record of application transactions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs, parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from jetlake.errors import ConfigError, SparkError
from jetlake.spark.lake.lake import delta_files, open_file_system
from jetlake.spark.pipelines.lake.compaction import Compacted
from jetlake.spark.pipelines.lake.file_system import FileSystem
from jetlake.spark.pipelines.lake.folder_sink import NOTES, STAGING

__all__ = ["DeltaSink", "check_delta_path", "compact_delta", "read_delta"]


# What the driver holds at a time: rows, bytes of a column that is not decoded yet, and a part of a file.
_PIECE_ROWS = 4096
_BUFFER_BYTES = 1 << 20
_ROW_GROUP_BYTES = 8 << 20
# The table's writer holds a file of each open partition in memory until the file is this large.
_FILE_BYTES = 16 << 20


# What the package does not take in the path of a local folder, or takes for something else.
_UNSUITED = re.compile(r"[][\\^|]|%[0-9A-Fa-f]{2}")

# Says that the table was begun.
_TABLE = f"{NOTES}/table.json"


class DeltaSink:
    """A Delta table, written through the deltalake package: no jar is needed.

    Tasks write a batch aside, as Parquet; from there the driver streams it into the table, so that it holds some
    thousand rows at a time, however large the batch is.

    Args:
        application: names the query for ever; the table remembers its last batch.

    Raises:
        ConfigError: the deltalake package is missing.
    """

    def __init__(self, spark: SparkSession, path: str, application: str, partition_by: Sequence[str] = ()) -> None:
        self._deltalake = _deltalake()
        self._files = FileSystem(spark, path)
        self._path = path
        self._application = application
        self._partition_by = list(partition_by)

    def add(self, frame: DataFrame, batch: int) -> bool:
        """Add the rows of a batch, unless the table has it already; says whether they were computed.

        Raises:
            SparkError: the table is gone, or somebody has changed its columns.
        """
        delta = self._deltalake
        staging = f"{STAGING}/{batch}"
        if delta.DeltaTable.is_deltatable(self._path):
            self._note_table()
            done = delta.DeltaTable(self._path).transaction_version(self._application)
            if done is not None and done >= batch:
                self._files.delete(staging)
                return False
        elif self._files.exists(_TABLE):
            raise SparkError(
                f"table {self._path} is gone: its log _delta_log was removed, and a new one would know of no row "
                "before. Bring it back, or choose another folder"
            )
        writer = frame.write.mode("overwrite").option("parquet.block.size", _ROW_GROUP_BYTES)
        writer.parquet(self._files.path(staging))
        rows = self._staged(staging)
        if rows is not None:
            self._append(rows, batch)
            self._note_table()
        self._files.delete(staging)
        return True

    def _append(self, rows: pa.RecordBatchReader, batch: int) -> None:
        delta = self._deltalake
        try:
            delta.write_deltalake(
                self._path,
                rows,
                mode="append",
                target_file_size=_FILE_BYTES,
                partition_by=self._partition_by or None,
                commit_properties=delta.CommitProperties(
                    app_transactions=[delta.Transaction(app_id=self._application, version=batch)]
                ),
            )
        except delta.exceptions.SchemaMismatchError as error:
            columns = ", ".join(f"{field.name} {field.type}" for field in rows.schema)
            raise SparkError(
                f"table {self._path} has other columns than its archive, somebody has changed them: {error}. Restore "
                f"an older version of it, or give it these again: {columns}"
            ) from None

    def _note_table(self) -> None:
        """Note that there is a table, which a later batch then expects."""
        if not self._files.exists(_TABLE):
            self._files.write_json(_TABLE, {})

    def _staged(self, staging: str) -> pa.RecordBatchReader | None:
        """Return the rows that the tasks wrote, a few at a time; None when there are none."""
        store, root = open_file_system(self._path)
        paths = [f"{root}/{path}" for path in self._files.files(staging) if path.endswith(".parquet")]
        filled = [path for path in paths if _open(store, path).metadata.num_rows]
        if not filled:
            return None
        fields = _open(store, filled[0]).schema_arrow
        schema = pa.schema([field.with_type(_in_utc(field.type)) for field in fields])

        def read() -> Iterator[pa.RecordBatch]:
            for path in filled:
                for piece in _open(store, path).iter_batches(_PIECE_ROWS):
                    yield piece.cast(schema)

        return pa.RecordBatchReader.from_batches(schema, read())


def _open(store: fs.FileSystem, path: str) -> parquet.ParquetFile:
    # Spark writes times as INT96, in UTC; Delta has microseconds.
    return parquet.ParquetFile(
        store.open_input_file(path), buffer_size=_BUFFER_BYTES, pre_buffer=False, coerce_int96_timestamp_unit="us"
    )


def _in_utc(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(kind) else kind


def compact_delta(path: str, target_bytes: int) -> Compacted:
    """Put small files of the table together; readers see one version or the other."""
    figures = _deltalake().DeltaTable(path).optimize.compact(target_size=target_bytes)
    return Compacted(int(figures["numFilesRemoved"]), int(figures["numFilesAdded"]))


def _deltalake() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError:
        raise ConfigError(
            "format delta needs the package deltalake; install it with: pip install 'jetlake[delta]'"
        ) from None
    return deltalake


def read_delta(spark: SparkSession, path: str, columns: StructType) -> DataFrame:
    """Return the table's rows: its files are plain Parquet, of which the current version names those that count."""
    _deltalake()
    files = FileSystem(spark, path)
    paths = [files.pattern(file) for file in delta_files(path)]
    if not paths:
        return spark.createDataFrame([], columns)
    return spark.read.schema(columns).parquet(*paths).select(*columns.fieldNames())


def check_delta_path(path: str) -> None:
    """Make sure that the deltalake package can write there: of some characters it makes others, or an end.

    Raises:
        ConfigError: it can't.
    """
    found = None if "://" in path else _UNSUITED.search(str(Path(path).absolute()))
    if found is not None:
        raise ConfigError(
            f"a Delta table can't be written to {path}, for its path holds {found[0]!r}: choose another folder"
        )
