"""One revision of a key: its value, or the marker that it was deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar, overload

from msgspec import Struct

from jetlake.client.messages.json_payload import json_payload
from jetlake.client.messages.message import Message
from jetlake.client.streams.stored_message import StoredMessage
from jetlake.protocol.headers import find_value

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Operation(StrEnum):
    """The change that a revision made to its key; equal to the word itself, as in `entry.operation == "put"`."""

    PUT = "put"
    """The key got a value."""
    DELETE = "delete"
    """The key was deleted; older revisions are still there."""
    PURGE = "purge"
    """The key was deleted together with its older revisions, or its time to live was over."""


# The server's own markers, by the reason that they give.
_MARKERS = {b"MaxAge": Operation.PURGE, b"Purge": Operation.PURGE, b"Remove": Operation.DELETE}


class Entry(Struct, frozen=True):
    """A revision of a key."""

    bucket: str
    """The bucket's name."""
    key: str
    """The key."""
    value: bytes
    """The value; empty for a marker."""
    revision: int
    """Its number, which grows with every change of the bucket."""
    created_ns: int
    """When it was stored, nanoseconds since 1970."""
    operation: Operation = Operation.PUT
    """Whether it is a value or a marker."""
    pending: int = 0
    """Of a watch, how many entries come right behind it."""

    @property
    def created(self) -> datetime:
        """When it was stored, in UTC."""
        return _EPOCH + timedelta(microseconds=self.created_ns // 1000)

    @property
    def is_deleted(self) -> bool:
        """Whether it is a marker instead of a value."""
        return self.operation is not Operation.PUT

    @overload
    def json(self) -> Any: ...

    @overload
    def json(self, kind: type[T]) -> T: ...

    def json(self, kind: Any = None) -> Any:
        """Read the value as JSON, as a value of the type if one is given (a dataclass or Struct, for instance).

        Raises:
            DecodeError: not JSON, or JSON of another shape.
        """
        return json_payload(self.value, kind, f"of key {self.key!r}")


def from_stored(bucket: str, key: str, message: StoredMessage) -> Entry:
    """Return the entry of a stored message."""
    return Entry(bucket, key, message.payload, message.sequence, message.time_ns, operation_of(message.header))


def from_delivery(bucket: str, prefix_length: int, message: Message) -> Entry:
    """Return the entry of a delivered message; its key follows `prefix_length` bytes of the subject."""
    metadata = message.metadata
    return Entry(
        bucket,
        message.raw_subject[prefix_length:].decode("utf-8", "surrogateescape"),
        message.payload,
        metadata.stream_seq,
        metadata.timestamp_ns,
        operation_of(message.raw_header),
        metadata.pending,
    )


def operation_of(header: bytes) -> Operation:
    """Return the operation of a message with this header block."""
    if not header:
        return Operation.PUT
    word = find_value(header, b"KV-Operation")
    if word is not None:
        return Operation.DELETE if word == b"DEL" else Operation.PURGE if word == b"PURGE" else Operation.PUT
    return _MARKERS.get(find_value(header, b"Nats-Marker-Reason") or b"", Operation.PUT)
