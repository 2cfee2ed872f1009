"""The rules of stream configurations: the server's checks in its order, with its error codes and texts.

Every function is pure: it returns the configuration with all defaults filled in, or raises the ApiError that a server
would answer. What other streams look like is passed in as a function from names to configurations. Left to the caller
is what takes more than configurations: whether the name is in use (10058), subjects of other streams (10065), the
number of streams (10027) and the room that is left (10028, 10047).

The reasons are in decision 4 (docs/decisions).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from jetlake.errors import ConfigError, api_error
from jetlake.model.account import AccountLimits
from jetlake.model.api import API_PREFIX
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND, format_duration
from jetlake.model.encoding.fields import SEQUENCE_MAX
from jetlake.model.enums import DiscardPolicy, PersistMode, RetentionPolicy, StorageType
from jetlake.model.rules.common import (
    SUBJECTS_PER_STEP,
    check_transform,
    invalid_config,
    matcher_of,
    metadata_bytes,
    overlaps_of,
    pedantic_error,
    utc_time,
    valid_patterns,
)
from jetlake.model.rules.limits import (
    DESCRIPTION_BYTES_MAX,
    DUPLICATE_WINDOW_DEFAULT,
    METADATA_BYTES_MAX,
    NAME_BYTES_MAX,
    REPLICAS_MAX,
    ServerLimits,
    is_valid_name,
)
from jetlake.model.source_names import index_name
from jetlake.model.steps import Steps, finish
from jetlake.model.stream import ExternalStream, Placement, StreamConfig, StreamSource
from jetlake.model.transforms import compile_transform
from jetlake.protocol.pattern_set import PatternMatcher
from jetlake.protocol.subjects import CONFIG_TOKENS_MAX, is_subset, is_valid_config, is_valid_publish, overlaps

_SHORTEST_WINDOW = 100_000_000  # 100 ms: nothing is remembered or kept for less
_NAME_RULE = "stream name is required and can not contain '.', '*', '>', '\\', '/'"
_API_SPACES = (b"$JS.>", b"$JSC.>", b"$NRG.>")

StreamLookup = Callable[[str], StreamConfig | None]
"""Gives the configuration of a stream of the account by its name, or None."""


def no_streams(name: str) -> StreamConfig | None:
    """Look up nothing: for checks without the account's other streams."""
    return None


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
    """Run the first checks of a create request; the account's limits come next.

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
    return finish(check_stream_config_in_steps(config, rules))


def check_stream_config_in_steps(config: StreamConfig, rules: StreamRules = ALONE) -> Steps[StreamConfig]:
    """Do the same in steps: lists of subjects, sources and transforms may be long."""
    _check_texts(config)
    config = _with_limits(config, rules)
    config = _with_duplicate_window(config, rules)
    config = _with_features(config, rules)
    config = yield from check_copies(config, rules.lookup, is_pedantic=rules.pedantic)
    config = yield from _with_subjects(config)
    _check_account(config, rules.account)
    config = yield from _with_republish(config, rules)
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
    return check_stream_change(old, check_stream_config(new, rules))


def check_stream_change(old: StreamConfig, new: StreamConfig) -> StreamConfig:
    """Check a change to a configuration that is valid by itself and has all defaults filled in.

    Raises:
        ApiError: the first rule that the change breaks.
    """
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
    # A mirror may be promoted to a stream of its own, but not changed.
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
        ApiError: 10069, naming the fields that do not fit.
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


def _with_subjects(config: StreamConfig) -> Steps[StreamConfig]:
    subjects = config.subjects
    if not subjects:
        if config.mirror is None and not config.sources:
            return replace(config, subjects=(config.name,))
        return config
    patterns = [subject.encode() for subject in subjects]
    valid = yield from valid_patterns(patterns)
    # Up to the first pattern that is not valid, both lists have the same order.
    others = yield from overlaps_of([pattern for pattern in patterns if pattern in valid])
    for index, pattern in enumerate(patterns):
        if index:
            yield
        if pattern not in valid:
            raise invalid_config("invalid subject")
        if pattern == b">":
            if not config.no_ack:
                raise invalid_config("capturing all subjects requires no-ack to be true")
            if config.num_replicas != 1:
                raise invalid_config("capturing all subjects requires replicas of 1")
        if not config.no_ack:
            _check_reserved(pattern)
        if (other := others.overlapping(index)) is not None:
            raise invalid_config(f'subject "{subjects[index]}" overlaps with "{others.patterns[other].decode()}"')
    return config


def _check_reserved(pattern: bytes) -> None:
    """Refuse subjects of the API to a stream with acknowledgements, which would collide with the API's answers."""
    if not pattern.startswith((b"$", b"*", b">")):
        return
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


def _with_republish(config: StreamConfig, rules: StreamRules) -> Steps[StreamConfig]:
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
    destination = republish.dest.encode()
    for index, subject in enumerate(config.subjects):
        if overlaps(destination, subject.encode()):
            raise invalid_config("stream configuration for republish destination forms a cycle")
        if index and not index % SUBJECTS_PER_STEP:
            yield
    try:
        compile_transform(republish.src, republish.dest)
    except ConfigError:
        names = f"'{republish.src}' to '{republish.dest}'"
        raise invalid_config(f"stream configuration for republish with transform from {names} not valid") from None
    return replace(config, republish=republish)


def check_copies(config: StreamConfig, lookup: StreamLookup, *, is_pedantic: bool) -> Steps[StreamConfig]:
    """Check the mirror or the sources; a mirror takes over its origin's permission for direct reads.

    Raises:
        ApiError: the first rule that is broken.
    """
    config = _with_utc_times(config)
    if config.mirror is not None:
        config = yield from _with_mirror(config, config.mirror, lookup, is_pedantic=is_pedantic)
    yield from _check_sources(config, lookup)
    yield from _check_prefixes(config, lookup)
    yield from check_cycles(config, lookup)
    return config


def _with_utc_times(config: StreamConfig) -> StreamConfig:
    mirror = config.mirror
    if mirror is not None and mirror.opt_start_time is not None:
        config = replace(config, mirror=replace(mirror, opt_start_time=utc_time(mirror.opt_start_time)))
    if any(source.opt_start_time for source in config.sources):
        sources = [
            replace(source, opt_start_time=utc_time(source.opt_start_time)) if source.opt_start_time else source
            for source in config.sources
        ]
        config = replace(config, sources=tuple(sources))
    return config


def _with_mirror(
    config: StreamConfig, mirror: StreamSource, lookup: StreamLookup, *, is_pedantic: bool
) -> Steps[StreamConfig]:
    for is_forbidden, err_code in (
        (config.first_seq > 0, 10143),
        (config.subjects, 10034),
        (config.sources, 10031),
        (config.allow_msg_counter, 10173),
        (config.allow_atomic, 10198),
        (config.allow_batched, 10209),
        (config.allow_msg_schedules, 10186),
        (_has_bad_consumer(mirror), 10213),
        (mirror.filter_subject and mirror.subject_transforms, 10150),
    ):
        if is_forbidden:
            raise api_error(err_code)
    if config.subject_delete_marker_ttl > 0:
        raise invalid_config("subject delete markers forbidden on mirrors")
    patterns = [transform.src.encode() for transform in mirror.subject_transforms]
    # Up to the first pattern that is not valid, both lists have the same order.
    others = yield from overlaps_of([pattern for pattern in patterns if pattern.count(b".") < CONFIG_TOKENS_MAX])
    for number, transform in enumerate(mirror.subject_transforms):
        yield
        check_transform(transform, source_code=10151, destination_code=10154)
        if others.overlapping(number) is not None:
            raise api_error(10152)
    if mirror.external is not None:
        return config
    if not is_valid_name(mirror.name):
        raise api_error(10142)
    origin = lookup(mirror.name)
    if origin is None:
        return config
    if 0 < config.max_msg_size < origin.max_msg_size:
        raise api_error(10030)
    if is_pedantic and config.mirror_direct != origin.allow_direct:
        raise pedantic_error("origin stream has direct get set, mirror has it disabled")
    return replace(config, mirror_direct=origin.allow_direct)


def _has_bad_consumer(source: StreamSource) -> bool:
    """Return whether the consumer to read through is incomplete, or conflicts with what it decides itself."""
    consumer = source.consumer
    if consumer is None:
        return False
    return (
        not is_valid_name(consumer.name)
        or not is_valid_publish(consumer.deliver_subject.encode())
        or source.opt_start_seq != 0
        or source.opt_start_time is not None
        or source.filter_subject != ""
    )


def _check_sources(config: StreamConfig, lookup: StreamLookup) -> Steps[None]:
    if config.sources and config.allow_msg_schedules:
        raise api_error(10187)
    seen = set()
    consumers = set()
    for source in config.sources:
        yield
        if not is_valid_name(source.name):
            raise api_error(10141)
        name = index_name(source)
        if name in seen:
            raise api_error(10140)
        seen.add(name)
        yield from _check_source_transforms(source)
        if source.consumer is not None:
            if _has_bad_consumer(source):
                raise api_error(10215)
            if (source.name, source.external, source.consumer.name) in consumers:
                raise api_error(10216)
            consumers.add((source.name, source.external, source.consumer.name))
        origin = lookup(source.name) if source.external is None else None
        if origin is not None and 0 < config.max_msg_size < origin.max_msg_size:
            raise api_error(10046)


def _check_source_transforms(source: StreamSource) -> Steps[None]:
    if source.filter_subject and source.subject_transforms:
        raise api_error(10144)
    for transform in source.subject_transforms:
        yield
        check_transform(transform, source_code=10145, destination_code=10146)
    others = yield from overlaps_of([transform.src.encode() for transform in source.subject_transforms])
    for number in range(len(source.subject_transforms)):
        yield
        if others.covering(number) is not None:
            raise api_error(10147)


def _check_prefixes(config: StreamConfig, lookup: StreamLookup) -> Steps[None]:
    """Refuse prefixes of another account or domain that overlap with this account's own subjects."""
    copies = (*((config.mirror,) if config.mirror else ()), *config.sources)
    externals: list[ExternalStream] = [copy.external for copy in copies if copy.external is not None]
    origins = {copy.name: lookup(copy.name) for copy in copies if copy.external is None}
    # Only an open subject overlaps with itself behind a prefix: others have fewer tokens.
    subjects = [
        subject
        for origin in origins.values()
        if origin is not None
        for subject in origin.subjects
        if subject == ">" or subject.endswith(".>")
    ]
    for prefix in dict.fromkeys(external.deliver for external in externals if external.deliver):
        if not is_valid_publish(prefix.encode()):
            raise api_error(10024, prefix=prefix)
        for subject in subjects:
            yield
            if overlaps(subject.encode(), f"{prefix}.{subject}".encode()):
                raise api_error(10022, prefix=prefix, subject=subject)
    for prefix in (external.api for external in externals if external.api):
        if not is_valid_publish(prefix.encode()):
            raise invalid_config(f'stream external api prefix "{prefix}" must be a valid subject without wildcards')
        if prefix == API_PREFIX:
            raise api_error(10021, prefix=prefix, subject=API_PREFIX)


def check_cycles(config: StreamConfig, lookup: StreamLookup) -> Steps[None]:
    """Refuse a cycle: a stream that copies from itself, directly or through others.

    Streams are visited breadth first, as in nats-server, and one that was visited must not be reached again. It may be
    reached several times before it is visited, and is then visited as often: which of the copies of one origin are
    refused depends on this order. Two of these visits decide, the first and the last, so that layers of streams which
    all copy from all of the next layer do not double the work with each layer.
    """
    to_visit: OrderedDict[tuple[str, bool], StreamConfig] = OrderedDict({(config.name, False): config})
    visited = set()

    def reach(name: str) -> None:
        origin = lookup(name)
        if origin is not None:
            key = name, (name, False) in to_visit
            to_visit[key] = origin
            to_visit.move_to_end(key)

    while to_visit:
        _, current = to_visit.popitem(last=False)
        visited.add(current.name)
        captured: PatternMatcher | None = None
        for source in current.sources:
            yield
            if source.external is not None:
                continue
            if source.name not in visited:
                reach(source.name)
                continue
            if captured is None:
                captured = yield from matcher_of([subject.encode() for subject in current.subjects])
            if not source.filter_subject or captured.overlaps(source.filter_subject.encode()):
                raise invalid_config("detected cycle")
        mirror = current.mirror
        if mirror is not None and mirror.external is None:
            if mirror.name in visited:
                raise invalid_config("detected cycle")
            reach(mirror.name)


def check_copy_filters(config: StreamConfig) -> None:
    """Check what a server finds out only when it begins to copy.

    Raises:
        ApiError: 10049.
    """
    mirror = config.mirror
    if mirror is not None and mirror.filter_subject and not is_valid_config(mirror.filter_subject.encode()):
        raise api_error(10049, err=f"subject filter '{mirror.filter_subject}' for the mirror invalid subject")
    for source in config.sources:
        if source.filter_subject and not is_valid_config(source.filter_subject.encode()):
            raise api_error(10049, err=f"subject filter '{source.filter_subject}' for the source: invalid subject")
