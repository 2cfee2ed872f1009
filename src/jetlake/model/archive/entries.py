"""The entries of a NATSARC1 archive: a name, a time, a sequence, a header and a payload each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from jetlake.errors import DecodeError

__all__ = ["END", "MAGIC", "Entry", "EntryReader", "encode_entry"]

MAGIC = b"NATSARC1"
"""What an archive begins with."""
END = bytes(5)
"""The entry after the last one."""

_NAME_BYTES_MAX = 64 * 1024
_UVARINT_BYTES_MAX = 10


class Entry(NamedTuple):
    """One entry; a message's name is its subject."""

    name: bytes
    time_ns: int
    sequence: int
    header: bytes
    payload: bytes


def encode_entry(name: bytes, time_ns: int, sequence: int, header: bytes, payload: bytes) -> bytes:
    """Return the bytes of an entry."""
    return b"".join(
        (
            _uvarint(len(name)),
            _uvarint(time_ns << 1 if time_ns >= 0 else ~(time_ns << 1)),
            _uvarint(sequence),
            _uvarint(len(header)),
            _uvarint(len(payload)),
            name,
            header,
            payload,
        )
    )


def _uvarint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class EntryReader:
    """Reads the entries of an archive that arrives in pieces.

    Args:
        bytes_max: the longest header and payload together.

    Attributes:
        is_ended: the entry after the last one was read.
    """

    def __init__(self, bytes_max: int) -> None:
        self.is_ended = False
        self._bytes_max = bytes_max
        # Joined only when an entry can be complete: a long one arrives in many pieces.
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._wanted = 0

    def feed(self, data: bytes) -> Iterator[Entry]:
        """Take a piece, and yield the entries that it completes; they must all be taken before the next piece.

        Raises:
            DecodeError: an entry is too long or malformed, or something follows the last one.
        """
        if self.is_ended and data:
            raise DecodeError("unexpected content after the end of the archive")
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes < self._wanted:
            return
        buffer = b"".join(self._waiting)
        at = 0
        try:
            while at < len(buffer):
                entry, at = self._entry(buffer, at)
                if entry is None:
                    break
                if not entry.name:
                    self._end(entry, buffer[at:])
                    return
                yield entry
        finally:
            self._waiting, self._waiting_bytes = [buffer[at:]], len(buffer) - at

    def _end(self, entry: Entry, rest: bytes) -> None:
        if any(entry[1:]) or rest:
            raise DecodeError("unexpected content after the end of the archive")
        self.is_ended = True

    def _entry(self, buffer: bytes, start: int) -> tuple[Entry | None, int]:
        """Return the entry that begins at `start` and where the next one does; None when it is not complete."""
        at = start
        numbers = []
        for _ in range(5):
            number = shift = 0
            while True:
                if at >= len(buffer):
                    self._wanted = 0
                    return None, start
                byte = buffer[at]
                at += 1
                number |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
                if shift >= 7 * _UVARINT_BYTES_MAX:
                    raise DecodeError("malformed archive entry")
            numbers.append(number)
        name_bytes, zigzag, sequence, header_bytes, payload_bytes = numbers
        if name_bytes > _NAME_BYTES_MAX or header_bytes + payload_bytes > self._bytes_max:
            raise DecodeError("archive entry too large")
        if sequence >= 2**63 or zigzag >= 2**64:
            raise DecodeError("malformed archive entry")
        header = at + name_bytes
        payload = header + header_bytes
        end = payload + payload_bytes
        if end > len(buffer):
            self._wanted = end - start
            return None, start
        time_ns = zigzag >> 1 ^ -(zigzag & 1)
        return Entry(buffer[at:header], time_ns, sequence, buffer[header:payload], buffer[payload:end]), end
