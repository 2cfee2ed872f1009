"""Where the messages in a read buffer begin and end, found for the whole buffer at once.

The fast path finds line ends with numpy, takes every line that begins like a message for one, and then proves it: the
first line is a message, and each message must end exactly where the next one begins. A payload that looks like a
message breaks that chain, and so does a line of another kind; then the loop splits the buffer line by line, which is
always right. Messages without headers and without line ends in their payloads are tried first: there every second line
end is a message's end, and only the sizes are left to prove.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jetlake.errors import ProtocolError

Positions = NDArray[np.int64]
_MSG = int.from_bytes(b"MSG ", "little")
_HMSG = int.from_bytes(b"HMSG", "little")
_SIZE_DIGITS_MAX = 9
_LINE_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class Split:
    """The whole messages at the beginning of a buffer, as positions in it.

    Attributes:
        subject: where each subject begins.
        sizes: where the control line's arguments before the sizes end (behind subject, sid and reply).
        header: where header and payload begin.
        payload: where the payload begins.
        end: where the payload ends.
        lines: control lines of other kinds (PING, INFO, -ERR …), without their ends.
        consumed: how much of the buffer these messages and lines take.
    """

    subject: Positions
    sizes: Positions
    header: Positions
    payload: Positions
    end: Positions
    lines: list[bytes]
    consumed: int

    def __len__(self) -> int:
        return len(self.subject)


def split_frames(buffer: bytearray, fill: int) -> Split:
    """Split the first `fill` bytes; an incomplete message at the end is left for the next call.

    Raises:
        ProtocolError: the bytes are not what a server sends.
    """
    split = split_frames_vectorised(buffer, fill)
    return split if split is not None else split_frames_by_loop(buffer, fill)


def split_frames_vectorised(buffer: bytearray, fill: int) -> Split | None:
    """Split a buffer the fast way; None when it holds anything but plain messages one after the other."""
    if fill < 16:
        return None
    octets = np.frombuffer(buffer, np.uint8, fill)
    words = np.ndarray((fill - 3,), np.dtype("<u4"), buffer, strides=(1,))
    line_feeds = np.flatnonzero(octets == 10)
    plain = _split_plain(octets, words, line_feeds)
    if plain is not None:
        return plain
    followers = line_feeds + 1
    in_reach = (
        len(followers) if not len(followers) or followers[-1] < fill - 3 else int(np.searchsorted(followers, fill - 3))
    )
    first_words = words[followers[:in_reach]]
    begins = np.flatnonzero((first_words == _MSG) | (first_words == _HMSG))
    # A message that begins behind line feed number i has its own line end at line feed number i + 1.
    line_index = np.concatenate((np.zeros(1, np.int64), begins + 1))
    start = np.concatenate((np.zeros(1, np.int64), followers[begins]))
    if line_index[-1] >= len(line_feeds):
        line_index, start = line_index[:-1], start[:-1]
        if not len(start):
            return None
    first_words = words[start]
    with_header = first_words == _HMSG
    if not with_header[0] and first_words[0] != _MSG:
        return None
    line_end = line_feeds[line_index] - 1
    total, digits = _numbers_before(octets, line_end)
    sizes = line_end - digits - 1
    header_size = np.zeros(len(start), np.int64)
    if with_header.any():
        numbers, digits = _numbers_before(octets, sizes[with_header])
        header_size[with_header] = numbers
        sizes[with_header] -= digits + 1
    subject = start + 4 + with_header
    header = line_end + 2
    end = header + total
    following = end + 2
    if (following[:-1] != start[1:]).any() or (octets[line_end] != 13).any():
        return None
    if (sizes <= subject).any() or (header_size > total).any() or (octets[subject] == 32).any():
        return None
    count = len(start)
    if following[-1] > fill:
        count -= 1
        if count == 0:
            return None
    if octets[end[count - 1]] != 13 or octets[end[count - 1] + 1] != 10:
        return None
    return Split(
        subject=subject[:count],
        sizes=sizes[:count],
        header=header[:count],
        payload=(header + header_size)[:count],
        end=end[:count],
        lines=[],
        consumed=int(following[count - 1]),
    )


def _split_plain(octets: NDArray[np.uint8], words: NDArray[np.uint32], line_feeds: Positions) -> Split | None:
    """Split messages of which every second line feed is the end; None when a message is not of that form."""
    count = len(line_feeds) // 2
    if not count or line_feeds[0] <= WORD_BYTES:
        return None
    line_end = line_feeds[0 : 2 * count : 2] - 1
    end = line_feeds[1 : 2 * count : 2] - 1
    start = np.concatenate((np.zeros(1, np.int64), end[:-1] + 2))
    if start[-1] >= len(words) or (words[start] != _MSG).any():
        return None
    if (octets[line_end] != 13).any() or (octets[end] != 13).any():
        return None
    subject = start + 4
    header = line_end + 2
    total = end - header
    low, high = int(total.min()), int(total.max())
    if low < 0 or high >= 10 ** (WORD_BYTES - 1):
        return None
    digits: int | Positions = len(str(low))
    for power in range(len(str(low)), len(str(high))):
        digits = digits + (total >= 10**power)
    before = np.ndarray((len(octets) - WORD_BYTES + 1,), "<u8", octets, strides=(1,))[line_end - WORD_BYTES]
    declared = last_digits(before, digits)
    sizes = line_end - digits - 1
    if declared is None or (declared != total).any() or (octets[sizes] != 32).any():
        return None
    if (sizes <= subject).any() or (octets[subject] == 32).any():
        return None
    return Split(subject, sizes, header, header, end, [], int(end[-1]) + 2)


def _numbers_before(octets: NDArray[np.uint8], position: Positions) -> tuple[Positions, Positions]:
    """Return the decimal number that ends right before each position, and how many digits it has."""
    number = np.zeros(len(position), np.int64)
    digits = np.zeros(len(position), np.int64)
    active = np.ones(len(position), np.bool_)
    factor = 1
    for _ in range(_SIZE_DIGITS_MAX):
        position = position - 1
        digit = octets[position] - np.uint8(48)
        active &= digit < 10
        if not active.any():
            break
        number += np.where(active, digit, 0).astype(np.int64) * factor
        digits += active
        factor *= 10
    return number, digits


def split_frames_by_loop(buffer: bytearray, fill: int) -> Split:
    """Split a buffer line by line; understands everything that a server may send.

    Raises:
        ProtocolError: the bytes are not what a server sends.
    """
    found = array("q")
    lines: list[bytes] = []
    find = buffer.find
    position = 0
    while position < fill:
        line_end = find(b"\n", position, fill)
        if line_end < 0:
            if fill - position > _LINE_BYTES_MAX:
                raise ProtocolError(f"a control line is longer than {_LINE_BYTES_MAX} bytes")
            break
        line = bytes(buffer[position:line_end])
        words = line.split()
        header = line_end + 1
        try:
            if words[0] == b"MSG":
                payload = header
                end = header + int(words[-1])
                sizes = line_end - 2 - len(words[-1])
                subject = position + 4
            elif words[0] == b"HMSG":
                payload = header + int(words[-2])
                end = header + int(words[-1])
                sizes = line_end - 3 - len(words[-1]) - len(words[-2])
                subject = position + 5
            else:
                lines.append(line.rstrip())
                position = header
                continue
        except (IndexError, ValueError):
            raise ProtocolError(f"a line of the server cannot be read: {line[:80]!r}") from None
        if b" ".join(words) != line[:-1] or len(words) < 4 or payload > end:
            raise ProtocolError(f"a message line of the server cannot be read: {line[:80]!r}")
        if end + 2 > fill:
            break
        if buffer[end] != 13 or buffer[end + 1] != 10:
            raise ProtocolError("payload is not followed by CRLF")
        found.extend((subject, sizes, header, payload, end))
        position = end + 2
    table = np.array(found, np.int64).reshape(-1, 5)
    return Split(table[:, 0], table[:, 1], table[:, 2], table[:, 3], table[:, 4], lines, position)


DIGITS_MAX = 19
"""Most digits of a number: not all numbers of 19 digits fit into 64 bits, but all sequences and times do."""
WORD_BYTES = 8
"""How many digits are read at once."""
_HIGH_BITS = np.uint64(0x8080808080808080)
_ZEROS = np.uint64(0x3030303030303030)
_ABOVE_NINES = np.uint64(0x4646464646464646)
_PAIRS = np.uint64(0x000000FF000000FF)


def read_decimals(data: Any, end: int, distance: int, count: int, digits: int) -> NDArray[np.int64] | None:
    """Return `count` decimal numbers at equal distances; None when one of them is not made of digits.

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
