"""The description of an object, and its JSON on the wire."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct, structs

from jetlake.errors import DecodeError, InvalidOptionError, ObjectError
from jetlake.model.encoding.codec import decode, encode
from jetlake.model.encoding.fields import Count, Value, always
from jetlake.model.encoding.times import ZERO_TIME

ObjectHeaders = Mapping[str, "str | list[str]"]
"""The headers of an object; a value may be a list for repeated keys."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DIGEST_PREFIX = "SHA-256="


class ObjectLink(Value, frozen=True):
    """The target of a link: an object, or a whole object store."""

    bucket: str
    """The object store."""
    name: str = ""
    """The object; empty for the whole object store."""


class ObjectInfo(Struct, frozen=True, kw_only=True):
    """An object, as its object store describes it."""

    name: str
    """The object's name."""
    bucket: str
    """The name of its object store."""
    nuid: str = ""
    """The id of its content: a new content gets a new one."""
    size: int = 0
    """Bytes of the content."""
    chunks: int = 0
    """How many messages hold the content."""
    digest: str = ""
    """`SHA-256=` and the digest of the content in base64."""
    description: str = ""
    """Free text."""
    headers: dict[str, list[str]] = {}
    """Free headers."""
    metadata: dict[str, str] = {}
    """Free keys and values."""
    chunk_size: int = 0
    """Bytes of a chunk; the last one may be smaller. 0 when the writer did not say."""
    link: ObjectLink | None = None
    """The target, if it is a link."""
    is_deleted: bool = False
    """Whether it was deleted, and this is the marker that says so."""
    modified_ns: int = 0
    """When it was stored, nanoseconds since 1970."""
    revision: int = 0
    """The sequence of the message that describes it; grows with every change."""

    @property
    def modified(self) -> datetime:
        """When it was stored, in UTC."""
        return _EPOCH + timedelta(microseconds=self.modified_ns // 1000)


class _Options(Value, frozen=True):
    link: ObjectLink | None = None
    max_chunk_size: Count = 0


class _WireInfo(Value, frozen=True):
    """The JSON of an object, with the names and the leniency of the wire: clients write it differently."""

    name: str
    description: str = ""
    headers: dict[str, str | list[str]] = {}
    metadata: dict[str, str] = {}
    options: _Options = _Options()
    bucket: str = always("")
    nuid: str = always("")
    size: Count = always(0)
    # Readers take the time of the message instead.
    mtime: Any = always(ZERO_TIME)
    chunks: Count = always(0)
    digest: str = ""
    deleted: bool = False


def encode_info(info: ObjectInfo) -> bytes:
    """Return the JSON that describes an object."""
    wire = _WireInfo(
        name=info.name,
        description=info.description,
        headers=dict(info.headers),
        metadata=info.metadata,
        options=_Options(link=info.link, max_chunk_size=info.chunk_size),
        bucket=info.bucket,
        nuid=info.nuid,
        size=info.size,
        chunks=info.chunks,
        digest=info.digest,
        deleted=info.is_deleted,
    )
    return encode(wire)


def check_info(info: ObjectInfo) -> bytes:
    """Check an object and return its JSON, which every client must be able to read.

    Raises:
        InvalidOptionError: a field has another type than it must have.
    """
    data = encode_info(info)
    try:
        decode(_WireInfo, data)
    except DecodeError as error:
        raise InvalidOptionError(f"description, headers and metadata of an object must be str: {error}") from None
    return data


def decode_info(bucket: str, data: bytes, *, subject: str, revision: int, time_ns: int) -> ObjectInfo:
    """Return the object that a message describes.

    Raises:
        ObjectError: the message is no such description.
    """
    try:
        wire = decode(_WireInfo, data)
    except DecodeError as error:
        raise ObjectError(
            f"message {revision} of object store {bucket!r}, on subject {subject!r}, describes no object: {error}"
        ) from None
    return ObjectInfo(
        name=wire.name,
        bucket=bucket,
        nuid=wire.nuid,
        size=wire.size,
        chunks=wire.chunks,
        digest=wire.digest,
        description=wire.description,
        headers=header_lists(wire.headers),
        metadata=wire.metadata,
        chunk_size=wire.options.max_chunk_size,
        link=wire.options.link,
        is_deleted=wire.deleted,
        modified_ns=time_ns,
        revision=revision,
    )


def marker_of(info: ObjectInfo) -> ObjectInfo:
    """Return the marker that says that an object was deleted."""
    return structs.replace(info, size=0, chunks=0, digest="", link=None, is_deleted=True)


def header_lists(headers: ObjectHeaders) -> dict[str, list[str]]:
    """Return the headers with a list for every value."""
    return {key: list(values) if isinstance(values, (list, tuple)) else [values] for key, values in headers.items()}


def written_digest(sha256: bytes) -> str:
    """Return a digest as the wire has it."""
    return _DIGEST_PREFIX + urlsafe_b64encode(sha256).decode()


def is_digest(written: str, sha256: bytes) -> bool:
    """Return whether a digest on the wire is this one; clients write it with and without padding."""
    kind, value = written[: len(_DIGEST_PREFIX)], written[len(_DIGEST_PREFIX) :]
    mine = written_digest(sha256)[len(_DIGEST_PREFIX) :]
    return kind.upper() == _DIGEST_PREFIX and value.rstrip("=") == mine.rstrip("=")
