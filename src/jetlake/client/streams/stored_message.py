"""A message as a stream holds it, got by its place instead of delivered by a consumer."""

from __future__ import annotations

from typing import Any, TypeVar, overload

from msgspec import Struct

from jetlake.client.messages.json_payload import json_payload
from jetlake.client.messages.message import Message
from jetlake.errors import BadRequestError, DecodeError, MessageNotFoundError, PullStatusError
from jetlake.model import replies
from jetlake.model.encoding.times import ZERO_TIME, parse_time
from jetlake.protocol.headers import Headers, remove_key

__all__ = ["StoredMessage", "from_direct", "from_reply"]

T = TypeVar("T")

_ADDED = (b"Nats-Stream", b"Nats-Subject", b"Nats-Sequence", b"Nats-Time-Stamp")
_ADDED_TO_BATCH = (b"Nats-Num-Pending", b"Nats-Last-Sequence")


class StoredMessage(Struct, frozen=True):
    """A message and its place in the stream."""

    subject: str
    sequence: int
    time: str
    """When it was stored, RFC 3339 with nanoseconds."""
    header: bytes
    payload: bytes

    @property
    def headers(self) -> Headers:
        """The headers; falsy when there are none."""
        return Headers(self.header)

    @property
    def data(self) -> bytes:
        """The content; another name for `payload`."""
        return self.payload

    @overload
    def json(self) -> Any: ...

    @overload
    def json(self, kind: type[T]) -> T: ...

    def json(self, kind: Any = None) -> Any:
        """Read the payload as JSON, as a value of the type if one is given (a dataclass or Struct, for instance).

        Raises:
            DecodeError: not JSON, or JSON of another shape.
        """
        return json_payload(self.payload, kind, f"of sequence {self.sequence}")

    @property
    def time_ns(self) -> int:
        """When it was stored, nanoseconds since 1970."""
        return parse_time(self.time)


def from_reply(message: replies.StoredMessage) -> StoredMessage:
    """Return the message of a `STREAM.MSG.GET` reply."""
    return StoredMessage(message.subject, message.seq, message.time, message.hdrs, message.data)


def from_direct(message: Message, *, in_batch: bool = False) -> StoredMessage:
    """Return the message of a `DIRECT.GET` reply, without the headers that were added on the way.

    Raises:
        MessageNotFoundError: there is none.
        BadRequestError: the request contradicts itself.
    """
    headers = message.headers
    if headers.status is not None:
        raise _refusal(headers.status, headers.description)
    subject, sequence = headers.get("Nats-Subject"), headers.get("Nats-Sequence")
    if subject is None or sequence is None:
        raise DecodeError("the answer to a direct get does not say which message it is")
    header = message.raw_header
    for key in _ADDED + _ADDED_TO_BATCH if in_batch else _ADDED:
        header = remove_key(header, key)
    if header == b"NATS/1.0\r\n\r\n":
        header = b""
    return StoredMessage(subject, int(sequence), headers.get("Nats-Time-Stamp") or ZERO_TIME, header, message.payload)


def _refusal(status: int, description: str) -> Exception:
    if status == 404:
        return MessageNotFoundError(404, 10037, description.lower() or "no message found")
    if status == 408:
        return BadRequestError(400, 10003, description.lower())
    return PullStatusError(status, description)
