"""Batch reads: the messages that the streams hold when the query is planned, cut into tasks."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from jetlake.client.tables.archived import archived_range, check_archive, open_archive
from jetlake.client.tables.bounds import Bounds, Condition, Operator, bounds_of, narrow_subjects
from jetlake.client.tables.data_loss import seen_of
from jetlake.client.tables.planning import BatchRange, SequenceRange, StreamOffset, Version, choose_reader
from jetlake.client.tables.ranges import behind_seam, bounded_range, check_head, expiring_soon, position_range
from jetlake.client.tables.stream_api import StreamApi
from jetlake.model.stream import StreamInfo
from jetlake.spark.options.source_options import SourceOptions, pinned_partitions
from jetlake.spark.source.executor import read_lake_partition, read_partition
from jetlake.spark.source.lake import LakePartition, plan_lake
from jetlake.spark.source.stream_watch import Clock, StreamNames, StreamWatch
from jetlake.spark.source.tasks import TaskPartition, cut_stream

__all__ = ["BatchReader", "FilteringBatchReader", "make_batch_reader", "plan_batch"]

_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
_OPERATORS: dict[type[Filter], Operator] = {
    EqualTo: "=",
    EqualNullSafe: "=",
    In: "in",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    StringStartsWith: "prefix",
}


class BatchReader(DataSourceReader):
    """Reads the messages between the starting and the ending position; takes and releases none."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._schema = schema
        self._options = options
        self._bounds = Bounds()

    def partitions(self) -> list[InputPartition]:
        """Return the tasks."""
        return list(plan_batch(self._options, self._bounds, Clock(), self._schema.fieldNames()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one task's messages; none for the placeholder that Spark makes of an empty plan."""
        if isinstance(partition, TaskPartition):
            yield from read_partition(partition, self._schema, self._options)
        elif isinstance(partition, LakePartition):
            yield from read_lake_partition(partition, self._schema, self._options)


class FilteringBatchReader(BatchReader):
    """A batch reader that skips messages which the query's filters would drop.

    A class of its own, because Spark refuses a reader with `pushFilters` while its push-down is switched off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Derive bounds from the filters, and leave all filters to Spark as well."""
        self._bounds = _bounds_of_filters(filters)
        return filters


def make_batch_reader(schema: StructType, options: SourceOptions) -> BatchReader:
    """Return the reader for this process: Spark plans with filters in a worker of its own."""
    return (FilteringBatchReader if _PUSHDOWN_WORKER in sys.modules else BatchReader)(schema, options)


def plan_batch(
    options: SourceOptions, bounds: Bounds, clock: Clock, columns: Sequence[str] = ()
) -> list[TaskPartition | LakePartition]:
    """Return the tasks of a batch read.

    Args:
        columns: what the rows have, of which an archive may lack some.

    Raises:
        DataLossError: the options name a first sequence that is gone, and say that this is an error.
        UnsupportedStreamError: a stream cannot be read with these options.
    """
    watch = StreamWatch(options, clock)
    narrowed = narrow_subjects(options.subjects, bounds.subjects) if bounds.subjects is not None else None
    if narrowed == ():
        return []
    read_options = options if narrowed is None else replace(options, subjects=narrowed)
    now_ns = clock.wall_ns()
    partitions: list[TaskPartition | LakePartition] = []
    for stream in StreamNames(options, watch, clock).current():
        if bounds.streams is None or stream in bounds.streams:
            # The archive first: a stream that is asked later has all messages behind its seam.
            archive = None
            if options.archive:
                archive = open_archive(options.archive, stream, options.subjects, options.payload_format, columns)
            info = watch.info(stream)
            seam = 0
            if archive is not None:
                watch.ask(lambda api: check_archive(api, stream, archive))  # noqa: B023
                seam = archive.offset.next
                start, end = options.starting.of(stream), options.ending.of(stream)
                wanted = archived_range(info, archive, start, end, bounds, now_ns, bool(options.subjects))
                partitions += plan_lake(archive, wanted, read_options)
            # The range of the options does not depend on the filters that are pushed down.
            found = watch.ask(lambda api: _range(api, watch.version, info, options, bounds, now_ns, seam))  # noqa: B023
            partitions += watch.ask(lambda api: _tasks(api, watch.version, info, found, read_options))  # noqa: B023
    return partitions


def _tasks(
    api: StreamApi, version: Version, info: StreamInfo, found: tuple[SequenceRange, bool], options: SourceOptions
) -> list[TaskPartition]:
    """Return one stream's tasks."""
    whole, soft = found
    state = info.state
    span = state.last_seq + 1 - state.first_seq
    size_bytes = len(whole) * state.bytes / span if span > 0 else 0.0
    reader = choose_reader(info.config, version, options, len(whole))
    expiring = expiring_soon(api, version, info) if soft else ()
    batch = BatchRange(whole.first, soft=soft, partitions=pinned_partitions(options), expiring=expiring)
    planned = StreamOffset(info.created, whole.end, seen=seen_of(info), batch=batch)
    return cut_stream(api, info, whole, options, reader, size_bytes=size_bytes, planned=planned)


def _range(
    api: StreamApi, version: Version, info: StreamInfo, options: SourceOptions, bounds: Bounds, now_ns: int, seam: int
) -> tuple[SequenceRange, bool]:
    """Return the sequences of one stream that the options name and the filters let through, and whether they start
    wherever the stream starts when it is read. Messages before `seam` are in the stream's archive.
    """
    stream = info.config.name
    start, stop = options.starting.of(stream), options.ending.of(stream)
    named, soft = position_range(api, version, info, start, stop, now_ns, options.subjects)
    if seam:
        named, soft = behind_seam(named, soft, seam)
        if not len(named):
            return named, False
    if not soft:
        check_head(info, named.first, options.subjects, fail=options.fail_on_data_loss)
    whole = SequenceRange(max(named.first, info.state.first_seq), named.end)
    return bounded_range(api, version, info, whole, bounds), soft


def _bounds_of_filters(filters: Iterable[Filter]) -> Bounds:
    """Return the bounds of filters that must all hold; those of other kinds do not count."""
    conditions = []
    for single in filters:
        operator = _OPERATORS.get(type(single))
        match getattr(single, "attribute", None):
            case (str(column),) if operator is not None:
                conditions.append(Condition(column, operator, getattr(single, "value", None)))
    return bounds_of(conditions)
