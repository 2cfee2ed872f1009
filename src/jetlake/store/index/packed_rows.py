"""What stays in memory of a spilled block's rows, packed: which sequences have one, and which rows live."""

from __future__ import annotations

import re
import zlib
from array import array
from itertools import compress
from operator import not_

from jetlake.store.sequence_ranges import Range, ranges_of
from jetlake.store.steps import Steps

__all__ = ["dead_ranges", "pack_live", "pack_sequences", "unpack_live", "unpack_sequences"]

_ALIVE = b"\x01"
_BYTES_PER_STEP = 64 * 1024
_SEQUENCES_PER_STEP = 16 * 1024


def pack_live(live: bytes | bytearray, live_count: int) -> Steps[bytes]:
    """Return which rows live, in few bytes; none when all do."""
    return b"" if live_count == len(live) else (yield from _compress(live))


def unpack_live(packed: bytes, rows: int) -> bytearray:
    """Return a 1 for each row that lives and a 0 for one that has died."""
    return bytearray(zlib.decompress(packed)) if packed else bytearray(_ALIVE * rows)


def pack_sequences(sequences: array[int] | None, first: int) -> Steps[bytes]:
    """Return which sequences have a row, in few bytes; none when all have one.

    Args:
        first: the block's first sequence.
    """
    if not sequences:
        return b""
    present = bytearray(sequences[-1] - first + 1)
    for start in range(0, len(sequences), _SEQUENCES_PER_STEP):
        for sequence in sequences[start : start + _SEQUENCES_PER_STEP]:
            present[sequence - first] = 1
        yield
    return (yield from _compress(present))


def _compress(data: bytes | bytearray) -> Steps[bytes]:
    compressor = zlib.compressobj(1)
    parts: list[bytes] = []
    for start in range(0, len(data), _BYTES_PER_STEP):
        parts.append(compressor.compress(data[start : start + _BYTES_PER_STEP]))
        yield
    return b"".join((*parts, compressor.flush()))


def unpack_sequences(packed: bytes, first: int) -> array[int] | None:
    """Return the sequences of rows; None when none is missing."""
    if not packed:
        return None
    present = zlib.decompress(packed)
    return array("Q", compress(range(first, first + len(present)), present))


def dead_ranges(first: int, packed_live: bytes, packed_sequences: bytes) -> list[Range]:
    """Return the sequences of rows that have died."""
    if not packed_live:
        return []
    live = zlib.decompress(packed_live)
    if (sequences := unpack_sequences(packed_sequences, first)) is not None:
        return ranges_of(compress(sequences, map(not_, live)))
    return [(first + run.start(), first + run.end() - 1) for run in re.finditer(rb"\0+", live)]
