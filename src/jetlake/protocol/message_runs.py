"""Runs of messages: a whole read taken apart in columns, each step one call for all of its messages.

Three ways, the fastest first:

1. Messages whose names and payloads have the same lengths are unpacked by position (`FrameShape`): hundreds of messages
   of a stream, and its acknowledgements, often have one shape.
2. Messages of one size with names of several lengths are split by one regular expression, which contains the
   subscription and the size and is compiled when a connection shows both twice in a row.
3. Messages of several sizes are split at line ends. Control lines and payloads alternate as long as no payload contains
   the separator: a line feed, or a CRLF where payloads are texts with line feeds. The sizes show whether that holds.

Any other read goes through the parser's loop, and so do large messages of several sizes, in which the search for line
ends costs more than the loop.
"""

from __future__ import annotations

import re
from itertools import groupby, repeat
from struct import Struct

from jetlake.protocol.frames import MessageRun

__all__ = ["RUN_BYTES_MIN", "RunReader"]

RUN_BYTES_MIN = 2048
"""A read of fewer bytes is not worth the try."""

_LINE_SIZE_MAX = 512
_PAYLOAD_SIZE_MAX = 768
_TEXT_SIZE_MAX = 384
"""The largest payload with line feeds that is worth the search."""
_FRAME_SIZE_MAX = 896
_RUN_LENGTH_MIN = 8
_ALIKE_MIN = 32
"""Fewer messages of one shape are split as fast by the regular expression."""
_PAUSE_MAX = 64
_SIZES_KEPT_MAX = 8192
_SIZE_DIGITS = 6
"""A message of more digits fills reads by itself."""
_PATTERNS_MAX = 16
_SHAPES_MAX = 64
_TOGETHER = 8
"""Frames that are unpacked with one call."""


class _LineEnds(dict[int, bytes]):
    """What a line with a size ends with, and the next one begins with."""

    def __missing__(self, size: int) -> bytes:
        end = b"%d\rMSG" % size
        if len(self) < _SIZES_KEPT_MAX:
            self[size] = end
        return end


_line_end = _LineEnds().__getitem__


class RunReader:
    """Reads the runs of one connection; the more splits fail, the more reads pass before the next one."""

    __slots__ = ("_last", "_patterns", "_pause", "_shapes", "_skipped")

    def __init__(self) -> None:
        self._last: tuple[bytes, bytes, int] | None = None
        self._patterns: dict[tuple[bytes, bytes, int], re.Pattern[bytes]] = {}
        self._shapes: dict[tuple[bytes, bytes, int, int], FrameShape] = {}
        self._pause = 0
        self._skipped = 0

    def read(self, data: bytes, position: int) -> tuple[list[MessageRun], int] | None:
        """Read whole messages from `position` on, and where the rest begins; None if they are no runs.

        A run has messages of one subscription, without headers; in one run all have a reply, or none has.
        """
        runs: list[MessageRun] = []
        while len(data) - position >= RUN_BYTES_MIN:
            first = data[position : position + _LINE_SIZE_MAX].partition(b"\r\n")[0].split(b" ")
            if (
                not 4 <= len(first) <= 5
                or first[0] != b"MSG"
                or not first[-1].isdigit()
                or len(first[-1]) > _SIZE_DIGITS
                or not _are_names(first)
            ):
                break
            found = self._read_alike(data, position, first) or self._read_equal(data, position, first)
            if found is None:
                break
            run, position = found
            _add(runs, run)
        if runs:
            return runs, position
        if self._skipped < self._pause:
            self._skipped += 1
            return None
        self._skipped = 0
        several = _read_runs(data, position)
        if several is None:
            self._pause = min(_PAUSE_MAX, 4 * self._pause + 3)
        else:
            self._pause //= 2
        return several

    def _read_alike(self, data: bytes, position: int, first: list[bytes]) -> tuple[MessageRun, int] | None:
        """Read messages of the first one's shape, and where they end; None if these are less than half of the data."""
        size = sum(map(len, first)) + len(first) + 3 + int(first[-1])
        if not data.startswith(b"MSG ", position + (_ALIKE_MIN - 1) * size):
            return None
        key = first[2], first[-1], len(first[1]), size
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= _SHAPES_MAX:
                self._shapes.clear()
            shape = self._shapes[key] = _shape(first)
        count = shape.count(data, position)
        end = position + count * size
        if count < _ALIKE_MIN or end - position < len(data) - end:
            return None
        *columns, payloads = shape.fields(data, position, count)
        names = b"".join(map(b"".join, columns))
        if b" " in names or _has_blanks(names):
            return None
        return MessageRun(first[2], columns[0], columns[1] if len(columns) == 2 else [], payloads), end

    def _read_equal(self, data: bytes, position: int, first: list[bytes]) -> tuple[MessageRun, int] | None:
        """Read messages of the first one's subscription and size, and where they end; None for few of them."""
        key = first[2], first[-1], len(first)
        pattern = self._patterns.get(key)
        if pattern is None:
            if key == self._last:
                if len(self._patterns) >= _PATTERNS_MAX:
                    self._patterns.clear()
                self._patterns[key] = _pattern(*key)
            self._last = key
            return None
        parts = pattern.split(memoryview(data)[position:] if position else data)
        if parts[-2] is None:
            del parts[-len(first) + 1 :]
        step = len(first) - 1
        columns = [parts[column::step] for column in range(1, step)]
        payloads = columns.pop()
        count = len(payloads)
        if count < _RUN_LENGTH_MIN:
            return None
        names = b"".join([b"".join(column) for column in columns])
        if _has_blanks(names):
            return None
        frame_size = sum(map(len, first)) - sum(map(len, first[1:-1:2])) + len(first) + 3 + int(first[-1])
        end = position + len(names) + count * frame_size
        return MessageRun(first[2], columns[0], columns[1] if len(columns) == 2 else [], payloads), end


def _add(runs: list[MessageRun], run: MessageRun) -> None:
    """Add a run, to the last one if both are of one subscription."""
    if runs and runs[-1].sid == run.sid and bool(runs[-1].replies) == bool(run.replies):
        last = runs[-1]
        last.subjects += run.subjects
        last.replies += run.replies
        last.payloads += run.payloads
    else:
        runs.append(run)


def _shape(words: list[bytes]) -> FrameShape:
    """Return the shape of messages whose first line has these words."""
    _, subject, sid, *reply, digits = words
    replies = [part for one in reply for part in (len(one), b" ")]
    return FrameShape(b"MSG ", len(subject), b" %b " % sid, *replies, b"%b\r\n" % digits, int(digits), b"\r\n")


def _pattern(sid: bytes, digits: bytes, words: int) -> re.Pattern[bytes]:
    """Compile a pattern with groups for subject, reply (if a line has five words) and payload of messages of this size.

    At the first byte that is not such a message, everything is taken that is left, without groups. So a split of the
    data has nothing but these, each message's behind an empty piece: one list, and no tuple for each message.
    """
    reply = b" ([^ ]+)" if words == 5 else b""
    message = b"MSG ([^ ]+) %b%b %b\r\n(.{%b})\r\n" % (re.escape(sid), reply, digits, digits)
    return re.compile(message + b"|.+", re.DOTALL)


def _read_runs(data: bytes, position: int) -> tuple[list[MessageRun], int] | None:
    line, _, rest = data[position : position + _LINE_SIZE_MAX].partition(b"\r\n")
    first = line.split(b" ")
    if not 4 <= len(first) <= 5 or first[0] != b"MSG" or not first[-1].isdigit():
        return None
    size = int(first[-1])
    # A search for one byte is several times faster than one for two, and does for payloads without a line feed.
    separators = [b"\n"] if size <= _PAYLOAD_SIZE_MAX and b"\n" not in rest[:size] else []
    separators += [b"\r\n"] if size <= _TEXT_SIZE_MAX else []
    for separator in separators:
        lines = (data[position:] if position else data).split(separator)
        end = len(data) - len(lines.pop())
        if len(lines) % 2:
            end -= len(lines.pop()) + len(separator)  # The payload of this message is not whole.
        if separator == b"\n":
            text, payloads = b"".join(lines[::2]), list(map(bytes.removesuffix, lines[1::2], repeat(b"\r")))
        else:
            text, payloads = b"\r".join([*lines[::2], b""]), lines[1::2]
        runs = _read_columns(first, text, payloads, end - position)
        if runs is not None:
            return runs, end
    return None


def _read_columns(first: list[bytes], text: bytes, payloads: list[bytes], size: int) -> list[MessageRun] | None:
    """Read the lines of control, each with the CR at its end, and the payloads; None if these are not what they say.

    Args:
        first: the words of the first line.
        text: all lines.
        payloads: what stands between them.
        size: how long the messages are, with all lines' ends.
    """
    count = len(payloads)
    sizes = list(map(len, payloads))
    # A payload without a CR behind it makes them too short.
    if not count or size > count * _FRAME_SIZE_MAX or size != len(text) + sum(sizes) + 3 * count:
        return None
    words = text.split(b" ")
    words[-1] += b"MSG"
    width = len(first) - 1
    subjects, sids, replies = words[1::width], words[2::width], words[3::width] if width == 4 else []
    if (
        len(words) != count * width + 1
        or not _are_names(subjects + sids + replies)
        or words[width::width] != list(map(_line_end, sizes))
    ):
        return None
    if sids.count(first[2]) == count:
        return [MessageRun(first[2], subjects, replies, payloads)]
    runs = []
    start = 0
    for sid, same in groupby(sids):
        stop = start + len(list(same))
        runs.append(MessageRun(sid, subjects[start:stop], replies[start:stop], payloads[start:stop]))
        start = stop
    return runs if len(runs) * _RUN_LENGTH_MIN <= count else None


def _are_names(words: list[bytes]) -> bool:
    """Tell whether the words are what the general parser splits a line into: none is empty, none has another blank."""
    return all(words) and not _has_blanks(b"".join(words))


def _has_blanks(text: bytes) -> bool:
    return b"\r" in text or b"\n" in text or b"\t" in text or b"\v" in text or b"\f" in text


class FrameShape:
    """The offsets of the fields in frames of one length, and the bytes between them.

    The bytes between the fields have the same offsets in every frame, so one strided slice for each such byte verifies
    all frames.

    Args:
        parts: bytes that all frames have in common, or the length of a field.

    Attributes:
        size: the length of a frame.
    """

    __slots__ = ("_bytes", "_field_count", "_offsets", "_unpack", "_unpack_together", "size")

    def __init__(self, *parts: bytes | int) -> None:
        self._offsets: list[int] = []
        self._bytes: list[bytes] = []
        self._field_count = 0
        self.size = 0
        form = ""
        for part in parts:
            if isinstance(part, int):
                form += f"{part}s"
                self.size += part
                self._field_count += 1
            else:
                form += f"{len(part)}x"
                self._offsets += range(self.size, self.size + len(part))
                self._bytes += [part[offset : offset + 1] for offset in range(len(part))]
                self.size += len(part)
        self._unpack = Struct(form).unpack_from
        self._unpack_together = Struct(form * _TOGETHER).unpack_from

    def count(self, data: bytes, position: int) -> int:
        """Count the frames from `position` on, up to the first that has another shape or is not whole."""
        size = self.size
        count = (len(data) - position) // size
        stop = position + count * size
        columns = [data[position + offset : stop : size] for offset in self._offsets]
        if b"".join(columns) == b"".join([byte * count for byte in self._bytes]):
            return count
        return min(len(column) - len(column.lstrip(byte)) for column, byte in zip(columns, self._bytes, strict=True))

    def fields(self, data: bytes, position: int, count: int) -> list[list[bytes]]:
        """Unpack the fields of `count` frames from `position` on; returns a list for each field."""
        fields: list[bytes] = []
        size = self.size
        middle = position + count // _TOGETHER * _TOGETHER * size
        for start in range(position, middle, _TOGETHER * size):
            fields += self._unpack_together(data, start)
        for start in range(middle, position + count * size, size):
            fields += self._unpack(data, start)
        return [fields[field :: self._field_count] for field in range(self._field_count)]
