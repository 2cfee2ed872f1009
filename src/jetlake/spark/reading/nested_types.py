"""Spark's types and what is inside of them."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

__all__ = ["types_in"]


def types_in(kind: DataType) -> Iterator[DataType]:
    """Yield a type and all types inside of it."""
    yield kind
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from types_in(field.dataType)
    elif isinstance(kind, ArrayType):
        yield from types_in(kind.elementType)
    elif isinstance(kind, MapType):
        yield from types_in(kind.keyType)
        yield from types_in(kind.valueType)
