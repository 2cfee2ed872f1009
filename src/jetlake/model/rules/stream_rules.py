"""The rules of stream configurations: the server's checks in its order, with its error codes and texts.

Every function is pure: it returns the configuration with all defaults filled in, or raises the ApiError that a server
would answer. What other streams look like is passed in as a function from names to configurations. Left to the caller
is what takes more than configurations: whether the name is in use (10058), subjects of other streams (10065), the
number of streams (10027) and the room that is left (10028, 10047).

The reasons are in decision 4 (docs/decisions).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from jetlake.errors import ConfigError, api_error
from jetlake.model.account import AccountLimits
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND, format_duration
from jetlake.model.encoding.fields import SEQUENCE_MAX
from jetlake.model.enums import DiscardPolicy, PersistMode, RetentionPolicy, StorageType
from jetlake.model.rules.common import check_transform, invalid_config, metadata_bytes, pedantic_error
from jetlake.model.rules.limits import (
    DESCRIPTION_BYTES_MAX,
    DUPLICATE_WINDOW_DEFAULT,
    METADATA_BYTES_MAX,
    NAME_BYTES_MAX,
    REPLICAS_MAX,
    ServerLimits,
    is_valid_name,
)
from jetlake.model.rules.pattern_set import PatternSet
from jetlake.model.rules.source_rules import StreamLookup, check_copies, check_copy_filters, no_streams
from jetlake.model.stream import Placement, StreamConfig
from jetlake.model.transforms import compile_transform
from jetlake.protocol.subjects import is_subset, is_valid_config, overlaps

__all__ = [
    "StreamRules",
    "check_consumers_within",
    "check_stream_config",
    "check_stream_create",
    "check_stream_request",
    "check_stream_update",
]

_SHORTEST_WINDOW = 100_000_000  # 100 ms: nothing is remembered or kept for less
_NAME_RULE = "stream name is required and can not contain '.', '*', '>', '\\', '/'"
_API_SPACES = (b"$JS.>", b"$JSC.>", b"$NRG.>")


class StreamRules(NamedTuple):
    """The context of the checks: the limits of server and account, and the account's other streams."""

    pedantic: bool = False
    """Refuse what would otherwise be corrected in silence."""
    server: ServerLimits = ServerLimits()
    """The server's own limits."""
    account: AccountLimits = AccountLimits()
    """The account's limits."""
    lookup: StreamLookup = no_streams
    """The configuration of another stream by its name, or None."""


ALONE = StreamRules()
"""Nothing but the configuration itself: no limits, no other streams."""


def check_stream_create(config: StreamConfig, rules: StreamRules = ALONE) -> StreamConfig:
    """Check all of a create request that needs nothing but the request; for clients that reject early.

    Raises:
        ApiError: what the server would answer.
    """
    check_stream_request(config.name, config)
    return check_stream_config(config, rules)


def check_stream_request(name_in_subject: str, config: StreamConfig) -> None:
    """Check what comes first in a create request; the account's limits come next.

    Raises:
        ApiError: 10056, 10128 or 10052.
    """
    if config.name != name_in_subject:
        raise api_error(10056)
    if "/" in config.name or "\\" in config.name:
        raise api_error(10128)
    if config.sealed:
        raise invalid_config("stream configuration for create can not be sealed")
    if config.mirror_direct and config.mirror is None:
        raise invalid_config("stream has no mirror but does have mirror direct")


def check_stream_config(config: StreamConfig, rules: StreamRules = ALONE) -> StreamConfig:
    """Check the configuration's fields, and return it with all defaults filled in.

    Raises:
        ApiError: the first rule that it breaks.
    """
    _check_texts(config)
    config = _with_limits(config, rules)
    config = _with_duplicate_window(config, rules)
    config = _with_features(config, rules)
    config = check_copies(config, rules.lookup, is_pedantic=rules.pedantic)
    config = _with_subjects(config)
    _check_account(config, rules.account)
    config = _with_republish(config, rules)
    if config.placement == Placement():
        config = replace(config, placement=None)
    if config.placement is not None and config.placement.preferred:
        raise invalid_config("preferred server not permitted in placement")
    if config.num_replicas > 1:
        raise api_error(10074)
    check_copy_filters(config)
    return config


def check_stream_update(old: StreamConfig, new: StreamConfig, rules: StreamRules = ALONE) -> StreamConfig:
    """Check a change to the whole configuration `new`, and return that with all defaults filled in.

    The first sequence is of the creation: whatever an update says, the old one stays.

    Raises:
        ApiError: the first rule that it breaks.
    """
    new = check_stream_config(new, rules)
    if new.name != old.name:
        raise invalid_config("stream configuration name must match original")
    for is_forbidden, reason in (
        (new.storage is not old.storage, "stream configuration update can not change storage type"),
        (
            new.retention is not old.retention and RetentionPolicy.WORKQUEUE in (new.retention, old.retention),
            "stream configuration update can not change retention policy to/from workqueue",
        ),
        (old.sealed and not new.sealed, "stream configuration update can not unseal a sealed stream"),
        (old.deny_delete and not new.deny_delete, "stream configuration update can not cancel deny message deletes"),
        (old.deny_purge and not new.deny_purge, "stream configuration update can not cancel deny purge"),
    ):
        if is_forbidden:
            raise invalid_config(reason)
    # A mirror may be let go, which makes it a stream of its own, but not changed.
    if new.mirror is not None and new.mirror != old.mirror:
        raise api_error(10055)
    for is_forbidden, reason in (
        (old.allow_msg_ttl and not new.allow_msg_ttl, "message TTL status can not be disabled"),
        (
            old.allow_msg_counter != new.allow_msg_counter,
            "stream configuration update can not change message counter setting",
        ),
        (old.allow_msg_schedules and not new.allow_msg_schedules, "message schedules can not be disabled"),
        (old.persist_mode is not new.persist_mode, "stream configuration update can not change persist mode"),
    ):
        if is_forbidden:
            raise invalid_config(reason)
    if new.sealed:
        new = replace(
            new,
            max_age=0,
            discard=DiscardPolicy.NEW,
            deny_delete=True,
            deny_purge=True,
            allow_rollup_hdrs=False,
        )
    return replace(new, first_seq=old.first_seq)


def check_consumers_within(
    old: StreamConfig, new: StreamConfig, consumers: Iterable[tuple[str, ConsumerConfig]]
) -> None:
    """Check that an update's consumer limits leave room for the consumers that exist.

    Raises:
        ApiError: 10069, naming those that do not fit.
    """
    limits = new.consumer_limits
    threshold = limits.inactive_threshold if limits.inactive_threshold != old.consumer_limits.inactive_threshold else 0
    pending = limits.max_ack_pending if limits.max_ack_pending != old.consumer_limits.max_ack_pending else 0
    misfits = [
        name
        for name, consumer in consumers
        if 0 < threshold < consumer.inactive_threshold or 0 < pending < consumer.max_ack_pending
    ]
    if misfits:
        raise api_error(10069, err=f"change to limits violates consumers: {', '.join(misfits)}")


def _check_texts(config: StreamConfig) -> None:
    if not is_valid_name(config.name):
        raise invalid_config(_NAME_RULE)
    if len(config.name.encode()) > NAME_BYTES_MAX:
        raise invalid_config(f"stream name is too long, maximum allowed is {NAME_BYTES_MAX}")
    if len(config.description.encode()) > DESCRIPTION_BYTES_MAX:
        raise invalid_config(f"stream description is too long, maximum allowed is {DESCRIPTION_BYTES_MAX}")
    if metadata_bytes(config.metadata) > METADATA_BYTES_MAX:
        raise invalid_config(f"stream metadata exceeds maximum size of {METADATA_BYTES_MAX} bytes")


def _with_limits(config: StreamConfig, rules: StreamRules) -> StreamConfig:
    """Check replicas and age, and set the limits that mean unlimited to -1."""
    replicas = config.num_replicas or 1
    if replicas > REPLICAS_MAX:
        raise invalid_config(f"maximum replicas is {REPLICAS_MAX}")
    if replicas < 0:
        raise api_error(10133)
    changes: dict[str, int] = {"num_replicas": replicas}
    for name in ("max_msgs", "max_msgs_per_subject", "max_bytes", "max_msg_size", "max_consumers"):
        value = getattr(config, name)
        if value < -1 and rules.pedantic:
            raise pedantic_error(f"{name} must be set to -1")
        if value < -1 or value == 0:
            changes[name] = -1
    if config.max_age < 0:
        raise invalid_config("max age can not be negative")
    if 0 < config.max_age < _SHORTEST_WINDOW:
        raise invalid_config("max age needs to be >= 100ms")
    if config.first_seq > SEQUENCE_MAX:
        raise invalid_config(f"first sequence is too high, maximum allowed is {SEQUENCE_MAX}")
    return replace(config, **changes)


def _with_duplicate_window(config: StreamConfig, rules: StreamRules) -> StreamConfig:
    window, max_age, limit = config.duplicate_window, config.max_age, rules.server.duplicate_window
    if window == 0 and config.mirror is None and not config.sources:
        window = DUPLICATE_WINDOW_DEFAULT
        if 0 < limit < window:
            if rules.pedantic:
                raise pedantic_error("duplicate window limits are higher than current limits")
            window = limit
        if 0 < max_age < window:
            if rules.pedantic:
                raise pedantic_error("duplicate window cannot be bigger than max age")
            window = max_age
    if window < 0:
        raise invalid_config("duplicates window can not be negative")
    if 0 < max_age < window:
        raise invalid_config("duplicates window can not be larger then max age")
    if 0 < limit < window:
        raise invalid_config(f"duplicates window can not be larger then server limit of {format_duration(limit)}")
    if 0 < window < _SHORTEST_WINDOW:
        raise invalid_config("duplicates window needs to be >= 100ms")
    return replace(config, duplicate_window=window)


def _with_features(config: StreamConfig, rules: StreamRules) -> StreamConfig:
    """Check what roll-ups, counters, markers, schedules and the persist mode ask of each other."""
    discards_new = config.discard is DiscardPolicy.NEW
    if config.deny_purge and config.allow_rollup_hdrs:
        raise invalid_config("roll-ups require the purge permission")
    if config.allow_msg_counter:
        _check_counter(config)
    if config.discard_new_per_subject:
        if not discards_new:
            raise invalid_config("discard new per subject requires discard new policy to be set")
        if config.max_msgs_per_subject <= 0:
            raise invalid_config("discard new per subject requires max msgs per subject > 0")
    config = _with_delete_markers(config, rules)
    if config.allow_msg_schedules:
        if discards_new:
            raise invalid_config("message scheduling cannot use discard new")
        if not config.allow_rollup_hdrs:
            if rules.pedantic:
                raise invalid_config("message scheduling cannot be set if roll-ups are disabled")
            config = replace(config, allow_rollup_hdrs=True, deny_purge=False)
    if config.persist_mode is PersistMode.ASYNC:
        if config.storage is not StorageType.FILE:
            raise invalid_config("async persist mode is only supported on file storage")
        if config.num_replicas > 1:
            raise invalid_config("async persist mode is not supported on replicated streams")
        if config.allow_atomic:
            raise invalid_config("async persist mode is not supported with atomic batch publish")
    return config


def _check_counter(config: StreamConfig) -> None:
    if config.discard is DiscardPolicy.NEW:
        raise invalid_config("counter stream cannot use discard new")
    if config.allow_msg_ttl:
        raise invalid_config("counter stream cannot use message TTLs")
    if config.allow_msg_schedules:
        raise invalid_config("counter stream cannot use message schedules")
    if config.retention is not RetentionPolicy.LIMITS:
        raise invalid_config("counter stream can only use limits retention")


def _with_delete_markers(config: StreamConfig, rules: StreamRules) -> StreamConfig:
    life = config.subject_delete_marker_ttl
    if life < 0:
        raise invalid_config("subject delete marker TTL must not be negative")
    if life == 0:
        return config
    if life < NANOSECONDS_PER_SECOND:
        raise invalid_config("subject delete marker TTL must be at least 1 second")
    if not config.allow_msg_ttl:
        if rules.pedantic:
            raise invalid_config("subject delete marker cannot be set if message TTLs are disabled")
        config = replace(config, allow_msg_ttl=True)
    if not config.allow_rollup_hdrs:
        if rules.pedantic:
            raise invalid_config("subject delete marker cannot be set if roll-ups are disabled")
        config = replace(config, allow_rollup_hdrs=True, deny_purge=False)
    return config


def _with_subjects(config: StreamConfig) -> StreamConfig:
    subjects = config.subjects
    if not subjects:
        if config.mirror is None and not config.sources:
            return replace(config, subjects=(config.name,))
        return config
    valid = [subject for subject in subjects if is_valid_config(subject.encode())]
    others = PatternSet(subject.encode() for subject in valid)
    for index, subject in enumerate(subjects):
        pattern = subject.encode()
        if not is_valid_config(pattern):
            raise invalid_config("invalid subject")
        if pattern == b">":
            if not config.no_ack:
                raise invalid_config("capturing all subjects requires no-ack to be true")
            if config.num_replicas != 1:
                raise invalid_config("capturing all subjects requires replicas of 1")
        if not config.no_ack:
            _check_reserved(pattern)
        others.remove(pattern)
        if others.overlaps(pattern):
            other = next(other for other in valid[index + 1 :] if overlaps(other.encode(), pattern))
            raise invalid_config(f'subject "{subject}" overlaps with "{other}"')
    return config


def _check_reserved(pattern: bytes) -> None:
    """Refuse subjects of the API to a stream with acknowledgements, which would collide with the API's answers."""
    if any(overlaps(pattern, space) for space in _API_SPACES) and not is_subset(pattern, b"$JS.EVENT.>"):
        raise invalid_config("subjects that overlap with jetstream api require no-ack to be true")
    if overlaps(pattern, b"$SYS.>") and not is_subset(pattern, b"$SYS.ACCOUNT.>"):
        raise invalid_config("subjects that overlap with system api require no-ack to be true")


def _check_account(config: StreamConfig, account: AccountLimits) -> None:
    if account.max_bytes_required and config.max_bytes <= 0:
        raise api_error(10113)
    in_memory = config.storage is StorageType.MEMORY
    limit = account.memory_max_stream_bytes if in_memory else account.storage_max_stream_bytes
    if 0 < limit < config.max_bytes:
        raise api_error(10122)


def _with_republish(config: StreamConfig, rules: StreamRules) -> StreamConfig:
    """Check the subject transform, and the republish directive, which may follow from it."""
    transform = config.subject_transform
    if transform is not None:
        check_transform(transform, source_code=10155, destination_code=10156)
    republish = config.republish
    if republish is None:
        return config
    if not republish.src:
        if rules.pedantic:
            raise pedantic_error("republish source can not be empty")
        republish = replace(republish, src=">")
    if (republish.src, republish.dest) == (">", ">") and transform and config.subjects == (transform.src,):
        # From all to all would be a cycle, but the transform has renamed what is published again.
        if rules.pedantic:
            raise pedantic_error("implicit republish based on subject transform")
        republish = replace(republish, src=transform.dest, dest=transform.dest)
    if any(overlaps(republish.dest.encode(), subject.encode()) for subject in config.subjects):
        raise invalid_config("stream configuration for republish destination forms a cycle")
    try:
        compile_transform(republish.src, republish.dest)
    except ConfigError:
        names = f"'{republish.src}' to '{republish.dest}'"
        raise invalid_config(f"stream configuration for republish with transform from {names} not valid") from None
    return replace(config, republish=republish)
