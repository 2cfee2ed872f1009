"""Archives of streams: the reader of both formats, and the writer of the current one.

An archive is S2-compressed. Its first decompressed bytes name the format: NATSARC1, which nats-server 2.15 and this
module write, or a tar of block files, which older servers wrote (`block_files`). A NATSARC1 archive is a sequence of
entries, each with a name, a time, a sequence, a header and a payload:

    NATSARC1 | state.json | consumers/<name> ... | <subject> ... | empty entry

Both ends work in pieces of any size, and hold no more than one entry or one block of 64 KiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from jetlake.errors import DecodeError
from jetlake.model.archive.block_files import BlockFiles
from jetlake.model.archive.items import (
    ArchivedConsumer,
    ArchivedMessage,
    ArchivedState,
    ConsumerEntry,
    ConsumerPosition,
    Item,
)
from jetlake.model.archive.s2 import IDENTIFIER, S2Reader, compress
from jetlake.model.encoding.codec import decode, encode
from jetlake.model.stream import StreamState

_STATE = b"state.json"
_CONSUMERS = b"consumers/"
_JSON_BYTES_MAX = 64 * 1024 * 1024


class _Format(Protocol):
    """The contract of the two formats."""

    def feed(self, data: bytes) -> Iterator[Item]:
        """Yield the items that a piece of the decompressed archive completes."""
        ...

    def finish(self) -> Iterator[Item]:
        """Yield the remaining items at the end of the archive.

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
                    self._format = BlockFiles(self._stream)
            yield from self._format.feed(block)

    def finish(self) -> Iterator[Item]:
        """Yield the remaining items after the last piece.

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
        _check_range(state)
        self._consumers_left = state.consumer_count
        return ArchivedState(state.first_seq, state.last_seq, messages=state.messages)

    def finish(self) -> Iterator[Item]:
        if not self._entries.is_ended or self._consumers_left:
            raise DecodeError("unexpected EOF")
        yield from ()


def _check_range(state: StreamState) -> None:
    """Check that a stream can have such a range of sequences, and this many messages in it.

    Raises:
        DecodeError: it cannot; in nats-server's words.
    """
    first, last, messages = state.first_seq, state.last_seq, state.messages
    has_no_first = not first and (last or messages)
    if has_no_first or first > last + 1 or (messages and first > last):
        raise DecodeError("invalid stream state: inconsistent message count or sequence range")
    if messages > last - first + 1:
        raise DecodeError("invalid stream state: message count exceeds sequence range")


def _check_position(name: str, position: ConsumerPosition) -> None:
    """Check that a consumer can stand there.

    Raises:
        DecodeError: it cannot; in nats-server's words.
    """
    delivered, floor = position.delivered, position.ack_floor
    reason = ""
    if floor.consumer_seq > delivered.consumer_seq:
        reason = "bad ack floor for consumer"
    elif floor.stream_seq > delivered.stream_seq:
        reason = "bad ack floor for stream"
    else:
        for sequence in position.pending:
            if not floor.stream_seq < sequence <= delivered.stream_seq:
                reason = f"bad pending entry, sequence [{sequence}] out of range"
                break
    if reason:
        raise DecodeError(f'failed to set consumer "{name}" state: {reason}')


def _consumer(entry: Entry) -> ArchivedConsumer:
    if not entry.name.startswith(_CONSUMERS):
        raise DecodeError("consumers must precede messages")
    name = entry.name[len(_CONSUMERS) :].decode("utf-8", "replace")
    body = decode(ConsumerEntry, entry.payload)
    _check_position(name, body.state)
    return ArchivedConsumer(name, body.config, body.state)


BLOCK_BYTES = 64 * 1024
"""The longest block that every reader of Snappy's framing takes."""


class ArchiveWriter:
    """Packs an archive; entries are compressed as soon as a block is full."""

    def __init__(self) -> None:
        self._waiting: list[bytes] = [MAGIC]
        self._waiting_bytes = len(MAGIC)
        self._is_begun = False

    def add_state(self, state: StreamState, time_ns: int) -> None:
        """Begin with the stream's state, whose `consumer_count` counts the consumers that follow."""
        self._add(encode_entry(b"state.json", time_ns, 0, b"", encode(state)))

    def add_consumer(self, name: str, consumer: ConsumerEntry, time_ns: int) -> None:
        """Add a consumer with its position."""
        self._add(encode_entry(b"consumers/" + name.encode(), time_ns, 0, b"", encode(consumer)))

    def add_messages(self, messages: Iterable[tuple[bytes, int, int, bytes, bytes]]) -> None:
        """Add messages in ascending order: subject, time, sequence, header and payload each."""
        for message in messages:
            self._add(encode_entry(*message))

    def _add(self, entry: bytes) -> None:
        self._waiting.append(entry)
        self._waiting_bytes += len(entry)

    def take(self) -> Iterator[bytes]:
        """Yield the compressed blocks that are full."""
        if self._waiting_bytes >= BLOCK_BYTES:
            yield from self._compressed(b"".join(self._waiting))

    def finish(self) -> Iterator[bytes]:
        """Yield the rest, with the end of the archive."""
        data = b"".join((*self._waiting, END))
        yield from self._compressed(data)
        if self._waiting_bytes:
            yield compress(self._waiting[0])
            self._waiting, self._waiting_bytes = [], 0

    def _compressed(self, data: bytes) -> Iterator[bytes]:
        if not self._is_begun:
            self._is_begun = True
            yield IDENTIFIER
        whole = len(data) - len(data) % BLOCK_BYTES
        rest = data[whole:]
        self._waiting, self._waiting_bytes = [rest], len(rest)
        for start in range(0, whole, BLOCK_BYTES):
            yield compress(data[start : start + BLOCK_BYTES])


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
