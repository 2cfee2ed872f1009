"""Reads archived messages: tasks over the files of a lake, and their rows as if they came from the stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from jetlake.client.tables.columns.message_columns import MessageColumns
from jetlake.errors import DataLossError
from jetlake.protocol.subjects import compile_matcher
from jetlake.spark.lake.lake import Lake
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.plan.cluster_size import partitions_max, pinned_partitions

__all__ = ["LakePartition", "LakeRange", "plan_lake", "read_lake"]

_HEADER_COLUMNS = {"headers", "headers_raw", "msg_id"}
_DATA_COLUMNS = {"data", "size", "value", "bad_data", "bad_reason"}


@dataclass(frozen=True)
class LakeRange:
    """Which archived messages are meant.

    Attributes:
        first, end: sequences, the end exclusive.
        since_us, until_us: when they were stored, the end exclusive; None for any time.
    """

    first: int
    end: int
    since_us: int | None = None
    until_us: int | None = None


@dataclass
class LakePartition(InputPartition):
    """Some files of an archive, and which of their messages to read.

    Attributes:
        root: the archive as the option names it, which says the file system.
    """

    stream: str
    root: str
    files: tuple[str, ...]
    wanted: LakeRange
    subjects: tuple[str, ...]


def plan_lake(lake: Lake, wanted: LakeRange, options: SourceOptions) -> list[LakePartition]:
    """Return the tasks over an archive: files together up to the options' size of a task."""
    if wanted.first >= wanted.end or not lake.files:
        return []
    total = sum(size for _, size in lake.files)
    tasks_max = partitions_max(options, pinned_partitions(options))
    share = max(options.bytes_per_partition, total // tasks_max, 1)
    groups: dict[int, list[str]] = {}
    seen = 0
    for number, (path, size) in enumerate(lake.files):
        # Tables that do not tell sizes are cut by the number of their files.
        group = seen // share if total else number * tasks_max // len(lake.files)
        groups.setdefault(group, []).append(path)
        seen += size
    return [
        LakePartition(options.streams[0], options.archive, tuple(paths), wanted, options.subjects)
        for paths in groups.values()
    ]


def read_lake(partition: LakePartition, columns: list[str], rows_max: int) -> Iterator[MessageColumns]:
    """Yield the messages of a task; only what these columns need is read.

    Raises:
        DataLossError: a file is gone that was there when the read was planned.
    """
    from pyarrow import fs, parquet  # here, for most tasks read no files

    plain = "://" not in partition.root
    system = fs.LocalFileSystem() if plain else fs.FileSystem.from_uri(partition.root)[0]
    for path in partition.files:
        try:
            source = system.open_input_file(path)
        except FileNotFoundError:
            raise DataLossError(
                f"file {path} of archive {partition.root} is gone since the read began: its files were put together, "
                "or it was deleted. Read again"
            ) from None
        with source:
            file = parquet.ParquetFile(source, coerce_int96_timestamp_unit="us")
            groups = _row_groups(file, partition.wanted)
            names = _needed(set(columns), set(file.schema_arrow.names))
            for batch in file.iter_batches(rows_max, row_groups=groups, columns=names):
                messages = _messages(batch, partition)
                if len(messages):
                    yield messages


def _row_groups(file: Any, wanted: LakeRange) -> list[int]:
    """Return the row groups that may hold wanted messages, by what the file says of its sequences."""
    chosen = []
    for number in range(file.metadata.num_row_groups):
        statistics = _statistics(file.metadata.row_group(number), "sequence")
        if statistics is None or (statistics.max >= wanted.first and statistics.min < wanted.end):
            chosen.append(number)
    return chosen


def _statistics(group: Any, name: str) -> Any:
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == name:
            return column.statistics if column.is_stats_set and column.statistics.has_min_max else None
    return None


def _needed(columns: set[str], present: set[str]) -> list[str]:
    names = ["sequence", "timestamp", "subject"]
    if columns & _HEADER_COLUMNS:
        names.append("headers_raw" if "headers_raw" in present else "headers")
    if columns & _DATA_COLUMNS:
        names.append("data")
    return names


def _messages(batch: pa.RecordBatch, partition: LakePartition) -> MessageColumns:
    """Return the wanted rows as messages."""
    import pyarrow.compute as pc  # here, as in message_columns

    wanted = partition.wanted
    time = batch.column("timestamp")
    time_us = time.cast(pa.timestamp("us", tz=time.type.tz)).cast(pa.int64())
    sequence = batch.column("sequence")
    keep = pc.and_(pc.greater_equal(sequence, wanted.first), pc.less(sequence, wanted.end))
    if wanted.since_us is not None:
        keep = pc.and_(keep, pc.greater_equal(time_us, wanted.since_us))
    if wanted.until_us is not None:
        keep = pc.and_(keep, pc.less(time_us, wanted.until_us))
    subject = batch.column("subject").cast(pa.binary())
    if partition.subjects:
        matchers = [compile_matcher(pattern.encode()) for pattern in partition.subjects]
        matching = [one for one in subject.unique().to_pylist() if any(match(one) for match in matchers)]
        keep = pc.and_(keep, pc.is_in(subject, pa.array(matching, pa.binary())))
    count = int(pc.sum(keep).as_py() or 0)
    nothing = pa.array([b""] * count, pa.binary())
    header = nothing
    if "headers_raw" in batch.schema.names:
        header = pa.array([raw or b"" for raw in batch.column("headers_raw").filter(keep).to_pylist()], pa.binary())
    elif "headers" in batch.schema.names:
        header = pa.array([_block(pairs) for pairs in batch.column("headers").filter(keep).to_pylist()], pa.binary())
    has_data = "data" in batch.schema.names
    data = batch.column("data").cast(pa.binary()).filter(keep).fill_null(b"") if has_data else nothing
    return MessageColumns(
        np.array(sequence.filter(keep).to_pylist(), np.int64),
        np.array(time_us.filter(keep).to_pylist(), np.int64) * 1000,
        subject.filter(keep),
        header,
        data,
    )


def _block(pairs: list[tuple[str, list[str]]] | None) -> bytes:
    """Return the header block of an archived map; what was read from a block is not checked again."""
    if not pairs:
        return b""
    lines = [f"{key}: {value}\r\n" for key, values in pairs for value in values or ()]
    return f"NATS/1.0\r\n{''.join(lines)}\r\n".encode()
