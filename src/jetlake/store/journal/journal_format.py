"""How a consumer's journal lies on disk: a header, then records of entries; `docs/formats.md` draws it.

Little-endian. The header and the state that a file begins with are there twice, since without them nothing that follows
could be read. A record is `length 4 | entries | hash 8`, the hash being the disk's (xxh3 with 64 bits in canonical byte
order, or keyed) over all before it, seeded for the journal and the file. An entry is one of the letters below and its
numbers.
"""

from __future__ import annotations

import re
import struct

from xxhash import xxh3_64_intdigest

from jetlake.store.files.checksum import Checksum, Hashing

__all__ = [
    "ENTRY_KINDS",
    "FORMAT_VERSION",
    "HEADER_SIZE",
    "KINDS",
    "MAGIC",
    "SAFE",
    "checksum_of",
    "header_key",
    "owner_of",
    "owner_tag",
    "pack_header",
    "pack_record",
    "read_records",
]

FORMAT_VERSION = 1

MAGIC = b"JLCJ"

KINDS = b"DdRXPAaFS"
"""The letters of the entries: a run of deliveries and one with its sequences listed, a redelivery, a message at
`max_deliver`, the position of a consumer without acknowledgements, acknowledgements as a range and as a list, the ack
floor, the whole state."""
SAFE = b"C"
"""The entry of a record that has nothing of the consumer: all before it was synced when it was written."""
ENTRY_KINDS = KINDS + SAFE
"""The letters with which an entry, and so the content of a record, may begin."""

_HEADER = struct.Struct("<4sHHIQ")
_HASH = struct.Struct("<Q")
_HEADER_COPY = _HEADER.size + _HASH.size
HEADER_SIZE = 2 * _HEADER_COPY
_HEADER_PURPOSE = b"journal header"
_LENGTH = struct.Struct("<I")
_OVERHEAD = 12
_find_kind = re.compile(b"[%b]" % ENTRY_KINDS).search


def checksum_of(hashing: Hashing, key: int, number: int, owner: str = "") -> Checksum:
    """Return the hash of a file's records."""
    return hashing.checksum(b"journal", xxh3_64_intdigest(struct.pack("<QI", key, number)), owner)


def owner_tag(name: str) -> int:
    """Return what a file says of whose it is: a number for a name, 0 for none."""
    return xxh3_64_intdigest(name.encode()) % 0xFFFF + 1 if name else 0


def owner_of(data: bytes, hashing: Hashing) -> int:
    """Return the owner in a header, which must be good in one of its places; 0 when it has none."""
    return max(int(_HEADER.unpack_from(data, at)[2]) for at in (0, _HEADER_COPY) if _is_good(data, at, hashing))


def pack_header(hashing: Hashing, key: int, number: int, owner: int = 0) -> bytes:
    """Return what a file begins with."""
    body = _HEADER.pack(MAGIC, FORMAT_VERSION, owner, number, key)
    return 2 * (body + _HASH.pack(hashing.checksum(_HEADER_PURPOSE).number(body)))


def header_key(data: bytes, number: int, hashing: Hashing) -> int | None:
    """Return the journal's key from the header of file `number`; None when that is not what it is."""
    for at in (0, _HEADER_COPY):
        if not _is_good(data, at, hashing):
            continue
        magic, version, _, own_number, key = _HEADER.unpack_from(data, at)
        if (magic, version, own_number) == (MAGIC, FORMAT_VERSION, number):
            return int(key)
    return None


def _is_good(data: bytes, at: int, hashing: Hashing) -> bool:
    body = data[at : at + _HEADER.size]
    expected = hashing.checksum(_HEADER_PURPOSE).number(body)
    return len(data) >= HEADER_SIZE and _HASH.unpack_from(data, at + _HEADER.size)[0] == expected


def pack_record(entries: bytes, checksum: Checksum) -> bytes:
    """Return one record."""
    body = _LENGTH.pack(len(entries) + _OVERHEAD) + entries
    return body + checksum.of(body)


def read_records(data: bytes, checksum: Checksum) -> tuple[list[bytes], int]:
    """Return the entries of every whole record, and where the last of them ends; damaged ones are passed over."""
    found: list[bytes] = []
    at = end = HEADER_SIZE
    while at + _OVERHEAD <= len(data):
        stop = at + _LENGTH.unpack_from(data, at)[0]
        if at + _OVERHEAD <= stop <= len(data) and data[stop - 8 : stop] == checksum.of(data[at : stop - 8]):
            found.append(data[at + 4 : stop - 8])
            at = end = stop
        else:
            # Numbers look like lengths: of a state with many, hashing what each might begin would take minutes.
            following = _find_kind(data, at + 1 + _LENGTH.size)
            if following is None:
                break
            at = following.start() - _LENGTH.size
    return found, end
