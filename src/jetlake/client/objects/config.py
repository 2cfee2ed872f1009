"""The options, names and status of object stores, and the streams and subjects that hold them."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import Any, Literal, TypedDict

from msgspec import Struct

from jetlake.client.api.config_options import configured
from jetlake.client.streams.buckets import check_bucket
from jetlake.errors import InvalidOptionError
from jetlake.model.encoding.durations import Seconds, seconds
from jetlake.model.stream import Placement, StreamConfig, StreamInfo


class ObjectStoreOptions(TypedDict, total=False):
    """The options of an object store."""

    description: str
    """Free text, up to 4096 bytes."""
    ttl: Seconds
    """Seconds that an object lives. Default: no limit."""
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


STREAM_PREFIX = "OBJ_"
"""The prefix of the names of object stores' streams."""

# Base64 makes four characters of three bytes, and a subject has room for 3500.
_NAME_BYTES_MAX = 2400


def check_name(name: str) -> str:
    """Check the name of an object, which may be any text, and return it.

    Raises:
        InvalidOptionError: it is empty, too long, or no text.
    """
    if not isinstance(name, str) or not name:
        raise InvalidOptionError(f"an object's name must be a non-empty str, not {name!r}")
    if len(_bytes(name)) > _NAME_BYTES_MAX:
        raise InvalidOptionError(f"an object's name may have at most {_NAME_BYTES_MAX} bytes, not {len(_bytes(name))}")
    return name


def _bytes(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise InvalidOptionError(f"an object's name must be encodable as UTF-8, not {name!r}") from None


def stream_name(bucket: str) -> str:
    """Return the stream of an object store."""
    return STREAM_PREFIX + check_bucket(bucket)


def chunk_prefix(bucket: str) -> str:
    """Return the prefix of the subjects of all chunks of an object store."""
    return f"$O.{bucket}.C."


def chunk_subject(bucket: str, nuid: str) -> str:
    """Return the subject of one object's chunks."""
    return chunk_prefix(bucket) + nuid


def info_subject(bucket: str, name: str) -> str:
    """Return the subject of the message that describes an object."""
    return f"$O.{bucket}.M.{urlsafe_b64encode(_bytes(check_name(name))).decode()}"


class ObjectStoreStatus(Struct, frozen=True):
    """An object store, as the server described it."""

    bucket: str
    """The object store's name."""
    description: str
    """Free text."""
    bytes: int
    """Bytes in it, chunks and descriptions together."""
    ttl_s: float
    """Seconds that an object lives; 0 = no limit."""
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
