"""Batch reading: a snapshot of the streams, cut into partitions when the query is planned."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from jetlake.spark.driver import Driver
from jetlake.spark.executor import read_partition
from jetlake.spark.options import SourceOptions
from jetlake.spark.partition import ReadPartition

__all__ = ["BatchReader"]


class BatchReader(DataSourceReader):
    """Reads what the streams hold between the starting and the ending position."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._schema = schema
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """The ranges to read, one a task."""
        return list(Driver(self._options).batch_partitions())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one range; nothing for the placeholder that Spark makes of an empty plan."""
        if isinstance(partition, ReadPartition):
            yield from read_partition(partition, self._schema, self._options)
