"""The rules of consumer configurations: the server's checks in its order, with its error codes and texts.

Every function is pure: it returns the configuration with all defaults filled in, or raises the ApiError that a server
would answer. Left to the caller is what takes more than configurations: whether the stream (10059) and the consumer
exist (10148, 10149) and how many consumers there are (10026).

Where NATS ADR-42 asks for more than released servers do, NATS ADR-42 wins (decision 1): a consumer has one priority
group, its policy and groups stay as they were created, and its ack policy is explicit (made so, or refused when the
request is pedantic).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from msgspec.structs import replace

from jetlake.errors import api_error
from jetlake.model.account import AccountLimits
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND, format_duration
from jetlake.model.enums import AckPolicy, DeliverPolicy, PriorityPolicy, RetentionPolicy
from jetlake.model.requests import ConsumerCreateRequest
from jetlake.model.rules.common import (
    SUBJECTS_PER_STEP,
    invalid_config,
    matcher_of,
    metadata_bytes,
    overlaps_of,
    pedantic_error,
    utc_time,
    valid_patterns,
)
from jetlake.model.rules.limits import (
    ACK_WAIT_DEFAULT,
    DESCRIPTION_BYTES_MAX,
    INACTIVE_THRESHOLD_DEFAULT,
    MAX_ACK_PENDING_DEFAULT,
    MAX_WAITING_DEFAULT,
    METADATA_BYTES_MAX,
    NAME_BYTES_MAX,
    PRIORITY_TIMEOUT_DEFAULT,
    ServerLimits,
    is_valid_name,
)
from jetlake.model.steps import Steps, finish
from jetlake.model.stream import StreamConfig
from jetlake.protocol.subjects import has_wildcards, is_subset, is_valid_config

_NAME_RULE = "can not contain '.', '*', '>', '\\', '/'"
_GROUP_NAME = re.compile(r"[A-Za-z0-9/_=-]{1,16}\Z")
_MILLISECOND = 1_000_000
_SHORTEST_HEARTBEAT = 100 * _MILLISECOND

# How the texts of 10094 call each policy.
_POLICY_WORDS = {
    DeliverPolicy.ALL: "all",
    DeliverPolicy.LAST: "last",
    DeliverPolicy.NEW: "new",
    DeliverPolicy.BY_START_SEQUENCE: "by start sequence",
    DeliverPolicy.BY_START_TIME: "by start time",
    DeliverPolicy.LAST_PER_SUBJECT: "last per subject",
}
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


def check_consumer_request(
    request: ConsumerCreateRequest, *, stream: str, consumer: str = "", filter_subject: str = "", durable: bool = False
) -> ConsumerConfig:
    """Check first of all that the subject and the body of a create request agree.

    Returns the configuration with the name that the subject has. Names in the subject are the current form
    (`CONSUMER.CREATE.<stream>.<consumer>[.<filter>]`) or that of old durables (`CONSUMER.DURABLE.CREATE.…`); without a
    name it is the form of old ephemerals (`CONSUMER.CREATE.<stream>`).

    Args:
        stream: name of the stream in the subject.
        consumer: name of the consumer in the subject, if it is there.
        filter_subject: the rest of the subject, if there is one.
        durable: whether it is the form of old durables.

    Raises:
        ApiError: 10056, 10127, 10018, 10017, 10020, 10137, 10131 or 10074, in this order.
    """
    config = request.config
    if request.stream_name != stream:
        raise api_error(10056)
    if "/" in consumer or "\\" in consumer:
        raise api_error(10127)
    if durable and not config.durable_name:
        raise api_error(10018)
    if consumer and config.durable_name and config.durable_name != consumer:
        raise api_error(10017)
    if not consumer and config.durable_name:
        raise api_error(10020)
    if filter_subject and config.filter_subjects:
        raise api_error(10137)
    if filter_subject and config.filter_subject != filter_subject:
        raise api_error(10131)
    if config.num_replicas > 1:
        raise api_error(10074)
    return replace(config, name=consumer) if consumer else config


def check_consumer(config: ConsumerConfig, rules: ConsumerRules = ALONE) -> ConsumerConfig:
    """Check the configuration's fields, and return it with all defaults filled in.

    Raises:
        ApiError: the first rule that it breaks.
    """
    return finish(check_consumer_in_steps(config, rules))


def check_consumer_in_steps(config: ConsumerConfig, rules: ConsumerRules = ALONE) -> Steps[ConsumerConfig]:
    """Do the same in steps: lists of filters, and of the stream's subjects, may be long."""
    config = with_defaults(config, rules)
    _check_names(config)
    _check_replicas(config, rules)
    _check_acks(config)
    if config.is_push:
        yield from _check_push(config, rules.stream)
    else:
        _check_pull(config, rules)
    _check_limits(config, rules)
    yield from _check_filters(config)
    _check_start(config)
    _check_rest(config)
    _check_priority(config)
    if len(config.name.encode()) > NAME_BYTES_MAX or len(config.durable_name.encode()) > NAME_BYTES_MAX:
        raise api_error(10102, max=NAME_BYTES_MAX)
    return with_lifetime(config)


def check_consumer_update(
    old: ConsumerConfig, new: ConsumerConfig, rules: ConsumerRules = ALONE, *, is_deliver_subject_in_use: bool = False
) -> ConsumerConfig:
    """Take all steps of `check_consumer_update_in_steps` at once."""
    steps = check_consumer_update_in_steps(old, new, rules, is_deliver_subject_in_use=is_deliver_subject_in_use)
    return finish(steps)


def check_consumer_update_in_steps(
    old: ConsumerConfig, new: ConsumerConfig, rules: ConsumerRules = ALONE, *, is_deliver_subject_in_use: bool = False
) -> Steps[ConsumerConfig]:
    """Check a change to the whole configuration `new`, and return that with all defaults filled in.

    Whatever an update says, a durable consumer stays durable, and the time until which it is paused stays: that has a
    request of its own.

    Args:
        is_deliver_subject_in_use: whether the old deliver subject has a subscription, so that it must stay.

    Raises:
        ApiError: the first rule that it breaks; 10012 for what cannot be changed.
    """
    durable_name = new.durable_name or old.durable_name
    new = replace(new, durable_name=durable_name, pause_until=old.pause_until)
    new = yield from check_consumer_in_steps(new, rules)
    for name, reason in (
        ("deliver_policy", "deliver policy can not be updated"),
        ("mem_storage", "storage type can not be updated"),
        ("direct", "direct can not be updated"),
        ("sourcing", "sourcing can not be updated"),
        ("opt_start_seq", "start sequence can not be updated"),
        ("opt_start_time", "start time can not be updated"),
        ("ack_policy", "ack policy can not be updated"),
        ("replay_policy", "replay policy can not be updated"),
        ("idle_heartbeat", "heart beats can not be updated"),
        ("flow_control", "flow control can not be updated"),
    ):
        if getattr(old, name) != getattr(new, name):
            raise api_error(10012, err=reason)
    if old.deliver_subject != new.deliver_subject:
        if not old.is_push:
            raise api_error(10012, err="can not update pull consumer to push based")
        if not new.is_push:
            raise api_error(10012, err="can not update push consumer to pull based")
        if is_deliver_subject_in_use:
            raise api_error(10013)
    for name, reason in (
        ("max_waiting", "max waiting can not be updated"),
        ("priority_policy", "priority policy can not be updated"),
        ("priority_groups", "priority groups can not be updated"),
    ):
        if getattr(old, name) != getattr(new, name):
            raise api_error(10012, err=reason)
    return new


def check_workqueue(
    config: ConsumerConfig, others: Iterable[ConsumerConfig], *, is_update: bool = False
) -> Steps[None]:
    """Check a consumer on a work queue, of which every message belongs to one consumer.

    Consumers that feed a mirror or source are free of them, and do not count as other consumers.

    Args:
        others: the configurations of the stream's other consumers, or of consumers that may want the same messages.
        is_update: whether the consumer exists, in which case only its filters are looked at.

    Raises:
        ApiError: 10098, 10101, 10099 or 10100.
    """
    if config.is_copying:
        return
    if not is_update:
        if config.ack_policy not in (AckPolicy.EXPLICIT, AckPolicy.FLOW_CONTROL):
            raise api_error(10098)
        if config.deliver_policy is not DeliverPolicy.ALL:
            raise api_error(10101)
    others = [other for other in others if not other.is_copying]
    if not others:
        return
    if not config.filters and not is_update:
        raise api_error(10099)
    taken = yield from matcher_of([subject.encode() for other in others for subject in other.filters or (">",)])
    for index, subject in enumerate(config.filters or (">",)):
        if index:
            yield  # One comparison may walk all of a tree.
        if taken.overlaps(subject.encode()):
            raise api_error(10100)


def check_group_name(group: str) -> None:
    """Check the name of a priority group.

    Raises:
        ApiError: 10161 or 10162.
    """
    if not group:
        raise api_error(10161)
    if _GROUP_NAME.match(group) is None:
        raise api_error(10162)


def _check_names(config: ConsumerConfig) -> None:
    if config.name and not is_valid_name(config.name):
        raise invalid_config(f"consumer name {_NAME_RULE}")
    if config.durable_name and not is_valid_name(config.durable_name):
        raise invalid_config(f"consumer durable name {_NAME_RULE}")


def _check_replicas(config: ConsumerConfig, rules: ConsumerRules) -> None:
    if config.num_replicas > 0 and config.num_replicas > rules.stream.num_replicas:
        raise api_error(10126)
    if config.num_replicas < 0:
        raise api_error(10133)
    is_bound = rules.stream.retention in (RetentionPolicy.INTEREST, RetentionPolicy.WORKQUEUE)
    if is_bound and config.num_replicas not in (0, rules.stream.num_replicas):
        raise api_error(10134)


def _check_acks(config: ConsumerConfig) -> None:
    """Check the waits for acknowledgements, and what the flow control ack policy asks for."""
    if any(wait < 0 for wait in config.backoff):
        raise api_error(10184)
    if config.ack_wait < 0:
        raise api_error(10183)
    if config.ack_policy is AckPolicy.FLOW_CONTROL:
        if not config.is_push:
            raise api_error(10218)
        if not config.flow_control:
            raise api_error(10219)
        if config.idle_heartbeat != FLOW_CONTROL_HEARTBEAT:
            raise invalid_config("flow control ack policy heartbeat needs to be 1s")
        if config.max_ack_pending <= 0:
            raise api_error(10220)
        if config.ack_wait != 0 or config.backoff:
            raise api_error(10221)
        if config.max_deliver > 0:
            raise api_error(10222)
    if config.backoff and config.max_deliver != -1 and len(config.backoff) > config.max_deliver:
        raise api_error(10116)
    if len(config.description.encode()) > DESCRIPTION_BYTES_MAX:
        raise api_error(10107, max=DESCRIPTION_BYTES_MAX)


def _check_push(config: ConsumerConfig, stream: StreamConfig) -> Steps[None]:
    subject = config.deliver_subject.encode()
    if has_wildcards(subject):
        raise api_error(10079)
    if not is_valid_config(subject):
        raise api_error(10112)
    for index, captured in enumerate(stream.subjects):
        if is_subset(subject, captured.encode()):
            raise api_error(10081)
        if index and not index % SUBJECTS_PER_STEP:
            yield
    if config.max_waiting != 0:
        raise api_error(10080)
    if config.max_ack_pending > 0 and config.ack_policy is AckPolicy.NONE:
        raise api_error(10082)
    if 0 < config.idle_heartbeat < _SHORTEST_HEARTBEAT:
        raise api_error(10083)


def _check_pull(config: ConsumerConfig, rules: ConsumerRules) -> None:
    if config.ack_policy is AckPolicy.NONE and rules.stream.retention is RetentionPolicy.WORKQUEUE:
        raise api_error(10084)
    if config.rate_limit_bps > 0:
        raise api_error(10086)
    if config.idle_heartbeat > 0:
        raise api_error(10088)
    if config.flow_control:
        raise api_error(10089)
    if 0 < config.max_expires < _MILLISECOND:
        raise api_error(10115)
    if 0 < rules.server.max_request_batch < config.max_batch:
        raise api_error(10125, limit=rules.server.max_request_batch)


def _check_limits(config: ConsumerConfig, rules: ConsumerRules) -> None:
    limits = rules.stream.consumer_limits
    for limit in (rules.server.max_ack_pending, rules.account.max_ack_pending, limits.max_ack_pending):
        if 0 < limit < config.max_ack_pending:
            raise api_error(10121, limit=limit)
    if 0 < limits.inactive_threshold < config.inactive_threshold:
        raise api_error(10153, limit=format_duration(limits.inactive_threshold))
    if config.direct:
        if not config.is_push:
            raise api_error(10090)
        if config.durable_name:
            raise api_error(10091)


def _check_filters(config: ConsumerConfig) -> Steps[None]:
    if config.filter_subject and config.filter_subjects:
        raise api_error(10136)
    if config.filter_subject and not is_valid_config(config.filter_subject.encode()):
        raise invalid_config("invalid subject")
    if "" in config.filter_subjects:
        raise api_error(10139)
    filters = [filter_subject.encode() for filter_subject in config.filters]
    valid = yield from valid_patterns(filters)
    # Up to the first filter that is not valid, both lists have the same order.
    others = yield from overlaps_of([pattern for pattern in filters if pattern in valid])
    for index, ours in enumerate(filters):
        if index:
            yield
        if ours not in valid:
            raise invalid_config("invalid subject")
        if others.covering(index) is not None:
            raise api_error(10138)


def _check_start(config: ConsumerConfig) -> None:
    """Check the deliver policy against the start that it needs or forbids."""
    policy = config.deliver_policy
    words = _POLICY_WORDS[policy]
    by_sequence = policy is DeliverPolicy.BY_START_SEQUENCE
    by_time = policy is DeliverPolicy.BY_START_TIME
    if by_sequence and config.opt_start_seq == 0:
        raise _start_not_set(words, "start sequence")
    if by_time and config.opt_start_time is None:
        raise _start_not_set(words, "start time")
    if config.opt_start_seq > 0 and not by_sequence:
        # With a start time the server says the word twice.
        raise _start_also_set(words, "start sequence" if by_time else "sequence")
    if config.opt_start_time is not None and not by_time:
        raise _start_also_set(words, "time")
    if policy is DeliverPolicy.LAST_PER_SUBJECT and not config.filters:
        raise _start_not_set(words, "filter subject")


def _start_not_set(words: str, what: str) -> Exception:
    return api_error(10094, err=f"consumer delivery policy is deliver {words}, but optional {what} is not set")


def _start_also_set(words: str, what: str) -> Exception:
    return api_error(10094, err=f"consumer delivery policy is deliver {words}, but optional start {what} is also set")


def _check_rest(config: ConsumerConfig) -> None:
    percentage = config.sample_freq.removesuffix("%")
    if config.sample_freq and not (percentage.isascii() and percentage.isdigit() and len(percentage) < 10):
        raise api_error(10095, err=f'"{config.sample_freq}" is not a percentage')
    if config.flow_control and config.idle_heartbeat == 0:
        raise api_error(10108)
    if config.durable_name and config.name and config.name != config.durable_name:
        raise api_error(10132)
    if metadata_bytes(config.metadata) > METADATA_BYTES_MAX:
        raise api_error(10135, limit=f"{METADATA_BYTES_MAX // 1024}KB")


def _check_priority(config: ConsumerConfig) -> None:
    if config.priority_policy is PriorityPolicy.NONE:
        if config.priority_groups:
            raise api_error(10196)
        if config.priority_timeout > 0:
            raise api_error(10197)
        return
    if config.is_push:
        raise api_error(10178)
    if not config.priority_groups:
        raise api_error(10159)
    for group in config.priority_groups:
        check_group_name(group)
    if len(config.priority_groups) > 1:
        raise invalid_config("consumer can only have one priority group")


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
