"""Control lines of a consumer's deliveries, when all lines of a read have the same form.

A consumer's reply subject is `$JS.ACK.….<stream>.<consumer>.<count>.<sequence>.<count>.<time>.<pending>`. What stands
before the numbers is the same in every line, and in nearly every read the numbers of the first line have as many digits
as those of the last. Then all places follow from the end of the line. They are proved: each byte that should be the
same in every line is compared, and whatever is read as a number must be digits. The leading digits that the first and
the last sequence or time share are compared too, which takes less than reading them; where times go back and forth, all
digits are read.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jetlake.client.tables.columns.decimals import DIGITS_MAX, WORD_BYTES, read_decimals
from jetlake.client.tables.columns.frame_split import Split

__all__ = ["DeliveryLines", "read_uniform_lines"]

_Integers = NDArray[np.int64]


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

    def template(self, shared: dict[int, int]) -> bytes:
        """Return the line with a zero byte for each digit of a number but those that are shared by all lines."""
        return self.head + b".".join(
            number[: shared.get(index, 0)].ljust(len(number), b"\0") for index, number in enumerate(self.numbers)
        )


_NONE_SHARED: dict[int, int] = {}
_SEQUENCE, _TIME, _PENDING = 1, 3, 4


def read_uniform_lines(buffer: bytearray, split: Split, stream: str, consumer: str) -> DeliveryLines | None:
    """Read the lines of messages; None when their forms differ, or are not those of deliveries."""
    form, last = (_form_of(bytes(buffer[split.subject[i] : split.sizes[i]]), stream, consumer) for i in (0, -1))
    if form is None or last is None or (template := form.template(_NONE_SHARED)) != last.template(_NONE_SHARED):
        return None
    width = -(-len(template) // WORD_BYTES) * WORD_BYTES
    subject_end = split.sizes - len(template)
    if (subject_end <= split.subject).any() or subject_end[-1] + width > len(buffer):
        return None
    lines = np.ndarray((len(buffer) - width + 1,), f"V{width}", buffer, strides=(1,))[subject_end]
    shared = {index: _shared_digits(form.numbers[index], last.numbers[index]) for index in (_SEQUENCE, _TIME)}
    if not _match(lines, form.template(shared), width):
        shared = _NONE_SHARED
        if not _match(lines, template, width):
            return None
    ends = list(accumulate((len(number) + 1 for number in form.numbers), initial=len(form.head) - 1))[1:]
    found = []
    for index in (_SEQUENCE, _TIME):
        number, known = form.numbers[index], shared.get(index, 0)
        rest = read_decimals(lines, ends[index], width, len(lines), len(number) - known)
        if rest is None:
            return None
        found.append(rest + np.uint64(number[:known].ljust(len(number), b"0")).astype(np.int64) if known else rest)
    return DeliveryLines(subject_end, found[0], found[1], int(last.numbers[_PENDING]))


def _match(lines: NDArray[np.void], template: bytes, width: int) -> bool:
    """Return whether all lines, of so many bytes, have the bytes of the template that are not zero."""
    expected = template.ljust(width, b"\0")
    compared = bytes(255 * (octet > 0) for octet in expected)
    words = lines.view(np.uint64).reshape(-1, width // WORD_BYTES)
    return not ((words & np.frombuffer(compared, np.uint64)) != np.frombuffer(expected, np.uint64)).any()


def _shared_digits(one: bytes, other: bytes) -> int:
    """Return how many leading digits two numbers share."""
    return next((place for place, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


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
