"""The reader of archives: compressed pieces in, the stream's range, consumers and messages out.

The first decompressed bytes tell the format: NATSARC1 is what nats-server 2.15 writes, a tar of block files what
older ones wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

import msgspec

from jetlake.errors import ConfigError, DecodeError
from jetlake.model.archive.block_files import check_sum, consumer_position, records_of
from jetlake.model.archive.entries import MAGIC, Entry, EntryReader
from jetlake.model.archive.items import ArchivedConsumer, ArchivedMessage, ArchivedState, ConsumerEntry, Item
from jetlake.model.archive.s2 import S2Reader
from jetlake.model.archive.tar_files import TarReader
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.codec import decode
from jetlake.model.encoding.times import ZERO_TIME, parse_time
from jetlake.model.stream import StreamState

__all__ = ["ArchiveReader"]

_STATE = b"state.json"
_CONSUMERS = b"consumers/"
_JSON_BYTES_MAX = 64 * 1024 * 1024
# The longest file of an older archive: nats-server begins a new block at 8 MiB.
_FILE_BYTES_MAX = 64 * 1024 * 1024
_BLOCK_NAME = re.compile(r"msgs/([0-9]{1,18})\.blk")
_CONSUMER_NAME = re.compile(r"obs/([^/]+)/(meta\.inf|meta\.sum|o\.dat)")


class _Format(Protocol):
    """The contract of the two formats."""

    def feed(self, data: bytes) -> Iterator[Item]:
        """Yield the items that a piece of the decompressed archive completes."""
        ...

    def finish(self) -> Iterator[Item]:
        """Yield what is left at the end of the archive.

        Raises:
            DecodeError: the archive is not whole.
        """
        ...


class ArchiveReader:
    """Reads the archive of one stream, in pieces of any size.

    Args:
        stream: name of the stream; an archive of the older format has it inside.
        message_bytes_max: the longest header and payload of a message.
    """

    def __init__(self, stream: str, message_bytes_max: int) -> None:
        self._stream = stream
        self._message_bytes_max = message_bytes_max
        self._s2 = S2Reader()
        self._head = b""
        self._format: _Format | None = None

    def feed(self, data: bytes) -> Iterator[Item]:
        """Take a piece, and yield the items that it completes; they must all be taken before the next piece.

        Raises:
            DecodeError: the archive is damaged.
        """
        for block in self._s2.feed(data):
            if self._format is None:
                self._head += block
                if len(self._head) < len(MAGIC):
                    continue
                block, self._head = self._head, b""
                if block.startswith(MAGIC):
                    self._format = _Entries(self._message_bytes_max)
                    block = block[len(MAGIC) :]
                else:
                    self._format = _BlockFiles(self._stream)
            yield from self._format.feed(block)

    def finish(self) -> Iterator[Item]:
        """Yield what is left once the last piece was taken.

        Raises:
            DecodeError: the archive is not whole.
        """
        if not self._s2.is_whole and not self._s2.is_empty:
            raise DecodeError("s2: corrupt input")
        if self._format is None:
            raise DecodeError("EOF")
        yield from self._format.finish()


class _Entries:
    """An archive of entries: the state first, then consumers, then messages."""

    def __init__(self, message_bytes_max: int) -> None:
        self._entries = EntryReader(max(message_bytes_max, _JSON_BYTES_MAX))
        self._message_bytes_max = message_bytes_max
        self._consumers_left = -1  # The state was not read yet.

    def feed(self, data: bytes) -> Iterator[Item]:
        for entry in self._entries.feed(data):
            if self._consumers_left < 0:
                yield self._state(entry)
            elif self._consumers_left:
                self._consumers_left -= 1
                yield _consumer(entry)
            else:
                if len(entry.header) + len(entry.payload) > self._message_bytes_max:
                    raise DecodeError(f"message sequence {entry.sequence} exceeds maximum message size")
                yield ArchivedMessage(*entry)

    def _state(self, entry: Entry) -> ArchivedState:
        if entry.name != _STATE:
            raise DecodeError("state.json must be the first entry")
        state = decode(StreamState, entry.payload)
        self._consumers_left = state.consumer_count
        return ArchivedState(state.first_seq, state.last_seq)

    def finish(self) -> Iterator[Item]:
        if not self._entries.is_ended or self._consumers_left:
            raise DecodeError("unexpected EOF")
        yield from ()


def _consumer(entry: Entry) -> ArchivedConsumer:
    if not entry.name.startswith(_CONSUMERS):
        raise DecodeError("consumers must precede messages")
    name = entry.name[len(_CONSUMERS) :].decode("utf-8", "replace")
    body = decode(ConsumerEntry, entry.payload)
    return ArchivedConsumer(name, body.config, body.state)


class _StreamMeta(msgspec.Struct):
    """What is read of a stream's meta file."""

    name: str = ""
    created: str = msgspec.field(default=ZERO_TIME, name="Created")


class _ConsumerMeta(msgspec.Struct):
    """What is read of a consumer's meta file beside its configuration."""

    name: str = msgspec.field(default="", name="Name")
    created: str = msgspec.field(default=ZERO_TIME, name="Created")


class _BlockFiles:
    """An archive of nats-server's own files: meta.inf first, then blocks, then those of the consumers."""

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
