"""The upload of an object's chunks: many under way at once, up to a limit of bytes, each acknowledged, all in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from hashlib import sha256

from jetlake.client.objects.content import ObjectContent, content_size, cut
from jetlake.client.objects.info import written_digest
from jetlake.client.objects.names import chunk_subject
from jetlake.client.publish.pending_ack import PendingAck
from jetlake.client.publish.publisher import Publisher
from jetlake.errors import ObjectError

__all__ = ["Progress", "Upload"]

Progress = Callable[[int, int], object]
"""Called with the bytes that were moved so far, and how many there are; 0 where nobody knows before the end."""

_UNDER_WAY_BYTES_MAX = 8 * 1024 * 1024
# A slow line may need longer for all that is under way than a request for its answer.
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
        # With an id a chunk is sent again on the next connection, and stored once. A chunk that finds no stream is not
        # sent again: others would be stored before it.
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

    async def settle(self, timeout_s: float) -> bool:
        """Wait for the answers of an upload that failed; False if some did not come in time."""
        waiting, self._under_way = self._under_way, deque()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*waiting, return_exceptions=True)
        except TimeoutError:
            return False
        return True
