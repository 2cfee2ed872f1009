"""Runs of small messages: a whole read taken apart in columns, each step one call for all of its messages.

Lines of control and payloads alternate as long as no payload holds a line's end, which the sizes tell. A read that is
not like that goes through the parser's loop, and so do large messages, in which the search for lines' ends costs more
than the loop.

The reasons are in decision 2 (docs/decisions).
"""

from __future__ import annotations

from itertools import groupby

from jetlake.protocol.control_lines import SIZES
from jetlake.protocol.frames import MessageRun

__all__ = ["RUN_BYTES_MIN", "RunReader"]

RUN_BYTES_MIN = 2048
"""A read of fewer bytes is not worth the try."""

_LINE_SIZE_MAX = 512
_PAYLOAD_SIZE_MAX = 384
_FRAME_SIZE_MAX = 512
_RUN_LENGTH_MIN = 8
_PAUSE_MAX = 64

_size_of = SIZES.__getitem__


class RunReader:
    """Reads the runs of one connection; the more tries fail, the more reads pass before the next one."""

    __slots__ = ("_pause", "_skipped")

    def __init__(self) -> None:
        self._pause = 0
        self._skipped = 0

    def read(self, data: bytes, position: int) -> tuple[list[MessageRun], int] | None:
        """Read all whole messages from `position` on, and where the rest begins; None if they are no runs.

        A run has messages of one subscription, without headers; in one read all have a reply, or none has.
        """
        if self._skipped < self._pause:
            self._skipped += 1
            return None
        self._skipped = 0
        found = _read_runs(data, position)
        if found is None:
            self._pause = min(_PAUSE_MAX, 4 * self._pause + 3)
        else:
            self._pause //= 2
        return found


def _read_runs(data: bytes, position: int) -> tuple[list[MessageRun], int] | None:
    first = data[position : position + _LINE_SIZE_MAX].partition(b"\r\n")[0].split(b" ")
    width = len(first)
    if not 4 <= width <= 5 or not first[-1].isdigit() or int(first[-1]) > _PAYLOAD_SIZE_MAX:
        return None
    lines = (data[position:] if position else data).split(b"\r\n")
    end = len(data) - len(lines.pop())
    if len(lines) % 2:
        end -= len(lines.pop()) + 2  # The payload of this message is not whole.
    payloads = lines[1::2]
    count = len(payloads)
    if end - position > count * _FRAME_SIZE_MAX:
        return None
    text = b" ".join(lines[::2])
    words = text.split()
    if (
        len(words) != count * width
        # A line with other blanks or another end is for the general parser.
        or text.count(b" ") != len(words) - 1
        or b"\n" in text
        or words[::width].count(b"MSG") != count
        or not _have_sizes(payloads, words[width - 1 :: width])
    ):
        return None
    subjects, sids, replies = words[1::width], words[2::width], words[3::5] if width == 5 else []
    if sids.count(first[2]) == count:
        return [MessageRun(first[2], subjects, replies, payloads)], end
    runs = []
    start = 0
    for sid, same in groupby(sids):
        stop = start + len(list(same))
        runs.append(MessageRun(sid, subjects[start:stop], replies[start:stop], payloads[start:stop]))
        start = stop
    return (runs, end) if len(runs) * _RUN_LENGTH_MIN <= count else None


def _have_sizes(payloads: list[bytes], digits: list[bytes]) -> bool:
    try:
        return list(map(len, payloads)) == list(map(_size_of, digits))
    except KeyError:
        return False
