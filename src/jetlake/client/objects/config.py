"""The options of an object store, and the stream that holds it."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from jetlake.client.api.config_options import configured
from jetlake.client.objects.names import stream_name
from jetlake.errors import InvalidOptionError
from jetlake.model.encoding.durations import Seconds
from jetlake.model.stream import Placement, StreamConfig

__all__ = ["ObjectStoreOptions", "object_store_config"]


class ObjectStoreOptions(TypedDict, total=False):
    """The options of an object store."""

    description: str
    """Free text, up to 4096 bytes."""
    ttl: Seconds
    """Seconds that an object lives. Default: for ever."""
    max_bytes: int
    """Most bytes of the object store; a full one refuses new objects."""
    storage: Literal["file", "memory"]
    """Where it is kept. Default: file."""
    num_replicas: int
    """Copies in a cluster. Default 1."""
    compression: Literal["none", "s2"]
    """How it is compressed."""
    placement: Placement | dict[str, Any]
    """The servers of a cluster that may hold it."""
    metadata: dict[str, str]
    """Free keys and values."""


def object_store_config(bucket: str, options: ObjectStoreOptions) -> StreamConfig:
    """Return the stream that holds an object store.

    Raises:
        InvalidOptionError: an option that does not exist, or a value that cannot work.
    """
    given: dict[str, Any] = dict(options)
    unknown = given.keys() - ObjectStoreOptions.__annotations__.keys()
    if unknown:
        known = ", ".join(sorted(ObjectStoreOptions.__annotations__))
        raise InvalidOptionError(f"an object store has no option {min(unknown)!r}; it has {known}")
    return configured(
        StreamConfig,
        {
            "name": stream_name(bucket),
            "subjects": [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"],
            "max_age": given.pop("ttl", None),
            # A full object store refuses an object rather than lose chunks of others.
            "discard": "new",
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            **given,
        },
    )
