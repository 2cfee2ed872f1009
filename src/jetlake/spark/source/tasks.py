"""One stream's range as tasks of Spark."""

from __future__ import annotations

from jetlake.client.tables.plan.offsets import StreamOffset
from jetlake.client.tables.plan.planning import SequenceRange, cut
from jetlake.client.tables.reading.tasks import plan_pieces
from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.model.stream import StreamInfo
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.plan.cluster_size import partitions_max
from jetlake.spark.plan.partition import TaskPartition, as_tasks

__all__ = ["cut_range", "cut_stream"]


def cut_range(
    whole: SequenceRange, size_bytes: float, options: SourceOptions, planned: StreamOffset
) -> list[SequenceRange]:
    """Return the range in pieces, one a task, as the options and the batch's offset say."""
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
        note: what the keys begin with under which tasks note their losses.
    """
    pieces = cut_range(whole, size_bytes, options, planned)
    return as_tasks(plan_pieces(api, info, pieces, options, reader, planned=planned, note=note))
