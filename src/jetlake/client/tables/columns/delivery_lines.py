"""Control lines of a consumer's deliveries, when all lines of a read have the same form.

A consumer's reply subject is `$JS.ACK.….<stream>.<consumer>.<count>.<sequence>.<count>.<time>.<pending>`. What stands
before the numbers is the same in every line, and in nearly every read the numbers of the first line have as many digits
as those of the last. Then all places follow from the end of the line. They are proved: each byte that should be the
same in every line is compared, and whatever is read as a number must be digits.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jetlake.client.tables.columns.frame_split import Split

__all__ = ["DeliveryLines", "read_uniform_lines"]

_Integers = NDArray[np.int64]
_Words = NDArray[np.uint64]

_WORD_BYTES = 8
# Not all numbers of so many digits fit into 64 bits, but all sequences and times of this millennium do.
_DIGITS_MAX = 19
_HIGH_BITS = np.uint64(0x8080808080808080)
_ZEROS = np.uint64(0x3030303030303030)
_ABOVE_NINES = np.uint64(0x4646464646464646)
_PAIRS = np.uint64(0x000000FF000000FF)


class DeliveryLines(NamedTuple):
    """What the control lines say.

    Attributes:
        subject_end: where each subject ends.
        sequence: the messages' sequences.
        time_ns: when they were stored, in nanoseconds since 1970.
        pending: how many messages the server says are left after the last of these.
    """

    subject_end: _Integers
    sequence: _Integers
    time_ns: _Integers
    pending: int


class _Form(NamedTuple):
    """A line from the end of its subject on: ` <sid> $JS.ACK.….`, and the numbers."""

    head: bytes
    numbers: list[bytes]

    @property
    def template(self) -> bytes:
        """The line with a zero byte for each digit of a number."""
        return self.head + b".".join(bytes(len(number)) for number in self.numbers)


def read_uniform_lines(buffer: bytearray, split: Split, stream: str, consumer: str) -> DeliveryLines | None:
    """Read the lines of messages; None when their forms differ, or are not those of deliveries."""
    form, last = (_form_of(bytes(buffer[split.subject[i] : split.sizes[i]]), stream, consumer) for i in (0, -1))
    if form is None or last is None or form.template != last.template:
        return None
    template = form.template
    width = -(-len(template) // _WORD_BYTES) * _WORD_BYTES
    subject_end = split.sizes - len(template)
    if (subject_end <= split.subject).any() or subject_end[-1] + width > len(buffer):
        return None
    lines = np.ndarray((len(buffer) - width + 1,), f"V{width}", buffer, strides=(1,))[subject_end]
    expected = template.ljust(width, b"\0")
    compared = bytes(255 * (octet > 0) for octet in expected)
    words = lines.view(np.uint64).reshape(-1, width // _WORD_BYTES)
    if ((words & np.frombuffer(compared, np.uint64)) != np.frombuffer(expected, np.uint64)).any():
        return None
    ends = list(accumulate((len(number) + 1 for number in form.numbers), initial=len(form.head) - 1))[1:]
    sequence = _integers(lines, ends[1], len(form.numbers[1]))
    time_ns = _integers(lines, ends[3], len(form.numbers[3]))
    if sequence is None or time_ns is None:
        return None
    return DeliveryLines(subject_end, sequence, time_ns, int(last.numbers[4]))


def _form_of(line: bytes, stream: str, consumer: str) -> _Form | None:
    words = line.split(b" ")
    if len(words) != 3 or not words[2].startswith(b"$JS.ACK."):
        return None
    before, name, behind = words[2].partition(f".{stream}.{consumer}.".encode())
    numbers = behind.split(b".")[:5]
    if len(numbers) < 5 or not all(number.isdigit() and len(number) <= _DIGITS_MAX for number in numbers):
        return None
    # Tokens that a server appends would have to be the same in every line.
    return _Form(b" %b %b%b" % (words[1], before, name), behind.split(b"."))


def _integers(lines: NDArray[np.void], end: int, digits: int) -> _Integers | None:
    """Return the numbers of so many digits that end before that place of each line; None if one is not a number."""
    total = np.zeros(len(lines), np.int64)
    factor = 1
    for done in range(0, digits, _WORD_BYTES):
        words = np.ndarray((len(lines),), "<u8", lines, end - done - _WORD_BYTES, (lines.itemsize,))
        part = _eight_digits(words, min(digits - done, _WORD_BYTES))
        if part is None:
            return None
        total += part * factor
        factor *= 10**_WORD_BYTES
    return total


def _eight_digits(word: _Words, digits: int) -> _Integers | None:
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
