"""A stream's range cut into tasks of Spark."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from jetlake.client.tables.planning import ReadPartition, SequenceRange, StreamOffset, cut
from jetlake.client.tables.ranges import plan_tasks
from jetlake.client.tables.stream_api import StreamApi
from jetlake.model.stream import StreamInfo
from jetlake.spark.options.source_options import SourceOptions, partitions_max


def cut_range(
    whole: SequenceRange, size_bytes: float, options: SourceOptions, planned: StreamOffset
) -> list[SequenceRange]:
    """Return the range in parts, one a task, by the options and the batch's offset."""
    return cut(
        whole,
        size_bytes,
        messages_per_partition=options.messages_per_partition,
        bytes_per_partition=options.bytes_per_partition,
        min_partitions=options.min_partitions,
        max_partitions=partitions_max(options, planned.batch.partitions if planned.batch is not None else None),
    )


def cut_stream(
    api: StreamApi,
    info: StreamInfo,
    whole: SequenceRange,
    options: SourceOptions,
    reader: str,
    *,
    size_bytes: float,
    planned: StreamOffset,
    note: str = "",
) -> list[TaskPartition]:
    """Return the tasks of a range.

    Args:
        size_bytes: about how many bytes the range holds.
        planned: the end of the batch.
        note: prefix of the keys under which tasks note their losses.
    """
    parts = cut_range(whole, size_bytes, options, planned)
    return as_tasks(plan_tasks(api, info, parts, options, reader, planned=planned, note=note))


@dataclass
class TaskPartition(ReadPartition, InputPartition):
    """A range of one stream's sequences, as Spark hands it to a task."""


def as_tasks(partitions: list[ReadPartition]) -> list[TaskPartition]:
    """Return the ranges as tasks."""
    return [TaskPartition(**vars(partition)) for partition in partitions]
