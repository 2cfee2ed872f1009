"""Columns of numbers as bytes, little-endian on every machine."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from contextlib import suppress

__all__ = ["column_bytes", "column_parts", "positions_of", "read_column"]

_SWAPPED = sys.byteorder == "big"


def column_bytes(column: array[int]) -> bytes:
    """Return the bytes of a column."""
    if _SWAPPED:
        column = column[:]
        column.byteswap()
    return column.tobytes()


def column_parts(column: array[int], part_bytes: int) -> Iterator[bytes]:
    """Yield the bytes of a column in parts of this size; the last one may be shorter."""
    count = part_bytes // column.itemsize
    for start in range(0, len(column), count):
        yield column_bytes(column[start : start + count])


def read_column(code: str, data: bytes | memoryview) -> array[int]:
    """Return the column that these bytes are; `code` is the array's."""
    column: array[int] = array(code)
    column.frombytes(data)
    if _SWAPPED:
        column.byteswap()
    return column


def positions_of(column: array[int] | list[bytes], value: object, end: int) -> Iterator[int]:
    """Yield the places of a value in a column: most columns have few."""
    position = -1
    with suppress(ValueError):
        while True:
            position = column.index(value, position + 1, end)  # type: ignore[arg-type]
            yield position
