"""The removal of chunks that belong to no object: those of writers that died, or lost their connection, half-way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from jetlake.client.objects.info import ObjectInfo
from jetlake.client.objects.names import chunk_prefix
from jetlake.client.streams.stream import Stream
from jetlake.errors import MessageNotFoundError
from jetlake.model.encoding.times import parse_time

__all__ = ["purge_orphans"]


async def purge_orphans(
    stream: Stream, bucket: str, objects: Callable[[], Awaitable[Sequence[ObjectInfo]]], older_than_ns: int
) -> int:
    """Purge the chunks of contents that no object has and nobody has added to for a while.

    Args:
        stream: holds the object store.
        bucket: the object store's name.
        objects: lists the objects.
        older_than_ns: how long ago the newest chunk of a content must have been stored.

    Returns:
        How many contents were purged.
    """
    # Chunks first: what becomes an object while this runs is then among the objects.
    info = await stream.info(subjects_filter=chunk_prefix(bucket) + "*")
    now_ns = parse_time(info.ts)  # By the clock that the chunks' times are of.
    owned = {chunk_prefix(bucket) + found.nuid for found in await objects()}
    purged = 0
    for subject in info.state.subjects.keys() - owned:
        try:
            newest = await stream.get(last_by_subject=subject, direct=False)
        except MessageNotFoundError:
            continue
        if now_ns - newest.time_ns >= older_than_ns:
            await stream.purge(subject=subject)
            purged += 1
    return purged
