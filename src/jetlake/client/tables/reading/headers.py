"""Header blocks as Arrow maps, and maps as header blocks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from jetlake.client.tables.columns.arrow_values import binary_of
from jetlake.errors import BadHeaderError
from jetlake.protocol.headers import Headers

__all__ = ["header_maps"]


def header_maps(blocks: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the blocks as `map<string, list<string>>`: empty, never null, for messages without headers.

    Null would do as well for reading, but Spark's Arrow writer slows down with the square of the rows when a map
    column holds nulls, and what is read here is often written again.
    """
    count = len(blocks)
    _, edges, _ = blocks.buffers()
    offsets = np.frombuffer(edges, np.int32)[blocks.offset : blocks.offset + count + 1]
    key_offsets = np.zeros(count + 1, np.int32)
    keys: list[str] = []
    value_offsets = [0]
    values: list[str] = []
    for row in np.flatnonzero(np.diff(offsets)).tolist():
        grouped: dict[str, list[str]] = {}
        for key, value in _pairs(blocks[row].as_py()):
            grouped.setdefault(key, []).append(value)
        key_offsets[row + 1] = len(grouped)
        for key, several in grouped.items():
            keys.append(key)
            values += several
            value_offsets.append(len(values))
    np.cumsum(key_offsets, out=key_offsets)
    element = kind.item_type.value_type
    items = pa.Array.from_buffers(
        kind.item_type,
        len(keys),
        [None, pa.py_buffer(np.array(value_offsets, np.int32))],
        children=[_texts(values, element)],
    )
    entries = pa.StructArray.from_arrays([_texts(keys, kind.key_type), items], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(key_offsets)], children=[entries])


def _texts(values: list[str], kind: pa.DataType) -> pa.Array:
    return binary_of([value.encode() for value in values], kind)


def _pairs(block: bytes) -> list[tuple[str, str]]:
    """Return the block's pairs as valid text; a block that is none gives nothing, for publishers may send any bytes."""
    try:
        pairs = Headers(block).items()
    except BadHeaderError:
        return []
    return [(_clean(key), _clean(value)) for key, value in pairs]


def _clean(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
