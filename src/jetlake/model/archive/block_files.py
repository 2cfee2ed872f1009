"""The files that nats-server keeps of a stream, as archives up to its version 2.14 hold them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import sha256

from jetlake.errors import DecodeError
from jetlake.model.archive.highway_hash import highway_hash
from jetlake.model.archive.items import (
    ArchivedMessage,
    ConsumerPosition,
    PendingMessage,
    SequencePair,
    SkippedSequence,
)

__all__ = ["check_sum", "consumer_position", "records_of"]

_HEAD = struct.Struct("<IQQH")
_HASH_BYTES = 8
_HAS_HEADER = 1 << 31
_ERASED = 1 << 63
_TOMBSTONE = 1 << 62
_STATE_MAGIC = b"\x16\x02"
_NS_PER_S = 1_000_000_000


def check_sum(name: str, content: bytes, checksum: bytes) -> bool:
    """Return whether the checksum file of a stream's meta file fits."""
    return highway_hash(sha256(name.encode()).digest(), content).hex().encode() == checksum.strip()


def records_of(stream: str, number: int, block: bytes) -> Iterator[ArchivedMessage | SkippedSequence]:
    """Yield the messages of a block file, and the sequences whose messages were removed.

    Args:
        stream: name of the stream, which is part of the key.
        number: the block's number, as in its name.

    Raises:
        DecodeError: a record is damaged.
    """
    key = sha256(f"{stream}-{number}".encode()).digest()
    at = 0
    while at < len(block):
        if len(block) - at < _HEAD.size + _HASH_BYTES:
            raise DecodeError(f"msgs/{number}.blk is cut at byte {at}")
        length, marked, time_ns, subject_bytes = _HEAD.unpack_from(block, at)
        has_header, length = bool(length & _HAS_HEADER), length & ~_HAS_HEADER
        subject_at = at + _HEAD.size
        body_at = subject_at + subject_bytes
        end = at + length - _HASH_BYTES
        if body_at + 4 * has_header > end or end + _HASH_BYTES > len(block):
            raise DecodeError(f"msgs/{number}.blk has a record of an impossible length at byte {at}")
        header_bytes = 0
        if has_header:
            header_bytes = int.from_bytes(block[body_at : body_at + 4], "little")
            body_at += 4
            if body_at + header_bytes > end:
                raise DecodeError(f"msgs/{number}.blk has a record of an impossible length at byte {at}")
        subject = block[subject_at : subject_at + subject_bytes]
        sealed = block[at + 4 : at + 20] + subject + block[body_at:end]
        if highway_hash(key, sealed) != block[end : end + _HASH_BYTES]:
            raise DecodeError(f"msgs/{number}.blk has a damaged record at byte {at}")
        sequence = marked & ~(_ERASED | _TOMBSTONE)
        if marked != sequence or not sequence:
            yield SkippedSequence(sequence)
        else:
            header, payload = block[body_at : body_at + header_bytes], block[body_at + header_bytes : end]
            yield ArchivedMessage(subject, time_ns, sequence, header, payload)
        at += length


def consumer_position(data: bytes) -> ConsumerPosition:
    """Return where a consumer stands, from its state file; at the beginning when that is empty.

    Raises:
        DecodeError: the file is damaged.
    """
    if not data:
        return ConsumerPosition()
    if not data.startswith(_STATE_MAGIC):
        raise DecodeError("corrupt state")
    numbers = _Varints(data, len(_STATE_MAGIC))
    floor = SequencePair(consumer_seq=numbers.unsigned(), stream_seq=numbers.unsigned())
    delivered = SequencePair(consumer_seq=numbers.unsigned(), stream_seq=numbers.unsigned())
    pending: dict[int, PendingMessage] = {}
    count = numbers.unsigned()
    base_s = numbers.signed() if count else 0
    for _ in range(count):
        sequence = numbers.unsigned() + floor.stream_seq
        consumer = numbers.unsigned() + floor.consumer_seq
        time_ns = (base_s - numbers.signed()) * _NS_PER_S
        pending[sequence] = PendingMessage(sequence=consumer, timestamp=time_ns)
    redelivered: dict[int, int] = {}
    for _ in range(numbers.unsigned()):
        sequence = numbers.unsigned() + floor.stream_seq
        redelivered[sequence] = numbers.unsigned()
    return ConsumerPosition(delivered=delivered, ack_floor=floor, pending=pending, redelivered=redelivered)


class _Varints:
    """The numbers of a state file, one after the other."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def unsigned(self) -> int:
        number = shift = 0
        while True:
            if self._at >= len(self._data) or shift > 63:
                raise DecodeError("corrupt state")
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def signed(self) -> int:
        number = self.unsigned()
        return number >> 1 ^ -(number & 1)
