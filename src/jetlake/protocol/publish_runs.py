"""Runs of publishes: consecutive `PUB`s, or `HPUB`s with nothing but a message id, split into columns.

A regular expression splits the read at lines' ends, the sizes tell whether it cut where the client did: a payload with
a line feed, and whatever else is not as expected, goes through the parser's loop.

The reasons are in decision 2 (docs/decisions).
"""

from __future__ import annotations

import re
from functools import cache
from operator import add

from jetlake.protocol.frames import PubRun

__all__ = ["LINE_MAX", "RUN_MAX", "SIZE_MAX", "PublishRuns"]

RUN_MAX = 512
"""Publishes in one run, at most."""

_RUN_BYTES_MAX = 256 * 1024
_RUN_MIN = 8
_PAUSE_MAX = 64
_NAME_MAX = 512
_ID_MAX = 512
_PAYLOAD_MAX = 1024
_DIGITS_MAX = 4
_HEADER_FORMAT = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n"

LINE_MAX = 2 * _NAME_MAX + 2 * _DIGITS_MAX + len(b"HPUB    ")
"""No control line of a run is longer."""
SIZE_MAX = _PAYLOAD_MAX + _ID_MAX + len(_HEADER_FORMAT % b"")
"""No header and payload of a run's message are longer."""

_DIGITS = [b"%d" % size for size in range(SIZE_MAX + 1)]


@cache
def _pattern(verb: bytes, *, has_reply: bool) -> re.Pattern[bytes]:
    """Compile a pattern with groups for the words of a line, with `HPUB` for the header and its id, and the payload.

    Not before the first such run: compiling takes a part of a start.

    At the first byte that is no such message, everything is taken that is left, without groups. So a split of the data
    has nothing but these, each message's behind an empty piece: one list, and no tuple for each message.
    """
    # Below `$` are requests and acknowledgements, which are looked at one by one or in runs of their own.
    names = rb" ([^ $][^ ]{0,%d})" % (_NAME_MAX - 1)
    if has_reply:
        names += rb" ([^ ]{1,%d})" % _NAME_MAX
    sizes = rb" ([^\r]{1,%d})" % _DIGITS_MAX
    header = b""
    if verb == b"HPUB":
        sizes = rb" ([^ ]{1,%d})" % _DIGITS_MAX + sizes
        # The first byte is no blank, which the general way takes off, and no line's end.
        header = b"(%b)" % (re.escape(_HEADER_FORMAT).replace(b"%b", rb"([!-\xff][^\r]{0,%d})") % (_ID_MAX - 1))
    message = verb + names + sizes + rb"\r\n" + header + rb"([^\n]{0,%d})\r\n" % _PAYLOAD_MAX
    return re.compile(message + b"|.+", re.DOTALL)


# Whether a line has a reply, by its verb and number of blanks.
_HAVE_REPLY = {(b"PUB", 2): False, (b"PUB", 3): True, (b"HPUB", 3): False, (b"HPUB", 4): True}


class PublishRuns:
    """Reads the runs of one connection; the more tries are in vain, the more calls pass before the next one."""

    __slots__ = ("_pause", "_skipped")

    def __init__(self) -> None:
        self._pause = 0
        self._skipped = 0

    def read(self, data: bytes, position: int) -> tuple[PubRun, int] | None:
        """Read whole publishes from `position` on, and where the rest begins; None when they are no run."""
        if self._skipped < self._pause:
            self._skipped += 1
            return None
        self._skipped = 0
        found = _read_run(data, position)
        if found is None:
            self.discourage()
        else:
            self._pause //= 2
        return found

    def discourage(self) -> None:
        """Pause for longer: the read was no run, or its messages had to be handled one by one."""
        self._pause = min(_PAUSE_MAX, 4 * self._pause + 3)


def _read_run(data: bytes, position: int) -> tuple[PubRun, int] | None:
    line = data[position : position + LINE_MAX].partition(b"\r\n")[0]
    verb, blanks = line.partition(b" ")[0], line.count(b" ")
    has_reply = _HAVE_REPLY.get((verb, blanks))
    if has_reply is None:
        return None
    pattern = _pattern(verb, has_reply=has_reply)
    parts = pattern.split(memoryview(data)[position : position + _RUN_BYTES_MAX], RUN_MAX)
    width = pattern.groups + 1
    if parts[-2] is None:
        del parts[-width:]
    *columns, payloads = [parts[column::width] for column in range(1, width)]
    count = len(payloads)
    if count < _RUN_MIN:
        return None
    headers, ids = [b""] * count, []
    sizes = list(map(len, payloads))
    told = [sizes]
    if verb == b"HPUB":
        *columns, headers, ids = columns
        header_sizes = list(map(len, headers))
        sizes = list(map(add, header_sizes, sizes))
        told = [header_sizes, sizes]
    words = b"".join(map(b"".join, columns))
    if columns[-len(told) :] != [list(map(_DIGITS.__getitem__, each)) for each in told] or _has_blanks(words):
        return None
    replies = columns[1] if has_reply else [b""] * count
    size = sum(sizes)
    run = PubRun(columns[0], replies, headers, payloads, ids, words, size, max(sizes))
    # Beside the words: the verb and the blanks, the line's end, and the one behind the payload.
    return run, position + len(words) + size + count * (len(verb) + blanks + 4)


def _has_blanks(text: bytes) -> bool:
    """Return whether a name has a blank at which the general parser would split it."""
    return b"\r" in text or b"\n" in text or b"\t" in text or b"\v" in text or b"\f" in text
