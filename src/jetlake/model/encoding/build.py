"""Builds Structs from what people write: seconds and timedelta, datetime, plain words for enums, lists, dicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from jetlake.errors import ConfigError
from jetlake.model.encoding.durations import nanoseconds
from jetlake.model.encoding.times import start_text, time_text

__all__ = ["build", "suggestion"]

StructT = TypeVar("StructT", bound=msgspec.Struct)


def build(kind: type[StructT], options: Mapping[str, Any]) -> StructT:
    """Return the Struct with these fields, each converted to what the field holds; None means not given.

    Durations are seconds or timedelta, times are RFC 3339 text or datetime, enums may be their words, inner objects may
    be dicts written by the same rules.

    Raises:
        ConfigError: a name that the Struct does not have, a required one left out, or a value that does not fit.
    """
    hints = _hints(kind)
    values = {}
    for name, value in options.items():
        if name not in hints:
            raise ConfigError(f"{kind.__name__} has no field {name!r}; {suggestion(name, hints)}")
        if value is not None:
            values[name] = _converted(f"{kind.__name__}.{name}", hints[name], value)
    try:
        built = kind(**values)
        msgspec.convert(msgspec.to_builtins(built), kind)  # types and ranges, checked where the wire would check them
    except (TypeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{kind.__name__}: {error}") from None
    return built


def suggestion(name: str, fields: Iterable[str]) -> str:
    """Return the field that a mistyped name may mean, or else all fields there are."""
    from difflib import get_close_matches  # Only after a typing error.

    near = get_close_matches(name, fields, n=1, cutoff=0.7)
    return f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(fields))}"


@cache
def _hints(kind: type[msgspec.Struct]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in kind.__struct_fields__}


def _converted(where: str, hint: Any, value: Any) -> Any:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
        return _converted(where, hint, value)
    if origin is Annotated:
        return _converted_scalar(where, hint, value)
    if origin is tuple:
        if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
            raise ConfigError(f"{where} must be a list, not {value!r}")
        return tuple(_converted(where, get_args(hint)[0], item) for item in value)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _enum_member(where, hint, value)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct) and isinstance(value, Mapping):
        return build(hint, value)
    return value


def _converted_scalar(where: str, hint: Any, value: Any) -> Any:
    for meta in get_args(hint)[1:]:
        holds = (meta.extra or {}).get("holds") if isinstance(meta, msgspec.Meta) else None
        try:
            if holds == "duration":
                return nanoseconds(value)
            if holds == "start":
                return start_text(value)
            if holds == "time":
                return time_text(value)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
    return value


def _enum_member(where: str, kind: type[StrEnum], value: Any) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        words = ", ".join(repr(member.value) for member in kind)
        raise ConfigError(f"{where} must be one of {words}, not {value!r}") from None
