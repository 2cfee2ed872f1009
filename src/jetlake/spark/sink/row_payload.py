"""Payloads of rows that are written: their columns as a JSON object, or as a record of an Avro schema."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    MapType,
    StructType,
    VariantType,
    YearMonthIntervalType,
)
from pyspark.sql.variant_utils import VariantUtils

from jetlake.client.tables.decoding.avro_decoder import parse_avro
from jetlake.errors import ConfigError
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.reading.nested_types import types_in

__all__ = ["RowPayload", "has_unusual_keys", "make_row_encoder", "with_text_keys"]

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
        inner = list(types_in(field.dataType))
        if field.name not in variants and any(isinstance(kind, VariantType) for kind in inner):
            raise ConfigError(f"column {field.name} holds a VARIANT inside: write it as a column of its own")
        if any(isinstance(kind, YearMonthIntervalType) for kind in inner):
            raise ConfigError(f"column {field.name} holds an interval of months, for which there is no text: cast it")
        for kind in inner:
            if isinstance(kind, MapType) and isinstance(kind.keyType, StructType | ArrayType):
                raise ConfigError(
                    f"column {field.name} holds a map by {kind.keyType.simpleString()}: keys of a payload are texts; "
                    "write map_entries(…), or make texts of the keys"
                )
    if options.payload_format == "avro":
        if variants:
            raise ConfigError(f"column {min(variants)} is a VARIANT, for which Avro has no type: write it as JSON")
        return _avro(parse_avro(options.avro_schema), schema.fieldNames())
    if variants:
        return lambda row: _json_with_variants(row, variants)
    return lambda row: _encode_json({name: value for name, value in row.items() if value is not None})


def has_unusual_keys(kind: DataType) -> bool:
    """Return whether a type holds maps by decimals or booleans, which become no texts by themselves."""
    maps = (inner for inner in types_in(kind) if isinstance(inner, MapType))
    return any(isinstance(single.keyType, DecimalType | BooleanType) for single in maps)


def with_text_keys(kind: pa.DataType) -> pa.DataType:
    """Return the type with texts in place of decimals and booleans as keys of maps; columns can be cast to it."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(with_text_keys(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(with_text_keys(kind.value_type)))
    if pa.types.is_map(kind):
        is_unusual = pa.types.is_decimal(kind.key_type) or pa.types.is_boolean(kind.key_type)
        item = kind.item_field.with_type(with_text_keys(kind.item_type))
        return pa.map_(pa.string() if is_unusual else kind.key_type, item)
    return kind


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
