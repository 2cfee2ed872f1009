"""The options, names and status of buckets, and the streams and subjects that hold them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, TypedDict

from msgspec import Struct, structs

from jetlake.client.api.config_options import configured
from jetlake.client.streams.buckets import check_bucket
from jetlake.errors import InvalidOptionError
from jetlake.model.encoding.durations import Seconds, seconds
from jetlake.model.stream import Placement, Republish, StreamConfig, StreamInfo, StreamSource

_HISTORY_MAX = 64


class BucketOptions(TypedDict, total=False):
    """The options of a bucket."""

    description: str
    """Free text, up to 4096 bytes."""
    history: int
    """How many revisions of a key are kept, 1 to 64. Default 1."""
    ttl: Seconds
    """Seconds that a revision lives. Default: no limit."""
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
    """The servers of a cluster that may hold it."""
    republish: Republish | dict[str, Any]
    """Publishes changes again."""
    mirror: StreamSource | dict[str, Any]
    """The bucket of which this is a copy, by its name: values are read here and written there."""
    sources: Iterable[StreamSource | dict[str, Any]]
    """Buckets from which this one copies, by their names; their keys become keys of this bucket."""
    metadata: dict[str, str]
    """Free keys and values."""


def bucket_config(bucket: str, options: BucketOptions) -> StreamConfig:
    """Return the stream that holds a bucket.

    Raises:
        InvalidOptionError: an option that does not exist, or a value that cannot work.
    """
    given: dict[str, Any] = dict(options)
    history = given.pop("history", 1)
    if isinstance(history, bool) or not isinstance(history, int) or not 1 <= history <= _HISTORY_MAX:
        raise InvalidOptionError(f"history must be 1 to {_HISTORY_MAX} revisions of a key, not {history!r}")
    marker_ttl = given.pop("limit_marker_ttl", None)
    unknown = given.keys() - BucketOptions.__annotations__.keys()
    if unknown:
        known = ", ".join(sorted(BucketOptions.__annotations__))
        raise InvalidOptionError(f"a bucket has no option {min(unknown)!r}; it has {known}")
    mirror = given.pop("mirror", None)
    if mirror is not None:
        given |= {"mirror": _origin(mirror)[1], "mirror_direct": True}
    if "sources" in given:
        given["sources"] = [source_of(bucket, source) for source in given["sources"]]
    return configured(
        StreamConfig,
        {
            "name": stream_name(bucket),
            "subjects": [subject_prefix(bucket) + ">"] if mirror is None else [],
            "max_msgs_per_subject": history,
            "max_age": given.pop("ttl", None),
            "max_msg_size": given.pop("max_value_size", None),
            # Values are replaced by newer ones, never removed for values of other keys.
            "discard": "new",
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
            "allow_msg_ttl": marker_ttl is not None,
            "subject_delete_marker_ttl": marker_ttl,
            **given,
        },
    )


def _origin(source: StreamSource | dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of the bucket that is copied, and the options with its stream instead."""
    origin = source if isinstance(source, dict) else structs.asdict(source)
    bucket = str(origin.get("name", "")).removeprefix(STREAM_PREFIX)
    return bucket, {**origin, "name": stream_name(bucket)}


def source_of(bucket: str, source: StreamSource | dict[str, Any]) -> dict[str, Any]:
    """Return a source whose keys become keys of this bucket, unless the source says otherwise."""
    name, origin = _origin(source)
    if origin.get("subject_transforms"):
        return origin
    pattern = origin.pop("filter_subject", None) or subject_prefix(name) + ">"
    target = subject_prefix(bucket) + pattern.removeprefix(subject_prefix(name))
    count = 0
    tokens = target.split(".")
    for position, token in enumerate(tokens):
        if token == "*":
            count += 1
            tokens[position] = f"{{{{wildcard({count})}}}}"
    return {**origin, "subject_transforms": [{"src": pattern, "dest": ".".join(tokens)}]}


STREAM_PREFIX = "KV_"
"""The prefix of the names of buckets' streams."""

_KEY = re.compile(r"[-/_=a-zA-Z0-9]+(\.[-/_=a-zA-Z0-9]+)*")
_PATTERN = re.compile(r"([-/_=a-zA-Z0-9]+|\*)(\.([-/_=a-zA-Z0-9]+|\*))*(\.>)?|>")


def check_key(key: str) -> str:
    """Check the name of a key, and return it.

    Raises:
        InvalidOptionError: not dot-separated tokens of letters, digits and `-/_=`.
    """
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise InvalidOptionError(f"a key must consist of dot-separated tokens of letters, digits and -/_=, not {key!r}")
    return key


def check_pattern(pattern: str) -> str:
    """Check a key, or a pattern of keys with `*` for one token and `>` for the rest.

    Raises:
        InvalidOptionError: neither.
    """
    if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
        raise InvalidOptionError(
            f"a pattern must be a key in which * may stand for a token and > for the end, not {pattern!r}"
        )
    return pattern


def stream_name(bucket: str) -> str:
    """Return the stream of a bucket."""
    return STREAM_PREFIX + check_bucket(bucket)


def subject_prefix(bucket: str) -> str:
    """Return the prefix of the subjects of a bucket's keys."""
    return f"$KV.{bucket}."


class BucketStatus(Struct, frozen=True):
    """A bucket, as the server described it."""

    bucket: str
    """The bucket's name."""
    values: int
    """Revisions in it, markers included."""
    history: int
    """How many revisions of a key are kept."""
    ttl_s: float
    """Seconds that a revision lives; 0 = no limit."""
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
