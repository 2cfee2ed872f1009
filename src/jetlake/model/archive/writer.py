"""The writer of archives: the stream's state, consumers and messages in, compressed pieces out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jetlake.model.archive.entries import END, MAGIC, encode_entry
from jetlake.model.archive.items import ConsumerEntry
from jetlake.model.archive.s2 import IDENTIFIER, compress
from jetlake.model.encoding.codec import encode
from jetlake.model.stream import StreamState

__all__ = ["ArchiveWriter"]

BLOCK_BYTES = 64 * 1024
"""The longest block that every reader of Snappy's framing takes."""


class ArchiveWriter:
    """Packs an archive; entries are compressed as soon as a block is full."""

    def __init__(self) -> None:
        self._waiting: list[bytes] = [MAGIC]
        self._waiting_bytes = len(MAGIC)
        self._is_begun = False

    def add_state(self, state: StreamState, time_ns: int) -> None:
        """Begin with the stream's state, whose `consumer_count` is that of the consumers that follow."""
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
