"""Writes micro-batches into a Delta table, each once by the table's own record of application transactions.

Tasks write Parquet aside, from which the driver streams the rows into the table in one transaction. The table's version
up to which it was seen to be whole is noted, for a table that was restored to an older version keeps its record of
transactions.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from jetlake.client.tables.archived import delta_files
from jetlake.errors import ConfigError, SparkError
from jetlake.lake.columns import fitted
from jetlake.spark.pipelines.file_system import FileSystem
from jetlake.spark.pipelines.folder_sink import Compacted
from jetlake.spark.pipelines.table_sink import (
    DELETED,
    PIECE_ROWS,
    TABLE,
    TableSink,
    is_parquet_staged,
    stage_parquet,
    staged_rows,
)

# The table's writer holds a file of each open partition in memory until the file is this large.
_FILE_BYTES = 16 << 20


# What the package does not take in the path of a local folder, or takes for something else.
_UNSUITED = re.compile(r"[][\\^|]|%[0-9A-Fa-f]{2}")

# What a commit of ours carries in the table's history: the batch that it adds, or that it only widens types.
_BATCH = "jetlake.batch"
_WIDENED = "jetlake.widened"
# How much room a batch needs in the table, by the room that it takes aside.
_ROOM = 1.25


class DeltaSink(TableSink):
    """A Delta table, written through the deltalake package: no jar is needed.

    Tasks write a batch aside, as Parquet; from there the driver streams it into the table, so that it holds some
    thousand rows at a time, however large the batch is.

    Args:
        application: names the query for ever; the table remembers its last batch.
        grows: add columns and fields that the table lacks.

    Raises:
        ConfigError: the deltalake package is missing.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        application: str,
        partition_by: Sequence[str] = (),
        *,
        grows: bool = False,
    ) -> None:
        super().__init__(spark, path, application)
        self._grows = grows
        self._deltalake = _deltalake()
        self._partition_by = list(partition_by)

    def _last_batch(self, table: Any) -> int | None:
        found = table.transaction_version(self._application)
        return int(found) if found is not None else None

    def check(self) -> Any:
        """Return the table, after making sure that it holds every batch so far; None before the first one.

        Raises:
            SparkError: it is gone, or was restored to an older version.
        """
        delta = self._deltalake
        noted = self.files.read_json(TABLE)
        if not delta.DeltaTable.is_deltatable(self._path):
            if noted is not None:
                raise SparkError(
                    f"table {self._path} is gone: its log _delta_log was removed, and a new log would not contain the "
                    "existing rows. Restore it, or choose another folder"
                )
            return None
        table = delta.DeltaTable(self._path)
        version, known = int(table.version()), (noted or {}).get("version")
        if known is None:
            self.files.write_json(TABLE, {"version": version})
            return table
        entries = sorted(table.history(max(version - known, 0) + 1), key=lambda entry: entry["version"])
        own = {known, *(entry["version"] for entry in entries if entry["version"] > known and _BATCH in entry)}
        if version < known or not own <= held_versions(known, entries):
            raise SparkError(
                f"table {self._path} was restored to an older version or overwritten: version {version} lacks rows "
                f"that version {max(own)} had, and the archive would continue after that gap. Restore "
                f"version {max(own)} or a later one, or start a new archive in another folder"
            )
        if max(own) > known:
            self.files.write_json(TABLE, {"version": max(own)})
        return table

    def _is_staged(self, batch: int) -> bool:
        return is_parquet_staged(self.files, batch)

    def _stage(self, frame: DataFrame, batch: int) -> Mapping[str, Any]:
        return stage_parquet(self.files, self._path, frame, batch)

    def widen(self, value_type: pa.DataType) -> None:
        """Give column `value` the types of this one where they are wider, by rewriting the table in one transaction.

        The deltalake package adds columns and fields with an append, and has no other way to change a type.

        Raises:
            SparkError: the disk has no room for the table once more.
        """
        delta, table = self._deltalake, self.check()
        known = _schema_of(table) if table is not None else pa.schema([])
        index = known.get_field_index("value")
        if index < 0 or widest(known.field(index).type, value_type) == known.field(index).type:
            return
        wide = widest(known.field(index).type, value_type, grows=True)
        wanted = known.set(index, known.field(index).with_type(wide))
        self._require_room(sum(pa.table(table.get_add_actions(flatten=True)).column("size_bytes").to_pylist()))
        found = table.to_pyarrow_dataset().to_batches(batch_size=PIECE_ROWS)
        delta.write_deltalake(
            # The version that is read: rows that another writer adds meanwhile are a conflict, and not lost.
            table,
            pa.RecordBatchReader.from_batches(wanted, (_fitted_to(wanted, piece) for piece in found)),
            mode="overwrite",
            schema_mode="overwrite",
            target_file_size=_FILE_BYTES,
            partition_by=self._partition_by or None,
            commit_properties=delta.CommitProperties(custom_metadata={_WIDENED: "true"}),
        )

    def _rows(self, note: Mapping[str, Any]) -> pa.RecordBatchReader:
        """Return the rows of a batch; if they were written aside before types became wider, with these."""
        rows = staged_rows(self._path, note)
        index = rows.schema.get_field_index("value")
        if index < 0 or not self._deltalake.DeltaTable.is_deltatable(self._path):
            return rows
        known = _schema_of(self._deltalake.DeltaTable(self._path))
        if not self._grows or "value" not in known.names:
            return rows
        value = rows.schema.field(index)
        wanted = rows.schema.set(index, value.with_type(widest(value.type, known.field("value").type)))
        if wanted == rows.schema:
            return rows
        return pa.RecordBatchReader.from_batches(wanted, (_fitted_to(wanted, piece) for piece in rows))

    def _append(self, note: Mapping[str, Any], batch: int) -> None:
        delta = self._deltalake
        self._require_room(sum(note["files"].values()))
        rows = self._rows(note)
        try:
            delta.write_deltalake(
                self._path,
                rows,
                mode="append",
                schema_mode="merge" if self._grows else None,
                target_file_size=_FILE_BYTES,
                partition_by=self._partition_by or None,
                commit_properties=delta.CommitProperties(
                    app_transactions=[delta.Transaction(app_id=self._application, version=batch)],
                    custom_metadata={_BATCH: str(batch)},
                ),
            )
        except delta.exceptions.SchemaMismatchError as error:
            columns = ", ".join(f"{field.name} {field.type}" for field in rows.schema)
            raise SparkError(
                f"table {self._path} no longer has the columns of its archive: {error}. Restore an older version "
                f"of it, or change its columns back to: {columns}"
            ) from None

    def _require_room(self, needed: int) -> None:
        """Make sure that the disk has room for a second copy of this many bytes.

        The deltalake package meets a full disk with a panic, whose trace it writes to the terminal.

        Raises:
            SparkError: there is not enough room.
        """
        if "://" in self._path:
            return
        free = shutil.disk_usage(self._path).free
        if free < needed * _ROOM:
            raise SparkError(
                f"no space is left on the disk of {self._path}: {free} bytes are free, and the batch needs about "
                f"{round(needed * _ROOM)}. Free some and run it again: it resumes with this batch"
            )


class DeltaUpsertSink(DeltaSink):
    """A Delta table with a row a key: a batch replaces the rows of its keys."""

    def _append(self, note: Mapping[str, Any], batch: int) -> None:
        delta = self._deltalake
        self._require_room(sum(note["files"].values()))
        rows = self._rows(note).read_all()
        properties = delta.CommitProperties(
            app_transactions=[delta.Transaction(app_id=self._application, version=batch)],
            custom_metadata={_BATCH: str(batch)},
        )
        if not delta.DeltaTable.is_deltatable(self._path):
            kept = rows.filter(pc.invert(rows.column(DELETED))).drop_columns([DELETED])
            delta.write_deltalake(self._path, kept, mode="append", commit_properties=properties)
            return
        self._grow(rows.schema.remove(rows.schema.get_field_index(DELETED)))
        columns = [name for name in rows.column_names if name != DELETED]
        values = {f"`{name}`": f"new.`{name}`" for name in columns}
        merging = delta.DeltaTable(self._path).merge(
            rows,
            "old.key = new.key",
            source_alias="new",
            target_alias="old",
            commit_properties=properties,
        )
        merging = merging.when_matched_delete(f"new.{DELETED}").when_matched_update(values)
        merging.when_not_matched_insert(values, predicate=f"not new.{DELETED}").execute()

    def _grow(self, wanted: pa.Schema) -> None:
        """Give the table the columns and fields that it lacks, by an append without rows.

        A merge that adds a field to a struct leaves null in place of the structs of all other rows.
        """
        known = pa.schema(self._deltalake.DeltaTable(self._path).schema().to_arrow())
        if self._grows and any(known.field(one.name).type != one.type for one in wanted if one.name in known.names):
            self._deltalake.write_deltalake(self._path, wanted.empty_table(), mode="append", schema_mode="merge")

    def keys(self) -> set[str]:
        """Return the keys that have a row."""
        table = self.check()
        return set(table.to_pyarrow_table(columns=["key"])["key"].to_pylist()) if table is not None else set()

    def remove(self, keys: list[str]) -> None:
        """Remove the rows of some keys."""
        table = self._deltalake.DeltaTable(self._path)
        gone = pa.table({"key": pa.array(keys, pa.string())})
        table.merge(gone, "old.key = new.key", source_alias="new", target_alias="old").when_matched_delete().execute()


def held_versions(known: int, entries: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """Return the versions, from the known one on, whose rows are a part of the table as it is now.

    A table that is restored to an older version keeps its transactions, so that they say that every batch is there.
    Rows deleted and files compacted by others are the table owner's business.

    Args:
        entries: the table's history from that version on, in order.
    """
    held = {known: frozenset((known,))}
    latest = held[known]
    for entry in entries:
        version, given = int(entry["version"]), entry.get("operationParameters") or {}
        if version <= known:
            continue
        if entry.get("operation") == "RESTORE":
            latest = held.get(_restored_to(given, entries), frozenset())
        elif _is_overwrite(entry, given) and _WIDENED not in entry:
            latest = frozenset()
        held[version] = latest = latest | {version}
    return latest


def _is_overwrite(entry: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Return whether a version has other rows than the one before, all of them."""
    return entry.get("operation") == "WRITE" and given.get("mode") == "Overwrite" and not given.get("predicate")


def _restored_to(given: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> int:
    """Return the version that a RESTORE went back to; -1 for one that lies before these entries."""
    if str(given.get("version", "")).isdigit():
        return int(given["version"])
    at_ms = str(given.get("datetime", ""))
    older = [int(entry["version"]) for entry in entries if at_ms.isdigit() and entry["timestamp"] <= int(at_ms)]
    return max(older, default=-1)


def _schema_of(table: Any) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def widest(kind: pa.DataType, other: pa.DataType, *, grows: bool = False) -> pa.DataType:
    """Return a type with the wider one of two types wherever both have a field.

    Args:
        grows: with the fields that only the other type has, too.
    """
    if pa.types.is_struct(kind) and pa.types.is_struct(other):
        fields = {one.name: one for one in (kind.field(index) for index in range(kind.num_fields))}
        others = {one.name: one for one in (other.field(index) for index in range(other.num_fields))}
        wide = [
            one.with_type(widest(one.type, others[name].type, grows=grows)) if name in others else one
            for name, one in fields.items()
        ]
        return pa.struct([*wide, *(one for name, one in others.items() if grows and name not in fields)])
    if pa.types.is_list(kind) and pa.types.is_list(other):
        return pa.list_(kind.value_field.with_type(widest(kind.value_type, other.value_type, grows=grows)))
    if pa.types.is_map(kind) and pa.types.is_map(other):
        item = kind.item_field.with_type(widest(kind.item_type, other.item_type, grows=grows))
        return pa.map_(kind.key_field, item)
    return other if _width(other) > _width(kind) else kind


def _width(kind: pa.DataType) -> int:
    if pa.types.is_decimal(kind):
        return int(kind.precision)
    return int(kind.bit_width) if pa.types.is_integer(kind) or pa.types.is_floating(kind) else 0


def _fitted_to(schema: pa.Schema, piece: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with the columns of a schema."""
    columns = [fitted(pa.chunked_array([piece.column(column.name)]), column.type) for column in schema]
    return pa.record_batch([column.combine_chunks() for column in columns], schema=schema)


def compact_delta(path: str, target_bytes: int) -> Compacted:
    """Put small files of the table together; readers see one version or the other."""
    figures = _deltalake().DeltaTable(path).optimize.compact(target_size=target_bytes)
    return Compacted(int(figures["numFilesRemoved"]), int(figures["numFilesAdded"]))


def _deltalake() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError:
        raise ConfigError(
            "format delta needs the package deltalake; install it with: pip install 'jetlake[delta]'"
        ) from None
    return deltalake


def read_delta(spark: SparkSession, path: str, columns: StructType) -> DataFrame:
    """Return the table's rows: its files are plain Parquet, listed by the current version."""
    _deltalake()
    files = FileSystem(spark, path)
    paths = [files.pattern(file) for file in delta_files(path)]
    if not paths:
        return spark.createDataFrame([], columns)
    return spark.read.schema(columns).parquet(*paths).select(*columns.fieldNames())


def check_delta_path(path: str) -> None:
    """Make sure that the deltalake package can write there: of some characters it makes others, or an end.

    Raises:
        ConfigError: it can't.
    """
    found = None if "://" in path else _UNSUITED.search(str(Path(path).absolute()))
    if found is not None:
        raise ConfigError(
            f"a Delta table can't be written to {path}, because the path contains {found[0]!r}: choose another folder"
        )
