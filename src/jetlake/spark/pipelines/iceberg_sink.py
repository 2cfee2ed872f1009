"""Writes micro-batches into an Iceberg table, each once by the record in the table's own snapshots.

Tasks write the table's files themselves, with the ids, statistics and order of its columns, into a folder that carries
the archive's id and the batch's number; the driver commits them in one snapshot that records the batch. No row passes
through the driver, and no jar is needed. Files of an attempt that was not noted are deleted when the batch is repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from jetlake.errors import SparkError
from jetlake.lake.catalogs import TableAddress, require_pyiceberg
from jetlake.lake.columns import file_schema, file_system, fitted, open_writer, small_types
from jetlake.lake.iceberg import IcebergTable, Maintained, Policy, is_part_of, neighbours, stream_files
from jetlake.protocol.nuid import next_nuid
from jetlake.spark.pipelines.file_system import pattern_of
from jetlake.spark.pipelines.folder_sink import batch_note
from jetlake.spark.pipelines.table_sink import (
    DELETED,
    TABLE,
    TableSink,
    is_parquet_staged,
    stage_parquet,
    staged_rows,
)

_FILES = "path string, rows bigint, bytes bigint, first bigint, last bigint"
# What a task collects before it is written as one row group.
_GROUP_BYTES = 64 << 20
# Columns that cut the rows of a task into files and are not stored: the table derives them from the time.
_DERIVED = ("date", "hour")


class IcebergSink(TableSink):
    """An Iceberg table, written through the pyiceberg package.

    Args:
        partition_by: what cuts the rows into files.
        stream: the stream that is archived.
        policy: how small commits are merged and expired while the query runs.

    Raises:
        ConfigError: the pyiceberg package is missing.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        address: TableAddress,
        application: str,
        partition_by: Sequence[str] = (),
        *,
        stream: str = "",
        policy: Policy | None = None,
    ) -> None:
        require_pyiceberg()
        super().__init__(spark, path, application)
        self.table = IcebergTable(address, application)
        self._partition_by = tuple(partition_by)
        self._stream = stream
        self._policy = policy or Policy()
        self._commits = 0
        self._columns: pa.Schema | None = None

    def check(self) -> Any:
        table = self.table.load()
        noted = self.files.read_json(TABLE)
        if table is None:
            if noted is not None:
                raise SparkError(
                    f"table {self.table.address.name} is gone from its catalog, and a new table would not contain the "
                    "existing rows. Restore it, or choose another folder"
                )
            return None
        if noted is not None and noted["uuid"] != str(table.metadata.table_uuid):
            raise SparkError(
                f"table {self.table.address.name} is not the one that the archive was written to: restore that one, or "
                "choose another folder"
            )
        if noted is not None and not is_part_of(table, noted["snapshot"], noted["number"]):
            raise SparkError(
                f"table {self.table.address.name} was rolled back to a snapshot before {noted['snapshot']}, and the "
                "archive would continue after that gap. Roll it forward to that snapshot or a later one, or start a "
                "new archive in another folder"
            )
        snapshot = table.current_snapshot()
        if snapshot is not None:
            known = {
                "uuid": str(table.metadata.table_uuid),
                "snapshot": snapshot.snapshot_id,
                "number": snapshot.sequence_number or 0,
            }
            if known != noted:
                self.files.write_json(TABLE, known)
        return table

    def prepare(self, schema: StructType) -> Any:
        """Return the table, created if need be, with columns that take these rows.

        Raises:
            ConfigError: it is not one of ours, is cut another way, or has a column of another type.
        """
        columns = StructType([column for column in schema.fields if column.name not in _DERIVED])
        arrow = to_arrow_schema(columns, timezone="UTC")
        if self._columns == arrow:
            return self.table.require()
        self._columns = arrow
        return self.table.create(arrow, self._partition_by, self._stream)

    def _last_batch(self, table: Any) -> int | None:
        return self.table.last_batch(table)

    def _is_staged(self, batch: int) -> bool:
        note = self.files.read_json(batch_note(batch))
        table = self.table.load()
        if note is None or table is None:
            return False
        system, root = file_system(table)
        paths = [f"{root}/{path}" for path in note["files"]]
        sizes = [info.size for info in system.get_file_info(paths)] if paths else []
        return sizes == list(note["files"].values())

    def _stage(self, frame: DataFrame, batch: int) -> Mapping[str, Any]:
        table = self.prepare(frame.schema)
        system, root = file_system(table)
        folder = f"data/{self._application}/{batch:08d}"
        if system.get_file_info(f"{root}/{folder}").is_file is False:
            _delete_folder(system, f"{root}/{folder}")
        system.create_dir(f"{root}/{folder}", recursive=True)
        task = TableTask(
            dict(table.io.properties), table.location(), folder, small_types(file_schema(table)), self._partition_by
        )
        written = frame.mapInArrow(task, _FILES).collect()
        return {
            "files": {row.path: row.bytes for row in written},
            "rows": sum(row.rows for row in written),
            "first": min((row.first for row in written), default=0),
            "last": max((row.last for row in written), default=0),
        }

    def _append(self, note: Mapping[str, Any], batch: int) -> None:
        location = self.table.require().location().rstrip("/")
        files = [f"{location}/{path}" for path in note["files"]]
        self.table.append(batch, files, note["first"], note["last"])
        self._commits += 1
        if self._policy.every and self._commits % self._policy.every == 0:
            self.table.maintain(self._policy)

    def compact(self, target_bytes: int) -> Maintained:
        """Merge small files, and expire snapshots as the policy says."""
        merged = self.table.compact(target_bytes)
        expired = self.table.expire(self._policy.snapshots)
        self.check()
        return Maintained(merged.files_before, merged.files_after, expired.snapshots, expired.deleted)


class IcebergUpsertSink(IcebergSink):
    """An Iceberg table with a row a key: a batch replaces the rows of its keys."""

    def _is_staged(self, batch: int) -> bool:
        return is_parquet_staged(self.files, batch)

    def _stage(self, frame: DataFrame, batch: int) -> Mapping[str, Any]:
        self.prepare(frame.drop(DELETED).schema)
        return stage_parquet(self.files, self._path, frame, batch)

    def _append(self, note: Mapping[str, Any], batch: int) -> None:
        rows = staged_rows(self._path, note).read_all()
        kept = rows.filter(pc.invert(rows.column(DELETED))).drop_columns([DELETED])
        self.table.upsert(batch, kept.sort_by("revision"), rows.column("key").combine_chunks())
        self._commits += 1
        if self._policy.every and self._commits % self._policy.every == 0:
            self.table.maintain(self._policy)

    def keys(self) -> set[str]:
        """Return the keys that have a row."""
        table = self.table.load()
        return set(table.scan(selected_fields=("key",)).to_arrow()["key"].to_pylist()) if table is not None else set()

    def remove(self, keys: list[str]) -> None:
        """Remove the rows of some keys."""
        self.table.upsert(None, None, pa.array(keys, pa.string()))
        self.check()


def _delete_folder(system: Any, path: str) -> None:
    from pyarrow import fs

    if system.get_file_info(path).type == fs.FileType.Directory:
        system.delete_dir(path)


@dataclass(frozen=True)
class TableTask:
    """Writes the rows of a task as files of a table, one for each part of the table; runs on executors.

    Attributes:
        properties: of the table's file system.
        folder: below the table's location.
        schema: the columns of the files, with their ids.
        cut_by: columns by which the rows are sorted, and whose changes begin a file.
    """

    properties: Mapping[str, str]
    location: str
    folder: str
    schema: pa.Schema
    cut_by: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write, and yield the files."""
        from pyiceberg.io import load_file_io

        io: Any = load_file_io(dict(self.properties), self.location)
        scheme, netloc, root = io.parse_location(self.location)
        system = io.fs_by_scheme(scheme, netloc)
        files: list[dict[str, Any]] = []
        writing: _File | None = None
        for batch in batches:
            for key, rows in _cut(batch, self.cut_by):
                if writing is not None and writing.key != key:
                    files.append(writing.close())
                    writing = None
                if writing is None:
                    writing = _File(key, system, root.rstrip("/"), f"{self.folder}/{next_nuid()}.parquet", self.schema)
                writing.write(rows)
        if writing is not None:
            files.append(writing.close())
        names = [column.split()[0] for column in _FILES.split(", ")]
        arrays = [
            pa.array([file[name] for file in files], pa.string() if name == "path" else pa.int64()) for name in names
        ]
        yield pa.RecordBatch.from_arrays(arrays, names)


class _File:
    """A file that is being written, in row groups of a bounded size."""

    def __init__(self, key: tuple[Any, ...], system: Any, root: str, path: str, schema: pa.Schema) -> None:
        self.key = key
        self._system = system
        self._path = path
        self._whole = f"{root}/{path}"
        self._schema = schema
        self._sink = system.open_output_stream(self._whole)
        self._writer = open_writer(self._sink, schema)
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = self._rows = 0
        self._first = self._last = 0

    def write(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.Table.from_batches(self._waiting)
        bounds = pc.min_max(rows.column("sequence")).as_py()
        self._first = min(self._first, bounds["min"]) if self._rows else bounds["min"]
        self._last = max(self._last, bounds["max"])
        self._rows += len(rows)
        columns = [
            fitted(rows.column(column.name), column.type)
            if column.name in rows.column_names
            else pa.nulls(len(rows), column.type)
            for column in self._schema
        ]
        self._writer.write_table(pa.table(columns, self._schema))
        self._waiting, self._bytes = [], 0

    def close(self) -> dict[str, Any]:
        self._flush()
        self._writer.close()
        self._sink.close()
        size = self._system.get_file_info(self._whole).size
        return {"path": self._path, "rows": self._rows, "bytes": size, "first": self._first, "last": self._last}


def _cut(batch: pa.RecordBatch, by: tuple[str, ...]) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
    """Yield the runs of rows with the same values in some columns, and these values."""
    if not len(batch):
        return
    ends = {len(batch)}
    for name in by:
        ends.update(pc.run_end_encode(batch.column(name)).run_ends.to_pylist())
    start = 0
    for end in sorted(ends):
        yield tuple(batch.column(name)[start].as_py() for name in by), batch.slice(start, end - start)
        start = end


def read_iceberg(spark: SparkSession, address: TableAddress, columns: StructType, stream: str) -> DataFrame:
    """Return the messages of an archive in a table: its files are Parquet, listed by the current snapshot.

    Rows of the table's other archives are left out; rows that no archive has written are included.
    """
    table = IcebergTable(address, "").require()
    paths = stream_files(table, stream, only=False)
    if not paths:
        return spark.createDataFrame([], columns)
    scheme = "" if "://" not in address.folder else f"{address.folder.partition('://')[0]}://"
    found = spark.read.schema(columns).parquet(*(f"{scheme}{pattern_of(path)}" for path in paths))
    others = sorted(neighbours(table, stream))
    if others:
        found = found.where(sql.col("stream").isNull() | ~sql.col("stream").isin(others))
    return found.select(*columns.fieldNames())
