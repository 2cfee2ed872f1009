"""Decimal numbers of the same length at equal distances, read from their bytes at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DIGITS_MAX", "WORD_BYTES", "last_digits", "read_decimals"]

DIGITS_MAX = 19
"""Not all numbers of so many digits fit into 64 bits, but all sequences and times of this millennium do."""

WORD_BYTES = 8
"""How many digits are read at once."""

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
    for done in range(0, digits, WORD_BYTES):
        words = np.ndarray((count,), "<u8", data, end - done - WORD_BYTES, (distance,))
        part = last_digits(words, min(digits - done, WORD_BYTES))
        if part is None:
            return None
        total = total + part * 10**done if done else part
    return total


def last_digits(word: NDArray[np.uint64], digits: int | NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the number in the last digits of each eight bytes; None when one of them is not made of digits.

    Digits are summed up in pairs, pairs in fours.

    Args:
        digits: how many there are, one to eight, in all of them or in each.
    """
    shift = np.asarray(8 * (WORD_BYTES - digits), np.uint64)
    word = (word >> shift << shift) | (_ZEROS >> (np.uint64(64) - shift))
    value = word - _ZEROS
    if (((word + _ABOVE_NINES) | value) & _HIGH_BITS).any():
        return None
    value = value * np.uint64(10) + (value >> np.uint64(8))
    low = (value & _PAIRS) * np.uint64(0x000F424000000064)
    high = ((value >> np.uint64(16)) & _PAIRS) * np.uint64(0x0000271000000001)
    return ((low + high) >> np.uint64(32)).astype(np.int64)
