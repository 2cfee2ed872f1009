"""The executor's half of reading: a range of sequences as record batches, over a connection of the worker's pool."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.types import StructType

from jetlake.spark.options import SourceOptions
from jetlake.spark.partition import ReadPartition
from jetlake.spark.range_reader import read_range
from jetlake.spark.schema import RowBuilder

__all__ = ["read_partition"]


def read_partition(partition: ReadPartition, schema: StructType, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The messages of a partition, in the order of their sequences, as record batches of that schema."""
    builder = RowBuilder(schema, options, partition.stream)
    rows_max = options.rows_per_batch
    for messages in read_range(partition, options):
        for first in range(0, len(messages), rows_max):
            yield builder.build(messages.slice(first, min(first + rows_max, len(messages))))
