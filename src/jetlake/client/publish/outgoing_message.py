"""Messages for streams: the options of publishers and of schedules, checked and encoded into headers."""

from __future__ import annotations

from datetime import datetime
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
from jetlake.model.encoding.build import suggestion
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND, Seconds, format_duration, nanoseconds
from jetlake.model.encoding.times import start_text
from jetlake.protocol.headers import append_pair


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
    `timeout`, and besides half a minute for a cluster that is electing the stream's leader; with a `msg_id` also where
    the leader takes the message and does not answer."""
    retries: int | None
    """How often to publish again, a quarter of a second apart, when no stream listens. Default: twice, and then only
    if there is a stream, whose cluster is electing a leader."""
    validate: bool | None
    """Check the payload against the schema of its subject, which `JetStream.schemas` has, before it is sent. For
    `publish`, `publish_async` and `publish_many` only."""


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
    """Check and encode a message; needs no event loop.

    Raises:
        BadSubjectError: the subject is not valid for publishing.
        BadHeaderError: a header would break the block.
        InvalidOptionError: an option that cannot work.
        TypeError: an option that does not exist.
    """
    raw_subject = publish_subject(subject)
    if type(payload) is not bytes:
        payload = payload_bytes(payload)
    if not options:
        return OutgoingMessage(raw_subject, b"", payload)
    if unknown := options.keys() - PublishOptions.__annotations__.keys():
        first = min(unknown)
        raise TypeError(f"a message has no option {first!r}; {suggestion(first, PublishOptions.__annotations__)}")
    if options.get("validate"):
        raise InvalidOptionError("validate is for publish, publish_async and publish_many; use schemas().check here")
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
    validate: bool | None = None,
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
        raise InvalidOptionError(f"retries must be 0 or more, not {number!r}")
    return number


def _sequence_text(option: str, number: int) -> str:
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise InvalidOptionError(f"{option} must be a sequence, 0 or more, not {number!r}")
    return str(number)


class ScheduleOptions(TypedDict, total=False):
    """When a schedule publishes, and what; exactly one of `at`, `every` and `cron`."""

    at: datetime | str | None
    """One time: a datetime, or RFC 3339 text."""
    every: Seconds | None
    """An interval in seconds, at least one."""
    cron: str | None
    """A cron line of six fields with seconds, or `@daily` and the like."""
    time_zone: str | None
    """The IANA name of the cron line's time zone. Default: UTC."""
    source: str | None
    """Publish the newest message of this subject. Default: the schedule's own content."""
    message_ttl: Seconds | None
    """Seconds that published messages live; the stream needs `allow_msg_ttl`."""
    rollup: bool
    """A published message replaces all earlier ones on its subject. Default: false."""


def schedule_headers(
    target: str,
    *,
    at: datetime | str | None = None,
    every: Seconds | None = None,
    cron: str | None = None,
    time_zone: str | None = None,
    source: str | None = None,
    message_ttl: Seconds | None = None,
    rollup: bool = False,
) -> dict[str, str]:
    """Return the headers of a schedule that publishes to `target`.

    Raises:
        InvalidOptionError: none or several of `at`, `every` and `cron`, or one that cannot be meant.
        ConfigError: `at` is no time.
    """
    if sum(given is not None for given in (at, every, cron)) != 1:
        raise InvalidOptionError("a schedule needs exactly one of at, every and cron")
    if time_zone is not None and cron is None:
        raise InvalidOptionError("time_zone needs a cron expression")
    if at is not None:
        pattern = f"@at {start_text(at)}"
    elif every is not None:
        interval_ns = nanoseconds(every)
        if interval_ns < NANOSECONDS_PER_SECOND:
            raise InvalidOptionError(f"every must be at least one second, not {every!r}")
        pattern = f"@every {format_duration(interval_ns)}"
    else:
        pattern = cron or ""
        if not pattern.strip():
            raise InvalidOptionError("cron is empty")
    headers = {"Nats-Schedule": pattern, "Nats-Schedule-Target": target}
    if time_zone is not None:
        headers["Nats-Schedule-Time-Zone"] = time_zone
    if source is not None:
        headers["Nats-Schedule-Source"] = source
    if message_ttl is not None:
        headers["Nats-Schedule-TTL"] = format_duration(nanoseconds(message_ttl))
    if rollup:
        headers["Nats-Schedule-Rollup"] = "sub"
    return headers
