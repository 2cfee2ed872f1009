"""The object stores of a JetStream context."""

from __future__ import annotations

from functools import partial

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.objects.config import ObjectStoreOptions, object_store_config
from jetlake.client.objects.names import STREAM_PREFIX
from jetlake.client.objects.store import ObjectStore
from jetlake.client.publish.publisher import Publisher
from jetlake.client.streams.buckets import Buckets
from jetlake.client.streams.stream import Stream
from jetlake.errors import InvalidOptionError
from jetlake.model.stream import StreamInfo

__all__ = ["object_stores"]


def object_stores(api: ApiCaller, publisher: Publisher) -> Buckets[ObjectStore, ObjectStoreOptions]:
    """Return the object stores.

    Args:
        api: manages their streams.
        publisher: writes their chunks.
    """
    return Buckets(
        api,
        prefix=STREAM_PREFIX,
        subjects="$O.*.C.>",
        configure=object_store_config,
        handle=partial(_handle, api, publisher),
    )


def _handle(api: ApiCaller, publisher: Publisher, info: StreamInfo) -> ObjectStore:
    config = info.config
    bucket = config.name.removeprefix(STREAM_PREFIX)
    if f"$O.{bucket}.M.>" not in config.subjects:
        raise InvalidOptionError(f"stream {config.name!r} is no object store: it does not take $O.{bucket}.M.>")
    return ObjectStore(publisher, Stream(api, info), partial(_open, api, publisher))


async def _open(api: ApiCaller, publisher: Publisher, bucket: str) -> ObjectStore:
    # Made anew, since buckets and handles that hold each other would keep the window of a context that nobody uses.
    return await object_stores(api, publisher).get(bucket)
