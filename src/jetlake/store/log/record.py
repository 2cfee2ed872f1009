"""The record: how one message, or the news that some are gone, lies in a segment.

Little-endian, without padding::

    length 4 | sequence 8 | time 8 | subject length 2 | subject | [header length 4 | header] | payload | hash 8

`length` counts the whole record; its bit 31 says that there is a header. The hash is the disk's (xxh3 with 64 bits in
canonical byte order, or keyed) over everything before it, seeded for its stream and segment, so that bytes from
elsewhere are no record here.
Bit 62 of the sequence marks a tombstone, bit 63 a record that was erased in its place. Bits 60 and 61 link the
records of a group, which are kept all together or not at all: the next sequence belongs to it, the one before does.

The reasons are in decision 5 (docs/decisions).
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Sequence
from typing import cast

import msgspec
from xxhash import xxh3_64_intdigest

from jetlake.store.files.checksum import Checksum, Hashing
from jetlake.store.interface import SUBJECT_BYTES_MAX, Incoming
from jetlake.store.message import MessageColumns, StoredMessage

__all__ = [
    "ERASED",
    "FOLLOWED",
    "HASH_SIZE",
    "HEADER_FLAG",
    "HEADER_OVERHEAD",
    "HEAD_SIZE",
    "OVERHEAD",
    "PRECEDED",
    "RANGE_TOMBSTONE_SIZE",
    "SEQUENCE_MASK",
    "TOMBSTONE",
    "Record",
    "are_good",
    "checksum_of",
    "find_record",
    "header_at",
    "links_in",
    "pack_erased",
    "pack_message",
    "pack_run",
    "pack_tombstone",
    "record_size",
    "tombstone_last",
    "tombstone_range",
    "unpack",
    "unpack_head",
    "unpack_message",
    "unpack_run",
]

OVERHEAD = 30
"""What a record takes beside subject and payload."""
HEADER_OVERHEAD = 34
"""The same for a record with a header, beside subject, header and payload."""
RANGE_TOMBSTONE_SIZE = OVERHEAD + 8
"""How long a tombstone is that speaks of more than one sequence."""
HEADER_FLAG = 1 << 31
TOMBSTONE = 1 << 62
ERASED = 1 << 63
FOLLOWED = 1 << 60
PRECEDED = 1 << 61
SEQUENCE_MASK = FOLLOWED - 1
HEAD_SIZE = 22
"""What comes before the subject: length, sequence, time and the subject's length."""
HASH_SIZE = 8

_LENGTH_MASK = HEADER_FLAG - 1
_SEQUENCE_JUMP_MAX = 1 << 32
_HEAD = struct.Struct("<IQqH")
_NUMBER = struct.Struct("<I")
_SEQUENCE = struct.Struct("<Q")
_pack_head = _HEAD.pack
unpack_head = _HEAD.unpack_from
"""Takes bytes and an offset, and gives length (with `HEADER_FLAG`), sequence (with its marks), time, subject length."""
_pack_number = _NUMBER.pack
_unpack_number = _NUMBER.unpack_from
_FLAGS_BYTE = 3
"""Where the byte of a record stands whose highest bit is `HEADER_FLAG`."""
_HIGH_BYTES = 9
"""Where the three high bytes of a record's sequence stand."""
_find_low_sequence = re.compile(rb"\x00\x00[%b]" % bytes(range(0, 256, 16))).search
_find_not_zero = re.compile(rb"[^\x00]").search


class Record(msgspec.Struct, gc=False, frozen=True):
    """A record that was found whole: `sequence` with its mark bits, and where it ends."""

    sequence: int
    time_ns: int
    subject: bytes
    header: bytes
    payload: bytes
    end: int

    @property
    def is_tombstone(self) -> bool:
        """Whether it says that sequences are gone, rather than holding a message or the rest of one."""
        return self.sequence & (TOMBSTONE | ERASED) == TOMBSTONE


def checksum_of(hashing: Hashing, key: int, segment_number: int) -> Checksum:
    """Return the hash of a segment's records, from the stream's own random key."""
    return hashing.checksum(b"record", xxh3_64_intdigest(struct.pack("<QI", key, segment_number)))


def record_size(subject: bytes, header: bytes, payload: bytes) -> int:
    """Return how long the record of a message is, which is what `state.bytes` counts."""
    if header:
        return HEADER_OVERHEAD + len(subject) + len(header) + len(payload)
    return OVERHEAD + len(subject) + len(payload)


def pack_message(
    sequence: int, time_ns: int, subject: bytes, header: bytes, payload: bytes, checksum: Checksum
) -> bytes:
    """Return the record of a message."""
    subject_length = len(subject)
    if header:
        size = HEADER_OVERHEAD + subject_length + len(header) + len(payload)
        head = _pack_head(size | HEADER_FLAG, sequence, time_ns, subject_length)
        body = b"".join((head, subject, _pack_number(len(header)), header, payload))
    else:
        size = OVERHEAD + subject_length + len(payload)
        body = _pack_head(size, sequence, time_ns, subject_length) + subject + payload
    # Without a call between: one is made for each message.
    return body + checksum.digest(body, checksum.seed)


def pack_run(
    messages: Sequence[Incoming], sequence: int, times: Sequence[int], checksum: Checksum, room: int
) -> tuple[list[bytes], list[int]]:
    """Pack as many of the messages as there is room for, with consecutive sequences.

    Returns:
        The bytes of the records, each in two parts, and the size of each record.
    """
    parts: list[bytes] = []
    sizes: list[int] = []
    add_part, add_size = parts.append, sizes.append
    pack_head, pack_number, join = _pack_head, _pack_number, b"".join
    digest, seed, _ = checksum
    for (subject, _, header, payload), time_ns in zip(messages, times, strict=True):
        subject_length = len(subject)
        if header:
            header_length = len(header)
            size = HEADER_OVERHEAD + subject_length + header_length + len(payload)
            head = pack_head(size | HEADER_FLAG, sequence, time_ns, subject_length)
            body = join((head, subject, pack_number(header_length), header, payload))
        else:
            size = OVERHEAD + subject_length + len(payload)
            body = pack_head(size, sequence, time_ns, subject_length) + subject + payload
        room -= size
        if room < 0:
            break
        add_part(body)
        add_part(digest(body, seed))
        add_size(size)
        sequence += 1
    return parts, sizes


def pack_tombstone(first: int, last: int, time_ns: int, checksum: Checksum, links: int = 0) -> bytes:
    """Return the record that says: from `first` to `last` there is nothing, and `last` counts as used."""
    payload = b"" if first == last else _SEQUENCE.pack(last)
    return pack_message(first | TOMBSTONE | links, time_ns, b"", b"", payload, checksum)


def pack_erased(sequence: int, time_ns: int, subject_length: int, noise: bytes, checksum: Checksum) -> bytes:
    """Return a record to lie over one of the same length, of which only sequence and time are left.

    Args:
        noise: what takes the place of subject, header and payload: all bytes between the lengths and the hash.
    """
    length = HEAD_SIZE + len(noise) + HASH_SIZE
    body = _pack_head(length, sequence | ERASED, time_ns, min(subject_length, len(noise), SUBJECT_BYTES_MAX)) + noise
    return body + checksum.of(body)


def is_half_erased(data: bytes, offset: int, length: int, checksum: Checksum) -> bool:
    """Return whether the damaged record there was being erased: a power cut left its new head over an old rest.

    One that is whole without the mark was not: its mark is the damage.
    """
    marked_length, sequence, time_ns, subject_length = unpack_head(data, offset)
    if not sequence & ERASED:
        return False
    body = data[offset + HEAD_SIZE : offset + length - HASH_SIZE]
    unmarked = _pack_head(marked_length, sequence & ~ERASED, time_ns, subject_length) + body
    return checksum.of(unmarked) != data[offset + length - HASH_SIZE : offset + length]


def are_good(data: bytes, base: int, offsets: Sequence[int], sizes: array[int] | list[int], checksum: Checksum) -> bool:
    """Return whether the records at these offsets have their hashes.

    Args:
        base: the offset of the first byte of `data`.
    """
    digest, seed, _ = checksum
    view = memoryview(data)
    for offset, size in zip(offsets, sizes, strict=True):
        start, stop = offset - base, offset - base + size - HASH_SIZE
        if data[stop : stop + HASH_SIZE] != digest(view[start:stop], seed):
            return False
    return True


def tombstone_last(data: bytes, offset: int) -> int:
    """Return the last sequence of the tombstone at that place, which has `RANGE_TOMBSTONE_SIZE`."""
    return int(_SEQUENCE.unpack_from(data, offset + HEAD_SIZE)[0])


def tombstone_range(record: Record) -> tuple[int, int]:
    """Return the first and the last sequence that a tombstone speaks of."""
    first = record.sequence & SEQUENCE_MASK
    return (first, _SEQUENCE.unpack(record.payload)[0]) if len(record.payload) == 8 else (first, first)


def unpack(data: bytes, offset: int, checksum: Checksum) -> Record | None:
    """Return the record at that place, or None when what is there is none."""
    if offset + OVERHEAD > len(data):
        return None
    length, sequence, time_ns, subject_length = unpack_head(data, offset)
    end = offset + (length & _LENGTH_MASK)
    body = offset + HEAD_SIZE + subject_length
    stop = end - HASH_SIZE
    if body > stop or end > len(data) or data[stop:end] != checksum.of(data[offset:stop]):
        return None
    subject = data[offset + HEAD_SIZE : body]
    header = b""
    if length & HEADER_FLAG:
        header_end = body + 4 + _unpack_number(data, body)[0]
        header = data[body + 4 : header_end]
        body = header_end
    return Record(sequence, time_ns, subject, header, data[body:stop], end)


def first_record(data: bytes) -> bytes:
    """Return the record that these bytes begin with, whole or not, if it is one."""
    return data[: int.from_bytes(data[:4], "little") & _LENGTH_MASK]


def unpack_message(data: bytes, checksum: Checksum) -> StoredMessage | None:
    """Return the message whose record these bytes are; None when they are no good record, or an erased one."""
    if data[-HASH_SIZE:] != checksum.digest(data[:-HASH_SIZE], checksum.seed):
        return None
    length, sequence, time_ns, subject_length = unpack_head(data)
    if sequence >= ERASED:
        return None
    sequence &= SEQUENCE_MASK
    body = HEAD_SIZE + subject_length
    subject = data[HEAD_SIZE:body]
    if length < HEADER_FLAG:
        return StoredMessage(sequence, time_ns, subject, b"", data[body:-HASH_SIZE])
    payload = body + 4 + _unpack_number(data, body)[0]
    return StoredMessage(sequence, time_ns, subject, data[body + 4 : payload], data[payload:-HASH_SIZE])


def unpack_run(
    data: bytes,
    base: int,
    sequences: Sequence[int],
    offsets: Sequence[int],
    sizes: array[int] | list[int],
    times: Sequence[int],
    subject_ids: Sequence[int],
    names: Sequence[bytes],
) -> MessageColumns:
    """Return the messages whose records lie at these ascending offsets and are known to be good.

    The hot loop of every reader.

    Args:
        base: the offset of the first byte of `data`.
        names: the subject of each number in `subject_ids`.
    """
    subjects = [names[number] for number in subject_ids]
    headers: list[bytes] | None = None
    payloads = _alike_payloads(data, offsets[0] - base, offsets, sizes, subjects)
    if payloads is None:
        payloads = _plain_payloads(data, base, offsets, sizes, subjects)
    if payloads is None:
        headers, payloads = _headers_and_payloads(data, base, offsets, sizes, subjects)
    return MessageColumns(sequences, times, subjects, headers, payloads)


def _alike_payloads(
    data: bytes, start: int, offsets: Sequence[int], sizes: array[int] | list[int], subjects: list[bytes]
) -> list[bytes] | None:
    """Return the payloads of adjacent records without headers whose subjects and payloads have the same lengths.

    Their places are computed, which is faster than looking at each record. None for other records.
    """
    count, size = len(sizes), sizes[0]
    if offsets[-1] - offsets[0] != (count - 1) * size or sizes != sizes[:1] * count:
        return None
    stop = start + count * size
    if len(set(map(len, subjects))) > 1 or max(data[start + _FLAGS_BYTE : stop : size]) >= 128:
        return None
    body, end = HEAD_SIZE + len(subjects[0]), size - HASH_SIZE
    return [data[at : at + end - body] for at in range(start + body, stop, size)]


def _plain_payloads(
    data: bytes, base: int, offsets: Sequence[int], sizes: Sequence[int], subjects: list[bytes]
) -> list[bytes] | None:
    """Return the payloads of records without headers; None when one has a header."""
    flags_at, body_at, end_at = _FLAGS_BYTE - base, HEAD_SIZE - base, -HASH_SIZE - base
    if data[offsets[0] + flags_at] >= 128:
        return None
    payloads = [
        data[at + body_at + len(subject) : at + size + end_at] if data[at + flags_at] < 128 else None
        for at, size, subject in zip(offsets, sizes, subjects, strict=True)
    ]
    return None if None in payloads else cast("list[bytes]", payloads)


def _headers_and_payloads(
    data: bytes, base: int, offsets: Sequence[int], sizes: Sequence[int], subjects: list[bytes]
) -> tuple[list[bytes], list[bytes]]:
    headers: list[bytes] = []
    payloads: list[bytes] = []
    head_size, hash_size, flags_byte = HEAD_SIZE, HASH_SIZE, _FLAGS_BYTE
    for offset, size, subject in zip(offsets, sizes, subjects, strict=True):
        at = offset - base
        body = at + head_size + len(subject)
        end = at + size - hash_size
        if data[at + flags_byte] < 128:
            headers.append(b"")
            payloads.append(data[body:end])
        else:
            payload = body + 4 + _unpack_number(data, body)[0]
            headers.append(data[body + 4 : payload])
            payloads.append(data[payload:end])
    return headers, payloads


def links_in(head: bytes) -> int:
    """Return the links of the record that begins with these bytes."""
    return int(unpack_head(head)[1]) & (FOLLOWED | PRECEDED)


def header_at(data: bytes, offset: int, subject_length: int) -> bytes:
    """Return the header of the good record at that place; b"" when it has none."""
    if data[offset + _FLAGS_BYTE] < 128:
        return b""
    start = offset + HEAD_SIZE + subject_length + 4
    return data[start : start + _unpack_number(data, start - 4)[0]]


def find_record(data: bytes, offset: int, checksum: Checksum, last_sequence: int) -> int:
    """Return the place of the first whole record at or behind `offset`, or -1: how a reader gets past a damaged one.

    Args:
        last_sequence: of the last good record; far from it no sequence is worth the hash of what follows.
    """
    size = len(data)
    at = offset
    # A sequence this low has three high bytes of nothing but marks, which are sought much faster than tried.
    is_low = last_sequence + _SEQUENCE_JUMP_MAX < 1 << 40
    while at + OVERHEAD <= size:
        if is_low:
            high_bytes = _find_low_sequence(data, at + _HIGH_BYTES)
            if high_bytes is None or (at := high_bytes.start() - _HIGH_BYTES) + OVERHEAD > size:
                return -1
        length, sequence, _, _ = unpack_head(data, at)
        length &= _LENGTH_MASK
        if length == 0:
            # Nothing but zeros is what a power cut leaves of a write; a length has a byte other than zero.
            found = _find_not_zero(data, at)
            if found is None:
                return -1
            at = max(at + 1, found.start() - 3)
            continue
        if (
            OVERHEAD <= length <= size - at
            and sequence & SEQUENCE_MASK <= last_sequence + _SEQUENCE_JUMP_MAX
            and unpack(data, at, checksum) is not None
        ):
            return at
        at += 1
    return -1
