"""Archives of nats-server up to version 2.14: a tar of the files that it keeps of a stream.

    meta.inf, meta.sum          the configuration of the stream, and its checksum; always first
    msgs/<number>.blk           blocks of messages, in ascending order
    obs/<consumer>/meta.inf, meta.sum, o.dat     configuration, checksum and position of each consumer

Every record of a block ends with its HighwayHash, whose key is the name of the stream and the number of the block.
"""

from __future__ import annotations

import re
import struct
import tarfile
from collections.abc import Iterator
from hashlib import sha256

import msgspec

from jetlake.errors import ConfigError, DecodeError
from jetlake.model.archive.highway_hash import highway_hash
from jetlake.model.archive.items import (
    ArchivedConsumer,
    ArchivedMessage,
    ArchivedState,
    ConsumerPosition,
    Item,
    PendingMessage,
    SequencePair,
    SkippedSequence,
)
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.codec import decode
from jetlake.model.encoding.times import ZERO_TIME, parse_time

_HEAD = struct.Struct("<IQQH")
_HASH_BYTES = 8
_HAS_HEADER = 1 << 31
_ERASED = 1 << 63
_TOMBSTONE = 1 << 62
_STATE_MAGIC = b"\x16\x02"
_NS_PER_S = 1_000_000_000
# The longest file: nats-server begins a new block at 8 MiB.
_FILE_BYTES_MAX = 64 * 1024 * 1024
_BLOCK_NAME = re.compile(r"msgs/([0-9]{1,18})\.blk")
_CONSUMER_NAME = re.compile(r"obs/([^/]+)/(meta\.inf|meta\.sum|o\.dat)")


class _StreamMeta(msgspec.Struct):
    """What is read of a stream's meta file."""

    name: str = ""
    created: str = msgspec.field(default=ZERO_TIME, name="Created")


class _ConsumerMeta(msgspec.Struct):
    """What is read of a consumer's meta file beside its configuration."""

    name: str = msgspec.field(default="", name="Name")
    created: str = msgspec.field(default=ZERO_TIME, name="Created")


class BlockFiles:
    """An archive of nats-server's own files: meta.inf first, then blocks, then the consumers' files."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._tar = TarReader(_FILE_BYTES_MAX)
        self._meta: bytes | None = None
        self._last_block = 0
        self._consumers: dict[str, dict[str, bytes]] = {}

    def feed(self, data: bytes) -> Iterator[Item]:
        for name, content in self._tar.feed(data):
            if self._meta is None:
                yield self._stream_meta(name, content)
            elif name == "meta.sum":
                if not check_sum(self._stream, self._meta, content):
                    raise DecodeError("the checksum of meta.inf does not fit")
            elif (block := _BLOCK_NAME.fullmatch(name)) is not None:
                yield from self._block(int(block[1]), content)
            elif (file := _CONSUMER_NAME.fullmatch(name)) is not None:
                self._consumers.setdefault(file[1], {})[file[2]] = content
            elif not name.startswith("msgs/"):
                raise DecodeError("unexpected content")

    def _stream_meta(self, name: str, content: bytes) -> ArchivedState:
        if name != "meta.inf":
            raise DecodeError("meta.inf must be the first file")
        meta = decode(_StreamMeta, content)
        if meta.name != self._stream:
            raise DecodeError("stream names do not match")
        self._meta = content
        return ArchivedState(None, 0, _time_ns(meta.created))

    def _block(self, number: int, content: bytes) -> Iterator[Item]:
        if number <= self._last_block:
            raise DecodeError(f"msgs/{number}.blk is out of order")
        self._last_block = number
        yield from records_of(self._stream, number, content)

    def finish(self) -> Iterator[Item]:
        if not self._tar.is_ended:
            raise DecodeError("unexpected EOF")
        if self._meta is None:
            raise DecodeError("meta.inf is missing")
        for folder, files in self._consumers.items():
            try:
                yield _consumer_of(folder, files)
            except DecodeError as error:
                raise DecodeError(f'error restoring consumer ["{folder}"]: {error}') from None


def _consumer_of(folder: str, files: dict[str, bytes]) -> ArchivedConsumer:
    for name in ("meta.inf", "meta.sum"):
        if name not in files:
            raise DecodeError(f"{name} is missing")
    meta = decode(_ConsumerMeta, files["meta.inf"])
    config = decode(ConsumerConfig, files["meta.inf"])
    position = consumer_position(files.get("o.dat", b""))
    return ArchivedConsumer(meta.name or folder, config, position, _time_ns(meta.created))


def _time_ns(text: str) -> int:
    try:
        return max(parse_time(text), 0)
    except ConfigError:
        return 0


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


_BLOCK = tarfile.BLOCKSIZE
_UNEXPECTED = "unexpected content"
# Records that extend the next file's header, and nothing else.
_EXTENDED_BYTES_MAX = 64 * 1024


class TarReader:
    """Reads regular files, one after the other.

    Args:
        bytes_max: the longest file.

    Attributes:
        is_ended: the archive's end was read.
    """

    def __init__(self, bytes_max: int) -> None:
        self.is_ended = False
        self._bytes_max = bytes_max
        self._waiting = bytearray()
        self._file: tarfile.TarInfo | None = None
        self._records: dict[str, str] = {}

    def feed(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        """Take a piece, and yield name and content of the files that it completes.

        Raises:
            DecodeError: the archive is damaged, or holds something else than regular files.
        """
        if self.is_ended:
            return  # Writers fill the last block up.
        self._waiting += data
        while (content := self._next()) is not None:
            file, self._file = self._file, None
            assert file is not None
            if file.type == tarfile.XHDTYPE:
                self._records = _records_of(content)
            else:
                self._records = {}
                yield file.name, content

    def _next(self) -> bytes | None:
        """Return the content of the next file, header read; None when it is not complete."""
        waiting = self._waiting
        if self._file is None:
            if len(waiting) < _BLOCK:
                return None
            head = bytes(waiting[:_BLOCK])
            del waiting[:_BLOCK]
            if not any(head):
                self.is_ended = True
                waiting.clear()
                return None
            self._file = self._header(head)
        size = self._file.size
        padded = -(-size // _BLOCK) * _BLOCK
        if len(waiting) < padded:
            return None
        content = bytes(waiting[:size])
        del waiting[:padded]
        return content

    def _header(self, head: bytes) -> tarfile.TarInfo:
        try:
            file = tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
            file.name = self._records.get("path", file.name)
            file.size = int(self._records.get("size", file.size))
        except (tarfile.TarError, ValueError) as error:
            raise DecodeError(f"archive/tar: invalid tar header: {error}") from None
        extends = file.type == tarfile.XHDTYPE
        if not (extends or file.isreg()) or not _stays_inside(file.name):
            raise DecodeError(_UNEXPECTED)
        if not 0 <= file.size <= (_EXTENDED_BYTES_MAX if extends else self._bytes_max):
            raise DecodeError(f"{file.name[:100]} is too large")
        return file


def _stays_inside(name: str) -> bool:
    return bool(name) and not name.startswith("/") and "\\" not in name and ".." not in name.split("/")


def _records_of(content: bytes) -> dict[str, str]:
    """Return the records of an extended header: `<length> <key>=<value>` a line."""
    records: dict[str, str] = {}
    while content:
        length, _, _ = content.partition(b" ")
        if not length.isdigit() or not len(length) < int(length) <= len(content):
            raise DecodeError("archive/tar: invalid tar header")
        key, _, value = content[len(length) + 1 : int(length) - 1].partition(b"=")
        records[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        content = content[int(length) :]
    return records
