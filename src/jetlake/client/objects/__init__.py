"""Object stores: buckets of named contents of any size, each cut into chunks that are messages of a stream."""

from __future__ import annotations

from jetlake.client.objects.config import ObjectStoreStatus
from jetlake.client.objects.info import ObjectInfo, ObjectLink
from jetlake.client.objects.reader import ObjectReader
from jetlake.client.objects.store import ObjectStore, ObjectWatch

__all__ = ["ObjectInfo", "ObjectLink", "ObjectReader", "ObjectStore", "ObjectStoreStatus", "ObjectWatch"]


def __dir__() -> list[str]:
    return sorted(__all__)
