"""Columns of numbers as bytes, little-endian on every machine."""

from __future__ import annotations

import sys
from array import array

__all__ = ["column_bytes", "read_column"]

_SWAPPED = sys.byteorder == "big"


def column_bytes(column: array[int]) -> bytes:
    """Return the bytes of a column."""
    if _SWAPPED:
        column = column[:]
        column.byteswap()
    return column.tobytes()


def read_column(code: str, data: bytes | memoryview) -> array[int]:
    """Return the column that these bytes are; `code` is the array's."""
    column: array[int] = array(code)
    column.frombytes(data)
    if _SWAPPED:
        column.byteswap()
    return column
