"""What a segment's file begins with, and how it is named; `docs/formats.md` draws it."""

from __future__ import annotations

import struct

import msgspec

from jetlake.store.files.checksum import Hashing

__all__ = ["FORMAT_VERSION", "HEADER_SIZE", "SegmentHeader", "segment_name", "segment_number"]

FORMAT_VERSION = 1
_MAGIC = b"JLSG"
_HEADER = struct.Struct("<4sHHIIQQQ")
_HASH = struct.Struct("<Q")
HEADER_SIZE = _HEADER.size + _HASH.size

_COMPACTED = 1
_PURPOSE = b"segment header"
_SUFFIX = ".seg"
_NUMBER_MAX = (1 << 32) - 1


class SegmentHeader(msgspec.Struct, gc=False, frozen=True):
    """The first bytes of a segment's file.

    Attributes:
        number: the segment's own, so that a renamed file is found out.
        generation: how often it was rewritten by compaction.
        key: the stream's.
        first_sequence: the lowest sequence that its records can have.
        high_water: the last sequence in use when the file was made.
    """

    number: int
    generation: int
    key: int
    first_sequence: int
    high_water: int

    def pack(self, hashing: Hashing) -> bytes:
        """Return the bytes of the header."""
        flags = _COMPACTED if self.generation else 0
        body = _HEADER.pack(
            _MAGIC,
            FORMAT_VERSION,
            flags,
            self.number,
            self.generation,
            self.key,
            self.first_sequence,
            self.high_water,
        )
        return body + _HASH.pack(hashing.checksum(_PURPOSE).number(body))

    def at_generation(self, generation: int) -> SegmentHeader:
        """Return the same header for a rewritten file."""
        return msgspec.structs.replace(self, generation=generation)

    @staticmethod
    def begins_with(data: bytes) -> bool:
        """Return whether a header may begin with these bytes, however few they are."""
        start = _MAGIC + FORMAT_VERSION.to_bytes(2, "little")
        return data[: len(start)] == start[: len(data)]

    @staticmethod
    def unpack(data: bytes, hashing: Hashing) -> SegmentHeader | None:
        """Return the header, or None when these bytes are none of this version."""
        if len(data) < HEADER_SIZE:
            return None
        body = data[: _HEADER.size]
        magic, version, _, number, generation, key, first, high_water = _HEADER.unpack(body)
        stored = _HASH.unpack_from(data, _HEADER.size)[0]
        if magic != _MAGIC or version != FORMAT_VERSION or stored != hashing.checksum(_PURPOSE).number(body):
            return None
        return SegmentHeader(number, generation, key, first, high_water)


def segment_name(number: int) -> str:
    """Return the file name of a segment; names sort as their numbers do."""
    return f"{number:010d}{_SUFFIX}"


def segment_number(name: str) -> int | None:
    """Return the number in a file name, or None when it is not a segment's."""
    stem, dot, suffix = name.partition(".")
    if dot + suffix != _SUFFIX or not stem.isascii() or not stem.isdigit() or len(stem) != 10:
        return None
    return int(stem) if int(stem) <= _NUMBER_MAX else None
