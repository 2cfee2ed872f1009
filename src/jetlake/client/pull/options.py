"""The options of fetch and consume: frozen values with NATS ADR-37's defaults and ranges, checked when built."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from jetlake.client.settings.options import ErrorCallback, duration_s
from jetlake.client.settings.wire_values import publish_subject
from jetlake.errors import InvalidOptionError
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.dead_letter import letter_subject
from jetlake.model.encoding.durations import Seconds, nanoseconds
from jetlake.model.enums import AckPolicy, PriorityPolicy
from jetlake.model.requests import PullRequest

BATCH_UNLIMITED = 1_000_000
"""The batch of a pull that is limited by bytes only; without one the server would send a single message."""

CONSUME_MESSAGES = 1000
EXPIRES_S = 60.0
EXPIRES_MIN_S = 4.0
EXPIRES_MAX_S = 600.0
HEARTBEAT_S = 30.0
HEARTBEAT_MIN_S = 2.0
HEARTBEAT_MAX_S = 60.0
THRESHOLD_SHARE = 0.25

_FETCH_HEARTBEAT_S = 5.0
_FETCH_HEARTBEAT_FROM_S = 10.0

# Most programs repeat the same fetch.
_KEPT_MAX = 64

MissedHeartbeat = Literal["stop", "continue"]


class GroupOptions(Struct, frozen=True):
    """Which priority group a pull belongs to, and when it may be served."""

    group: str = ""
    min_pending: int = 0
    min_ack_pending: int = 0
    priority: int = 0


NO_GROUP = GroupOptions()


class FetchOptions(Struct, frozen=True):
    """One pull."""

    max_messages: int
    max_bytes: int
    expires_s: float
    idle_heartbeat_s: float
    no_wait: bool
    group: GroupOptions = NO_GROUP

    def within(self, left_s: float) -> FetchOptions:
        """Return the same fetch with only this time left."""
        if not self.expires_s:
            return self
        expires_s = max(0.001, min(left_s, self.expires_s))
        heartbeat_s = self.idle_heartbeat_s if 2 * self.idle_heartbeat_s <= expires_s else 0.0
        return replace(self, expires_s=expires_s, idle_heartbeat_s=heartbeat_s)

    def request(self, messages_left: int, bytes_left: int) -> PullRequest:
        """Return the body of a pull for the missing messages of the fetch."""
        return _pull_request(self, messages_left, bytes_left)


@lru_cache(_KEPT_MAX)
def _pull_request(options: FetchOptions, messages_left: int, bytes_left: int) -> PullRequest:
    return PullRequest(
        batch=messages_left,
        expires=nanoseconds(options.expires_s),
        no_wait=options.no_wait,
        max_bytes=bytes_left,
        idle_heartbeat=nanoseconds(options.idle_heartbeat_s),
        group=options.group.group,
        min_pending=options.group.min_pending,
        min_ack_pending=options.group.min_ack_pending,
        priority=options.group.priority,
    )


class ConsumeOptions(Struct, frozen=True):
    """Pulls without end. Limited by messages or by bytes, whose unused limit and threshold are 0."""

    max_messages: int = CONSUME_MESSAGES
    max_bytes: int = 0
    threshold_messages: int = math.ceil(CONSUME_MESSAGES * THRESHOLD_SHARE)
    threshold_bytes: int = 0
    expires_s: float = EXPIRES_S
    idle_heartbeat_s: float = HEARTBEAT_S
    on_missed_heartbeat: MissedHeartbeat = "stop"
    group: GroupOptions = NO_GROUP
    stop_after: int = 0
    on_error: ErrorCallback | None = None
    retries: RetryOptions | None = None
    max_rate: float = 0.0


def fetch_options(
    max_messages: int | None,
    *,
    max_bytes: int | None = None,
    expires: Seconds | None = None,
    idle_heartbeat: Seconds | None = None,
    no_wait: bool = False,
    group: GroupOptions = NO_GROUP,
) -> FetchOptions:
    """Check the options of `fetch`; at least one of messages and bytes is needed.

    Raises:
        InvalidOptionError: an option that cannot work.
    """
    given = max_messages, max_bytes, expires, idle_heartbeat, no_wait, group
    try:
        return _checked_options(*given)
    except TypeError:  # Something that has no hash is no option either, which the check says better.
        return _checked_options.__wrapped__(*given)


@lru_cache(_KEPT_MAX, typed=True)
def _checked_options(
    max_messages: int | None,
    max_bytes: int | None,
    expires: Seconds | None,
    idle_heartbeat: Seconds | None,
    no_wait: bool,
    group: GroupOptions,
) -> FetchOptions:
    if max_messages is None and max_bytes is None:
        raise InvalidOptionError("fetch needs max_messages or max_bytes")
    _check_at_least("max_messages", max_messages, 1)
    _check_at_least("max_bytes", max_bytes, 1)
    if no_wait and expires is None:
        expires_s = 0.0
    else:
        expires_s = duration_s("expires", 5.0 if expires is None else expires)
        if expires_s <= 0:
            raise InvalidOptionError(
                f"expires must be more than 0 seconds, not {expires_s:g}; no_wait=True does not wait"
            )
    heartbeat_s = _fetch_heartbeat_s(idle_heartbeat, expires_s)
    return FetchOptions(max_messages or BATCH_UNLIMITED, max_bytes or 0, expires_s, heartbeat_s, no_wait, group)


def next_options(
    timeout: Seconds, *, idle_heartbeat: Seconds | None = None, group: GroupOptions = NO_GROUP
) -> FetchOptions:
    """Check the options of `next`: a fetch of one message, which does not wait when the timeout is 0.

    Raises:
        InvalidOptionError: an option that cannot work.
    """
    wait_s = duration_s("timeout", timeout)
    if wait_s < 0:
        raise InvalidOptionError(f"timeout must be 0 or more seconds, not {wait_s:g}")
    return fetch_options(1, expires=wait_s or None, idle_heartbeat=idle_heartbeat, no_wait=not wait_s, group=group)


def _fetch_heartbeat_s(idle_heartbeat: Seconds | None, expires_s: float) -> float:
    if idle_heartbeat is None:
        return _FETCH_HEARTBEAT_S if expires_s >= _FETCH_HEARTBEAT_FROM_S else 0.0
    heartbeat_s = duration_s("idle_heartbeat", idle_heartbeat)
    if heartbeat_s < 0:
        raise InvalidOptionError(f"idle_heartbeat must be 0 (none) or more seconds, not {heartbeat_s:g}")
    if heartbeat_s * 2 > expires_s:
        raise InvalidOptionError(
            f"idle_heartbeat must be at most half of expires ({expires_s:g} s), not {heartbeat_s:g}; "
            "the server refuses it"
        )
    return heartbeat_s


def consume_options(
    *,
    max_messages: int | None = None,
    max_bytes: int | None = None,
    expires: Seconds | None = None,
    idle_heartbeat: Seconds | None = None,
    threshold_messages: int | None = None,
    threshold_bytes: int | None = None,
    on_missed_heartbeat: MissedHeartbeat = "stop",
    group: GroupOptions = NO_GROUP,
    stop_after: int | None = None,
    on_error: ErrorCallback | None = None,
    retries: RetryOptions | None = None,
    max_rate: float | None = None,
) -> ConsumeOptions:
    """Check the options of `consume` and fill in the defaults.

    Raises:
        InvalidOptionError: an option that is out of its range, or two that exclude each other.
    """
    if max_messages is not None and max_bytes is not None:
        raise InvalidOptionError("max_messages and max_bytes of consume are mutually exclusive")
    _check_at_least("max_messages", max_messages, 1)
    _check_at_least("max_bytes", max_bytes, 1)
    if max_bytes is None:
        messages = CONSUME_MESSAGES if max_messages is None else max_messages
        thresholds = _threshold("threshold_messages", threshold_messages, messages), 0
        _refuse("threshold_bytes", threshold_bytes, "max_bytes")
        limits = messages, 0
    else:
        thresholds = 0, _threshold("threshold_bytes", threshold_bytes, max_bytes)
        _refuse("threshold_messages", threshold_messages, "max_messages")
        limits = 0, max_bytes
    expires_s = duration_s("expires", EXPIRES_S if expires is None else expires)
    if not EXPIRES_MIN_S <= expires_s <= EXPIRES_MAX_S:
        raise InvalidOptionError(f"expires must be {EXPIRES_MIN_S:g} to {EXPIRES_MAX_S:g} seconds, not {expires_s:g}")
    default_heartbeat_s = min(HEARTBEAT_S, expires_s / 2)
    heartbeat_s = duration_s("idle_heartbeat", default_heartbeat_s if idle_heartbeat is None else idle_heartbeat)
    if not HEARTBEAT_MIN_S <= heartbeat_s <= HEARTBEAT_MAX_S:
        raise InvalidOptionError(
            f"idle_heartbeat must be {HEARTBEAT_MIN_S:g} to {HEARTBEAT_MAX_S:g} seconds, not {heartbeat_s:g}"
        )
    if heartbeat_s * 2 > expires_s:
        raise InvalidOptionError(
            f"idle_heartbeat must be at most half of expires ({expires_s:g} s), not {heartbeat_s:g}; "
            "the server refuses it"
        )
    if on_missed_heartbeat not in ("stop", "continue"):
        raise InvalidOptionError(f"on_missed_heartbeat must be 'stop' or 'continue', not {on_missed_heartbeat!r}")
    _check_at_least("stop_after", stop_after, 1)
    if stop_after is not None and max_bytes is not None:
        raise InvalidOptionError("stop_after counts messages and cannot be combined with max_bytes; use max_messages")
    if on_error is not None and not callable(on_error):
        raise InvalidOptionError(f"on_error must be a function that takes an error, not {on_error!r}")
    return ConsumeOptions(
        *limits,
        *thresholds,
        expires_s,
        heartbeat_s,
        on_missed_heartbeat,
        group,
        stop_after or 0,
        on_error,
        retries,
        _rate(max_rate, max_bytes),
    )


def _rate(max_rate: float | None, max_bytes: int | None) -> float:
    if max_rate is None:
        return 0.0
    if isinstance(max_rate, bool) or not isinstance(max_rate, (int, float)) or not 0 < max_rate < math.inf:
        raise InvalidOptionError(f"max_rate must be more than 0 messages per second, not {max_rate!r}")
    if max_bytes is not None:
        raise InvalidOptionError("max_rate counts messages and cannot be combined with max_bytes; use max_messages")
    return float(max_rate)


def group_options(
    config: ConsumerConfig | None,
    *,
    group: str | None = None,
    min_pending: int | None = None,
    min_ack_pending: int | None = None,
    priority: int | None = None,
) -> GroupOptions:
    """Check the priority group of a pull against the consumer's groups, if its configuration is known.

    Raises:
        InvalidOptionError: the group is missing, unknown or not possible, or an option of another policy was given.
    """
    _check_at_least("min_pending", min_pending, 1)
    _check_at_least("min_ack_pending", min_ack_pending, 1)
    if priority is not None and (isinstance(priority, bool) or not 0 <= priority <= 9):
        raise InvalidOptionError(f"priority must be 0 (first) to 9, not {priority!r}")
    given = {"min_pending": min_pending, "min_ack_pending": min_ack_pending, "priority": priority}
    if group is None and any(value is not None for value in given.values()):
        raise InvalidOptionError("min_pending, min_ack_pending and priority need group")
    if config is not None:
        _check_group(config, group, given)
    return GroupOptions(group or "", min_pending or 0, min_ack_pending or 0, priority or 0)


_POLICY_OF = {
    "min_pending": PriorityPolicy.OVERFLOW,
    "min_ack_pending": PriorityPolicy.OVERFLOW,
    "priority": PriorityPolicy.PRIORITIZED,
}


def _check_group(config: ConsumerConfig, group: str | None, given: dict[str, int | None]) -> None:
    policy = config.priority_policy
    if policy is PriorityPolicy.NONE:
        if group is not None:
            raise InvalidOptionError(f"group {group!r}: the consumer {config.name!r} has no priority groups")
        return
    groups = ", ".join(config.priority_groups)
    if group is None:
        raise InvalidOptionError(f"the consumer {config.name!r} has priority groups: pass group (one of {groups})")
    if group not in config.priority_groups:
        raise InvalidOptionError(f"the consumer {config.name!r} has no group {group!r} (it has {groups})")
    for option, value in given.items():
        if value is not None and policy is not _POLICY_OF[option]:
            raise InvalidOptionError(
                f"{option} is for the policy {_POLICY_OF[option].value}; {config.name!r} has {policy.value}"
            )


def _threshold(option: str, value: int | None, limit: int) -> int:
    if value is None:
        # Rounded up, or a small limit would never ask again.
        return math.ceil(limit * THRESHOLD_SHARE)
    _check_at_least(option, value, 1)
    if value > limit:
        raise InvalidOptionError(f"{option} must be at most the limit it belongs to ({limit}), not {value}")
    return value


def _refuse(option: str, value: int | None, needs: str) -> None:
    if value is not None:
        raise InvalidOptionError(f"{option} needs {needs}")


def _check_at_least(option: str, value: int | None, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidOptionError(f"{option} must be a whole number, {least} or more, not {value!r}")


Backoff = Seconds | Iterable[Seconds]
"""Seconds before each retry; the last one repeats."""

_RETRIES = 3
_BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)


class RetryOptions(Struct, frozen=True):
    """The retries of a read with a handler.

    Attributes:
        retries: the number of retries of a message.
        backoff_s: seconds before each retry; the last one repeats.
        dead_letter: the subject under which messages are stored that are given up; empty for none.
    """

    retries: int
    backoff_s: tuple[float, ...]
    dead_letter: str

    def is_last(self, delivered: int) -> bool:
        """Return whether a message that failed in this delivery is given up."""
        return delivered > self.retries

    def delay_s(self, delivered: int) -> float:
        """Return the seconds to wait after this delivery."""
        return self.backoff_s[min(delivered, len(self.backoff_s)) - 1]


def retry_options(
    config: ConsumerConfig, retries: int | None, backoff: Backoff | None, dead_letter: str | None
) -> RetryOptions | None:
    """Check the retry options of `consume`; None when none was given.

    Raises:
        InvalidOptionError: an option that cannot work, or a consumer that gives up first.
    """
    if retries is None and backoff is None and dead_letter is None:
        return None
    if config.ack_policy is not AckPolicy.EXPLICIT:
        raise InvalidOptionError(f"retries need ack_policy explicit; {config.name!r} has {config.ack_policy.value}")
    count = _RETRIES if retries is None else retries
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise InvalidOptionError(f"retries must be a whole number, 0 or more, not {retries!r}")
    if 0 < config.max_deliver <= count + 1:
        raise InvalidOptionError(
            f"the consumer {config.name!r} gives a message up after max_deliver={config.max_deliver} deliveries, "
            f"before {count} retries and one more after a crash are over: use max_deliver=-1 or {count + 2} and more"
        )
    if backoff is None:
        waits = tuple(wait / 1e9 for wait in config.backoff) or _BACKOFF_S
    else:
        waits = tuple(_waits(backoff))
        if not waits or min(waits) < 0:
            raise InvalidOptionError(
                f"backoff must be a number of seconds, 0 or more, or a list of them, not {backoff!r}"
            )
    subject = ""
    if dead_letter is not None:
        subject = letter_subject(dead_letter, "STREAM", "CONSUMER")
        publish_subject(subject)
    return RetryOptions(count, waits, dead_letter or "")


def _waits(backoff: Backoff) -> list[float]:
    if isinstance(backoff, Iterable) and not isinstance(backoff, (str, bytes)):
        return [duration_s("backoff", wait) for wait in backoff]
    return [duration_s("backoff", backoff)]  # type: ignore[arg-type]
