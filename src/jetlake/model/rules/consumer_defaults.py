"""The defaults of consumer configurations: fills in fields that were left out, and corrects negative numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec.structs import replace

from jetlake.model.account import AccountLimits
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND
from jetlake.model.enums import AckPolicy, PriorityPolicy, RetentionPolicy
from jetlake.model.rules.common import pedantic_error, utc_time
from jetlake.model.rules.limits import (
    ACK_WAIT_DEFAULT,
    INACTIVE_THRESHOLD_DEFAULT,
    MAX_ACK_PENDING_DEFAULT,
    MAX_WAITING_DEFAULT,
    PRIORITY_TIMEOUT_DEFAULT,
    ServerLimits,
)
from jetlake.model.stream import StreamConfig

__all__ = [
    "ALONE",
    "FLOW_CONTROL_HEARTBEAT",
    "ConsumerRules",
    "with_defaults",
    "with_durable_position",
    "with_lifetime",
]

FLOW_CONTROL_HEARTBEAT = NANOSECONDS_PER_SECOND
"""The heartbeat that goes with the flow control ack policy, nanoseconds."""


class ConsumerRules(NamedTuple):
    """The context of the checks: the stream, and the limits of server and account."""

    stream: StreamConfig = StreamConfig(num_replicas=1)
    """The configuration of the stream."""
    pedantic: bool = False
    """Refuse what would otherwise be corrected in silence."""
    server: ServerLimits = ServerLimits()
    """The server's own limits."""
    account: AccountLimits = AccountLimits()
    """The account's limits."""


ALONE = ConsumerRules()
"""Nothing but the configuration itself: a stream without subjects and limits."""


def with_defaults(config: ConsumerConfig, rules: ConsumerRules) -> ConsumerConfig:
    """Return the configuration as it is checked: with defaults, and without what is corrected in silence.

    Raises:
        ApiError: 10157, something would be corrected and the request is pedantic.
    """
    config = _with_priority_acks(config, rules)
    config = _without_negatives(config, rules)
    return _with_zeros_filled(config, rules)


def with_durable_position(config: ConsumerConfig, retention: RetentionPolicy) -> ConsumerConfig:
    """Return the configuration of a consumer that feeds a mirror or source, on a stream of that retention policy.

    Where consumed messages leave, its position must survive, and it may take no message that is not stored: it becomes
    a durable consumer that is acknowledged through flow control.
    """
    if retention is RetentionPolicy.LIMITS or not (config.direct and config.sourcing):
        return config
    return replace(
        config,
        durable_name=config.name,
        direct=False,
        ack_policy=AckPolicy.FLOW_CONTROL,
        ack_wait=0,
        max_deliver=-1,
        inactive_threshold=0,
    )


def with_lifetime(config: ConsumerConfig) -> ConsumerConfig:
    """Return the configuration as it is stored: an ephemeral consumer ends some time after its last use."""
    if config.durable_name or config.inactive_threshold > 0:
        return config
    return replace(config, inactive_threshold=INACTIVE_THRESHOLD_DEFAULT)


def _with_priority_acks(config: ConsumerConfig, rules: ConsumerRules) -> ConsumerConfig:
    is_wrong = config.ack_policy is not AckPolicy.EXPLICIT
    if config.priority_policy is PriorityPolicy.NONE or config.is_push or not is_wrong:
        return config
    if rules.pedantic:
        raise pedantic_error("ack_policy must be explicit if a priority policy is set")
    return replace(config, ack_policy=AckPolicy.EXPLICIT)


def _without_negatives(config: ConsumerConfig, rules: ConsumerRules) -> ConsumerConfig:
    """Replace negative numbers by their defaults, unless the request is pedantic."""
    changes: dict[str, Any] = {}
    for name, lowest, default, reason in (
        ("max_deliver", -1, -1, "must be set to -1"),
        ("max_waiting", 0, 0, "must not be negative"),
        ("max_ack_pending", -1, -1, "must be set to -1"),
        ("max_batch", 0, 0, "must not be negative"),
        ("max_expires", 0, 0, "must not be negative"),
        ("max_bytes", 0, 0, "must not be negative"),
        ("idle_heartbeat", 0, 0, "must not be negative"),
        ("inactive_threshold", 0, 0, "must not be negative"),
        ("priority_timeout", 0, 0, "must not be negative"),
    ):
        if getattr(config, name) < lowest:
            if rules.pedantic:
                raise pedantic_error(f"{name} {reason}")
            changes[name] = default
    return replace(config, **changes) if changes else config


def _with_zeros_filled(config: ConsumerConfig, rules: ConsumerRules) -> ConsumerConfig:
    changes: dict[str, Any] = {
        "max_deliver": config.max_deliver or -1,
        "ack_wait": _ack_wait(config, rules),
        **_limits_of_the_stream(config, rules),
        **_pull_defaults(config, rules),
    }
    if changes.get("max_ack_pending", config.max_ack_pending) == 0 and config.ack_policy is not AckPolicy.NONE:
        bounds = [limit for limit in (rules.server.max_ack_pending, rules.account.max_ack_pending) if limit > 0]
        changes["max_ack_pending"] = min(MAX_ACK_PENDING_DEFAULT, *bounds) if bounds else MAX_ACK_PENDING_DEFAULT
    if config.ack_policy is AckPolicy.FLOW_CONTROL and not rules.pedantic:
        changes["flow_control"] = True
        changes["idle_heartbeat"] = FLOW_CONTROL_HEARTBEAT
    for name in ("opt_start_time", "pause_until"):
        time = getattr(config, name)
        if time is not None:
            changes[name] = utc_time(time)
    return replace(config, **changes)


def _ack_wait(config: ConsumerConfig, rules: ConsumerRules) -> int:
    """Return the ack wait; the first back-off value where there is one."""
    waits_for_acks = config.ack_policy in (AckPolicy.EXPLICIT, AckPolicy.ALL)
    ack_wait = config.ack_wait or (ACK_WAIT_DEFAULT if waits_for_acks else 0)
    if not config.backoff:
        return ack_wait
    if rules.pedantic and ack_wait != config.backoff[0]:
        raise pedantic_error("first backoff value has to equal batch AckWait")
    return config.backoff[0]


def _limits_of_the_stream(config: ConsumerConfig, rules: ConsumerRules) -> dict[str, Any]:
    """Return the stream's limits for consumers, where the configuration leaves them to it."""
    limits = rules.stream.consumer_limits
    changes = {}
    for name in ("max_ack_pending", "inactive_threshold"):
        if getattr(config, name) == 0:
            if rules.pedantic and getattr(limits, name) > 0:
                raise pedantic_error(f"{name} must be set if it's configured in stream limits")
            changes[name] = getattr(limits, name)
    return changes


def _pull_defaults(config: ConsumerConfig, rules: ConsumerRules) -> dict[str, Any]:
    """Return the defaults that only pull consumers have."""
    if config.is_push:
        return {}
    changes: dict[str, Any] = {"max_waiting": config.max_waiting or MAX_WAITING_DEFAULT}
    if config.max_batch == 0 and rules.server.max_request_batch > 0:
        if rules.pedantic:
            raise pedantic_error("max_request_batch must be set if it's JetStream limits are set")
        changes["max_batch"] = rules.server.max_request_batch
    if config.priority_policy is PriorityPolicy.PINNED_CLIENT and config.priority_timeout == 0:
        changes["priority_timeout"] = PRIORITY_TIMEOUT_DEFAULT
    return changes
