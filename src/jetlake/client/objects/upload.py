"""The upload of an object: its content cut into chunks, published in order, many under way at once."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from hashlib import sha256
from inspect import isawaitable
from pathlib import Path
from typing import Any, BinaryIO, cast

from jetlake.client.objects.config import chunk_subject
from jetlake.client.objects.info import written_digest
from jetlake.client.publish.pending_ack import PendingAck
from jetlake.client.publish.publisher import Publisher
from jetlake.client.settings.wire_values import payload_bytes
from jetlake.client.streams.backup import bytes_left
from jetlake.errors import InvalidOptionError, ObjectError

Progress = Callable[[int, int], object]
"""Called with the bytes transferred so far, and how many there are; 0 while that is unknown."""

_UNDER_WAY_BYTES_MAX = 8 * 1024 * 1024
# A slow line may need longer for all chunks under way than a request for its answer.
_ACK_TIMEOUT_S = 30.0


class Upload:
    """The chunks of one object on their way to the stream.

    Args:
        publisher: publishes them.
        bucket: the object store.
        nuid: the id of the content.

    Attributes:
        size: bytes that were published.
        chunks: messages that were published.
        digest: the digest of the content, once `send` has ended.
    """

    __slots__ = ("_last_sequence", "_nuid", "_publisher", "_subject", "_under_way", "chunks", "digest", "size")

    def __init__(self, publisher: Publisher, bucket: str, nuid: str) -> None:
        self._publisher = publisher
        self._subject = chunk_subject(bucket, nuid)
        self._nuid = nuid
        self._under_way: deque[PendingAck] = deque()
        self._last_sequence = 0
        self.size = 0
        self.chunks = 0
        self.digest = ""

    async def send(self, content: ObjectContent, chunk_bytes: int, progress: Progress | None) -> None:
        """Publish the content; returns when the stream has all of it.

        Raises:
            ApiError: the stream refuses a chunk.
            ObjectError: the stream stored the chunks in another order.
            JetlakeError: a chunk was not acknowledged.
        """
        total = await content_size(content) if progress is not None else 0
        digest = sha256()
        async for chunk in cut(content, chunk_bytes):
            digest.update(chunk)
            await self._publish(chunk)
            while self._under_way and (self._under_way[0].is_done or self._is_full(chunk_bytes)):
                await self._take_ack()
            if progress is not None:
                progress(self.size, total)
        while self._under_way:
            await self._take_ack()
        self.digest = written_digest(digest.digest())

    def _is_full(self, chunk_bytes: int) -> bool:
        return len(self._under_way) * chunk_bytes >= _UNDER_WAY_BYTES_MAX

    async def _publish(self, chunk: bytes) -> None:
        # With an id a chunk is sent again on the next connection, and stored once. Without an answer of a stream it is
        # not sent again: later chunks would be stored before it.
        pending = await self._publisher.publish_async(
            self._subject, chunk, {"msg_id": f"{self._nuid}.{self.chunks}", "retries": 0, "timeout": _ACK_TIMEOUT_S}
        )
        pending.observe()
        self._under_way.append(pending)
        self.chunks += 1
        self.size += len(chunk)

    async def _take_ack(self) -> None:
        ack = await self._under_way.popleft()
        if ack.seq <= self._last_sequence:
            raise ObjectError(f"stream {ack.stream} stored the chunks on {self._subject} out of order; put them again")
        self._last_sequence = ack.seq

    async def wait_for_acks(self, timeout_s: float) -> bool:
        """Wait for the answers of an upload that failed; False if some did not come in time."""
        waiting, self._under_way = self._under_way, deque()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*waiting, return_exceptions=True)
        except TimeoutError:
            return False
        return True


ObjectContent = bytes | bytearray | memoryview | os.PathLike[str] | BinaryIO | Iterable[bytes] | AsyncIterable[bytes]
"""The content of an object: bytes, the path of a file, a file open for reading, or an iterator of bytes."""

_BLOCK_BYTES = 1024 * 1024


def is_repeatable(content: ObjectContent) -> bool:
    """Return whether the content can be read from its beginning once more."""
    return isinstance(content, (bytes, bytearray, memoryview, os.PathLike))


async def content_size(content: ObjectContent) -> int:
    """Return the size of the content in bytes; 0 if it is unknown before the end."""
    if isinstance(content, (bytes, bytearray)):
        return len(content)
    if isinstance(content, memoryview):
        return content.nbytes
    if isinstance(content, os.PathLike):
        return (await asyncio.to_thread(os.stat, content)).st_size
    return await asyncio.to_thread(bytes_left, cast("BinaryIO", content)) if _is_file(content) else 0


async def cut(content: ObjectContent, chunk_bytes: int) -> AsyncIterator[bytes]:
    """Yield the content in chunks of this size, the last one smaller.

    Files are read, and plain iterators are advanced, in a thread.

    Raises:
        InvalidOptionError: not a content, or an iterator of something else than bytes.
        OSError: the file can't be read.
    """
    if isinstance(content, (bytes, bytearray, memoryview)):
        whole = memoryview(content).cast("B")
        for start in range(0, len(whole), chunk_bytes):
            yield bytes(whole[start : start + chunk_bytes])
        return
    rest = bytearray()
    async for block in _blocks(content, max(1, _BLOCK_BYTES // chunk_bytes) * chunk_bytes):
        if not rest and len(block) == chunk_bytes and type(block) is bytes:
            yield block
            continue
        rest += block
        end = len(rest) - len(rest) % chunk_bytes
        for start in range(0, end, chunk_bytes):
            yield bytes(rest[start : start + chunk_bytes])
        del rest[:end]
    if rest:
        yield bytes(rest)


async def _blocks(content: Any, block_bytes: int) -> AsyncIterator[bytes]:
    if isinstance(content, os.PathLike):
        file = await asyncio.to_thread(Path(content).open, "rb")
        try:
            while block := await asyncio.to_thread(file.read, block_bytes):
                yield block
        finally:
            await asyncio.to_thread(file.close)
    elif isinstance(content, AsyncIterable):
        async for block in content:
            yield payload_bytes(block)
    elif _is_file(content):
        while True:
            block = await asyncio.to_thread(content.read, block_bytes)
            block = payload_bytes(await block if isawaitable(block) else block)
            if not block:
                return
            yield block
    elif isinstance(content, Iterable) and not isinstance(content, str):
        blocks = iter(content)
        while taken := await asyncio.to_thread(_take, blocks, block_bytes):
            yield b"".join(taken)
    else:
        hint = ": encode the text, or give a pathlib.Path" if isinstance(content, str) else ""
        raise InvalidOptionError(
            f"the content of an object must be bytes, a path, an open file or an iterator of bytes,"
            f" not {type(content).__name__}{hint}"
        )


def _is_file(content: object) -> bool:
    return not isinstance(content, AsyncIterable) and hasattr(content, "read")


def _take(blocks: Iterator[bytes], block_bytes: int) -> list[bytes]:
    """Return the iterator's next values, enough for a block; none at the end."""
    taken: list[bytes] = []
    size = 0
    for block in blocks:
        taken.append(payload_bytes(block))
        size += len(block)
        if size >= block_bytes:
            break
    return taken
