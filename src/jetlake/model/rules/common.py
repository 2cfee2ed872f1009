"""Shared by the rules of streams and consumers: two general errors, and checks of metadata, times and lists."""

from __future__ import annotations

from jetlake.errors import ApiError, ConfigError, api_error
from jetlake.model.encoding.times import format_time, parse_time
from jetlake.model.steps import Steps, finish
from jetlake.model.stream import SubjectTransform
from jetlake.model.transforms import compile_transform
from jetlake.protocol.pattern_overlaps import PatternOverlaps
from jetlake.protocol.pattern_set import PatternMatcher, PatternSet
from jetlake.protocol.subjects import is_valid_config

__all__ = [
    "SUBJECTS_PER_STEP",
    "check_transform",
    "invalid_config",
    "matcher_of",
    "metadata_bytes",
    "overlaps_of",
    "pedantic_error",
    "utc_time",
    "valid_patterns",
]

SUBJECTS_PER_STEP = 128
"""How many subjects a step of long work checks."""
_FEW = 16


def invalid_config(reason: str) -> ApiError:
    """Return the error for a configuration that breaks a rule (10052)."""
    return api_error(10052, err=reason)


def pedantic_error(reason: str) -> ApiError:
    """Return the error for what is corrected in silence unless the request is pedantic (10157)."""
    return api_error(10157, err=reason)


def metadata_bytes(metadata: dict[str, str]) -> int:
    """Return the size that is limited: the bytes of all keys and values."""
    return sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())


def utc_time(time: str) -> str:
    """Return the time in UTC and in one spelling, so that equal times are equal values.

    Raises:
        ApiError: 10025, a day that the calendar does not have.
    """
    try:
        return format_time(parse_time(time))
    except ConfigError as error:
        raise api_error(10025, err=str(error)) from None


def check_transform(transform: SubjectTransform, *, source_code: int, destination_code: int) -> None:
    """Check a subject transform of a stream, mirror or source, each of which has its own error codes.

    Raises:
        ApiError: the first or second of the codes.
    """
    if transform.src and not is_valid_config(transform.src.encode()):
        raise api_error(source_code, err=f"invalid subject {transform.src}")
    try:
        compile_transform(transform.src, transform.dest)
    except ConfigError as error:
        raise api_error(destination_code, err=str(error)) from None


def valid_patterns(patterns: list[bytes]) -> Steps[set[bytes]]:
    """Return the patterns that a configuration takes."""
    valid: set[bytes] = set()
    for start in range(0, len(patterns), SUBJECTS_PER_STEP):
        if start:
            yield
        valid.update(filter(is_valid_config, patterns[start : start + SUBJECTS_PER_STEP]))
    return valid


def overlaps_of(patterns: list[bytes]) -> Steps[PatternOverlaps]:
    """Return how the patterns of one list in a configuration relate."""
    found = PatternOverlaps(patterns)
    if len(patterns) > _FEW:
        yield from found.prepare()
    else:
        finish(found.prepare())
    return found


def matcher_of(patterns: list[bytes]) -> Steps[PatternMatcher]:
    """Return what compares patterns with all those of a configuration."""
    known = PatternSet()
    yield from known.add_in_steps(patterns)
    return PatternMatcher(known)
