"""What a bucket can be told, and the stream that holds it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypedDict

from msgspec import structs

from jetlake.client.api.config_options import configured
from jetlake.client.kv.names import STREAM_PREFIX, stream_name, subject_prefix
from jetlake.errors import InvalidOptionError
from jetlake.model.encoding.durations import Seconds
from jetlake.model.stream import Placement, Republish, StreamConfig, StreamSource

__all__ = ["BucketOptions", "bucket_config"]

_HISTORY_MAX = 64


class BucketOptions(TypedDict, total=False):
    """What a bucket can be told."""

    description: str
    """Free text, up to 4096 bytes."""
    history: int
    """How many revisions of a key are kept, 1 to 64. Default 1."""
    ttl: Seconds
    """Seconds that a revision lives. Default: for ever."""
    max_value_size: int
    """Largest value, bytes."""
    max_bytes: int
    """Most bytes of the bucket; a full one refuses new values."""
    storage: Literal["file", "memory"]
    """Where it is kept. Default: file."""
    num_replicas: int
    """Copies in a cluster. Default 1."""
    compression: Literal["none", "s2"]
    """How it is compressed."""
    limit_marker_ttl: Seconds
    """Seconds that the marker of a key whose time is over lives; allows keys a life of their own."""
    placement: Placement | dict[str, Any]
    """Where in a cluster."""
    republish: Republish | dict[str, Any]
    """Publishes changes again."""
    mirror: StreamSource | dict[str, Any]
    """The bucket of which this is a copy, by its name: values are read here and written there."""
    sources: Iterable[StreamSource | dict[str, Any]]
    """Streams from which this one copies."""
    metadata: dict[str, str]
    """Free keys and values."""


def bucket_config(bucket: str, options: BucketOptions) -> StreamConfig:
    """The stream that holds a bucket.

    Raises:
        InvalidOptionError: an option that does not exist, or a value that cannot work.
    """
    given: dict[str, Any] = dict(options)
    history = given.pop("history", 1)
    if isinstance(history, bool) or not isinstance(history, int) or not 1 <= history <= _HISTORY_MAX:
        raise InvalidOptionError(f"history is 1 to {_HISTORY_MAX} revisions of a key, not {history!r}")
    marker_ttl = given.pop("limit_marker_ttl", None)
    unknown = given.keys() - BucketOptions.__annotations__.keys()
    if unknown:
        known = ", ".join(sorted(BucketOptions.__annotations__))
        raise InvalidOptionError(f"a bucket has no option {min(unknown)!r}; it has {known}")
    mirror = given.pop("mirror", None)
    if mirror is not None:
        origin = mirror if isinstance(mirror, dict) else structs.asdict(mirror)
        name = str(origin.get("name", "")).removeprefix(STREAM_PREFIX)
        given |= {"mirror": {**origin, "name": stream_name(name)}, "mirror_direct": True}
    return configured(
        StreamConfig,
        {
            "name": stream_name(bucket),
            "subjects": [subject_prefix(bucket) + ">"] if mirror is None else [],
            "max_msgs_per_subject": history,
            "max_age": given.pop("ttl", None),
            "max_msg_size": given.pop("max_value_size", None),
            # Values are replaced by newer ones, never pushed out by those of other keys.
            "discard": "new",
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
            "allow_msg_ttl": marker_ttl is not None,
            "subject_delete_marker_ttl": marker_ttl,
            **given,
        },
    )
