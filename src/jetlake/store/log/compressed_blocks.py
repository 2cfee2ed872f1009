"""The compressed form of a segment's file: the same bytes in blocks, found by a table; `docs/formats.md` draws it.

The reasons are in decision 22 (docs/decisions).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import accumulate

import cramjam

from jetlake.store.files.checksum import Checksum, Hashing
from jetlake.store.files.disk import Disk
from jetlake.store.log.segment_header import HEADER_SIZE

__all__ = ["CompressedBlocks", "compress_in_steps", "read_table"]

_MAGIC = b"JLCB"
_VERSION = 1
_TABLE = struct.Struct("<4sHHQII")
_FOOTER = struct.Struct("<I4s")
_HASH_BYTES = 8
_STORED = 1 << 31  # in a block's length: the block would not have shrunk
_COUNT_MAX = 1 << 17  # 8 GiB, twice what offsets can say
_BLOCKS_PER_STEP = 16


class CompressedBlocks:
    """A compressed file's table, and the block that was read last.

    Attributes:
        size: how long the file is uncompressed.

    Args:
        block_bytes: how much of the segment one block holds.
        lengths: of the blocks, with `_STORED` where they are not compressed.
    """

    __slots__ = ("_block_bytes", "_cached", "_cached_number", "_ends", "_lengths", "_start", "size")

    def __init__(self, size: int, block_bytes: int, lengths: tuple[int, ...]) -> None:
        self.size = size
        self._block_bytes = block_bytes
        self._lengths = lengths
        self._start = HEADER_SIZE + _TABLE.size + 4 * len(lengths) + _HASH_BYTES
        self._ends = list(accumulate((length & ~_STORED) + _HASH_BYTES for length in lengths))
        self._cached = b""
        self._cached_number = -1

    def read(self, disk: Disk, handle: int, size: int, offset: int) -> bytes:
        """Return this many bytes of the uncompressed file from there; zeros for blocks that are damaged.

        Raises:
            OSError: the disk refused.
        """
        end = min(offset + size, self.size)
        parts = []
        if offset < HEADER_SIZE:
            parts.append(disk.read(handle, min(end, HEADER_SIZE) - offset, offset))
            offset = HEADER_SIZE
        while offset < end:
            number, within = divmod(offset - HEADER_SIZE, self._block_bytes)
            part = self._block(disk, handle, number)[within : within + end - offset]
            parts.append(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def forget(self) -> None:
        """Drop the block that was read last."""
        self._cached, self._cached_number = b"", -1

    def _block(self, disk: Disk, handle: int, number: int) -> bytes:
        if number == self._cached_number:
            return self._cached
        length = self._lengths[number] & ~_STORED
        end = self._start + self._ends[number]
        data = disk.read(handle, length + _HASH_BYTES, end - length - _HASH_BYTES)
        block = self._decompressed(number, data[:length], data[length:], _checksum(disk.hashing))
        self._cached, self._cached_number = block, number
        return block

    def _decompressed(self, number: int, data: bytes, stored: bytes, checksum: Checksum) -> bytes:
        size = min(self._block_bytes, self.size - HEADER_SIZE - number * self._block_bytes)
        if checksum.of(data) == stored:
            try:
                block = data if self._lengths[number] & _STORED else bytes(cramjam.snappy.decompress_raw(data))
            except cramjam.DecompressionError:
                block = b""
            if len(block) == size:
                return block
        # The records in it are lost, and those around it are found by their hashes.
        return bytes(size)


def _checksum(hashing: Hashing) -> Checksum:
    return hashing.checksum(b"compressed")


def _pack_table(size: int, block_bytes: int, lengths: list[int], checksum: Checksum) -> bytes:
    head = _TABLE.pack(_MAGIC, _VERSION, 0, size, block_bytes, len(lengths))
    table = head + struct.pack(f"<{len(lengths)}I", *lengths)
    return table + checksum.of(table)


def _unpack_table(data: bytes, checksum: Checksum) -> CompressedBlocks | None:
    """Return the table that these bytes begin with; None when it is damaged or there is none."""
    if len(data) < _TABLE.size:
        return None
    magic, version, _, size, block_bytes, count = _TABLE.unpack_from(data)
    end = _TABLE.size + 4 * count
    if (magic, version) != (_MAGIC, _VERSION) or len(data) < end + _HASH_BYTES:
        return None
    if checksum.of(data[:end]) != data[end : end + _HASH_BYTES]:
        return None
    return CompressedBlocks(size, block_bytes, struct.unpack_from(f"<{count}I", data, _TABLE.size))


def read_table(disk: Disk, handle: int) -> CompressedBlocks | None:
    """Return the table of a file, from its beginning or else from its end; None when the file is not compressed.

    Raises:
        OSError: the disk refused.
    """
    checksum = _checksum(disk.hashing)
    file_size = disk.size(handle)
    head = disk.read(handle, _TABLE.size, HEADER_SIZE)
    if head[:4] == _MAGIC and len(head) == _TABLE.size:
        count = min(_TABLE.unpack(head)[5], _COUNT_MAX)
        found = _unpack_table(disk.read(handle, _TABLE.size + 4 * count + _HASH_BYTES, HEADER_SIZE), checksum)
        if found is not None:
            return found
    footer = disk.read(handle, _FOOTER.size, max(file_size - _FOOTER.size, 0))
    if len(footer) < _FOOTER.size or footer[4:] != _MAGIC:
        return None
    length = min(_FOOTER.unpack(footer)[0], _TABLE.size + 4 * _COUNT_MAX + _HASH_BYTES)
    return _unpack_table(disk.read(handle, length, max(file_size - _FOOTER.size - length, 0)), checksum)


def compress_in_steps(content: bytes, block_bytes: int, hashing: Hashing) -> Iterator[bytes | None]:
    """Compress a segment's bytes; yield None after each step, and in the end the bytes of the compressed file."""
    checksum = _checksum(hashing)
    blocks: list[bytes] = []
    lengths: list[int] = []
    for number, start in enumerate(range(HEADER_SIZE, len(content), block_bytes), 1):
        block = content[start : start + block_bytes]
        data = bytes(cramjam.snappy.compress_raw(block))
        is_smaller = len(data) < len(block)
        blocks += (data, checksum.of(data)) if is_smaller else (block, checksum.of(block))
        lengths.append(len(data) if is_smaller else len(block) | _STORED)
        if not number % _BLOCKS_PER_STEP:
            yield None
    table = _pack_table(len(content), block_bytes, lengths, checksum)
    yield b"".join((content[:HEADER_SIZE], table, *blocks, table, _FOOTER.pack(len(table), _MAGIC)))
