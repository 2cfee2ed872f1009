"""The rules of mirrors and sources, a part of the rules of streams."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from jetlake.errors import api_error
from jetlake.model.api import API_PREFIX
from jetlake.model.rules.common import check_transform, invalid_config, pedantic_error, utc_time
from jetlake.model.rules.limits import is_valid_name
from jetlake.model.source_names import index_name
from jetlake.model.stream import ExternalStream, StreamConfig, StreamSource
from jetlake.protocol.subjects import is_subset, is_valid_config, is_valid_publish, overlaps

__all__ = ["StreamLookup", "check_copies", "check_copy_filters", "no_streams"]

StreamLookup = Callable[[str], StreamConfig | None]
"""Gives the configuration of a stream of the account by its name, or None."""


def no_streams(name: str) -> StreamConfig | None:
    """Look up nothing: for checks without the account's other streams."""
    return None


def check_copies(config: StreamConfig, lookup: StreamLookup, *, is_pedantic: bool) -> StreamConfig:
    """Check the mirror or the sources; a mirror takes over its origin's permission for direct reads.

    Raises:
        ApiError: the first rule that is broken.
    """
    config = _with_utc_times(config)
    if config.mirror is not None:
        config = _with_mirror(config, config.mirror, lookup, is_pedantic=is_pedantic)
    _check_sources(config, lookup)
    _check_prefixes(config, lookup)
    _check_cycles(config, lookup)
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
) -> StreamConfig:
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
    for index, transform in enumerate(mirror.subject_transforms):
        check_transform(transform, source_code=10151, destination_code=10154)
        others = mirror.subject_transforms[:index] + mirror.subject_transforms[index + 1 :]
        if any(overlaps(transform.src.encode(), other.src.encode()) for other in others):
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


def _check_sources(config: StreamConfig, lookup: StreamLookup) -> None:
    if config.sources and config.allow_msg_schedules:
        raise api_error(10187)
    seen = set()
    consumers = set()
    for source in config.sources:
        if not is_valid_name(source.name):
            raise api_error(10141)
        name = index_name(source)
        if name in seen:
            raise api_error(10140)
        seen.add(name)
        _check_source_transforms(source)
        if source.consumer is not None:
            if _has_bad_consumer(source):
                raise api_error(10215)
            if (source.name, source.external, source.consumer.name) in consumers:
                raise api_error(10216)
            consumers.add((source.name, source.external, source.consumer.name))
        origin = lookup(source.name) if source.external is None else None
        if origin is not None and 0 < config.max_msg_size < origin.max_msg_size:
            raise api_error(10046)


def _check_source_transforms(source: StreamSource) -> None:
    if source.filter_subject and source.subject_transforms:
        raise api_error(10144)
    for transform in source.subject_transforms:
        check_transform(transform, source_code=10145, destination_code=10146)
    for index, transform in enumerate(source.subject_transforms):
        others = source.subject_transforms[:index] + source.subject_transforms[index + 1 :]
        if any(is_subset(transform.src.encode(), other.src.encode()) for other in others):
            raise api_error(10147)


def _check_prefixes(config: StreamConfig, lookup: StreamLookup) -> None:
    """Refuse prefixes of another account or domain that overlap with this account's own subjects."""
    copies = (*((config.mirror,) if config.mirror else ()), *config.sources)
    externals: list[ExternalStream] = [copy.external for copy in copies if copy.external is not None]
    origins = [lookup(copy.name) for copy in copies if copy.external is None]
    subjects = [subject for origin in origins if origin is not None for subject in origin.subjects]
    for prefix in (external.deliver for external in externals if external.deliver):
        if not is_valid_publish(prefix.encode()):
            raise api_error(10024, prefix=prefix)
        for subject in subjects:
            if overlaps(subject.encode(), f"{prefix}.{subject}".encode()):
                raise api_error(10022, prefix=prefix, subject=subject)
    for prefix in (external.api for external in externals if external.api):
        if not is_valid_publish(prefix.encode()):
            raise invalid_config(f'stream external api prefix "{prefix}" must be a valid subject without wildcards')
        if prefix == API_PREFIX:
            raise api_error(10021, prefix=prefix, subject=API_PREFIX)


def _check_cycles(config: StreamConfig, lookup: StreamLookup) -> None:
    """Refuse a cycle: a stream that copies from itself, directly or through others."""
    to_visit = [config]
    visited = set()
    while to_visit:
        current = to_visit.pop()
        visited.add(current.name)
        for source in current.sources:
            if source.external is not None:
                continue
            if source.name in visited:
                if _takes_from(current.subjects, source.filter_subject):
                    raise invalid_config("detected cycle")
            elif (origin := lookup(source.name)) is not None:
                to_visit.append(origin)
        mirror = current.mirror
        if mirror is not None and mirror.external is None:
            if mirror.name in visited:
                raise invalid_config("detected cycle")
            if (origin := lookup(mirror.name)) is not None:
                to_visit.append(origin)


def _takes_from(subjects: tuple[str, ...], filter_subject: str) -> bool:
    return not filter_subject or any(overlaps(subject.encode(), filter_subject.encode()) for subject in subjects)


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
