"""Protobuf messages by a descriptor set of protoc: their classes, and which message may follow another."""

from __future__ import annotations

import base64
import binascii
import decimal
from collections.abc import Callable, Mapping
from typing import Any

from jetlake.errors import ConfigError

_TIMESTAMP = "google.protobuf.Timestamp"
# By the numbers of `FieldDescriptor.type`.
_FLOATS, _BOOL, _STRING, _BYTES = (1, 2), 8, 9, 12
# Types on the wire that read each other's values, by the numbers of `FieldDescriptor.type`.
_ALIKE = (
    {3, 4, 5, 8, 13, 14},  # int64, uint64, int32, bool, uint32, enum
    {17, 18},  # sint32, sint64
    {7, 15},  # fixed32, sfixed32
    {6, 16},  # fixed64, sfixed64
    {9, 12},  # string, bytes
)


def message_class(descriptor_set: str | bytes, name: str = "") -> Any:
    """Return the class of a message.

    Args:
        descriptor_set: as protoc writes it (`--include_imports`), or that in Base64.
        name: the message's full name; empty for the last one of the last file.

    Raises:
        ConfigError: protobuf is not installed, the set cannot be read, or it holds no such message.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
    except ImportError:
        raise ConfigError(
            "Protobuf payloads need protobuf (with Spark on every machine): install jetlake[protobuf]"
        ) from None
    try:
        raw = base64.b64decode(descriptor_set, validate=True) if isinstance(descriptor_set, str) else descriptor_set
        files = descriptor_pb2.FileDescriptorSet.FromString(raw)
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        if not name:
            last = files.file[-1]
            name = ".".join(part for part in (last.package, last.message_type[-1].name) if part)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except KeyError:
        found = ", ".join(f"{file.package}.{one.name}".lstrip(".") for file in files.file for one in file.message_type)
        raise ConfigError(f"the Protobuf descriptor set has no message {name}, but {found or 'none'}") from None
    except (binascii.Error, message.DecodeError, IndexError, TypeError) as error:
        raise ConfigError(
            f"the Protobuf schema is not a descriptor set ({error}): write one with protoc --include_imports "
            "--descriptor_set_out=FILE"
        ) from None


def protobuf_reader(descriptor_set: str | bytes, name: str = "") -> Callable[[bytes], Any]:
    """Return a function that reads a payload as a message; an unknown field at its top level is refused.

    Raises:
        ConfigError: as in `message_class`.
    """
    kind = message_class(descriptor_set, name)
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    def read(payload: bytes) -> Any:
        try:
            found = kind.FromString(payload)
        except DecodeError as error:
            raise ValueError(f"it is no {kind.DESCRIPTOR.full_name}: {error}") from None
        unknown = UnknownFieldSet(found)
        if len(unknown):
            raise ValueError(
                f"it has a field {unknown[0].field_number}, which {kind.DESCRIPTOR.full_name} does not have"
            )
        return found

    return read


def protobuf_breach(old: Any, new: Any) -> str:
    """Return why a message of the old class cannot be read by the new one; empty when it can.

    Fields are known by their numbers on the wire, and by their names in tables and JSON: both stay.
    """
    return _breach(old.DESCRIPTOR, new.DESCRIPTOR, "value", frozenset())


def _breach(old: Any, new: Any, path: str, above: frozenset[str]) -> str:
    if old.full_name in above:
        return ""
    before = {field.number: field for field in old.fields}
    numbers = {field.name: field.number for field in old.fields}
    for field in new.fields:
        where = f"{path}.{field.name}"
        if field.number not in before:
            if field.name in numbers:
                return f"{where} had the number {numbers[field.name]} and has {field.number}"
            if field.is_required:
                return f"{where} is new and required"
            continue
        reason = _field_breach(before[field.number], field, where, above | {old.full_name})
        if reason:
            return reason
    return ""


def _field_breach(old: Any, new: Any, where: str, above: frozenset[str]) -> str:
    if old.name != new.name:
        return f"{where} has the number {new.number} of {old.name}"
    if old.is_repeated != new.is_repeated:
        return f"{where} was {'repeated' if old.is_repeated else 'single'} and is not"
    if old.type != new.type and not any({old.type, new.type} <= alike for alike in _ALIKE):
        return f"{where} has another type"
    if new.is_required and not old.is_required:
        return f"{where} is required"
    if old.message_type is not None:
        return _breach(old.message_type, new.message_type, where, above)
    if new.enum_type is not None and old.enum_type is not None:
        gone = set(old.enum_type.values_by_name) - set(new.enum_type.values_by_name)
        return f"{where} has no value {min(gone)}" if gone else ""
    return ""


def fill_message(message: Any, values: Mapping[str, Any]) -> None:
    """Set the fields of a message; null leaves a field as it is, an enum's value is its name.

    Raises:
        ValueError, TypeError, KeyError: a value does not fit, or there is no such field.
    """
    for name, value in values.items():
        if value is None:
            continue
        field = message.DESCRIPTOR.fields_by_name[name]
        if is_map(field):
            entry = field.message_type.fields_by_name
            target = getattr(message, name)
            for key, item in value.items():
                single = _scalar(entry["key"], _key(entry["key"], key))
                if entry["value"].message_type is not None:
                    _fill(target[single], item)
                else:
                    target[single] = _scalar(entry["value"], item)
        elif field.is_repeated and field.message_type is not None:
            for item in value:
                _fill(getattr(message, name).add(), item)
        elif field.is_repeated:
            getattr(message, name).extend(_scalar(field, item) for item in value)
        elif field.message_type is not None:
            getattr(message, name).SetInParent()
            _fill(getattr(message, name), value)
        else:
            setattr(message, name, _scalar(field, value))


def _fill(message: Any, value: Any) -> None:
    if message.DESCRIPTOR.full_name == _TIMESTAMP:
        message.FromDatetime(value)
    else:
        fill_message(message, value)


def _scalar(field: Any, value: Any) -> Any:
    if field.enum_type is not None and isinstance(value, str):
        known = field.enum_type.values_by_name.get(value)
        if known is None:
            raise ValueError(f"{field.name} has no value {value!r}")
        return known.number
    if isinstance(value, decimal.Decimal):
        return float(value) if field.type in _FLOATS else _whole(field, value)
    if field.type == _BYTES and isinstance(value, str):
        return value.encode()
    return value


def _whole(field: Any, value: decimal.Decimal) -> int:
    if value != int(value):
        raise ValueError(f"{field.name} must be a whole number, not {value}")
    return int(value)


def _key(field: Any, text: Any) -> Any:
    """Return a key of a map, which columns have as a text."""
    if not isinstance(text, str) or field.type == _STRING:
        return text
    return text.lower() == "true" if field.type == _BOOL else int(text)


def is_map(field: Any) -> bool:
    """Return whether a field is a map, which on the wire is a repeated message of key and value."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)
