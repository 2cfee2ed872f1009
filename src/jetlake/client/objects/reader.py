"""Reading an object: its chunks in order, with the digest checked before the last chunk is handed out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Self

from jetlake import platform
from jetlake.client.messages.message import Message
from jetlake.client.objects.config import chunk_subject
from jetlake.client.objects.info import ObjectInfo, is_digest
from jetlake.client.objects.upload import Progress
from jetlake.client.ordered.ordered import OrderedConsume
from jetlake.client.streams.stream import Stream
from jetlake.errors import InvalidOptionError, ObjectError
from jetlake.protocol.nuid import next_nuid

FoundObject = tuple[Stream, ObjectInfo]
"""An object behind all links, and the stream that holds it."""

_AHEAD_BYTES = 16 * 1024 * 1024
_AHEAD_MESSAGES_MAX = 1000
_LOOK_FIRST_S = 0.25
_LOOK_MAX_S = 2.0
# How long a replica may lag behind the leader while an object is read through it.
_LAG_MAX_S = 30.0


class ObjectReader:
    """The content of an object, chunk by chunk; created by `ObjectStore.open`.

    Use it as an async context manager and iterate over it. The end is reached only if size and digest are right.

    Attributes:
        name: the name that is read.
    """

    __slots__ = ("_digest", "_find", "_info", "_left", "_progress", "_reading", "_size", "_stream", "name")

    def __init__(
        self, name: str, find: Callable[[str], Awaitable[FoundObject]], progress: Progress | None = None
    ) -> None:
        self.name = name
        self._find = find
        self._progress = progress
        self._info: ObjectInfo | None = None
        self._stream: Stream | None = None
        self._reading: OrderedConsume | None = None
        self._digest = sha256()
        self._size = 0
        self._left = 0

    def __repr__(self) -> str:
        return f"<ObjectReader of {self.name!r} after byte {self._size}>"

    @property
    def info(self) -> ObjectInfo:
        """The object that is read; behind a link, the one that the link leads to.

        Raises:
            InvalidOptionError: reading has not begun.
        """
        if self._info is None:
            raise InvalidOptionError("the object has not been looked up yet: use `async with`, or await start()")
        return self._info

    async def start(self) -> Self:
        """Find the object and start; entering the context manager and iterating do it too.

        Raises:
            ObjectNotFoundError: no object has the name.
            ObjectError: the name is a link that cannot be followed, or chunks are missing.
        """
        if self._info is not None:
            return self
        stream, info = await self._find(self.name)
        self._info, self._stream = info, stream
        self._left = info.chunks
        if info.chunks:
            chunk_bytes = max(1, info.chunk_size, -(-info.size // info.chunks))
            subject = chunk_subject(info.bucket, info.nuid)
            self._reading = stream.ordered(filter_subject=subject, name_prefix="get").consume(
                max_messages=min(max(2, _AHEAD_BYTES // chunk_bytes), _AHEAD_MESSAGES_MAX), stop_after=info.chunks
            )
            try:
                if await self._reading.pending_at_start() < info.chunks and not await self._is_stored():
                    raise self._cut_short()
            except BaseException:
                await self.stop()  # The context manager is not entered, so its end does not stop the read.
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
        """Return the chunks that have arrived, at least one; an empty list at the end.

        Raises:
            ObjectError: the content has another size or digest than its description, or was replaced meanwhile.
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
        wait_s, waited_s = _LOOK_FIRST_S, 0.0
        while True:
            try:
                async with asyncio.timeout(wait_s) as look:
                    messages = await self._reading.next_batch()
            except TimeoutError:
                if not look.expired():
                    raise
                waited_s += wait_s
                if await self._reading.is_caught_up() and (waited_s > _LAG_MAX_S or not await self._is_stored()):
                    raise self._cut_short() from None
                wait_s = min(_LOOK_MAX_S, wait_s * 2)
                continue
            if not messages:
                raise ObjectError(f"reading {self.name!r} was stopped before its end")
            return messages

    async def _is_stored(self) -> bool:
        """Ask the stream's leader whether it has all chunks: the consumer may be on a replica that lags."""
        assert self._stream is not None
        subject = chunk_subject(self.info.bucket, self.info.nuid)
        return (await self._stream.info(subjects_filter=subject)).state.subjects.get(subject, 0) >= self.info.chunks

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
        """Return the rest of the content."""
        return b"".join([chunk async for chunk in self])


ObjectTarget = str | os.PathLike[str] | BinaryIO
"""The path of a file, which is replaced when the whole content is there, or a file that is open for writing."""


async def download(reader: ObjectReader, target: ObjectTarget) -> ObjectInfo:
    """Write the content of a reader to a file.

    Raises:
        ObjectError: the content has another size or digest than its description; a file at a path stays unchanged.
        OSError: the file can't be written.
    """
    if not isinstance(target, (str, os.PathLike)):
        return await _write(reader, target)
    path = Path(target)
    unfinished = path.with_name(f".{path.name}.{next_nuid()}.part")
    async with reader:  # Entered first, so that a missing object leaves no file.
        file = await asyncio.to_thread(unfinished.open, "wb")
        try:
            try:
                info = await _write(reader, file)
                await asyncio.to_thread(_sync, file)
            finally:
                await asyncio.to_thread(file.close)
            await asyncio.to_thread(_rename, unfinished, path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        return info


async def _write(reader: ObjectReader, file: BinaryIO) -> ObjectInfo:
    async with reader:
        while chunks := await reader.next_batch():
            await asyncio.to_thread(file.writelines, chunks)
        return reader.info


def _rename(unfinished: Path, path: Path) -> None:
    unfinished.replace(path)
    platform.sync_directory(path.parent)


def _sync(file: BinaryIO) -> None:
    file.flush()
    platform.sync_data(file.fileno())
