"""Writes micro-batches into a Delta table, each once by the table's own record of application transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from jetlake.errors import ConfigError
from jetlake.spark.pipelines.lake.compaction import Compacted

__all__ = ["DeltaSink", "compact_delta", "read_delta"]


class DeltaSink:
    """A Delta table, written by the driver through the deltalake package: no jar is needed.

    Args:
        application: names the query for ever; the table remembers its last batch.

    Raises:
        ConfigError: the deltalake package is missing.
    """

    def __init__(self, path: str, application: str, partition_by: Sequence[str] = ()) -> None:
        self._deltalake = _deltalake()
        self._path = path
        self._application = application
        self._partition_by = list(partition_by)

    def add(self, frame: DataFrame, batch: int) -> bool:
        """Add the rows of a batch, unless the table has it already; says whether they were computed."""
        delta = self._deltalake
        if delta.DeltaTable.is_deltatable(self._path):
            done = delta.DeltaTable(self._path).transaction_version(self._application)
            if done is not None and done >= batch:
                return False
        rows = frame.toArrow()
        if rows.num_rows == 0:
            return True
        delta.write_deltalake(
            self._path,
            rows,
            mode="append",
            partition_by=self._partition_by or None,
            commit_properties=delta.CommitProperties(
                app_transactions=[delta.Transaction(app_id=self._application, version=batch)]
            ),
        )
        return True


def compact_delta(path: str, target_bytes: int) -> Compacted:
    """Put small files of the table together; readers see one version or the other."""
    figures = _deltalake().DeltaTable(path).optimize.compact(target_size=target_bytes)
    return Compacted(int(figures["numFilesRemoved"]), int(figures["numFilesAdded"]))


def _deltalake() -> Any:
    try:
        import deltalake
    except ImportError:
        raise ConfigError(
            "format delta needs the package deltalake; install it with: pip install 'jetlake[delta]'"
        ) from None
    return deltalake


def read_delta(spark: SparkSession, path: str, columns: StructType) -> DataFrame:
    """The table's rows: its files are plain Parquet, of which the current version names those that count."""
    files = _deltalake().DeltaTable(path).file_uris()
    if not files:
        return spark.createDataFrame([], columns)
    return spark.read.schema(columns).parquet(*files).select(*columns.fieldNames())
