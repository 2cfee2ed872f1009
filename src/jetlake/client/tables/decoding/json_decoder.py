"""JSON payloads, by a given type or by one that is found in them."""

from __future__ import annotations

import datetime
import decimal
from typing import Annotated, Any, Optional

import msgspec
import pyarrow as pa

from jetlake.client.tables.decoding.decoder import BadValueError, StructColumns, fields_of
from jetlake.errors import ConfigError

__all__ = ["JsonDecoder", "infer_json_type"]

_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadValueError)

# How each kind of column is read; integers, lists, maps and structs are read by their parts.
_PLAIN: tuple[tuple[Any, Any], ...] = (
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
        raise ConfigError(f"the payloads have no type in common: {error}; give a schema") from None
    except OverflowError:
        raise ConfigError("a number is beyond int64: give a schema, with uint64 or double for its field") from None
    if not pa.types.is_struct(kind) or not kind.num_fields:
        raise ConfigError("no payload is a JSON object with fields: give a schema, or read payloads as raw")
    return _without_nulls(kind)


def _without_nulls(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_nulls(field.type)) for field in fields_of(kind)])
    if pa.types.is_list(kind):
        return pa.list_(_without_nulls(kind.value_type))
    return kind


# What a float of four bytes holds; a larger number would become infinite.
_FLOAT32_MAX = (2.0 - 2.0**-23) * 2.0**127


def _json_type(field: pa.Field, path: str) -> Any:
    """Return the type by which msgspec reads JSON for a field."""
    kind = field.type
    if pa.types.is_uint64(kind):
        read: Any = Annotated[int, msgspec.Meta(ge=0)]  # Whose end is beyond that of msgspec's limits.
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
        read = next((plain for is_kind, plain in _PLAIN if is_kind(kind)), None)
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
