"""The body of an acknowledgement: ack, nak (with a delay), in progress, term (with a reason), next."""

from __future__ import annotations

from enum import IntEnum

import msgspec

from jetlake.errors import ConfigError, DecodeError
from jetlake.model.encoding.codec import decode
from jetlake.model.encoding.durations import parse_duration

__all__ = ["AckBody", "AckKind", "parse_ack_body"]


class AckKind(IntEnum):
    """Kinds of acknowledgement."""

    ACK = 0
    """The message was processed."""
    NAK = 1
    """Redeliver the message, at once or after a delay."""
    PROGRESS = 2
    """Processing continues: start the ack wait anew."""
    TERM = 3
    """Never redeliver the message, although it was not processed."""
    NEXT = 4
    """The message was processed, and the rest of the body is a pull request."""
    UNKNOWN = 5
    """An unknown body; it changes nothing, and is answered all the same."""


class AckBody(msgspec.Struct, frozen=True, gc=False):
    """A parsed body."""

    kind: AckKind
    delay_ns: int | None = None
    """Of a nak: delay of the redelivery; None = at once."""
    reason: str = ""
    """Of a term: the reason."""
    request: bytes = b""
    """Of a next: the pull request."""


class _NakOptions(msgspec.Struct):
    delay: int = 0


_ACK = AckBody(AckKind.ACK)
_NAK = AckBody(AckKind.NAK)
_PROGRESS = AckBody(AckKind.PROGRESS)
_UNKNOWN = AckBody(AckKind.UNKNOWN)


def parse_ack_body(payload: bytes) -> AckBody:
    """Parse a body; one that makes no sense is `UNKNOWN`, a nak with an invalid delay is a plain nak. Never raises."""
    if payload in (b"", b"+ACK", b"+OK"):
        return _ACK
    if payload.startswith(b"-NAK"):
        return _parse_nak(payload[4:].strip())
    if payload == b"+WPI":
        return _PROGRESS
    if payload.startswith(b"+NXT"):
        return AckBody(AckKind.NEXT, request=payload[4:])
    if payload.startswith(b"+TERM"):
        return AckBody(AckKind.TERM, reason=payload[5:].strip().decode("utf-8", "replace"))
    return _UNKNOWN


def _parse_nak(argument: bytes) -> AckBody:
    if not argument:
        return _NAK
    try:
        if argument.startswith(b"{"):
            delay_ns = decode(_NakOptions, argument).delay
        else:
            delay_ns = parse_duration(argument.decode())
    except (DecodeError, ConfigError, UnicodeDecodeError):
        return _NAK
    return AckBody(AckKind.NAK, delay_ns=max(delay_ns, 0))
