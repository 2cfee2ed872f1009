"""A message whose control line has been read and whose bytes are still coming in."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

from jetlake.protocol.frames import Frame

__all__ = ["MessageBody"]

_CRLF = b"\r\n"


class MessageBody:
    """Collects header, payload and line end of one message, however the reads cut them.

    Args:
        make: builds the frame of header and payload.
        header_size: how many bytes of header come first.
        payload_size: how many bytes of payload follow them.
    """

    __slots__ = ("_header", "_header_missing", "_line_end", "_make", "_payload", "_payload_missing")

    def __init__(self, make: Callable[[bytes, bytes], Frame], header_size: int, payload_size: int) -> None:
        self._make = make
        # BytesIO gives away what was written to it without another copy.
        self._header = BytesIO() if header_size else None
        self._payload = BytesIO()
        self._header_missing = header_size
        self._payload_missing = payload_size
        self._line_end = b""

    def take(self, data: bytes, position: int) -> int:
        """Take what belongs to the message; returns the position behind it."""
        view = memoryview(data)
        if self._header is not None and self._header_missing:
            taken = self._header.write(view[position : position + self._header_missing])
            self._header_missing -= taken
            if self._header_missing:
                return position + taken
            position += taken
        if self._payload_missing:
            taken = self._payload.write(view[position : position + self._payload_missing])
            self._payload_missing -= taken
            if self._payload_missing:
                return position + taken
            position += taken
        line_end = data[position : position + 2 - len(self._line_end)]
        self._line_end += line_end
        return position + len(line_end)

    @property
    def is_whole(self) -> bool:
        """Whether all of the message has come, and its line end."""
        return self._line_end == _CRLF

    @property
    def is_broken(self) -> bool:
        """Whether something else than a line end follows the message."""
        return not _CRLF.startswith(self._line_end)

    def frame(self) -> Frame:
        """Return the frame of the whole message."""
        header = self._header.getvalue() if self._header is not None else b""
        return self._make(header, self._payload.getvalue())
