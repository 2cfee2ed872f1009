"""Payloads as struct columns: JSON by a schema, Avro by its writer's schema; a row that is neither says why."""

from __future__ import annotations

import datetime
import decimal
import io
import json
from collections.abc import Callable
from typing import Annotated, Any, Optional, Protocol

import msgspec
import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.variant_utils import VariantUtils

from jetlake.errors import ConfigError
from jetlake.spark.options.options import SourceOptions

__all__ = ["AvroDecoder", "Decoder", "JsonDecoder", "VariantDecoder", "avro_struct_ddl", "make_decoder", "parse_avro"]

Convert = Callable[[Any], Any]

_INTEGERS: dict[type[types.DataType], int] = {
    types.ByteType: 8,
    types.ShortType: 16,
    types.IntegerType: 32,
    types.LongType: 64,
}
_PLAIN: dict[type[types.DataType], Any] = {
    types.StringType: str,
    types.BooleanType: bool,
    types.FloatType: float,
    types.DoubleType: float,
    types.BinaryType: bytes,
    types.DateType: datetime.date,
    types.TimestampType: datetime.datetime,
    types.TimestampNTZType: datetime.datetime,
    types.DecimalType: decimal.Decimal,
}


class _BadValueError(ValueError):
    """A decoded value that the column's type cannot hold."""


_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, _BadValueError)


class Decoder(Protocol):
    """Decodes payloads in bulk."""

    def decode(self, payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """The values, null where there is none, and the reason for every such row."""


def make_decoder(options: SourceOptions, value_type: types.DataType) -> Decoder:
    """The decoder that the options ask for.

    Raises:
        ConfigError: the schema cannot be read that way, or the extra that reads it is not installed.
    """
    wanted = types.VariantType if options.payload_format == "variant" else types.StructType
    if not isinstance(value_type, wanted):
        raise ConfigError(
            f"column value is {value_type.simpleString()}: payloadFormat={options.payload_format} makes it a "
            f"{'variant' if options.payload_format == 'variant' else 'struct'}"
        )
    if isinstance(value_type, types.StructType):
        if options.payload_format == "avro":
            return AvroDecoder(options.avro_schema, value_type, options.avro_reader_schema)
        return JsonDecoder(value_type)
    return VariantDecoder()


class JsonDecoder:
    """JSON objects of a given schema: absent fields and nulls are null, unknown fields are skipped, and a value of
    another type makes the row a bad one. Times without an offset are UTC, binary fields are base64.
    """

    def __init__(self, value_type: types.StructType) -> None:
        self._columns = _Columns(value_type, from_struct=True)
        self._decode = msgspec.json.Decoder(_json_struct(value_type, "value")).decode

    def decode(self, payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """The values, null where there is none, and the reason for every such row."""
        return self._columns.decode(payloads, self._decode, _NOT_JSON)


class VariantDecoder:
    """JSON of any shape, as Spark's VARIANT."""

    def __init__(self) -> None:
        self._type = to_arrow_type(types.VariantType())

    def decode(self, payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """The values, null where there is none, and the reason for every such row."""
        reasons: dict[int, str] = {}
        values, metadata = [], []
        for index, payload in enumerate(payloads.to_pylist()):
            value, names = b"", b""
            try:
                value, names = VariantUtils.parse_json(payload.decode())
            # Whatever the parser stumbles over, the payload is none that it can read.
            except Exception as error:
                reasons[index] = str(error) or type(error).__name__
            values.append(value)
            metadata.append(names)
        mask = pa.array([index in reasons for index in range(len(values))], pa.bool_()) if reasons else None
        arrays = [pa.array(values, pa.binary()), pa.array(metadata, pa.binary())]
        return pa.StructArray.from_arrays(arrays, fields=list(self._type), mask=mask), reasons


def parse_avro(schema_json: str, name: str = "avroSchema") -> Any:
    """An Avro schema as fastavro wants it.

    Raises:
        ConfigError: it is none, or fastavro is not installed.
    """
    try:
        import fastavro
    except ImportError:
        raise ConfigError("payloadFormat=avro needs fastavro on every machine: install jetlake[avro]") from None
    try:
        return fastavro.parse_schema(_avro_schema(schema_json))
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise ConfigError(f"option {name} is no Avro schema: {error}") from None


class AvroDecoder:
    """Avro records without a container, one a payload, written with a known schema and read by the same or another."""

    def __init__(self, schema_json: str, value_type: types.StructType, reader_schema_json: str = "") -> None:
        schema = parse_avro(schema_json)
        reader_schema = parse_avro(reader_schema_json, "avroReaderSchema") if reader_schema_json else None
        from fastavro import schemaless_reader as read

        def decode(payload: bytes) -> Any:
            stream = io.BytesIO(payload)
            value = read(stream, schema, reader_schema)
            left = len(payload) - stream.tell()
            if left:
                raise ValueError(f"{left} bytes are left behind the record")
            return value

        self._decode = decode
        self._columns = _Columns(value_type, from_struct=False)

    def decode(self, payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """The values, null where there is none, and the reason for every such row."""
        # A broken record shows itself in whatever the reader stumbles over.
        return self._columns.decode(payloads, self._decode, (Exception,))


class _Columns:
    """The fields of the value, each with what makes Arrow's values of the decoded ones."""

    def __init__(self, value_type: types.StructType, *, from_struct: bool) -> None:
        self.arrow_type = to_arrow_type(value_type, timezone="UTC")
        self._fields = [
            (f"f{index}" if from_struct else field.name, _optional(_converter(field.dataType, from_struct)))
            for index, field in enumerate(value_type.fields)
        ]
        self._get: Callable[[Any, str], Any] = getattr if from_struct else dict.get

    def decode(
        self, payloads: pa.Array, decode: Callable[[bytes], Any], failures: tuple[type[Exception], ...]
    ) -> tuple[pa.Array, dict[int, str]]:
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
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(
                zip(*rows, strict=True) if rows else [()] * len(fields), self.arrow_type, strict=True
            )
        ]
        mask = pa.array([index in reasons for index in range(len(rows))], pa.bool_()) if reasons else None
        return pa.StructArray.from_arrays(arrays, fields=list(self.arrow_type), mask=mask), reasons


def _json_type(kind: types.DataType, path: str) -> Any:
    """The type by which msgspec reads JSON for a column of that type; always optional."""
    bits = _INTEGERS.get(type(kind))
    if bits is not None:
        read: Any = Annotated[int, msgspec.Meta(ge=-(1 << (bits - 1)), le=(1 << (bits - 1)) - 1)]
    elif isinstance(kind, types.ArrayType):
        read = list[_json_type(kind.elementType, f"{path}[]")]  # type: ignore[misc]
    elif isinstance(kind, types.MapType) and isinstance(kind.keyType, types.StringType):
        read = dict[str, _json_type(kind.valueType, f"{path}{{}}")]  # type: ignore[misc]
    elif isinstance(kind, types.StructType):
        read = _json_struct(kind, path)
    elif type(kind) in _PLAIN:
        read = _PLAIN[type(kind)]
    else:
        raise ConfigError(f"{path} is {kind.simpleString()}, which cannot be read from JSON payloads")
    return Optional[read]  # noqa: UP045 - built at run time, where `|` does not take every type


def _json_struct(kind: types.StructType, path: str) -> type[msgspec.Struct]:
    # Field names may be anything; the Struct's own are numbered and carry the real one for the wire.
    fields = [
        (f"f{index}", _json_type(field.dataType, f"{path}.{field.name}"), msgspec.field(default=None, name=field.name))
        for index, field in enumerate(kind.fields)
    ]
    return msgspec.defstruct("Value", fields)


def _converter(kind: types.DataType, from_struct: bool) -> Convert | None:
    """What makes Arrow's value of a decoded one, or None where they are the same."""
    if isinstance(kind, types.StructType):
        fields = [
            (f"f{index}" if from_struct else field.name, field.name, _optional(_converter(field.dataType, from_struct)))
            for index, field in enumerate(kind.fields)
        ]
        get: Callable[[Any, str], Any] = getattr if from_struct else dict.get
        return lambda value: {name: convert(get(value, key)) for key, name, convert in fields}
    if isinstance(kind, types.ArrayType):
        element = _converter(kind.elementType, from_struct)
        return _each(_optional(element)) if element is not None else None
    if isinstance(kind, types.MapType):
        item = _optional(_converter(kind.valueType, from_struct))
        return lambda value: [(key, item(entry)) for key, entry in value.items()]
    if isinstance(kind, types.TimestampType):
        return _aware
    if isinstance(kind, types.TimestampNTZType):
        return _naive
    if isinstance(kind, types.DecimalType):
        return _decimal(kind.precision, kind.scale)
    if isinstance(kind, types.StringType) and not from_struct:
        return str
    return None


def _each(convert: Convert) -> Convert:
    return lambda values: [convert(value) for value in values]


def _optional(convert: Convert | None) -> Convert:
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def _aware(value: datetime.datetime) -> datetime.datetime:
    return value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)


def _naive(value: datetime.datetime) -> datetime.datetime:
    return value if value.tzinfo is None else value.astimezone(datetime.UTC).replace(tzinfo=None)


def _decimal(precision: int, scale: int) -> Convert:
    unit = decimal.Decimal(1).scaleb(-scale)
    context = decimal.Context(prec=precision, traps=[decimal.InvalidOperation, decimal.Inexact])

    def convert(value: decimal.Decimal) -> decimal.Decimal:
        try:
            return value.quantize(unit, context=context)
        except (decimal.InvalidOperation, decimal.Inexact):
            raise _BadValueError(f"{value} does not fit decimal({precision},{scale})") from None

    return convert


# Avro's schemas in Spark's words

_AVRO_PLAIN = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
    "enum": "string",
    "fixed": "binary",
}
_AVRO_LOGICAL = {
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
    "time-millis": "string",
    "time-micros": "string",
    "uuid": "string",
}


def avro_struct_ddl(schema_json: str) -> str:
    """The struct type, as DDL, of the records that are written with an Avro schema.

    Raises:
        ConfigError: it is no Avro schema of a record, or holds something that Spark has no type for.
    """
    schema = _avro_schema(schema_json)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigError("option avroSchema must describe a record")
    return _avro_ddl(schema, "value", {})


def _avro_schema(schema_json: str) -> Any:
    try:
        return json.loads(schema_json)
    except ValueError as error:
        raise ConfigError(f"option avroSchema is no JSON: {error}") from None


def _avro_ddl(schema: Any, path: str, named: dict[str, str]) -> str:
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) != 1:
            raise ConfigError(f"option avroSchema: {path} is a union of several types, for which Spark has no type")
        return _avro_ddl(branches[0], path, named)
    if isinstance(schema, str):
        kind = named.get(schema) or _AVRO_PLAIN.get(schema)
        if kind is None:
            raise ConfigError(f"option avroSchema: {path} has the unknown type {schema!r} (recursive types have none)")
        return kind
    logical = schema.get("logicalType")
    if logical == "decimal":
        return f"decimal({schema['precision']},{schema.get('scale', 0)})"
    if logical in _AVRO_LOGICAL:
        return _AVRO_LOGICAL[logical]
    match schema.get("type"):
        case "record":
            fields = [
                f"`{field['name']}`: {_avro_ddl(field['type'], path + '.' + field['name'], named)}"
                for field in schema["fields"]
            ]
            ddl = f"struct<{', '.join(fields)}>"
        case "array":
            return f"array<{_avro_ddl(schema['items'], path + '[]', named)}>"
        case "map":
            return f"map<string, {_avro_ddl(schema['values'], path + '{}', named)}>"
        case inner:
            ddl = _avro_ddl(inner, path, named)
    if "name" in schema:
        named[schema["name"]] = ddl
        if "namespace" in schema:
            named[f"{schema['namespace']}.{schema['name']}"] = ddl
    return ddl
