"""The executor's half of reading: a range of sequences, or files of an archive, as record batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructType

from jetlake.client.tables.columns.message_columns import MessageColumns
from jetlake.client.tables.plan.partition import ReadPartition
from jetlake.client.tables.reading.range_reader import read_range
from jetlake.spark.garbage import spare_imports
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.reading.schema import make_row_builder
from jetlake.spark.requests.loss_notes import LossNotes

if TYPE_CHECKING:
    from jetlake.spark.lake.lake_reader import LakePartition

__all__ = ["read_lake_partition", "read_partition", "read_task"]


def read_partition(partition: ReadPartition, schema: StructType, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Return the messages of a partition, in the order of their sequences, as record batches of that schema."""
    spare_imports()
    return _rows(read_task(partition, options), partition.stream, schema, options)


def read_task(partition: ReadPartition, options: SourceOptions) -> Iterator[MessageColumns]:
    """Return the messages of a partition; what is lost is noted for the driver to count."""

    def note(lost: int) -> None:
        if partition.note:
            LossNotes(options).add(partition.note, lost)

    return read_range(partition, options, note)


def read_lake_partition(
    partition: LakePartition, schema: StructType, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """Return the archived messages of a partition, as record batches of that schema."""
    # Imported where it is used: every query starts a process that imports this module, and queries read no archive.
    from jetlake.spark.lake.lake_reader import read_lake

    messages = read_lake(partition, schema.fieldNames(), options.rows_per_batch)
    return _rows(messages, partition.stream, schema, options)


def _rows(
    found: Iterator[MessageColumns], stream: str, schema: StructType, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    builder = make_row_builder(schema, options, stream)
    rows_max = options.rows_per_batch
    for messages in found:
        for first in range(0, len(messages), rows_max):
            yield builder.build(messages.slice(first, min(first + rows_max, len(messages))))
