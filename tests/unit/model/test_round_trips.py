"""Any value of any Struct comes back from JSON as it went."""

from __future__ import annotations

from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlake.model import account, consumer, events, publish, replies, requests, stream
from jetlake.model.encoding import codec
from jetlake.model.encoding.times import format_time

MODULES = (account, consumer, events, publish, replies, requests, stream)
STRUCTS = sorted(
    {
        kind
        for module in MODULES
        for kind in (getattr(module, name) for name in module.__all__)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind is not events.Event
    },
    key=lambda kind: kind.__name__,
)
TIMES = st.integers(0, 253_402_300_799 * 10**9).map(format_time)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Whatever a field of that type may hold."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return numbers(parts[1]) if parts[0] is int else TIMES
    if origin in (Union, UnionType):
        return st.one_of(*(values(part) for part in parts))
    if origin is tuple:
        return st.lists(values(parts[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=4), values(parts[1]), max_size=2)
    if issubclass(hint, msgspec.Struct):
        return structs(hint)
    if issubclass(hint, StrEnum):
        return st.sampled_from(list(hint))
    plain = {str: st.text(max_size=8), int: st.integers(0, 10**9), bool: st.booleans(), NoneType: st.none()}
    return plain[hint] if hint in plain else st.binary(max_size=8)


def numbers(meta: msgspec.Meta) -> st.SearchStrategy[int]:
    return st.integers(meta.ge, meta.le) | st.just(0)  # type: ignore[arg-type]


def structs(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind, include_extras=True)
    required = {field.name for field in msgspec.structs.fields(kind) if field.required}
    fields = {name: values(hints[name]) for name in kind.__struct_fields__}
    needed = {name: fields.pop(name) for name in required}
    return st.fixed_dictionaries(needed, optional=fields).map(lambda given: kind(**given))


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
def test_a_value_comes_back(kind: type[msgspec.Struct]) -> None:
    @settings(max_examples=25)
    @given(structs(kind))
    def check(value: msgspec.Struct) -> None:
        data = codec.encode(value)
        assert codec.decode(kind, data) == value
        assert codec.decode_strict(kind, data) == value

    check()


@given(st.sampled_from(STRUCTS), st.binary(max_size=40) | st.text(max_size=20).map(str.encode))
def test_any_bytes_give_a_value_or_the_one_error(kind: type[msgspec.Struct], data: bytes) -> None:
    for read in (codec.decode, codec.decode_strict):
        try:
            assert isinstance(read(kind, data), kind)
        except codec.DecodeError:
            pass
