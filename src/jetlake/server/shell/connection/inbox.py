"""The inbox of a connection: what was received and not handled yet, given out in small groups of frames."""

from __future__ import annotations

from collections import deque

from jetlake.protocol.frames import Frame
from jetlake.protocol.parser import ServerParser

__all__ = ["Inbox"]


class Inbox:
    """Received bytes in their order, parsed only as far as frames are asked for.

    Its size is bounded by the connection, which stops reading while something is left in it.

    Args:
        parser: reads the frames.
    """

    __slots__ = ("_frames", "_pieces", "_position", "parser")

    def __init__(self, parser: ServerParser) -> None:
        self.parser = parser
        self._frames: list[Frame] = []
        self._pieces: deque[bytes] = deque()
        self._position = 0  # where in the first piece the next frame begins

    def __bool__(self) -> bool:
        return bool(self._pieces or self._frames)

    @property
    def is_broken(self) -> bool:
        """Whether a violation of the protocol is what comes next."""
        return self.parser.error is not None and not self._frames

    def add(self, data: bytes) -> None:
        """Append what a read gave."""
        self._pieces.append(data)

    def take(self, lines: int) -> list[Frame]:
        """The frames of the next lines, or those that were put back; none when only a part of one is there."""
        if self._frames:
            frames, self._frames = self._frames, []
            return frames
        data = self._pieces[0]
        parser = self.parser
        frames = parser.feed(data, self._position, lines)
        if parser.position < len(data):
            self._position = parser.position
        else:
            self._pieces.popleft()
            self._position = 0
        return frames

    def put_back(self, frames: list[Frame]) -> None:
        """Let these be the next frames."""
        self._frames = frames

    def clear(self) -> None:
        """Drop everything."""
        self._frames = []
        self._pieces.clear()
        self._position = 0
