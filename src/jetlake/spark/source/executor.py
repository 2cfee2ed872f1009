"""The executor's half of reading: a range of sequences, or files of an archive, as record batches.

Tasks and driver share only the server. So a task that finds messages lost notes their number in the key-value bucket of
the ledger, under the batch and its own first sequence; a repeated task overwrites its note, and the driver sums them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructType

from jetlake.client.tables.message_columns import MessageColumns
from jetlake.client.tables.planning import ReadPartition
from jetlake.client.tables.range_reader import read_range
from jetlake.errors import ApiError, PermissionsError, UnsupportedStreamError
from jetlake.spark.garbage import spare_imports
from jetlake.spark.key_value import KeyValue
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.schema import make_row_builder

if TYPE_CHECKING:
    from jetlake.spark.source.lake import LakePartition


def read_partition(partition: ReadPartition, schema: StructType, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Return the messages of a partition, in the order of their sequences, as record batches of that schema."""
    spare_imports()
    return _rows(read_task(partition, options), partition.stream, schema, options)


def read_task(partition: ReadPartition, options: SourceOptions) -> Iterator[MessageColumns]:
    """Return the messages of a partition; losses are noted for the driver to count."""

    def note(lost: int) -> None:
        if partition.note:
            LossNotes(options).add(partition.note, lost)

    return read_range(partition, options, note)


def read_lake_partition(
    partition: LakePartition, schema: StructType, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """Return the archived messages of a partition, as record batches of that schema."""
    # Imported where it is used: every query starts a process that imports this module, and queries read no archive.
    from jetlake.client.tables.archived import read_archived

    messages = read_archived(partition.found, schema.fieldNames(), options.rows_per_batch)
    return _rows(messages, partition.found.stream, schema, options)


def _rows(
    found: Iterator[MessageColumns], stream: str, schema: StructType, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    builder = make_row_builder(schema, options, stream)
    rows_max = options.rows_per_batch
    for messages in found:
        for first in range(0, len(messages), rows_max):
            yield builder.build(messages.slice(first, min(first + rows_max, len(messages))))


_log = logging.getLogger("jetlake.spark")


def note_key(owner: str, stream: str, batch_first: int, task: str) -> str:
    """Return the key of a batch's losses: of one task, by its first sequence, or `>` for all."""
    return f"lost.{owner}.{stream}.{batch_first}.{task}"


class LossNotes:
    """Numbers of lost messages by batch and task."""

    def __init__(self, options: SourceOptions) -> None:
        self._values = KeyValue(options.connection, options.ledger, "" if options.has_patterns else options.streams[0])

    def add(self, key: str, count: int) -> None:
        """Note the number of lost messages; where the login may not write the bucket, only log it."""
        try:
            self._values.write(key, b"%d" % count)
        except UnsupportedStreamError as error:
            _log.warning("%d lost messages are missing in the query's count: %s", count, error)

    def total(self, pattern: str) -> int:
        """Return the sum of the notes under matching keys."""
        try:
            return sum(int(value) for value in self._values.values(pattern) if value.isdigit())
        except (ApiError, PermissionsError) as error:
            _log.warning("the messages that tasks found lost could not be counted: %s", error)
            return 0

    def remove(self, pattern: str) -> None:
        """Remove the notes under matching keys."""
        self._values.remove(pattern)
