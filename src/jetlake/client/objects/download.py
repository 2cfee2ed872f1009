"""The content of an object on its way into a file."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import BinaryIO

from jetlake.client.objects.info import ObjectInfo
from jetlake.client.objects.reader import ObjectReader
from jetlake.protocol.nuid import next_nuid

__all__ = ["ObjectTarget", "download"]

ObjectTarget = str | os.PathLike[str] | BinaryIO
"""The path of a file, which is replaced when the whole content is there, or a file that is open for writing."""


async def download(reader: ObjectReader, target: ObjectTarget) -> ObjectInfo:
    """Write what a reader reads.

    Raises:
        ObjectError: the content is not what the object store says it is; a file at a path stays as it was.
        OSError: the file can't be written.
    """
    if not isinstance(target, (str, os.PathLike)):
        return await _write(reader, target)
    path = Path(target)
    unfinished = path.with_name(f".{path.name}.{next_nuid()}.part")
    async with reader:  # So that a missing object leaves no trace.
        file = await asyncio.to_thread(unfinished.open, "wb")
        try:
            try:
                info = await _write(reader, file)
                await asyncio.to_thread(_sync, file)
            finally:
                await asyncio.to_thread(file.close)
            await asyncio.to_thread(unfinished.replace, path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        return info


async def _write(reader: ObjectReader, file: BinaryIO) -> ObjectInfo:
    async with reader:
        while chunks := await reader.next_batch():
            await asyncio.to_thread(file.writelines, chunks)
        return reader.info


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
