"""Frames of one shape: taken apart by position, without a search.

Messages of a stream, and its acknowledgements, often have subjects, replies and payloads of the same lengths for
hundreds of frames. What is not a field then stands at the same places in every frame, which one slice of the read for
each such byte tells, and the fields are taken out by their lengths, many frames with one call.

The reasons are in decision 2 (docs/decisions).
"""

from __future__ import annotations

from struct import Struct

__all__ = ["FrameShape"]

_TOGETHER = 8
"""Frames that are taken apart with one call."""


class FrameShape:
    """Where the fields of frames of one length are, and the bytes between them.

    Args:
        parts: what a frame consists of: bytes that all frames have, or the length of a field.

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
                self._bytes += [part[place : place + 1] for place in range(len(part))]
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
        """Take the fields out of so many frames from `position` on; a list for each field."""
        fields: list[bytes] = []
        size = self.size
        middle = position + count // _TOGETHER * _TOGETHER * size
        for start in range(position, middle, _TOGETHER * size):
            fields += self._unpack_together(data, start)
        for start in range(middle, position + count * size, size):
            fields += self._unpack(data, start)
        return [fields[field :: self._field_count] for field in range(self._field_count)]
