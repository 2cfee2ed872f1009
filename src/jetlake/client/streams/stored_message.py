"""A message as a stream holds it, read by its sequence instead of delivered by a consumer."""

from __future__ import annotations

from typing import Any, TypeVar, overload

from msgspec import Struct

from jetlake.client.messages.json_payload import json_payload
from jetlake.client.messages.message import Message
from jetlake.errors import BadRequestError, DecodeError, MessageNotFoundError, PullStatusError
from jetlake.model import replies
from jetlake.model.encoding.times import ZERO_TIME, parse_time
from jetlake.protocol.headers import Headers

T = TypeVar("T")

# The first of the headers that a direct get appends to the message's own.
_FIRST_ADDED = b"\r\nNats-Stream: "


class StoredMessage(Struct, frozen=True):
    """A message and its sequence in the stream."""

    subject: str
    sequence: int
    time: str
    """When it was stored, RFC 3339 with nanoseconds."""
    header: bytes
    payload: bytes
    stream: str = ""
    """The stream that answered: a mirror of the one that was asked, where a direct get was answered by one."""

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


def from_reply(message: replies.StoredMessage, stream: str) -> StoredMessage:
    """Return the message of a `STREAM.MSG.GET` reply of that stream's leader."""
    return StoredMessage(message.subject, message.seq, message.time, message.hdrs, message.data, stream)


def from_direct(message: Message) -> StoredMessage:
    """Return the message of a `DIRECT.GET` reply, without the headers that the server added.

    Raises:
        MessageNotFoundError: there is none.
        BadRequestError: the request contradicts itself.
    """
    block = message.raw_header
    if (headers := message.headers).status is not None:
        raise _refusal(headers.status, headers.description)
    # A message that was republished before it was stored has headers of the same names itself, before the added ones.
    begin = block.rfind(_FIRST_ADDED)
    added = Headers(b"NATS/1.0" + block[begin:]) if begin >= 0 else headers
    stream, subject, sequence = (added.get(f"Nats-{name}") for name in ("Stream", "Subject", "Sequence"))
    if begin < 0 or stream is None or subject is None or sequence is None:
        raise DecodeError("the answer to a direct get does not identify its message")
    own = block[:begin] + b"\r\n\r\n" if begin > len(b"NATS/1.0") else b""
    time = added.get("Nats-Time-Stamp") or ZERO_TIME
    return StoredMessage(subject, int(sequence), time, own, message.payload, stream)


def _refusal(status: int, description: str) -> Exception:
    if status == 404:
        return MessageNotFoundError(404, 10037, description.lower() or "no message found")
    if status == 408:
        return BadRequestError(400, 10003, description.lower())
    return PullStatusError(status, description)
