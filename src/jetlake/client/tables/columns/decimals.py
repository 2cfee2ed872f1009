"""Decimal numbers of the same length at equal distances, read from their bytes at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DIGITS_MAX", "read_decimals"]

DIGITS_MAX = 19
"""Not all numbers of so many digits fit into 64 bits, but all sequences and times of this millennium do."""

_WORD_BYTES = 8
_HIGH_BITS = np.uint64(0x8080808080808080)
_ZEROS = np.uint64(0x3030303030303030)
_ABOVE_NINES = np.uint64(0x4646464646464646)
_PAIRS = np.uint64(0x000000FF000000FF)


def read_decimals(data: Any, end: int, distance: int, count: int, digits: int) -> NDArray[np.int64] | None:
    """Return so many numbers; None when one of them is not made of digits.

    Args:
        data: a buffer; at least eight bytes stand before the end of the first number.
        end: where the first number ends.
        distance: how far the end of a number is from the end of the one before.
        digits: how many digits each has, at most `DIGITS_MAX`.
    """
    total = np.zeros(count, np.int64)
    factor = 1
    for done in range(0, digits, _WORD_BYTES):
        words = np.ndarray((count,), "<u8", data, end - done - _WORD_BYTES, (distance,))
        part = _last_digits(words, min(digits - done, _WORD_BYTES))
        if part is None:
            return None
        total += part * factor
        factor *= 10**_WORD_BYTES
    return total


def _last_digits(word: NDArray[np.uint64], digits: int) -> NDArray[np.int64] | None:
    """Return the number in the last digits of each eight bytes: digits are summed up in pairs, pairs in fours."""
    if digits < _WORD_BYTES:
        shift = np.uint64(8 * (_WORD_BYTES - digits))
        word = (word >> shift << shift) | (_ZEROS >> np.uint64(8 * digits))
    value = word - _ZEROS
    if (((word + _ABOVE_NINES) | value) & _HIGH_BITS).any():
        return None
    value = value * np.uint64(10) + (value >> np.uint64(8))
    low = (value & _PAIRS) * np.uint64(0x000F424000000064)
    high = ((value >> np.uint64(16)) & _PAIRS) * np.uint64(0x0000271000000001)
    return ((low + high) >> np.uint64(32)).astype(np.int64)
