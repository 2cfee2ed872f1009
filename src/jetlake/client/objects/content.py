"""The content of an object as its writer gives it, cut into chunks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from inspect import isawaitable
from pathlib import Path
from typing import Any, BinaryIO, cast

from jetlake.client.settings.wire_values import payload_bytes
from jetlake.client.streams.file_size import bytes_left
from jetlake.errors import InvalidOptionError

__all__ = ["ObjectContent", "content_size", "cut", "is_repeatable"]

ObjectContent = bytes | bytearray | memoryview | os.PathLike[str] | BinaryIO | Iterable[bytes] | AsyncIterable[bytes]
"""What an object can be made of: bytes, the path of a file, a file open for reading, or an iterator of bytes."""

_BLOCK_BYTES = 1024 * 1024


def is_repeatable(content: ObjectContent) -> bool:
    """Return whether the content can be read from its beginning once more."""
    return isinstance(content, (bytes, bytearray, memoryview, os.PathLike))


async def content_size(content: ObjectContent) -> int:
    """Return how many bytes the content has; 0 where nobody knows before the end."""
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
        InvalidOptionError: the content is none, or gives something else than bytes.
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
        pieces = iter(content)
        while taken := await asyncio.to_thread(_take, pieces, block_bytes):
            yield b"".join(taken)
    else:
        hint = ": encode the text, or give a pathlib.Path" if isinstance(content, str) else ""
        raise InvalidOptionError(
            f"an object is made of bytes, a path, an open file or an iterator of bytes,"
            f" not {type(content).__name__}{hint}"
        )


def _is_file(content: object) -> bool:
    return not isinstance(content, AsyncIterable) and hasattr(content, "read")


def _take(pieces: Iterator[bytes], block_bytes: int) -> list[bytes]:
    """Return the next pieces, enough for a block; none at the end."""
    taken: list[bytes] = []
    size = 0
    for piece in pieces:
        taken.append(payload_bytes(piece))
        size += len(piece)
        if size >= block_bytes:
            break
    return taken
