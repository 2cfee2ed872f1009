"""The headers by which a publisher tells a stream what to expect and what to remember."""

from __future__ import annotations

from jetlake.client.settings.wire_values import HeadersLike, header_bytes, subscribe_subject
from jetlake.errors import InvalidOptionError
from jetlake.model.encoding.durations import Seconds, format_duration, nanoseconds
from jetlake.protocol.headers import append_pair

__all__ = ["publish_header"]


def publish_header(
    headers: HeadersLike | None,
    *,
    msg_id: str | None,
    expected_stream: str | None,
    expected_last_sequence: int | None,
    expected_last_subject_sequence: int | None,
    expected_last_subject_sequence_subject: str | None = None,
    expected_last_msg_id: str | None = None,
    ttl: Seconds | str | None = None,
) -> bytes:
    """The header block of a message for a stream, with what the keyword arguments stand for.

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
    for option, key, number in (
        ("expected_last_sequence", "Nats-Expected-Last-Sequence", expected_last_sequence),
        ("expected_last_subject_sequence", "Nats-Expected-Last-Subject-Sequence", expected_last_subject_sequence),
    ):
        if number is not None:
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise InvalidOptionError(f"{option} is a sequence of 0 or more, not {number!r}")
            added.append((key, str(number)))
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
    for key, value in added:
        header = append_pair(header, key.encode(), value.encode())
    return header
