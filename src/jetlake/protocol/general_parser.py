"""The general path of the parser: any verb in any spelling, lines and messages in pieces, every limit.

It is complete by itself; the parsers of the two directions only add a loop that is faster for whole messages.

The reasons are in decision 2 (docs/decisions).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import ClassVar

from jetlake.errors import ProtocolError
from jetlake.protocol.body import MessageBody
from jetlake.protocol.frames import Frame, Ping, Pong

__all__ = [
    "SIZES",
    "SIZE_DIGITS_MAX",
    "GeneralParser",
    "Reader",
    "bad_arguments",
    "read_ping",
    "read_pong",
    "read_size",
    "verb_pattern",
]

SIZE_DIGITS_MAX = 9
_SIZES_PREPARED = 2048
_SIZES_KEPT_MAX = 8192


class _Sizes(dict[bytes, int]):
    """Sizes by their digits: looking them up is faster than converting, and refuses what is no plain number."""

    def __missing__(self, digits: bytes) -> int:
        if not digits.isdigit() or len(digits) > SIZE_DIGITS_MAX:
            raise KeyError(digits)
        size = int(digits)
        if len(self) < _SIZES_KEPT_MAX:
            self[digits] = size
        return size


SIZES = _Sizes((b"%d" % size, size) for size in range(_SIZES_PREPARED))

_PING = Ping()
_PONG = Pong()

Reader = Callable[..., Frame | None]


class GeneralParser:
    """What both directions share: the limits, the error, and the general path.

    Attributes:
        error: the violation that ended the stream of frames, or None.
        position: where in its data the last `feed` stopped; the data's length when it took everything.
        max_control_line: how long the arguments on one line may be, in bytes.
        max_payload: how long header and payload of one message may be together, in bytes; may be changed at any time.
    """

    _readers: ClassVar[dict[bytes, Reader]]
    """What reads the arguments of each verb: a frame, or None when a message body is now awaited."""
    _verb: ClassVar[re.Pattern[bytes]]
    """A verb at the beginning of a line, with the blank behind it."""

    def __init__(self, *, max_control_line: int, max_payload: int) -> None:
        self.error: ProtocolError | None = None
        self.position = 0
        self.max_control_line = max_control_line
        self.max_payload = max_payload
        self._line = bytearray()
        self._body: MessageBody | None = None

    def feed(self, data: bytes, position: int = 0, lines: int | None = None) -> list[Frame]:
        """All frames that are whole with this data; a rest is kept for the next call.

        After a violation `error` is set, the frames before it are still returned, and later calls return nothing.

        Args:
            position: where the data begins; above 0 only where the last call stopped in the same data.
            lines: read so many lines at most, and let the next call go on at `self.position`.
        """
        frames: list[Frame] = []
        self.position = len(data)
        if self.error is None:
            try:
                if self._body is not None or self._line:
                    position = self._resume(data, frames)
                position = self._scan(data, position, frames, lines or len(data))
                if lines is not None and data.find(b"\n", position) >= 0:
                    self.position = position
                elif position < len(data):
                    self._keep_line(data, position)
            except ProtocolError as error:
                self.error = error.with_traceback(None)  # The traceback would keep the data alive.
                self._line.clear()
                self._body = None
        return frames

    def _scan(self, data: bytes, position: int, frames: list[Frame], lines: int) -> int:
        """Read so many lines that end in this data; returns where the rest begins."""
        for _ in repeat(None, lines):
            line_end = data.find(b"\n", position)
            if line_end < 0:
                break
            position = self._read_line(data[position:line_end], data, line_end + 1, frames)
        return position

    def _resume(self, data: bytes, frames: list[Frame]) -> int:
        """Go on with what the last read cut off; returns where the next line begins."""
        if self._body is not None:
            return self._fill(data, 0, frames)
        line_end = data.find(b"\n")
        if line_end < 0:
            self._keep_line(data, 0)
            return len(data)
        self._line += memoryview(data)[:line_end]
        line = bytes(self._line)
        self._line.clear()
        return self._read_line(line, data, line_end + 1, frames)

    def _keep_line(self, data: bytes, position: int) -> None:
        """Keep a line whose end has not come, as long as it can still become a valid one."""
        line = self._line
        line += memoryview(data)[position:]
        verb = self._verb.match(line)
        if verb is not None:
            if len(line) - verb.end() - line.endswith(b"\r") > self.max_control_line:
                raise _control_line_exceeded(self.max_control_line)
            return
        word = bytes(line[:20]).upper()
        if not any(known.startswith(word) for known in self._readers):
            raise _unknown_operation(word)

    def _read_line(self, line: bytes, data: bytes, position: int, frames: list[Frame]) -> int:
        """Read one control line, and what there is of its message at `position`; returns where the next line begins."""
        word, blank, arguments = line.partition(b" ")
        reader = self._readers.get(word) if blank else None
        if reader is None:
            verb = self._verb.match(line)
            if verb is None:
                raise _unknown_operation(line)
            reader = self._readers[verb[verb.lastindex or 0].upper()]
            arguments = line[verb.end() :]
        arguments = arguments.removesuffix(b"\r")
        if len(arguments) > self.max_control_line:
            raise _control_line_exceeded(self.max_control_line)
        frame = reader(self, arguments)
        if frame is None:
            return self._fill(data, position, frames)
        frames.append(frame)
        return position

    def _await(self, make: Callable[[bytes, bytes], Frame], header_size: int, size: int) -> None:
        """Await a message of these sizes, unless they break a limit."""
        if header_size > size:
            raise ProtocolError(f"header of {header_size} bytes in a message of {size}")
        if size > self.max_payload:
            raise _payload_violation(size, self.max_payload)
        self._body = MessageBody(make, header_size, size - header_size)

    def _fill(self, data: bytes, position: int, frames: list[Frame]) -> int:
        """Take what there is of the awaited message; returns where the next line begins."""
        body = self._body
        assert body is not None
        position = body.take(data, position)
        if body.is_whole:
            self._body = None
            frames.append(body.frame())
        elif body.is_broken:
            raise ProtocolError("payload is not followed by CRLF", text="Unknown Protocol Operation")
        return position


def verb_pattern(spaced: Iterable[bytes], loose: Iterable[bytes]) -> re.Pattern[bytes]:
    """What matches a verb: a spaced one needs a blank behind it, a loose one does not."""
    either = (b"|".join(map(re.escape, verbs)) for verbs in (spaced, loose))
    return re.compile(rb"(%b)[ \t]|(%b)[ \t]?" % tuple(either), re.IGNORECASE)


def read_size(digits: bytes) -> int:
    """The number of bytes that the digits say."""
    try:
        return SIZES[digits]
    except KeyError:
        raise ProtocolError(f"bad size {digits[:20]!r}") from None


def read_ping(parser: GeneralParser, arguments: bytes) -> Frame:
    """Whatever stands behind PING says nothing."""
    return _PING


def read_pong(parser: GeneralParser, arguments: bytes) -> Frame:
    """Whatever stands behind PONG says nothing."""
    return _PONG


def _unknown_operation(line: bytes) -> ProtocolError:
    return ProtocolError(f"unknown operation {line[:20]!r}", text="Unknown Protocol Operation")


def _control_line_exceeded(limit: int) -> ProtocolError:
    return ProtocolError(f"control line is longer than {limit} bytes", text="maximum control line exceeded")


def _payload_violation(size: int, limit: int) -> ProtocolError:
    return ProtocolError(f"message of {size} bytes, but {limit} are the limit", text="Maximum Payload Violation")


def bad_arguments(verb: str, arguments: bytes) -> ProtocolError:
    """Too few or too many arguments: the connection ends without a word."""
    return ProtocolError(f"bad arguments of {verb}: {arguments[:80]!r}")
