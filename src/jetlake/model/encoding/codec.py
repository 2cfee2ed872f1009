"""The one JSON codec: Structs to bytes and back, with errors that name the fault.

A JSON null stands for a field that is not there, unknown fields are skipped (or named, when strict), and neither depth
nor size of the input can hurt: nesting beyond the interpreter's limit and inputs over `INPUT_BYTES_MAX` are errors.

The reasons are in decision 3 (docs/decisions).
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import suppress
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec

from jetlake.errors import DecodeError

__all__ = ["INPUT_BYTES_MAX", "decode", "decode_strict", "encode", "encode_shown", "prepare_strict"]

T = TypeVar("T")

_PATTERN = re.compile(r"`str` matching regex '.*'")
# Every escape, so that a backslash which is escaped itself begins none. Two halves of a pair are one escape.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)

INPUT_BYTES_MAX = 64 * 1024 * 1024
"""The longest JSON text that is read: the largest payload that a server may allow."""

_ENCODER = msgspec.json.Encoder()

encode = _ENCODER.encode
"""The value as JSON bytes: fields in the order of their declaration, those at their default left out."""


def encode_shown(value: Any) -> bytes:
    r"""Return the value as JSON for readers; a byte of a name that is not UTF-8 becomes a text such as `\udcff`."""
    try:
        return encode(value)
    except UnicodeEncodeError:
        return encode(_without_surrogates(msgspec.to_builtins(value)))


def _without_surrogates(raw: Any) -> Any:
    if isinstance(raw, str):
        return raw.encode(errors="backslashreplace").decode()
    if isinstance(raw, dict):
        return {_without_surrogates(key): _without_surrogates(value) for key, value in raw.items()}
    return [_without_surrogates(value) for value in raw] if isinstance(raw, (list, tuple)) else raw


def decode(kind: type[T], data: bytes) -> T:
    """Read a value of that type; fields that it does not have are skipped.

    Raises:
        DecodeError: not JSON, or JSON of another shape.
    """
    try:
        return _decoder(kind).decode(_bounded(data))
    except msgspec.ValidationError as error:
        if b"null" not in data:
            raise DecodeError(_reason(error)) from None
        return _convert(kind, _without_nulls(_read(data)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if (paired := _without_lone_surrogates(data)) != data:
            return decode(kind, paired)
        raise DecodeError(_reason(error)) from None


def decode_strict(kind: type[T], data: bytes) -> T:
    """Read a value of that type; the first field that it does not have is an error with the server's wording.

    Raises:
        DecodeError: not JSON, JSON of another shape, or an unknown field.
    """
    raw = _read(data)
    # Lists may be long; most requests have no null.
    value = _convert(kind, _without_nulls(raw) if b"null" in data else raw)
    unknown = _unknown_field(kind, raw)
    if unknown is not None:
        raise DecodeError(f'json: unknown field "{unknown}"')
    return value


def prepare_strict(kind: Any) -> Generator[None, None, None]:
    """Build what `decode_strict` needs for a type, those within it first; one of them in each step."""
    for inner in (_struct_fields(kind) or {}).values():
        if inner is not None:
            yield from prepare_strict(inner)
    yield
    with suppress(msgspec.ValidationError):  # It has fields that must be there.
        msgspec.convert({}, kind)


_DECODERS: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = msgspec.json.Decoder(kind)
    return decoder


def _bounded(data: bytes) -> bytes:
    if len(data) > INPUT_BYTES_MAX:
        raise DecodeError(f"{len(data)} bytes are more than the {INPUT_BYTES_MAX} that are read")
    return data


def _read(data: bytes) -> Any:
    try:
        return msgspec.json.decode(_bounded(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if (paired := _without_lone_surrogates(data)) != data:
            return _read(paired)
        raise DecodeError(_reason(error)) from None


def _without_lone_surrogates(data: bytes) -> bytes:
    r"""Return the JSON with `\ufffd` for each half of a surrogate pair that has no other half, as Go reads it."""
    if b"\\ud" not in data and b"\\uD" not in data:
        return data
    return _ESCAPE.sub(lambda escape: rb"\ufffd" if escape[1] else escape[0], data)


def _convert(kind: type[T], raw: Any) -> T:
    try:
        return msgspec.convert(raw, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise DecodeError(_reason(error)) from None


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "exceeded max depth"
    # Times are the only texts with a pattern, and a pattern is no explanation.
    return _PATTERN.sub("a time like 2026-01-31T12:00:00Z", str(error)) or type(error).__name__


def _without_nulls(raw: Any) -> Any:
    """Return the same JSON without the fields that are null, as if they had not been sent."""
    if isinstance(raw, dict):
        return {key: _without_nulls(value) for key, value in raw.items() if value is not None}
    if isinstance(raw, list):
        return [_without_nulls(value) for value in raw]
    return raw


_NESTED = frozenset({dict, list})


def _unknown_field(kind: Any, raw: Any) -> str | None:
    """Return the first name in the JSON, in its own order, that no Struct on its way has."""
    if isinstance(raw, dict):
        fields = _struct_fields(kind)
        if fields is None:
            return None
        for name, value in raw.items():
            if name not in fields:
                return str(name)
            unknown = _unknown_field(fields[name], value)
            if unknown is not None:
                return unknown
    elif isinstance(raw, list) and kind is not None and (fields := _struct_fields(kind)) is not None:
        for item in raw:
            # Lists may be long, and most of their entries have nothing to look into.
            if isinstance(item, dict) and item.keys() <= fields.keys() and _NESTED.isdisjoint(map(type, item.values())):
                continue
            unknown = _unknown_field(kind, item)
            if unknown is not None:
                return unknown
    return None


@cache
def _struct_fields(kind: Any) -> dict[str, Any] | None:
    """Return the wire names of a Struct's fields with the Struct each leads to; None for types that take any name."""
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return None
    fields = {field.encode_name: _inner(field.type) for field in msgspec.structs.fields(kind)}
    config = kind.__struct_config__
    if config.tag_field is not None:
        fields[config.tag_field] = None
    return fields


def _inner(kind: Any) -> Any:
    """Return the Struct inside an optional, annotated or array type."""
    if get_origin(kind) in (Union, UnionType, tuple, list):
        for part in get_args(kind):
            inner = _inner(part)
            if inner is not None:
                return inner
        return None
    return kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None
