"""Values for Arrow, and for NumPy, without Arrow's own conversions.

Arrow's conversions, even of a single value, look for pandas first. Its import is the slowest at the start of a Spark
worker, and the garbage collection that Spark runs after every task then traverses all of it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Integers = NDArray[np.int64]
_BYTES_MAX = (1 << 31) - 1
_NO_INTEGERS = np.empty(0, np.int64)


def arrow_of(numbers: Integers, kind: pa.DataType | None = None) -> pa.Array:
    """Return the numbers for Arrow, as integers or another kind of eight bytes; copied only where they lie apart."""
    adjacent = np.ascontiguousarray(numbers, np.int64)
    return pa.Array.from_buffers(kind or pa.int64(), len(adjacent), [None, pa.py_buffer(adjacent)])


def numpy_of(numbers: pa.Array) -> Integers:
    """Return the numbers for NumPy, not copied; all of them, with nothing cut off."""
    return np.frombuffer(numbers.buffers()[1], np.int64, len(numbers)) if len(numbers) else _NO_INTEGERS


def cut_bytes(data: bytes, sizes: Integers, kind: pa.DataType | None = None) -> pa.Array:
    """Return the bytes as values of these sizes, which fill them: binary, or text that is known to be UTF-8.

    Raises:
        OverflowError: they are too many for one array.
    """
    if len(data) > _BYTES_MAX:
        raise OverflowError(f"an array holds {_BYTES_MAX} bytes at most, not {len(data)}")
    edges = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=edges[1:])
    return pa.Array.from_buffers(kind or pa.binary(), len(sizes), [None, pa.py_buffer(edges), pa.py_buffer(data)])


def binary_of(values: list[bytes], kind: pa.DataType | None = None) -> pa.Array:
    """Return the values for Arrow: errors and kinds as in `cut_bytes`."""
    return cut_bytes(b"".join(values), np.fromiter(map(len, values), np.int64, len(values)), kind)


def repeated(value: bytes, count: int, kind: pa.DataType | None = None) -> pa.Array:
    """Return the value `count` times: errors and kinds as in `cut_bytes`."""
    return cut_bytes(value * count, np.full(count, len(value)), kind)
