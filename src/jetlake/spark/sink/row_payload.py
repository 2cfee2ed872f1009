"""Payloads of rows that are written: their columns as a JSON object, or as a record of an Avro schema."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import msgspec
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType
from pyspark.sql.variant_utils import VariantUtils

from jetlake.client.tables.decoding.avro_decoder import parse_avro
from jetlake.errors import ConfigError
from jetlake.spark.options.sink_options import SinkOptions

__all__ = ["RowPayload", "make_row_encoder"]

RowPayload = Callable[[dict[str, Any]], bytes]
"""Makes the payload of a row's columns.

Raises:
    ValueError: the row cannot be written so; the text says why.
"""

# Columns with a role of their own, and those of a message that was read.
_NOT_PAYLOAD = {
    *("subject", "headers", "headers_raw", "msg_id", "expected_last_sequence", "expected_last_subject_sequence"),
    *("stream", "sequence", "timestamp"),
}

_encode_json = msgspec.json.Encoder(decimal_format="number").encode


def make_row_encoder(schema: StructType, options: SinkOptions) -> RowPayload:
    """Return the way to write the rows of that schema.

    Raises:
        ConfigError: the options or the columns do not allow it.
    """
    variants = frozenset(field.name for field in schema.fields if isinstance(field.dataType, VariantType))
    for field in schema.fields:
        if field.name not in variants and _holds_variant(field.dataType):
            raise ConfigError(f"column {field.name} holds a VARIANT inside: write it as a column of its own")
    if options.payload_format == "avro":
        if variants:
            raise ConfigError(f"column {min(variants)} is a VARIANT, for which Avro has no type: write it as JSON")
        return _avro(parse_avro(options.avro_schema), schema.fieldNames())
    if variants:
        return lambda row: _json_with_variants(row, variants)
    return lambda row: _encode_json({name: value for name, value in row.items() if value is not None})


def _holds_variant(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_holds_variant(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _holds_variant(kind.elementType)
    if isinstance(kind, MapType):
        return _holds_variant(kind.valueType)
    return isinstance(kind, VariantType)


def _json_with_variants(row: dict[str, Any], variants: frozenset[str]) -> bytes:
    return _encode_json(
        {
            name: msgspec.Raw(VariantUtils.to_json(value["value"], value["metadata"], "UTC").encode())
            if name in variants
            else value
            for name, value in row.items()
            if value is not None
        }
    )


def _avro(schema: Any, columns: list[str]) -> RowPayload:
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigError("option avroSchema must describe a record")
    fields = {field["name"] for field in schema["fields"]}
    for name in columns:
        if name not in fields and name not in _NOT_PAYLOAD:
            raise ConfigError(f"column {name} would be lost: option avroSchema has no such field. Drop the column")
    from fastavro import schemaless_writer

    def encode(row: dict[str, Any]) -> bytes:
        stream = io.BytesIO()
        try:
            schemaless_writer(stream, schema, row)
        # A value that does not fit shows itself in whatever the writer stumbles over.
        except Exception as error:
            raise ValueError(f"the row does not fit option avroSchema: {error!r}") from None
        return stream.getvalue()

    return encode
