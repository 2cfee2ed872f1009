"""The redo log's bytes: a file's header, entries, and their parts; `docs/formats.md` draws them.

Little-endian, without padding. A file begins with two places for its header, used in turns, so that a torn write leaves
the one before; entries follow::

    header  "JLRH" | version 2 | blocks 2 | turn 8 | salt 8 | hash 8
    entry   mark 4 | body length 4 | hash 8 | parts
    part   folder length 2 | key 8 | segment 4 | generation 4 | offset 4 | data length 4 | folder | data

The hash of an entry is xxh3 over its parts, seeded with the file's random salt and the entry's place, so that bytes of
an earlier use of the file, or from elsewhere, are no entry here. The mark depends on the salt too: no message can hold
what a search for the next entry would have to look at.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from xxhash import xxh3_64_digest, xxh3_64_intdigest

__all__ = [
    "BLOCK_BYTES",
    "ENTRY_BYTES_MAX",
    "FIRST_ENTRY",
    "FORMAT_VERSION",
    "Header",
    "RedoPart",
    "find_entries",
    "find_header",
    "is_shortened",
    "is_unused",
    "newer_version",
    "pack_entry",
    "pack_part",
    "unpack_parts",
]

FORMAT_VERSION = 1
BLOCK_BYTES = 4096
"""In what a file's length is counted."""
FIRST_ENTRY = 4096
"""Where entries begin: a torn write of one does not touch the header."""
ENTRY_BYTES_MAX = 2 * 1024 * 1024

_HEADER = struct.Struct("<4sHHQQ")
_HEADER_MAGIC = b"JLRH"
_ENTRY = struct.Struct("<4sIQ")
_ENTRY_MAGIC = b"JLRE"
_MARK_SIZE = 4
_PART = struct.Struct("<HQIIII")
_HEADER_PLACE = 512
_HASH = struct.Struct("<Q")
_SEED_MASK = (1 << 64) - 1


class Header(NamedTuple):
    """The header of a file.

    Attributes:
        turn: higher than the turn of every earlier file.
        salt: a random number, a new one each time the file is reset.
        blocks: how long the file is, in blocks of 4 KiB.
    """

    turn: int
    salt: int
    blocks: int = 0

    def pack(self) -> bytes:
        """Return the bytes of the header."""
        body = _HEADER.pack(_HEADER_MAGIC, FORMAT_VERSION, self.blocks, self.turn, self.salt)
        return body + _HASH.pack(xxh3_64_intdigest(body))

    @property
    def offset(self) -> int:
        """Where in the file it is written."""
        return self.turn % 2 * _HEADER_PLACE

    @staticmethod
    def unpack(data: bytes) -> Header | None:
        """Return the header, or None when these bytes are none of this version."""
        body = data[: _HEADER.size]
        if len(data) < _HEADER.size + _HASH.size or _HASH.unpack_from(data, _HEADER.size)[0] != xxh3_64_intdigest(body):
            return None
        magic, version, blocks, turn, salt = _HEADER.unpack(body)
        return Header(turn, salt, blocks) if magic == _HEADER_MAGIC and version == FORMAT_VERSION else None


def newer_version(data: bytes) -> int:
    """Return the version of a file that a later release wrote; 0 for any other file."""
    for start in (data[:_HEADER_PLACE], data[_HEADER_PLACE:FIRST_ENTRY]):
        body = start[: _HEADER.size]
        if start[: len(_HEADER_MAGIC)] != _HEADER_MAGIC or len(start) < _HEADER.size + _HASH.size:
            continue
        version: int = _HEADER.unpack(body)[1]
        if version > FORMAT_VERSION and _HASH.unpack_from(start, _HEADER.size)[0] == xxh3_64_intdigest(body):
            return version
    return 0


def find_header(data: bytes) -> Header | None:
    """Return the newer header of a file; None when it has none of this version."""
    return max(filter(None, map(Header.unpack, (data, data[_HEADER_PLACE:FIRST_ENTRY]))), default=None)


def is_shortened(data: bytes, header: Header) -> bool:
    """Return whether entries may be missing at the end: the file was used, and is shorter than it was made.

    A file that never had an entry may be short, when a crash interrupted its creation.
    """
    if len(data) >= header.blocks * BLOCK_BYTES:
        return False
    places = [data[offset : offset + _HEADER_PLACE] for offset in (0, _HEADER_PLACE)]
    return all(map(Header.unpack, places)) or data.count(0, FIRST_ENTRY) < len(data) - FIRST_ENTRY


def is_unused(data: bytes) -> bool:
    """Return whether a file without a header never had an entry: zeros, but for a header that a crash cut short."""
    header, entries = data[:FIRST_ENTRY].strip(b"\0"), data[FIRST_ENTRY:]
    return _HEADER_MAGIC.startswith(header[: len(_HEADER_MAGIC)]) and entries.count(0) == len(entries)


class RedoPart(NamedTuple):
    """Records that were appended to a segment.

    Attributes:
        folder: of the store's files, in the server's folder.
        key: the stream's.
        number, generation: the segment's.
        offset: where in the segment's file the records begin.
    """

    folder: str
    key: int
    number: int
    generation: int
    offset: int
    data: bytes


def pack_part(folder: bytes, key: int, number: int, generation: int, offset: int, data: bytes) -> bytes:
    """Return the bytes of a part."""
    return _PART.pack(len(folder), key, number, generation, offset, len(data)) + folder + data


def unpack_parts(body: bytes) -> Iterator[RedoPart]:
    """Return the parts of an entry that is known to be whole."""
    at = 0
    while at + _PART.size <= len(body):
        folder_length, key, number, generation, offset, length = _PART.unpack_from(body, at)
        at += _PART.size
        folder = body[at : at + folder_length].decode(errors="replace")
        at += folder_length
        yield RedoPart(folder, key, number, generation, offset, body[at : at + length])
        at += length


def pack_entry(parts: list[bytes], salt: int, offset: int) -> bytes:
    """Return the bytes of an entry that is written at that place of its file."""
    body = b"".join(parts)
    return _ENTRY.pack(_mark_of(salt), len(body), xxh3_64_intdigest(body, salt + offset & _SEED_MASK)) + body


def _mark_of(salt: int) -> bytes:
    """Return the bytes with which the entries of a file begin."""
    return xxh3_64_digest(_ENTRY_MAGIC, salt)[:_MARK_SIZE]


def find_entries(data: bytes, salt: int) -> tuple[list[bytes], int]:
    """Return the bodies of a file's entries, and how many bytes between them are damaged.

    What follows the last entry that is whole was not acknowledged: the one behind it is written when it is synced.
    """
    bodies: list[bytes] = []
    damaged = 0
    at = FIRST_ENTRY
    while (found := _next_entry(data, salt, at)) >= 0:
        damaged += found - at
        length = _ENTRY.unpack_from(data, found)[1]
        at = found + _ENTRY.size + length
        bodies.append(data[found + _ENTRY.size : at])
    return bodies, damaged


def _next_entry(data: bytes, salt: int, at: int) -> int:
    """Return the place of the first whole entry from there on, or -1."""
    mark = _mark_of(salt)
    while (at := data.find(mark, at)) >= 0 and at + _ENTRY.size <= len(data):
        _, length, stored = _ENTRY.unpack_from(data, at)
        start = at + _ENTRY.size
        end = start + length
        is_possible = length <= ENTRY_BYTES_MAX and end <= len(data)
        if is_possible and xxh3_64_intdigest(data[start:end], salt + at & _SEED_MASK) == stored:
            return at
        at += 1
    return -1
