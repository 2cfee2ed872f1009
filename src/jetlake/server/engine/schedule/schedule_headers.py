"""The headers of schedules, their rules, and the message that a due schedule publishes."""

from __future__ import annotations

from collections.abc import Callable

from jetlake.errors import ApiError, api_error
from jetlake.model.encoding.lifetimes import parse_lifetime
from jetlake.model.stream import StreamConfig
from jetlake.protocol.headers import find_value
from jetlake.protocol.subjects import is_valid_publish, matches
from jetlake.server.engine.schedule.pattern import Pattern, find_zone, parse_pattern

__all__ = ["NEXT", "PURGE", "SCHEDULE", "SCHEDULER", "check_schedule", "fired_header", "read_pattern"]

SCHEDULE = b"Nats-Schedule"
SCHEDULER = b"Nats-Scheduler"
NEXT = b"Nats-Schedule-Next"
TARGET = b"Nats-Schedule-Target"
SOURCE = b"Nats-Schedule-Source"
_TIME_ZONE = b"Nats-Schedule-Time-Zone"
_TTL = b"Nats-Schedule-TTL"
_ROLLUP = b"Nats-Schedule-Rollup"
ROLLUP = b"Nats-Rollup"
PURGE = b"purge"
"""The value of `Nats-Schedule-Next` when there is no next time: the schedule is purged."""

# Headers that a published message does not take over from its schedule, by the beginning of their lines.
_DROPPED = (b"Nats-Schedule", b"Nats-Expected-", b"Nats-Msg-Id:", b"Nats-TTL:", b"Nats-Rollup:")


def read_pattern(header: bytes) -> Pattern | None:
    """Return the pattern of a stored message; None when it is no schedule."""
    text = find_value(header, SCHEDULE)
    if not text:
        return None
    zone = find_value(header, _TIME_ZONE)
    return parse_pattern(text.decode("utf-8", "replace"), zone.decode("utf-8", "replace") if zone else None)


def check_schedule(
    control: dict[bytes, bytes],
    header: bytes,
    subject: bytes,
    config: StreamConfig,
    now_ns: int,
    holds_schedule: Callable[[bytes], bool],
) -> ApiError | None:
    """Check the headers of a schedule, or of a message that claims to end one, in nats-server's order.

    Args:
        control: the values of the `Nats-` headers.
        subject: the message's subject in the stream.
        holds_schedule: whether the newest message of a subject, if there is one, is a schedule.
    """
    zone = find_value(header, _TIME_ZONE)
    if zone is not None and find_zone(zone.decode("utf-8", "replace")) is None:
        return api_error(10223 if config.allow_msg_schedules else 10188)
    if SCHEDULE in control:
        if not config.allow_msg_schedules:
            return api_error(10188)
        pattern = read_pattern(header)
        if pattern is None or pattern.first_ns(now_ns) is None:
            return api_error(10189)
        error = _check_publication(control, subject, config)
        if error is not None:
            return error
    return _check_scheduler(control, subject, config, holds_schedule)


def _check_publication(control: dict[bytes, bytes], subject: bytes, config: StreamConfig) -> ApiError | None:
    """Check what a schedule says of the messages that it publishes."""
    lifetime = control.get(_TTL)
    if lifetime is not None and parse_lifetime(lifetime) is None:
        return api_error(10191)
    if control.get(_ROLLUP, b"sub") != b"sub":
        return api_error(10192)
    if lifetime is not None and not config.allow_msg_ttl:
        return api_error(10166)
    target = control.get(TARGET, b"")
    if target == subject or not is_valid_publish(target):
        return api_error(10190)
    source = control.get(SOURCE)
    if source is not None and (source in (target, subject) or not is_valid_publish(source)):
        return api_error(10203)
    if not _is_captured(target, config):
        return api_error(10190)
    if source is not None and not _is_captured(source, config):
        return api_error(10203)
    return api_error(10192) if control.get(ROLLUP, b"sub").lower() != b"sub" else None


def _is_captured(subject: bytes, config: StreamConfig) -> bool:
    return any(matches(pattern.encode(), subject) for pattern in config.subjects)


def _check_scheduler(
    control: dict[bytes, bytes], subject: bytes, config: StreamConfig, holds_schedule: Callable[[bytes], bool]
) -> ApiError | None:
    """Check a message that ends the schedule of another subject."""
    scheduler, following = control.get(SCHEDULER), control.get(NEXT)
    if scheduler is None and following is None:
        return None
    if following != PURGE or scheduler is None or scheduler == subject or not is_valid_publish(scheduler):
        return api_error(10212)
    if not config.allow_msg_schedules:
        return api_error(10188)
    return None if holds_schedule(scheduler) else api_error(10212)


def fired_header(schedule: bytes, source: bytes, scheduler: bytes, following: str | None) -> bytes:
    """Return the header of a published message.

    Args:
        schedule: the header of the schedule.
        source: the header of the message whose copy is published, which may be the schedule.
        scheduler: the subject of the schedule.
        following: when the schedule is due again; None when it is done.
    """
    lines = [line for line in source.split(b"\r\n")[1:] if line and not line.startswith(_DROPPED)]
    lines.append(b"%b: %b" % (SCHEDULER, scheduler))
    lines.append(b"%b: %b" % (NEXT, PURGE if following is None else following.encode()))
    lifetime = find_value(schedule, _TTL)
    if lifetime:
        lines.append(b"Nats-TTL: " + lifetime)
    if find_value(schedule, _ROLLUP):
        lines.append(b"Nats-Rollup: sub")
    return b"NATS/1.0\r\n%b\r\n\r\n" % b"\r\n".join(lines)
