"""Reading an object: its chunks in order, their digest checked before the last of them is handed out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from hashlib import sha256
from typing import Self

from jetlake.client.messages.message import Message
from jetlake.client.objects.info import ObjectInfo, is_digest
from jetlake.client.objects.names import chunk_subject
from jetlake.client.objects.upload import Progress
from jetlake.client.ordered.ordered_consume import OrderedConsume
from jetlake.client.streams.stream import Stream
from jetlake.errors import InvalidOptionError, ObjectError

__all__ = ["FoundObject", "ObjectReader"]

FoundObject = tuple[Stream, ObjectInfo]
"""An object behind all links, and the stream that holds it."""

_AHEAD_BYTES = 16 * 1024 * 1024
_AHEAD_MESSAGES_MAX = 1000
_LOOK_FIRST_S = 0.25
_LOOK_MAX_S = 2.0


class ObjectReader:
    """The content of an object, chunk by chunk; made by `ObjectStore.open`.

    Use it as an async context manager and iterate over it. The end is reached only if size and digest are right.
    """

    __slots__ = ("_digest", "_find", "_info", "_left", "_name", "_progress", "_reading", "_size")

    def __init__(
        self, name: str, find: Callable[[str], Awaitable[FoundObject]], progress: Progress | None = None
    ) -> None:
        self._name = name
        self._find = find
        self._progress = progress
        self._info: ObjectInfo | None = None
        self._reading: OrderedConsume | None = None
        self._digest = sha256()
        self._size = 0
        self._left = 0

    def __repr__(self) -> str:
        return f"<ObjectReader of {self._name!r} behind byte {self._size}>"

    @property
    def info(self) -> ObjectInfo:
        """The object that is read; behind a link, the one that the link leads to.

        Raises:
            InvalidOptionError: reading has not begun.
        """
        if self._info is None:
            raise InvalidOptionError("the object is not looked up yet: use `async with`, or await start()")
        return self._info

    async def start(self) -> Self:
        """Find the object and begin; entering the context manager and iterating do it too.

        Raises:
            ObjectNotFoundError: no object has the name.
            ObjectError: the name is a link that cannot be followed, or chunks are missing.
        """
        if self._info is not None:
            return self
        stream, info = await self._find(self._name)
        self._info = info
        self._left = info.chunks
        if info.chunks:
            chunk_bytes = max(1, info.chunk_size, -(-info.size // info.chunks))
            subject = chunk_subject(info.bucket, info.nuid)
            self._reading = stream.ordered(filter_subject=subject, name_prefix="get").consume(
                max_messages=min(max(2, _AHEAD_BYTES // chunk_bytes), _AHEAD_MESSAGES_MAX), stop_after=info.chunks
            )
            try:
                if await self._reading.pending_at_start() < info.chunks:
                    raise self._cut_short()
            except BaseException:
                await self.stop()  # The context manager is not entered, so nobody else ends the read.
                raise
        else:
            self._check_whole()
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End reading."""
        if self._reading is not None:
            await self._reading.stop()

    async def next_batch(self) -> list[bytes]:
        """Return the chunks that are there, at least one; an empty list at the end.

        Raises:
            ObjectError: the content is not what the object store says it is, or was replaced meanwhile.
        """
        await self.start()
        if not self._left:
            return []
        chunks = [message.payload for message in await self._take()]
        self._left -= len(chunks)
        for chunk in chunks:
            self._digest.update(chunk)
            self._size += len(chunk)
        if not self._left:
            self._check_whole()
        if self._progress is not None:
            self._progress(self._size, self.info.size)
        return chunks

    async def _take(self) -> list[Message]:
        assert self._reading is not None
        wait_s = _LOOK_FIRST_S
        while True:
            try:
                async with asyncio.timeout(wait_s) as look:
                    messages = await self._reading.next_batch()
            except TimeoutError:
                if not look.expired():
                    raise
                if await self._reading.is_caught_up():
                    raise self._cut_short() from None
                wait_s = min(_LOOK_MAX_S, wait_s * 2)
                continue
            if not messages:
                raise ObjectError(f"reading {self._name!r} was stopped before its end")
            return messages

    def _check_whole(self) -> None:
        info = self.info
        if self._size != info.size:
            raise ObjectError(f"{self._named()} has {self._size} bytes instead of {info.size}")
        # Some clients give an empty object no digest.
        if (info.digest or info.size) and not is_digest(info.digest, self._digest.digest()):
            raise ObjectError(f"{self._named()} is damaged: its content has another digest than {info.digest!r}")

    def _cut_short(self) -> ObjectError:
        return ObjectError(
            f"{self._named()} lacks chunks: it was replaced or deleted while it was read, or its bucket lost them"
        )

    def _named(self) -> str:
        return f"object {self.info.name!r} of {self.info.bucket!r}"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        own = self._info is None
        try:
            while chunks := await self.next_batch():
                for chunk in chunks:
                    yield chunk
        finally:
            if own:
                await self.stop()

    async def read(self) -> bytes:
        """Return all that is left of the content."""
        return b"".join([chunk async for chunk in self])
