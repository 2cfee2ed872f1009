"""A message for a stream as its publisher describes it, and as the bytes that are sent."""

from __future__ import annotations

from typing import TypedDict

from msgspec import Struct

from jetlake.client.settings.options import timeout_s
from jetlake.client.settings.wire_values import (
    HeadersLike,
    header_bytes,
    payload_bytes,
    publish_subject,
    subscribe_subject,
)
from jetlake.errors import InvalidOptionError
from jetlake.model.encoding.durations import Seconds, format_duration, nanoseconds
from jetlake.protocol.headers import append_pair

__all__ = ["OutgoingMessage", "PublishOptions", "outgoing_message", "publish_header"]


class PublishOptions(TypedDict, total=False):
    """The keyword arguments of every call that publishes to a stream; None is the same as leaving one out."""

    headers: HeadersLike | None
    """Headers of the message."""
    msg_id: str | None
    """An id by which the stream recognises a message that it has already; the message is then stored once."""
    expected_stream: str | None
    """The name of the stream that must take the message."""
    expected_last_sequence: int | None
    """The stream's last sequence; 0 for an empty stream."""
    expected_last_subject_sequence: int | None
    """The last sequence of this subject; 0 for a new subject."""
    expected_last_subject_sequence_subject: str | None
    """The subject, or pattern, that `expected_last_subject_sequence` is of instead."""
    expected_last_msg_id: str | None
    """The id of the stream's last message."""
    ttl: Seconds | str | None
    """Seconds that the message lives, or `"never"`; the stream needs `allow_msg_ttl`."""
    timeout: Seconds | None
    """Seconds to wait for the acknowledgement, of each attempt if there are `retries`. Default: the context's
    `timeout`, and besides half a minute for a cluster that is electing the stream's leader."""
    retries: int | None
    """How often to publish again, a quarter of a second apart, when no stream listens. Default: twice, and then only
    if there is a stream, whose cluster is electing a leader."""


class OutgoingMessage(Struct, frozen=True, gc=False):
    """A message as it is sent, checked.

    Attributes:
        subject: the subject.
        header: the header block; empty for none.
        payload: the content.
        has_id: the message has a message id, so the stream recognises a second copy.
        timeout_s: seconds to wait for the acknowledgement; None for the context's.
        retries: how often to publish again when no stream listens; None while there is a stream, and twice otherwise.
    """

    subject: bytes
    header: bytes
    payload: bytes
    has_id: bool = False
    timeout_s: float | None = None
    retries: int | None = None


def outgoing_message(subject: str, payload: bytes, options: PublishOptions) -> OutgoingMessage:
    """Check what a publisher gave and encode it; needs no event loop.

    Raises:
        BadSubjectError: nobody can publish there.
        BadHeaderError: a header would break the block.
        InvalidOptionError: an option that cannot work.
        TypeError: an option that does not exist.
    """
    raw_subject = publish_subject(subject)
    if type(payload) is not bytes:
        payload = payload_bytes(payload)
    if not options:
        return OutgoingMessage(raw_subject, b"", payload)
    header = publish_header(**options)
    has_id = options.get("msg_id") is not None
    if "timeout" in options or "retries" in options:
        wait_s = timeout_s(options.get("timeout"))
        return OutgoingMessage(raw_subject, header, payload, has_id, wait_s, _retries(options.get("retries")))
    return OutgoingMessage(raw_subject, header, payload, has_id)


def publish_header(
    *,
    headers: HeadersLike | None = None,
    msg_id: str | None = None,
    expected_stream: str | None = None,
    expected_last_sequence: int | None = None,
    expected_last_subject_sequence: int | None = None,
    expected_last_subject_sequence_subject: str | None = None,
    expected_last_msg_id: str | None = None,
    ttl: Seconds | str | None = None,
    timeout: Seconds | None = None,
    retries: int | None = None,
) -> bytes:
    """Encode the header block of a message from `PublishOptions`: the publisher's own headers, then the options'.

    Raises:
        BadHeaderError: a value would break the block.
        InvalidOptionError: an expectation that cannot be meant.
    """
    added: list[tuple[str, str]] = []
    if msg_id is not None:
        if not msg_id:
            raise InvalidOptionError("msg_id is empty; leave it out for no deduplication")
        added.append(("Nats-Msg-Id", msg_id))
    if expected_stream is not None:
        added.append(("Nats-Expected-Stream", expected_stream))
    if expected_last_sequence is not None:
        number = _sequence_text("expected_last_sequence", expected_last_sequence)
        added.append(("Nats-Expected-Last-Sequence", number))
    if expected_last_subject_sequence is not None:
        number = _sequence_text("expected_last_subject_sequence", expected_last_subject_sequence)
        added.append(("Nats-Expected-Last-Subject-Sequence", number))
    if expected_last_subject_sequence_subject is not None:
        if expected_last_subject_sequence is None:
            raise InvalidOptionError("expected_last_subject_sequence_subject needs expected_last_subject_sequence")
        pattern = subscribe_subject(expected_last_subject_sequence_subject).decode()
        added.append(("Nats-Expected-Last-Subject-Sequence-Subject", pattern))
    if expected_last_msg_id is not None:
        added.append(("Nats-Expected-Last-Msg-Id", expected_last_msg_id))
    if ttl is not None:
        added.append(("Nats-TTL", ttl if isinstance(ttl, str) else format_duration(nanoseconds(ttl))))
    header = header_bytes(headers)
    if not added:
        return header
    checked = header_bytes(dict(added))
    if not header:
        return checked
    for name, value in added:
        header = append_pair(header, name.encode(), value.encode())
    return header


def _retries(number: int | None) -> int | None:
    if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
        raise InvalidOptionError(f"retries is a number of 0 or more, not {number!r}")
    return number


def _sequence_text(option: str, number: int) -> str:
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise InvalidOptionError(f"{option} is a sequence of 0 or more, not {number!r}")
    return str(number)
