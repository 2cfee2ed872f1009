"""Object stores: what they hold, and one object's content as it is read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from jetlake.client.objects.info import ObjectInfo
from jetlake.client.streams.buckets import check_bucket
from jetlake.dashboard.watching.listing import Listing, listed
from jetlake.dashboard.watching.server_api import ServerApi
from jetlake.model.encoding.times import format_time

__all__ = ["OBJECT_PREFIX", "object_content", "objects_page"]

OBJECT_PREFIX = "OBJ_"
"""What the names of streams begin with that are object stores."""


async def objects_page(api: ServerApi, bucket: str, listing: Listing) -> dict[str, Any]:
    """Return one page of a store's objects."""
    store = await api.jetstream.object_store(check_bucket(bucket))
    infos = await store.list()
    orders = {"name": lambda one: one.name, "size": lambda one: one.size, "time": lambda one: one.modified_ns}
    return listed(infos, listing, search=lambda one: f"{one.name} {one.description}", orders=orders, shown=_shown)


def _shown(info: ObjectInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "size": info.size,
        "chunks": info.chunks,
        "digest": info.digest,
        "description": info.description,
        "metadata": info.metadata,
        "headers": info.headers,
        "time": format_time(info.modified_ns),
        "link": "" if info.link is None else f"{info.link.bucket}/{info.link.name}",
    }


async def object_content(api: ServerApi, bucket: str, name: str) -> AsyncIterator[bytes]:
    """Return the pieces of an object's content, as they are read: an object may be larger than memory.

    Raises:
        ObjectNotFoundError: there is none; raised before the first piece.
    """
    store = await api.jetstream.object_store(check_bucket(bucket))
    await store.info(name)

    async def pieces() -> AsyncIterator[bytes]:
        async with store.open(name) as reader:
            async for piece in reader:
                yield piece

    return pieces()
