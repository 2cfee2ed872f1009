"""Payloads decoded in bulk into Arrow struct columns, from JSON or Avro; a row that cannot be decoded says why."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Optional, Protocol

import msgspec
import pyarrow as pa

from jetlake.client.payloads.avro import avro_reader, parse_avro
from jetlake.errors import ConfigError

Convert = Callable[[Any], Any]

# The errors of Arrow for values that a type cannot hold.
_MISFITS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError, ValueError)


class BadValueError(ValueError):
    """A decoded value that the column's type cannot hold."""


class Decoder(Protocol):
    """Decodes payloads in bulk."""

    def decode(self, payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Return the values, null where there is none, and the reason for every such row."""


def fields_of(kind: pa.StructType) -> list[pa.Field]:
    """Return the fields of a struct type."""
    return [kind.field(index) for index in range(kind.num_fields)]


class StructColumns:
    """The fields of a struct column, each with its conversion from decoded values to Arrow's values.

    Args:
        value_type: the struct type of the column.
        from_struct: whether decoded values are Structs with the fields `f0`, `f1` …, or dicts by the fields' names.
    """

    def __init__(self, value_type: pa.StructType, *, from_struct: bool) -> None:
        self.arrow_type = value_type
        self._fields = [
            (f"f{index}" if from_struct else field.name, _optional(_converter(field.type, from_struct)))
            for index, field in enumerate(fields_of(value_type))
        ]
        self._get: Callable[[Any, str], Any] = getattr if from_struct else dict.get

    def decode(
        self, payloads: pa.Array, decode: Callable[[bytes], Any], failures: tuple[type[Exception], ...]
    ) -> tuple[pa.Array, dict[int, str]]:
        """Return the values that `decode` makes of payloads; a row at which it fails is null, with the reason."""
        reasons: dict[int, str] = {}
        rows: list[list[Any]] = []
        nothing = [None] * len(self._fields)
        get, fields = self._get, self._fields
        for index, payload in enumerate(payloads.to_pylist()):
            try:
                value = decode(payload)
                rows.append([convert(get(value, name)) for name, convert in fields])
            except failures as error:
                reasons[index] = str(error) or type(error).__name__
                rows.append(nothing)
        arrays = self._arrays(rows, reasons)
        mask = pa.array([index in reasons for index in range(len(rows))], pa.bool_()) if reasons else None
        return pa.StructArray.from_arrays(arrays, fields=list(self.arrow_type), mask=mask), reasons

    def _arrays(self, rows: list[list[Any]], reasons: dict[int, str]) -> list[pa.Array]:
        """Return the fields' columns; a row with a value that its column cannot hold gets a reason."""
        columns: Iterable[tuple[Any, ...]] = zip(*rows, strict=True) if rows else [()] * len(self._fields)
        return [self._array(column, field, reasons) for column, field in zip(columns, self.arrow_type, strict=True)]

    @staticmethod
    def _array(column: tuple[Any, ...], field: pa.Field, reasons: dict[int, str]) -> pa.Array:
        try:
            array = pa.array(column, field.type)
        except _MISFITS:
            # Rare, for decoders check types and ranges themselves where they know them.
            kept = list(column)
            for index, value in enumerate(column):
                try:
                    pa.array([value], field.type)
                except _MISFITS as error:
                    reasons.setdefault(index, f"{field.name} is no {field.type}: {error}")
                    kept[index] = None
            array = pa.array(kept, field.type)
        if array.null_count and not field.nullable:
            for index, value in enumerate(column):
                if value is None:
                    reasons.setdefault(index, f"{field.name} is null, which its type does not allow")
        return array


def _converter(kind: pa.DataType, from_struct: bool) -> Convert | None:
    """Return the conversion from a decoded value to Arrow's, or None where they are the same."""
    if pa.types.is_struct(kind):
        fields = [
            (f"f{index}" if from_struct else field.name, field.name, _optional(_converter(field.type, from_struct)))
            for index, field in enumerate(fields_of(kind))
        ]
        get: Callable[[Any, str], Any] = getattr if from_struct else dict.get
        return lambda value: {name: convert(get(value, key)) for key, name, convert in fields}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _converter(kind.value_type, from_struct)
        return _each(_optional(element)) if element is not None else None
    if pa.types.is_map(kind):
        item = _optional(_converter(kind.item_type, from_struct))
        return lambda value: [(key, item(entry)) for key, entry in value.items()]
    if pa.types.is_timestamp(kind):
        return _naive if kind.tz is None else _aware
    if pa.types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if (pa.types.is_string(kind) or pa.types.is_large_string(kind)) and not from_struct:
        return str
    return None


def _each(convert: Convert) -> Convert:
    return lambda values: [convert(value) for value in values]


def _optional(convert: Convert | None) -> Convert:
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def _aware(value: datetime.datetime) -> datetime.datetime:
    if value.tzinfo is None:
        return value.replace(tzinfo=datetime.UTC)
    return value if value.tzinfo is datetime.UTC else _in_utc(value)


def _naive(value: datetime.datetime) -> datetime.datetime:
    return value if value.tzinfo is None else _in_utc(value).replace(tzinfo=None)


def _in_utc(value: datetime.datetime) -> datetime.datetime:
    try:
        return value.astimezone(datetime.UTC)
    except OverflowError:
        raise BadValueError(f"{value} is before the year 1 or after the year 9999 in UTC") from None


def _decimal(precision: int, scale: int) -> Convert:
    unit = decimal.Decimal(1).scaleb(-scale)
    context = decimal.Context(prec=precision, traps=[decimal.InvalidOperation, decimal.Inexact])

    def convert(value: decimal.Decimal) -> decimal.Decimal:
        try:
            fitting = value.quantize(unit, context=context)
            if fitting.is_finite():
                return fitting
            raise decimal.InvalidOperation
        except (decimal.InvalidOperation, decimal.Inexact):
            raise BadValueError(f"{value} does not fit decimal({precision},{scale})") from None

    return convert


_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadValueError)

# How each kind of column is read; integers, lists, maps and structs are read by their parts.
_JSON_PLAIN: tuple[tuple[Any, Any], ...] = (
    (pa.types.is_string, str),
    (pa.types.is_large_string, str),
    (pa.types.is_boolean, bool),
    (pa.types.is_floating, float),
    (pa.types.is_binary, bytes),
    (pa.types.is_large_binary, bytes),
    (pa.types.is_date, datetime.date),
    (pa.types.is_time, datetime.time),
    (pa.types.is_timestamp, datetime.datetime),
    (pa.types.is_decimal, decimal.Decimal),
)


class JsonDecoder:
    """JSON objects of a given type: absent fields and nulls are null, unknown fields are skipped, and a value of
    another type makes the row a bad one, as does a null where the type allows none. Times without an offset are UTC,
    binary fields are base64.

    Raises:
        ConfigError: a field has a type that cannot be read from JSON.
    """

    def __init__(self, value_type: pa.StructType) -> None:
        self._columns = StructColumns(value_type, from_struct=True)
        self._decode = msgspec.json.Decoder(_json_struct(value_type, "value")).decode

    def decode(self, payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Return the values, null where there is none, and the reason for every such row."""
        return self._columns.decode(payloads, self._decode, _NOT_JSON)


def infer_json_type(payloads: pa.Array) -> pa.StructType:
    """Return the type that holds all of the payloads that are JSON objects; a field that is always null is a text.

    Raises:
        ConfigError: there is no object among them, or they have no type in common.
    """
    values = []
    for payload in payloads.to_pylist():
        try:
            values.append(msgspec.json.decode(payload))
        except _NOT_JSON:
            continue
    objects = [value for value in values if isinstance(value, dict)]
    try:
        kind = pa.array(objects).type if objects else pa.null()
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ConfigError(f"the payloads have no common type: {error}; pass a schema") from None
    except OverflowError:
        raise ConfigError("a number is beyond int64: pass a schema, with uint64 or double for its field") from None
    except RecursionError:
        raise ConfigError("a payload is nested too deeply to find its type: pass a schema") from None
    if not pa.types.is_struct(kind) or not kind.num_fields:
        raise ConfigError("no payload is a JSON object with fields: pass a schema, or read payloads as raw")
    try:
        return _without_nulls(kind)
    except RecursionError:
        raise ConfigError("a payload is nested too deeply to find its type: pass a schema") from None


def _without_nulls(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_nulls(field.type)) for field in fields_of(kind)])
    if pa.types.is_list(kind):
        return pa.list_(_without_nulls(kind.value_type))
    return kind


# The largest float of four bytes; a larger number would become infinite.
_FLOAT32_MAX = (2.0 - 2.0**-23) * 2.0**127


def _json_type(field: pa.Field, path: str) -> Any:
    """Return the type by which msgspec reads JSON for a field."""
    kind = field.type
    if pa.types.is_uint64(kind):
        read: Any = Annotated[int, msgspec.Meta(ge=0)]  # Its maximum is beyond msgspec's limits.
    elif pa.types.is_integer(kind):
        bits = kind.bit_width
        low, end = (-(1 << (bits - 1)), 1 << (bits - 1)) if pa.types.is_signed_integer(kind) else (0, 1 << bits)
        read = Annotated[int, msgspec.Meta(ge=low, le=end - 1)]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        read = list[_json_type(kind.value_field, f"{path}[]")]  # type: ignore[misc]
    elif pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        read = dict[str, _json_type(kind.item_field, f"{path}{{}}")]  # type: ignore[misc]
    elif pa.types.is_struct(kind):
        read = _json_struct(kind, path)
    elif pa.types.is_float32(kind):
        read = Annotated[float, msgspec.Meta(ge=-_FLOAT32_MAX, le=_FLOAT32_MAX)]
    else:
        read = next((plain for is_kind, plain in _JSON_PLAIN if is_kind(kind)), None)
        if read is None:
            raise ConfigError(f"{path} is {kind}, which cannot be read from JSON payloads")
    # Built at run time, where `|` does not take every type.
    return Optional[read] if field.nullable else read  # noqa: UP045


def _json_struct(kind: pa.StructType, path: str) -> type[msgspec.Struct]:
    # Field names may be anything; the Struct's own are numbered and carry the real one for the wire.
    fields = [
        (
            f"f{index}",
            _json_type(field, f"{path}.{field.name}"),
            msgspec.field(default=None if field.nullable else msgspec.NODEFAULT, name=field.name),
        )
        for index, field in enumerate(fields_of(kind))
    ]
    try:
        return msgspec.defstruct("Value", fields, kw_only=True)
    except ValueError as error:
        raise ConfigError(f"the fields of {path} cannot be read from JSON payloads: {error}") from None


_UTC = pa.timestamp("us", tz="UTC")
_AVRO_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_DECIMAL_DIGITS_MAX = 38
_AVRO_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": _UTC,
    "timestamp-micros": _UTC,
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "time-millis": pa.string(),
    "time-micros": pa.string(),
    "uuid": pa.string(),
}


class AvroDecoder:
    """Avro records without a container, one a payload, written with a known schema and read by the same or another."""

    def __init__(self, schema_json: str, value_type: pa.StructType, reader_schema_json: str = "") -> None:
        self._decode = avro_reader(schema_json, reader_schema_json)
        self._columns = StructColumns(value_type, from_struct=False)

    def decode(self, payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Return the values, null where there is none, and the reason for every such row."""
        # A broken record shows itself in whatever the reader stumbles over.
        return self._columns.decode(payloads, self._decode, (Exception,))


def avro_type(schema_json: str) -> pa.StructType:
    """Return the struct type of the records that are written with an Avro schema.

    Raises:
        ConfigError: it is no Avro schema of a record, or holds something that a column has no type for.
    """
    # Parsed, every name is a full one.
    schema = parse_avro(schema_json, "the schema")
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigError("the Avro schema must describe a record")
    return _arrow_type(schema, "value", {})


def _arrow_type(schema: Any, path: str, named: dict[str, pa.DataType]) -> pa.DataType:
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if not branches:
            raise ConfigError(f"the Avro schema: {path} is always null, for which a column has no type")
        if len(branches) != 1:
            raise ConfigError(f"the Avro schema: {path} is a union of several types, which a column cannot represent")
        return _arrow_type(branches[0], path, named)
    if isinstance(schema, str):
        kind = named.get(schema) or _AVRO_PLAIN.get(schema)
        if schema == "null":
            return _arrow_type([], path, named)
        if kind is None:
            raise ConfigError(f"the Avro schema: {path} has the unknown type {schema!r} (recursive types have none)")
        return kind
    logical = schema.get("logicalType")
    if logical == "decimal":
        return _decimal_type(schema, path)
    if logical in _AVRO_LOGICAL:
        return _AVRO_LOGICAL[logical]
    match schema.get("type"):
        case "record":
            fields = [
                (field["name"], _arrow_type(field["type"], f"{path}.{field['name']}", named))
                for field in schema["fields"]
            ]
            if len({name for name, _ in fields}) < len(fields):
                raise ConfigError(f"the Avro schema: the record of {path} has two fields of one name")
            if not fields:
                raise ConfigError(f"the Avro schema: the record of {path} has no fields, and no column either")
            kind = pa.struct(fields)
        case "array":
            return pa.list_(_arrow_type(schema["items"], f"{path}[]", named))
        case "map":
            return pa.map_(pa.string(), _arrow_type(schema["values"], f"{path}{{}}", named))
        case inner:
            kind = _arrow_type(inner, path, named)
    if "name" in schema:
        named[schema["name"]] = kind
    return kind


def _decimal_type(schema: Any, path: str) -> pa.DataType:
    precision, scale = schema.get("precision", 0), schema.get("scale", 0)
    if not 0 < precision <= _DECIMAL_DIGITS_MAX:
        raise ConfigError(
            f"the Avro schema: {path} is a decimal with {precision or 'no'} digits; a column has 1 to "
            f"{_DECIMAL_DIGITS_MAX}"
        )
    return pa.decimal128(precision, scale)
