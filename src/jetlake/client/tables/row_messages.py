"""Tables as messages: the rows of anything that knows Arrow, each with its subject, payload, headers and id."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from jetlake.errors import ConfigError, InvalidOptionError

Row = Mapping[str, Any]
_PLACE = re.compile(r"\{([^{}]*)\}")
_ROWS_MAX = 8192
_FILES = {".parquet": "parquet", ".csv": "csv", ".arrow": "ipc", ".feather": "ipc", ".ipc": "ipc", ".orc": "orc"}
_FILES |= {".json": "json", ".jsonl": "json", ".ndjson": "json"}


def row_batches(table: Any) -> Iterator[pa.RecordBatch]:
    """Return the rows of a table of pyarrow, polars, pandas or DuckDB, or of anything else with Arrow's C stream.

    Raises:
        InvalidOptionError: it is none of them.
    """
    if hasattr(table, "scanner"):
        return _read(table.scanner(batch_size=_ROWS_MAX).to_reader())
    if hasattr(table, "collect") and not hasattr(table, "__arrow_c_stream__"):
        table = table.collect()
    try:
        reader = pa.RecordBatchReader.from_stream(table)
    except TypeError:
        raise InvalidOptionError(
            f"{type(table).__name__} is not a table: pass one of pyarrow, polars, pandas or DuckDB, or record batches"
        ) from None
    except pa.ArrowException as error:
        raise InvalidOptionError(f"the table has a column that Arrow has no type for: {error}") from None
    return _read(reader)


def _read(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a reader.

    Raises:
        InvalidOptionError: the table can't be read to its end; tells how far.
    """
    taken = 0
    while True:
        try:
            batch = next(reader, None)
        except (pa.ArrowException, OSError) as error:
            raise InvalidOptionError(f"the table can't be read behind its first {taken} rows: {error}") from None
        if batch is None:
            return
        yield batch
        taken += len(batch)


def file_rows(path: str) -> Any:
    """Return the rows of a file, or of the files in a folder, as a dataset of pyarrow.

    Raises:
        ConfigError: there is no such file, or its format is not known.
    """
    from pyarrow import dataset

    found = Path(path)
    if not found.exists():
        raise ConfigError(f"there is no file {path}")
    kind = "parquet" if found.is_dir() else _FILES.get(found.suffix.lower())
    if kind is None:
        raise ConfigError(f"{path} has no known format: its name must end with one of {', '.join(_FILES)}")
    try:
        return dataset.dataset(path, format=kind)
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{path} can't be read as {kind}: {error}") from None


def count_rows(rows: Any, path: str) -> int:
    """Return how many rows `file_rows` has found in a file.

    Raises:
        ConfigError: the file is broken.
    """
    try:
        return int(rows.count_rows())
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{path} can't be read: {error}") from None


def row_messages(
    table: Any, subject: str | Callable[[Row], str] = "", key: str = "", progress: Callable[[int], object] | None = None
) -> Iterator[tuple[str, bytes, Any]]:
    """Yield a message for each row.

    Args:
        subject: the subject, in which `{column}` stands for the row's value, or a function of the row. Empty: column
            `subject`.
        key: the column whose value is the message's id, by which a stream stores a row once.
        progress: called with the number of rows of each batch, when they are taken.

    Raises:
        InvalidOptionError: a column is missing, or a row has no subject or key.
    """
    number = 0
    for batch in row_batches(table):
        names = batch.schema.names
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise InvalidOptionError(f"the table has several columns {twice.pop()}: a message has one of each name")
        make_subject = _subject_of(subject, names)
        _require(key, names, "key")
        has_data = "data" in names
        headers = "headers" if has_data and "headers" in names else ""
        if has_data and not callable(subject):
            # The other columns of a table that was a stream are in no message.
            used = {"data", headers, key, *(_PLACE.findall(subject) or ["subject"])}
            batch = batch.select([name for name in names if name in used])
        batch = batch.cast(
            pa.schema([column.with_type(_json_type(column.type)) for column in batch.schema]), safe=False
        )
        for start in range(0, batch.num_rows, _ROWS_MAX):
            rows = _python_rows(batch.slice(start, _ROWS_MAX), number)
            for row in rows:
                options: dict[str, Any] = {}
                if key:
                    if row[key] is None:
                        raise InvalidOptionError(f"row {number} of the table has no {key}, which is its key")
                    options["msg_id"] = str(row[key])
                if headers and row[headers]:
                    options["headers"] = _headers(row[headers], number)
                text = make_subject(row)
                if not text:
                    raise InvalidOptionError(f"row {number} of the table has no subject")
                try:
                    payload = _payload(row, has_data)
                except (TypeError, ValueError) as error:
                    raise InvalidOptionError(f"row {number} of the table can't be JSON: {error}") from None
                yield text, payload, options
                number += 1
            if progress is not None:
                progress(len(rows))


def _json_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without nanoseconds, which Python's times, and so the times in JSON, do not have."""
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([field.with_type(_json_type(field.type)) for field in fields])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = kind.value_field.with_type(_json_type(kind.value_type))
        return kind if inner.type == kind.value_type else pa.large_list(inner)
    if pa.types.is_dictionary(kind):
        inner = _json_type(kind.value_type)
        return kind if inner == kind.value_type else inner
    if pa.types.is_map(kind):
        return pa.map_(_json_type(kind.key_type), _json_type(kind.item_type))
    return kind


def _has_maps(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    return any(_has_maps(kind.field(index).type) for index in range(kind.num_fields))


def _python_rows(rows: pa.RecordBatch, first: int) -> list[dict[str, Any]]:
    """Return the rows as Python values, maps as dicts.

    Raises:
        InvalidOptionError: a map has a key twice; tells where the rows are.
    """
    # Asking for dicts makes the conversion of all columns slow.
    maps = "strict" if any(_has_maps(column.type) for column in rows.schema) else None
    try:
        found: list[dict[str, Any]] = rows.to_pylist(maps_as_pydicts=maps)
    except (KeyError, ValueError, OverflowError) as error:
        raise InvalidOptionError(
            f"rows {first} to {first + len(rows) - 1} of the table can't be messages: {error}"
        ) from None
    return found


def _require(column: str, names: list[str], purpose: str) -> None:
    if column and column not in names:
        raise InvalidOptionError(f"the table has no column {column}, which is its {purpose}; it has {', '.join(names)}")


def _subject_of(subject: str | Callable[[Row], str], names: list[str]) -> Callable[[Row], str]:
    if callable(subject):
        return subject
    if not subject:
        _require("subject", names, "subject")
        return lambda row: row["subject"] or ""
    places = _PLACE.findall(subject)
    for place in places:
        _require(place, names, "subject")
    if not places:
        return lambda _: subject

    def filled(row: Row) -> str:
        # A row without one of the values has no subject.
        if any(row[place] is None for place in places):
            return ""
        return _PLACE.sub(lambda match: str(row[match[1]]), subject)

    return filled


def _payload(row: Row, has_data: bool) -> bytes:
    if not has_data:
        return msgspec.json.encode(row)
    data = row["data"]
    if isinstance(data, str):
        return data.encode()
    return data if data is not None else b""


def _headers(pairs: Any, number: int) -> dict[str, Any]:
    try:
        return dict(pairs)
    except (TypeError, ValueError):
        raise InvalidOptionError(f"row {number} of the table has headers that are no map: {pairs!r:.100}") from None
