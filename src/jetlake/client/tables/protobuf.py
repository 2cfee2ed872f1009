"""Protobuf payloads decoded into Arrow struct columns, by a descriptor set of `protoc --descriptor_set_out`."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa

from jetlake.client.payloads.protobuf import is_map, message_class
from jetlake.client.tables.decoding import StructColumns
from jetlake.errors import ConfigError

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_TIMESTAMP = "google.protobuf.Timestamp"
# By the numbers of `FieldDescriptor.cpp_type`.
_PLAIN = {
    1: pa.int32(),
    2: pa.int64(),
    3: pa.int64(),
    4: pa.decimal128(20, 0),
    5: pa.float64(),
    6: pa.float32(),
    7: pa.bool_(),
    8: pa.string(),
    9: pa.string(),
}
"""Enums are their names."""
_BYTES = 12
"""The code of `bytes` in `FieldDescriptor.type`; its `cpp_type` is the same as for strings."""


def protobuf_type(descriptor_set: str | bytes, name: str = "") -> pa.StructType:
    """Return the struct type of a message.

    Raises:
        ConfigError: as in `message_class`, or it holds something that a column has no type for.
    """
    return _struct(message_class(descriptor_set, name).DESCRIPTOR, ())


def _struct(descriptor: Any, above: tuple[str, ...]) -> pa.StructType:
    if descriptor.full_name in above:
        raise ConfigError(f"the Protobuf message {descriptor.full_name} holds itself, which a column cannot represent")
    inside = (*above, descriptor.full_name)
    if not descriptor.fields:
        raise ConfigError(f"the Protobuf message {descriptor.full_name} has no fields")
    return pa.struct([(field.name, _type(field, inside)) for field in descriptor.fields])


def _type(field: Any, above: tuple[str, ...]) -> pa.DataType:
    if is_map(field):
        entry = field.message_type.fields_by_name
        return pa.map_(pa.string(), _single(entry["value"], above))
    single = _single(field, above)
    return pa.list_(single) if field.is_repeated else single


def _single(field: Any, above: tuple[str, ...]) -> pa.DataType:
    if field.type == _BYTES:
        return pa.binary()
    if field.message_type is None:
        return _PLAIN[field.cpp_type]
    if field.message_type.full_name == _TIMESTAMP:
        return pa.timestamp("us", tz="UTC")
    return _struct(field.message_type, above)


class ProtobufDecoder:
    """Protobuf messages, one a payload: absent messages and optional fields are null, other fields their default."""

    def __init__(self, descriptor_set: str | bytes, value_type: pa.StructType, name: str = "") -> None:
        self._class = message_class(descriptor_set, name)
        self._columns = StructColumns(value_type, from_struct=False)

    def decode(self, payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Return the values, null where there is none, and the reason for every such row."""
        from google.protobuf.message import DecodeError

        def decode(payload: bytes) -> dict[str, Any]:
            return _values(self._class.FromString(payload))

        return self._columns.decode(payloads, decode, (DecodeError, ValueError, OverflowError))


def _values(found: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in found.DESCRIPTOR.fields:
        if is_map(field):
            entry = field.message_type.fields_by_name["value"]
            pairs = getattr(found, field.name).items()
            values[field.name] = {str(key): _value(entry, value) for key, value in pairs}
        elif field.is_repeated:
            values[field.name] = [_value(field, value) for value in getattr(found, field.name)]
        elif field.has_presence and not found.HasField(field.name):
            values[field.name] = None
        else:
            values[field.name] = _value(field, getattr(found, field.name))
    return values


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return _EPOCH + datetime.timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
        return _values(value)
    if field.cpp_type == 4:
        return decimal.Decimal(value)
    if field.type != _BYTES and isinstance(value, bytes):
        # A text of proto2 may be anything.
        raise ValueError(f"text {field.name} is not UTF-8")
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    return value
