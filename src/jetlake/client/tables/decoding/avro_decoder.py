"""Avro payloads, and the Arrow types of what their schemas describe."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa

from jetlake.client.tables.decoding.decoder import StructColumns
from jetlake.errors import ConfigError

__all__ = ["AvroDecoder", "avro_type", "parse_avro"]

_UTC = pa.timestamp("us", tz="UTC")
_PLAIN = {
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
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": _UTC,
    "timestamp-micros": _UTC,
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "time-millis": pa.string(),
    "time-micros": pa.string(),
    "uuid": pa.string(),
}


def parse_avro(schema_json: str, name: str = "the writer's schema") -> Any:
    """Return an Avro schema as fastavro wants it.

    Raises:
        ConfigError: it is none, or fastavro is not installed.
    """
    try:
        import fastavro
    except ImportError:
        raise ConfigError("Avro payloads need fastavro (with Spark on every machine): install jetlake[avro]") from None
    try:
        return fastavro.parse_schema(_avro_schema(schema_json))
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise ConfigError(f"{name} is no Avro schema: {error}") from None


class AvroDecoder:
    """Avro records without a container, one a payload, written with a known schema and read by the same or another."""

    def __init__(self, schema_json: str, value_type: pa.StructType, reader_schema_json: str = "") -> None:
        schema = parse_avro(schema_json)
        reader_schema = parse_avro(reader_schema_json, "the reader's schema") if reader_schema_json else None
        from fastavro import schemaless_reader as read

        def decode(payload: bytes) -> Any:
            stream = io.BytesIO(payload)
            value = read(stream, schema, reader_schema)
            left = len(payload) - stream.tell()
            if left:
                raise ValueError(f"{left} bytes are left behind the record")
            return value

        self._decode = decode
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
    schema = _avro_schema(schema_json)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigError("the Avro schema must describe a record")
    return _arrow_type(schema, "value", {})


def _avro_schema(schema_json: str) -> Any:
    try:
        return json.loads(schema_json)
    except ValueError as error:
        raise ConfigError(f"the Avro schema is no JSON: {error}") from None


def _arrow_type(schema: Any, path: str, named: dict[str, pa.DataType]) -> pa.DataType:
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) != 1:
            raise ConfigError(f"the Avro schema: {path} is a union of several types, for which a column has no type")
        return _arrow_type(branches[0], path, named)
    if isinstance(schema, str):
        kind = named.get(schema) or _PLAIN.get(schema)
        if kind is None:
            raise ConfigError(f"the Avro schema: {path} has the unknown type {schema!r} (recursive types have none)")
        return kind
    logical = schema.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    match schema.get("type"):
        case "record":
            fields = [
                (field["name"], _arrow_type(field["type"], f"{path}.{field['name']}", named))
                for field in schema["fields"]
            ]
            kind = pa.struct(fields)
        case "array":
            return pa.list_(_arrow_type(schema["items"], f"{path}[]", named))
        case "map":
            return pa.map_(pa.string(), _arrow_type(schema["values"], f"{path}{{}}", named))
        case inner:
            kind = _arrow_type(inner, path, named)
    if "name" in schema:
        named[schema["name"]] = kind
        if "namespace" in schema:
            named[f"{schema['namespace']}.{schema['name']}"] = kind
    return kind
