"""Batch reads: what the streams hold when the query is planned, cut into tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from jetlake.spark.clock import Clock
from jetlake.spark.data_loss import data_loss_error, lost_below
from jetlake.spark.driver import cut_stream
from jetlake.spark.executor import read_partition
from jetlake.spark.options import SourceOptions
from jetlake.spark.partition import ReadPartition
from jetlake.spark.planning import SequenceRange
from jetlake.spark.retention import choose_reader
from jetlake.spark.start_points import end_sequence, start_sequence
from jetlake.spark.stream_watch import StreamWatch

__all__ = ["BatchReader", "plan_batch"]

_log = logging.getLogger("jetlake.spark")


class BatchReader(DataSourceReader):
    """Reads what the streams hold between the starting and the ending position; takes and releases nothing."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._schema = schema
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        return list(plan_batch(self._options, Clock()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's messages; none for the placeholder that Spark makes of an empty plan."""
        if isinstance(partition, ReadPartition):
            yield from read_partition(partition, self._schema, self._options)


def plan_batch(options: SourceOptions, clock: Clock) -> list[ReadPartition]:
    """The tasks of a batch read.

    Raises:
        DataLossError: the options name a first sequence that is gone, and say that this is an error.
        UnsupportedStreamError: a stream cannot be read with these options.
    """
    watch = StreamWatch(options, clock)
    partitions: list[ReadPartition] = []
    now_ns = clock.wall_ns()
    for stream in options.streams:
        info = watch.info(stream)
        starting, ending = options.starting.of(stream), options.ending.of(stream)
        first = watch.ask(lambda api: start_sequence(api, watch.version, info, starting, now_ns))  # noqa: B023
        end = watch.ask(lambda api: end_sequence(api, watch.version, info, ending, now_ns))  # noqa: B023
        lost = lost_below(info.config, info.state.first_seq, first, bool(options.subjects))
        if lost:
            error = data_loss_error(stream, first, first + lost)
            if options.fail_on_data_loss:
                raise error
            _log.warning("%s (going on, as the option says)", error)
        whole = SequenceRange(first + lost, end)
        span = info.state.last_seq + 1 - info.state.first_seq
        size_bytes = len(whole) * info.state.bytes / span if span > 0 else 0.0
        reader = choose_reader(info.config, watch.version, options, max(len(whole), 0))
        partitions += cut_stream(info, whole, size_bytes, options, reader)
    return partitions
