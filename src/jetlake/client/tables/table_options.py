"""What a table is read from and what its rows hold, as one frozen value that is checked when it is built."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from jetlake.client.payloads.schema import PREFIX
from jetlake.client.tables.option_values import subject_filters
from jetlake.client.tables.positions import EARLIEST, LATEST, Position, parse_position
from jetlake.errors import InvalidOptionError
from jetlake.model.encoding.durations import nanoseconds

Place = int | str | datetime.datetime | datetime.timedelta
"""A sequence, a time, how long ago, or a text: `earliest`, `latest`, `last:100`, `-10 minutes`."""
PayloadFormat = Literal["raw", "json", "avro", "protobuf"]
BadRows = Literal["fail", "column"]
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_COLUMNS: dict[str, pa.DataType] = {
    "stream": pa.string(),
    "sequence": pa.int64(),
    "subject": pa.string(),
    "timestamp": pa.timestamp("ns", tz="UTC"),
    "headers": pa.map_(pa.string(), pa.list_(pa.string())),
    "data": pa.binary(),
    "msg_id": pa.string(),
    "size": pa.int64(),
    "headers_raw": pa.binary(),
    "bad_data": pa.binary(),
    "bad_reason": pa.string(),
}
_DEFAULT = ("sequence", "subject", "timestamp", "headers")


@dataclass(frozen=True)
class TableOptions:
    """What to read, from where to where, and what to make of it."""

    subjects: tuple[str, ...] = ()
    """Filters; none means all."""
    start: Position = EARLIEST
    end: Position = LATEST
    columns: tuple[str, ...] = ()
    """The columns of the rows; none means the usual ones."""
    payload: PayloadFormat = "raw"
    value_type: pa.StructType | None = None
    """The type of `value`; None to find it in the first payloads."""
    stored_schema: str = ""
    """`bucket:` and a subject, whose schema in the bucket is used; replaced when a read begins."""
    avro_schema: str = ""
    protobuf_schema: str | bytes = b""
    protobuf_message: str = ""
    bad_rows: BadRows = "fail"
    archive: str = ""
    """Folder of an archive of the stream, which has older messages than the stream; empty for none."""
    fail_on_data_loss: bool = True
    reader: str = "auto"
    direct_below: int = 20_000
    batch_rows: int = 65_536

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rows' columns."""
        if self.columns:
            return self.columns
        if self.payload == "raw":
            return (*_DEFAULT, "data")
        return (*_DEFAULT, "value", *(("bad_data", "bad_reason") if self.bad_rows == "column" else ()))

    def row_schema(self, value_type: pa.StructType | None) -> pa.Schema:
        """Return the schema of the rows, with that type of `value`."""
        return pa.schema([(name, value_type if name == "value" else _COLUMNS[name]) for name in self.names])


def table_options(
    *,
    subjects: str | Iterable[str] = (),
    start: Place = "earliest",
    end: Place = "latest",
    columns: Iterable[str] | None = None,
    payload: PayloadFormat = "raw",
    schema: pa.Schema | pa.StructType | Mapping[str, pa.DataType] | str | None = None,
    avro_schema: str | Mapping[str, Any] | None = None,
    protobuf_schema: bytes | None = None,
    protobuf_message: str = "",
    bad_rows: BadRows = "fail",
    archive: str | os.PathLike[str] = "",
    fail_on_data_loss: bool = True,
    reader: str = "auto",
    batch_rows: int = 65_536,
) -> TableOptions:
    """Return the options from what a caller gave; `Stream.table` describes each.

    Raises:
        InvalidOptionError: an option that cannot work.
    """
    _check_choice("payload", payload, ("raw", "json", "avro", "protobuf"))
    _check_choice("bad_rows", bad_rows, ("fail", "column"))
    _check_choice("reader", reader, ("auto", "consumer", "direct", "leader"))
    stored = schema if isinstance(schema, str) else ""
    if stored:
        if not stored.startswith(PREFIX) or payload == "raw":
            raise InvalidOptionError(
                f"schema={stored!r}: a text is {PREFIX} and a subject, with payload='json', 'avro' or 'protobuf'"
            )
        if avro_schema is not None or protobuf_schema is not None:
            raise InvalidOptionError(f"schema={stored!r} and another schema exclude each other")
        schema = None
    elif (payload == "avro") != (avro_schema is not None):
        raise InvalidOptionError("payload='avro' and avro_schema go together")
    if not stored and (payload == "protobuf") != (protobuf_schema is not None):
        raise InvalidOptionError("payload='protobuf' and protobuf_schema, a descriptor set of protoc, go together")
    if schema is not None and payload != "json":
        raise InvalidOptionError("schema is for payload='json'")
    if isinstance(batch_rows, bool) or not isinstance(batch_rows, int) or batch_rows < 1:
        raise InvalidOptionError(f"batch_rows must be 1 or more, not {batch_rows!r}")
    try:
        filters = subject_filters([subjects] if isinstance(subjects, str) else subjects)
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidOptionError(f"subjects: {error}") from None
    return TableOptions(
        subjects=filters,
        start=_position("start", start),
        end=_position("end", end),
        columns=_checked_columns(columns, payload),
        payload=payload,
        value_type=_struct_type(schema),
        stored_schema=stored,
        avro_schema=avro_schema if isinstance(avro_schema, str) else json.dumps(avro_schema) if avro_schema else "",
        protobuf_schema=protobuf_schema or b"",
        protobuf_message=protobuf_message,
        bad_rows=bad_rows,
        archive=os.fspath(archive),
        fail_on_data_loss=fail_on_data_loss,
        reader=reader,
        batch_rows=batch_rows,
    )


def _check_choice(option: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidOptionError(f"{option} must be one of {', '.join(choices)}, not {value!r}")


def _position(option: str, place: object) -> Position:
    if isinstance(place, int):
        place = f"seq:{place}"
    if isinstance(place, datetime.timedelta):
        return Position("ago", nanoseconds(place))
    if isinstance(place, datetime.datetime):
        if place.tzinfo is None:
            raise InvalidOptionError(f"{option}: the time needs a time zone, such as datetime.UTC")
        return Position("time", (place - _EPOCH) // datetime.timedelta(microseconds=1) * 1000)
    if isinstance(place, datetime.date):
        at = f"datetime.datetime({place.year}, {place.month}, {place.day}, tzinfo=datetime.UTC)"
        raise InvalidOptionError(f"{option}: a date is not a point in time, because days depend on the time zone: {at}")
    if not isinstance(place, str):
        raise InvalidOptionError(
            f"{option}={place!r} is not a position: pass a sequence, a datetime, a timedelta (how long ago) or a str"
        )
    try:
        return parse_position(place)
    except ValueError as error:
        raise InvalidOptionError(f"{option}={place!r}: {error}") from None


def _checked_columns(columns: Iterable[str] | None, payload: str) -> tuple[str, ...]:
    if columns is None:
        return ()
    names = tuple(dict.fromkeys(columns))
    decoded = [name for name in names if name in ("value", "bad_data", "bad_reason")]
    if decoded and payload == "raw":
        raise InvalidOptionError(f"column {decoded[0]} needs payload='json', 'avro' or 'protobuf'")
    unknown = [name for name in names if name != "value" and name not in _COLUMNS]
    if unknown or not names:
        raise InvalidOptionError(f"columns must be some of value, {', '.join(_COLUMNS)}, not {unknown or columns!r}")
    return names


def _struct_type(schema: Any) -> pa.StructType | None:
    if schema is None or isinstance(schema, pa.StructType):
        return schema
    try:
        return pa.struct(list(schema.items()) if isinstance(schema, Mapping) else list(schema))
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise InvalidOptionError(f"schema is a pyarrow schema or struct type, or types by name: {error}") from None
