"""Subjects, payloads and headers of callers, checked and turned into bytes before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping

from jetlake.errors import BadSubjectError, InvalidOptionError
from jetlake.protocol.headers import Headers, encode_headers
from jetlake.protocol.subjects import is_valid_publish, is_valid_subscribe

__all__ = [
    "HeadersLike",
    "check_request",
    "header_bytes",
    "known_subject",
    "payload_bytes",
    "publish_subject",
    "queue_bytes",
    "reply_subject",
    "subscribe_subject",
]

HeadersLike = Mapping[str, "str | list[str]"] | Headers
"""What callers may write for headers: a mapping, whose values may be lists for repeated keys, or received headers."""

_KNOWN_MAX = 8192

# A server ends the connection at a control line above 4096 bytes (its default): room for the sizes, and for an inbox or
# queue beside the subject.
_CONTROL_LINE_MAX = 4096 - 32
_SUBJECT_BYTES_MAX = 4096 - 512
_REQUEST_BYTES_MAX = 4096 - 128

# Subjects that were checked: most programs publish to few of them, very often.
_known: dict[str, bytes] = {}

known_subject = _known.get
"""The bytes of a subject that was checked lately; None of any other, which `publish_subject` has to see."""


def publish_subject(subject: str) -> bytes:
    """Return the bytes of a subject that one can publish to.

    Raises:
        BadSubjectError: it is empty, has empty tokens, blanks or wildcards.
    """
    known = _known.get(subject)
    return known if known is not None else _check_publish(subject)


def _check_publish(subject: str) -> bytes:
    if not isinstance(subject, str):
        raise InvalidOptionError(f"subject must be a str, not {type(subject).__name__}")
    raw = _encode(subject)
    _check_length(raw)
    if not is_valid_publish(raw):
        raise BadSubjectError(
            subject, "a subject to publish to consists of dot-separated tokens without blanks and wildcards"
        )
    if len(_known) >= _KNOWN_MAX:
        _known.clear()
    _known[subject] = raw
    return raw


def reply_subject(reply: str, subject: bytes) -> bytes:
    """Return the bytes of a reply subject that goes with a subject; empty for none.

    Raises:
        BadSubjectError: it is not valid for publishing, or both together are longer than a server takes.
    """
    if not reply:
        return b""
    raw = publish_subject(reply)
    if len(raw) + len(subject) > _CONTROL_LINE_MAX:
        raise BadSubjectError(reply, f"subject and reply together are longer than {_CONTROL_LINE_MAX} bytes")
    return raw


def subscribe_subject(subject: str) -> bytes:
    """Return the bytes of a subject or pattern that one can subscribe to.

    Raises:
        BadSubjectError: it is empty, has empty tokens or blanks, or `>` is not its last token.
    """
    if not isinstance(subject, str):
        raise InvalidOptionError(f"subject must be a str, not {type(subject).__name__}")
    raw = _encode(subject)
    _check_length(raw)
    if not is_valid_subscribe(raw):
        raise BadSubjectError(
            subject,
            "a subject to subscribe to consists of dot-separated tokens without blanks, with `>` only as the last",
        )
    return raw


def queue_bytes(queue: str) -> bytes:
    """Return the bytes of a queue group's name; empty for none.

    Raises:
        InvalidOptionError: it holds blanks.
    """
    raw = _encode(queue)
    if len(raw) > _CONTROL_LINE_MAX - _SUBJECT_BYTES_MAX:
        raise InvalidOptionError(f"queue is longer than {_CONTROL_LINE_MAX - _SUBJECT_BYTES_MAX} bytes")
    if raw and not is_valid_publish(raw):
        raise InvalidOptionError(f"queue {queue!r} is not a name without blanks and wildcards")
    return raw


def payload_bytes(payload: object) -> bytes:
    """Return the payload as bytes.

    Raises:
        InvalidOptionError: it is text or no bytes at all.
    """
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, (bytearray, memoryview)):
        return bytes(payload)
    hint = "; encode the text first" if isinstance(payload, str) else ""
    raise InvalidOptionError(f"a payload must be bytes, not {type(payload).__name__}{hint}")


def header_bytes(headers: HeadersLike | None) -> bytes:
    """Return the header block; empty for none.

    Raises:
        BadHeaderError: a key or value would break it.
    """
    if not headers:
        return b""
    if isinstance(headers, Headers):
        return headers.raw
    return encode_headers(headers)


def check_request(raw: bytes) -> None:
    """Check that a server takes a request to a subject of this length, with the reply that the client adds.

    Raises:
        BadSubjectError: the server would close the connection.
    """
    if len(raw) > _REQUEST_BYTES_MAX:
        reason = f"a request's subject may have at most {_REQUEST_BYTES_MAX} bytes, not {len(raw)}"
        raise BadSubjectError(raw[:64] + b"...", f"{reason}: a name or filter in it is too long")


def _check_length(raw: bytes) -> None:
    if len(raw) > _SUBJECT_BYTES_MAX:
        raise BadSubjectError(
            raw[:64] + b"...", f"a subject may have at most {_SUBJECT_BYTES_MAX} bytes, not {len(raw)}"
        )


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        try:
            # Subjects that were received with broken UTF-8 can be used again unchanged.
            return text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise BadSubjectError(text, "it cannot be encoded as UTF-8") from None
