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

from jetlake.client.tables.columns.decimals import DIGITS_MAX, read_decimals
from jetlake.client.tables.columns.frame_split import Split

__all__ = ["DeliveryLines", "read_uniform_lines"]

_Integers = NDArray[np.int64]

_WORD_BYTES = 8


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
    sequence, time_ns = (read_decimals(lines, ends[i], width, len(lines), len(form.numbers[i])) for i in (1, 3))
    if sequence is None or time_ns is None:
        return None
    return DeliveryLines(subject_end, sequence, time_ns, int(last.numbers[4]))


def _form_of(line: bytes, stream: str, consumer: str) -> _Form | None:
    words = line.split(b" ")
    if len(words) != 3 or not words[2].startswith(b"$JS.ACK."):
        return None
    before, name, behind = words[2].partition(f".{stream}.{consumer}.".encode())
    numbers = behind.split(b".")[:5]
    if len(numbers) < 5 or not all(number.isdigit() and len(number) <= DIGITS_MAX for number in numbers):
        return None
    # Tokens that a server appends would have to be the same in every line.
    return _Form(b" %b %b%b" % (words[1], before, name), behind.split(b"."))
