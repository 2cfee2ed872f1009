"""The status of a bucket: its limits and its size, read from its stream's info."""

from __future__ import annotations

from msgspec import Struct

from jetlake.client.kv.names import STREAM_PREFIX
from jetlake.model.encoding.durations import seconds
from jetlake.model.stream import StreamInfo

__all__ = ["BucketStatus", "read_status"]


class BucketStatus(Struct, frozen=True):
    """A bucket, as the server described it."""

    bucket: str
    """The bucket's name."""
    values: int
    """Revisions in it, markers included."""
    history: int
    """How many revisions of a key are kept."""
    ttl_s: float
    """Seconds that a revision lives; 0 for ever."""
    limit_marker_ttl_s: float
    """Seconds that the marker of a key whose time is over lives; 0 when keys have no life of their own."""
    bytes: int
    """Bytes in it."""
    stream: StreamInfo
    """The info of the stream that holds it."""


def read_status(info: StreamInfo) -> BucketStatus:
    """Return the bucket that a stream holds."""
    config = info.config
    return BucketStatus(
        config.name.removeprefix(STREAM_PREFIX),
        info.state.messages,
        config.max_msgs_per_subject,
        seconds(config.max_age),
        seconds(config.subject_delete_marker_ttl),
        info.state.bytes,
        info,
    )
