"""The columns of Iceberg tables and of their Parquet files: types, ids, statistics, and rows in the types of today."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jetlake.errors import ConfigError
from jetlake.lake.catalogs import first_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs
    from pyiceberg.table import Table


def merge_files(table: Table, files: Sequence[str], target: str) -> None:
    """Write the rows of some files of the table to one, a row group at a time, with the table's columns of today."""
    import pyarrow as pa
    from pyarrow import parquet

    system, _ = file_system(table)
    schema = small_types(file_schema(table))
    system.create_dir(target.rpartition("/")[0], recursive=True)
    with system.open_output_stream(target) as sink, open_writer(sink, schema) as writer:
        for file in files:
            with system.open_input_file(path_of(table, file)) as source:
                found = parquet.ParquetFile(source)
                for number in range(found.metadata.num_row_groups):
                    rows = found.read_row_group(number)
                    writer.write_table(pa.table(_as_today(rows, schema), schema))


def write_without(table: Table, file: str, keys: pa.Array, target: str) -> int | None:
    """Write the rows of a file whose `key` is none of these to another one; return how many there are.

    None, and nothing is written, when the file has none of the keys.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import parquet

    system, _ = file_system(table)
    with system.open_input_file(path_of(table, file)) as source:
        found = parquet.ParquetFile(source)
        own = found.read(columns=["key"]).column("key")
        if not pc.any(pc.is_in(own, keys)).as_py():
            return None
        schema = small_types(file_schema(table))
        kept = 0
        system.create_dir(target.rpartition("/")[0], recursive=True)
        with system.open_output_stream(target) as sink, open_writer(sink, schema) as writer:
            for number in range(found.metadata.num_row_groups):
                rows = found.read_row_group(number)
                rows = rows.filter(pc.invert(pc.is_in(rows.column("key"), keys)))
                kept += len(rows)
                writer.write_table(pa.table(_as_today(rows, schema), schema))
    return kept


def write_rows(table: Table, rows: pa.Table, target: str) -> None:
    """Write rows to a file of the table; columns that they lack are null."""
    import pyarrow as pa

    system, _ = file_system(table)
    schema = small_types(file_schema(table))
    system.create_dir(target.rpartition("/")[0], recursive=True)
    columns = [
        fitted(rows.column(column.name), column.type)
        if column.name in rows.column_names
        else pa.nulls(len(rows), column.type)
        for column in schema
    ]
    with system.open_output_stream(target) as sink, open_writer(sink, schema) as writer:
        writer.write_table(pa.table(columns, schema))


def _as_today(rows: pa.Table, schema: pa.Schema) -> list[Any]:
    import pyarrow as pa

    by_id = {_field_id(column): index for index, column in enumerate(rows.schema)}
    columns = []
    for wanted in schema:
        index = by_id.get(_field_id(wanted))
        columns.append(pa.nulls(len(rows), wanted.type) if index is None else fitted(rows.column(index), wanted.type))
    return columns


def fitted(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column with a type of the table: wider types, and fields of structs in the table's order."""
    import pyarrow as pa

    return pa.chunked_array([_fitted(chunk, kind) for chunk in column.chunks], kind)


def _fitted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if array.type.equals(kind, check_metadata=True):
        return array
    if not pa.types.is_struct(kind) or not pa.types.is_struct(array.type):
        return array.cast(kind)
    fields = [kind.field(index) for index in range(kind.num_fields)]
    present = {array.type.field(index).name: index for index in range(array.type.num_fields)}
    children = [
        _fitted(array.field(present[child.name]), child.type)
        if child.name in present
        else pa.nulls(len(array), child.type)
        for child in fields
    ]
    return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())


def _field_id(column: pa.Field) -> bytes:
    found: bytes = (column.metadata or {}).get(b"PARQUET:field_id", column.name.encode())
    return found


def open_writer(sink: Any, schema: pa.Schema) -> Any:
    """Return a writer of Parquet as our tables have it: no statistics and dictionaries of what never repeats."""
    import pyarrow as pa
    from pyarrow import parquet

    stated = [column.name for column in schema if not _is_nested(column.type) and not pa.types.is_binary(column.type)]
    repeated = [name for name in stated if name not in ("sequence", "timestamp", "revision", "created")]
    nested = [path for column in schema if _is_nested(column.type) for path in _leaves(column)]
    return parquet.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        write_statistics=stated + nested,
        use_dictionary=repeated + nested,
        store_schema=False,
    )


def _is_nested(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_nested(kind))


def _leaves(column: pa.Field, prefix: str = "") -> Iterator[str]:
    """Yield the paths of the columns in Parquet of structs; what is inside of maps and lists has no statistics."""
    import pyarrow as pa

    path = f"{prefix}{column.name}"
    if pa.types.is_struct(column.type):
        for index in range(column.type.num_fields):
            yield from _leaves(column.type.field(index), f"{path}.")
    elif not pa.types.is_nested(column.type):
        yield path


def unmeasured_ids(schema: Any) -> Iterator[int]:
    """Yield the ids of the columns without statistics: raw bytes, and what is inside of maps and lists."""
    from pyiceberg.types import BinaryType, ListType, MapType, NestedField, StructType

    def inside(field_: NestedField, measured: bool) -> Iterator[int]:
        kind = field_.field_type
        if isinstance(kind, StructType):
            for child in kind.fields:
                yield from inside(child, measured)
        elif isinstance(kind, ListType):
            yield from inside(kind.element_field, False)
        elif isinstance(kind, MapType):
            yield from inside(kind.key_field, False)
            yield from inside(kind.value_field, False)
        elif not measured:
            yield field_.field_id

    for column in schema.columns:
        yield from inside(column, not isinstance(column.field_type, BinaryType))


def iceberg_schema(columns: pa.Schema) -> Any:
    """Return the columns as Iceberg has them, without ids yet.

    Raises:
        ConfigError: Iceberg has no type for one.
    """
    import pyarrow as pa
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, _ConvertToIcebergWithoutIDs, visit_pyarrow

    widened = pa.schema([column.with_type(_widened(column.type)) for column in columns])
    try:
        return visit_pyarrow(widened, _ConvertToIcebergWithoutIDs())
    except (TypeError, ValueError, UnsupportedPyArrowTypeException) as error:
        raise ConfigError(f"a column can't be stored in an Iceberg table: {first_line(error)}") from None


def _widened(kind: pa.DataType) -> pa.DataType:
    """Return a type that Iceberg has and that holds every value of this one."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([child.with_type(_widened(child.type)) for child in fields])
    if pa.types.is_map(kind):
        return pa.map_(_widened(kind.key_type), _widened(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_widened(kind.value_type))
    if pa.types.is_integer(kind):
        is_small = kind.bit_width < 32 or (kind.bit_width == 32 and pa.types.is_signed_integer(kind))
        if kind == pa.uint64():
            return pa.decimal128(20, 0)
        return pa.int32() if is_small else pa.int64()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    return kind


def file_schema(table: Table) -> pa.Schema:
    """Return the columns of a table's files, with their ids."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return schema_to_pyarrow(table.schema(), include_field_ids=True)


def small_types(schema: pa.Schema) -> pa.Schema:
    """Return the schema with offsets of four bytes, as Spark's batches have them; ids stay."""
    import pyarrow as pa

    return pa.schema([_small_field(column) for column in schema])


def _small_field(column: pa.Field) -> pa.Field:
    return column.with_type(_small(column.type))


def _small(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(_small_field(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_small_field(kind.field(index)) for index in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_small_field(kind.key_field), _small_field(kind.item_field))
    return kind


def file_system(table: Table) -> tuple[fs.FileSystem, str]:
    """Return the file system of a table, and the path of its folder there."""
    scheme, netloc, path = table.io.parse_location(table.location())  # type: ignore[attr-defined]
    return table.io.fs_by_scheme(scheme, netloc), path.rstrip("/")  # type: ignore[attr-defined]


def path_of(table: Table, location: str) -> str:
    """Return the path of a file on the table's file system."""
    return str(table.io.parse_location(location)[2])  # type: ignore[attr-defined]
