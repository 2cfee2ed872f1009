"""The status of an object store: its limits and its size, read from its stream's info."""

from __future__ import annotations

from msgspec import Struct

from jetlake.client.objects.names import STREAM_PREFIX
from jetlake.model.encoding.durations import seconds
from jetlake.model.stream import StreamInfo

__all__ = ["ObjectStoreStatus", "read_status"]


class ObjectStoreStatus(Struct, frozen=True):
    """An object store, as the server described it."""

    bucket: str
    """The object store's name."""
    description: str
    """Free text."""
    bytes: int
    """Bytes in it, chunks and descriptions together."""
    ttl_s: float
    """Seconds that an object lives; 0 for ever."""
    is_sealed: bool
    """Whether nothing in it can be changed any more."""
    stream: StreamInfo
    """The info of the stream that holds it."""


def read_status(info: StreamInfo) -> ObjectStoreStatus:
    """Return the object store that a stream holds."""
    config = info.config
    return ObjectStoreStatus(
        config.name.removeprefix(STREAM_PREFIX),
        config.description,
        info.state.bytes,
        seconds(config.max_age),
        config.sealed,
        info,
    )
