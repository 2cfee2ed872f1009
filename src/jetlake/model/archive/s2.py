"""The S2 stream format: Snappy's framing with larger blocks and one more kind of copy.

Written are Snappy blocks, which every S2 reader takes; read are both. The formats are described in
docs/formats.md, "Archives".
"""

from __future__ import annotations

from collections.abc import Iterator

import cramjam
import google_crc32c

from jetlake.errors import DecodeError

__all__ = ["S2Reader", "compress", "decompress_block"]

IDENTIFIER = b"\xff\x06\x00\x00S2sTwO"
"""What a stream begins with."""
BLOCK_BYTES_MAX = 4 * 1024 * 1024
"""The longest block, uncompressed."""

_COMPRESSED, _STORED, _IDENTIFIER = 0x00, 0x01, 0xFF
_FIRST_SKIPPABLE = 0x80
_IDENTITIES = (b"S2sTwO", b"sNaPpY")
_CHECKSUM_BYTES = 4
# A block that does not shrink grows by no more than this.
_COMPRESSED_MAX = BLOCK_BYTES_MAX + BLOCK_BYTES_MAX // 6 + 32
_COPY_REPEATED = {5: (1, 4), 6: (2, 256), 7: (3, 65536)}


def compress(block: bytes) -> bytes:
    """Return one chunk of a stream, without the identifier, that holds the block."""
    data = bytes(cramjam.snappy.compress_raw(block))
    kind = _COMPRESSED
    if len(data) >= len(block):
        kind, data = _STORED, block
    length = len(data) + _CHECKSUM_BYTES
    return b"%c%b%b%b" % (kind, length.to_bytes(3, "little"), _checksum(block), data)


def _checksum(block: bytes) -> bytes:
    """Return the masked CRC-32C of a block's uncompressed bytes."""
    crc: int = google_crc32c.value(block)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return masked.to_bytes(4, "little")


class S2Reader:
    """Decompresses a stream that arrives in pieces."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._is_identified = False

    @property
    def is_whole(self) -> bool:
        """Whether the stream may end here: no chunk has begun that is not complete."""
        return self._is_identified and not self._waiting

    @property
    def is_empty(self) -> bool:
        """Whether nothing has arrived."""
        return not self._is_identified and not self._waiting

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take a piece, and yield the blocks that it completes; they must all be taken before the next piece.

        Raises:
            DecodeError: the stream is damaged, or not S2.
        """
        waiting = self._waiting
        waiting += data
        while len(waiting) >= 4:
            kind = waiting[0]
            length = int.from_bytes(waiting[1:4], "little")
            if kind in (_COMPRESSED, _STORED) and not _CHECKSUM_BYTES <= length <= _COMPRESSED_MAX:
                raise DecodeError("s2: corrupt input")
            if not self._is_identified and kind != _IDENTIFIER:
                raise DecodeError("s2: corrupt input")
            if len(waiting) < 4 + length:
                return
            body = bytes(waiting[4 : 4 + length])
            del waiting[: 4 + length]
            if kind == _IDENTIFIER:
                if body not in _IDENTITIES:
                    raise DecodeError("s2: corrupt input")
                self._is_identified = True
            elif kind in (_COMPRESSED, _STORED):
                yield _block(kind, body)
            elif kind < _FIRST_SKIPPABLE:
                raise DecodeError("s2: unsupported input")


def _block(kind: int, body: bytes) -> bytes:
    checksum, data = body[:_CHECKSUM_BYTES], body[_CHECKSUM_BYTES:]
    block = decompress_block(data) if kind == _COMPRESSED else data
    if len(block) > BLOCK_BYTES_MAX:
        raise DecodeError("s2: corrupt input")
    if _checksum(block) != checksum:
        raise DecodeError("s2: corrupt input, crc mismatch")
    return block


def decompress_block(data: bytes) -> bytes:
    """Return the bytes of an S2 or Snappy block.

    Raises:
        DecodeError: it is damaged.
    """
    length, start = _length_of(data)
    if length > BLOCK_BYTES_MAX:
        raise DecodeError("s2: corrupt input")
    try:
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError:
        # Damaged, or written with S2's own copies.
        return _decompress_s2(data, start, length)


def _length_of(data: bytes) -> tuple[int, int]:
    """Return the uncompressed length of a block, and where its elements begin."""
    length = 0
    for place in range(min(len(data), 5)):
        byte = data[place]
        length |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return length, place + 1
    raise DecodeError("s2: corrupt input")


def _decompress_s2(data: bytes, at: int, length: int) -> bytes:
    """Return the bytes of a block whose copies may repeat the offset of the one before."""
    out = bytearray()
    offset = 0
    size = len(data)
    from_bytes = int.from_bytes
    try:
        while at < size:
            tag = data[at]
            at += 1
            kind = tag & 3
            if kind == 0:
                count = tag >> 2
                if count >= 60:
                    extra = count - 59
                    count = from_bytes(data[at : at + extra], "little")
                    at += extra
                count += 1
                if at + count > size:
                    raise DecodeError("s2: corrupt input")
                out += data[at : at + count]
                at += count
                continue
            if kind == 1:
                near = (tag & 0xE0) << 3 | data[at]
                at += 1
                count = tag >> 2 & 7
                if near:
                    offset = near
                elif count in _COPY_REPEATED:
                    extra, base = _COPY_REPEATED[count]
                    count = from_bytes(data[at : at + extra], "little") + base
                    at += extra
                count += 4
            else:
                extra = 2 if kind == 2 else 4
                offset = from_bytes(data[at : at + extra], "little")
                at += extra
                count = (tag >> 2) + 1
            begin = len(out) - offset
            if begin < 0 or not offset or len(out) + count > length:
                raise DecodeError("s2: corrupt input")
            if offset >= count:
                out += out[begin : begin + count]
            else:
                pattern = out[begin:]
                out += (pattern * (count // offset + 1))[:count]
    except IndexError:
        raise DecodeError("s2: corrupt input") from None
    if at != size or len(out) != length:
        raise DecodeError("s2: corrupt input")
    return bytes(out)
