"""The names of object stores and objects, and the streams and subjects that they become."""

from __future__ import annotations

from base64 import urlsafe_b64encode

from jetlake.client.streams.buckets import check_bucket
from jetlake.errors import InvalidOptionError

__all__ = ["STREAM_PREFIX", "check_name", "chunk_prefix", "chunk_subject", "info_subject", "stream_name"]

STREAM_PREFIX = "OBJ_"
"""What the names of the object stores' streams begin with."""

# Base64 makes four characters of three bytes, and a subject has room for 3500.
_NAME_BYTES_MAX = 2400


def check_name(name: str) -> str:
    """Check the name of an object, which may be any text, and return it.

    Raises:
        InvalidOptionError: it is empty, too long, or no text.
    """
    if not isinstance(name, str) or not name:
        raise InvalidOptionError(f"an object's name is a text that is not empty, not {name!r}")
    if len(_bytes(name)) > _NAME_BYTES_MAX:
        raise InvalidOptionError(f"an object's name has {_NAME_BYTES_MAX} bytes at most, not {len(_bytes(name))}")
    return name


def _bytes(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise InvalidOptionError(f"an object's name is a text that UTF-8 can write, not {name!r}") from None


def stream_name(bucket: str) -> str:
    """Return the stream of an object store."""
    return STREAM_PREFIX + check_bucket(bucket)


def chunk_prefix(bucket: str) -> str:
    """Return what the subjects of all chunks of an object store begin with."""
    return f"$O.{bucket}.C."


def chunk_subject(bucket: str, nuid: str) -> str:
    """Return the subject of one object's chunks."""
    return chunk_prefix(bucket) + nuid


def info_subject(bucket: str, name: str) -> str:
    """Return the subject of the message that describes an object."""
    return f"$O.{bucket}.M.{urlsafe_b64encode(_bytes(check_name(name))).decode()}"
