"""Which messages a query's conditions allow to skip: pure, from conditions to sequences, times and subjects.

The caller still applies every condition to the rows; so a message that is skipped here must be certain to fail one,
and the bounds may be coarse otherwise.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from jetlake.protocol.subjects import is_subset, is_valid_config, is_valid_publish, overlaps

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_SUBJECTS_MAX = 32


Operator = Literal["=", "in", "<", "<=", ">", ">=", "prefix"]


class Condition(NamedTuple):
    """What a column must be.

    Attributes:
        operator: `in` has a tuple as its value, `prefix` what a text begins with.
    """

    column: str
    operator: Operator
    value: Any


@dataclass(frozen=True)
class Bounds:
    """What rows can pass the conditions.

    Attributes:
        first: lowest sequence.
        end: the sequence above the highest; None for no bound.
        first_us: lowest time, microseconds since 1970; None for no bound.
        end_us: the time above the highest; None for no bound.
        subjects: patterns of which a subject must match one; None for no bound.
        streams: names of which the stream must be one; None for no bound.
    """

    first: int = 1
    end: int | None = None
    first_us: int | None = None
    end_us: int | None = None
    subjects: tuple[str, ...] | None = None
    streams: frozenset[str] | None = None


def bounds_of(conditions: Iterable[Condition]) -> Bounds:
    """Return the bounds of conditions that must all hold; conditions on other columns are ignored."""
    bounds = Bounds()
    for single in conditions:
        match single.column:
            case "sequence":
                bounds = _sequence(bounds, single)
            case "timestamp":
                bounds = _timestamp(bounds, single)
            case "subject":
                bounds = _subject(bounds, single)
            case "stream":
                names = _values(single)
                if names is not None:
                    known = bounds.streams
                    bounds = replace(bounds, streams=frozenset(names) if known is None else known & frozenset(names))
    return bounds


def _values(single: Condition) -> tuple[Any, ...] | None:
    """Return the values of which the column must have one, or None when the condition does not say that."""
    if single.operator == "=":
        return (single.value,)
    if single.operator == "in":
        return tuple(single.value)
    return None


def _sequence(bounds: Bounds, single: Condition) -> Bounds:
    low, high = _interval(single, lambda value: value if isinstance(value, int) else None)
    return replace(
        bounds,
        first=max(bounds.first, low) if low is not None else bounds.first,
        end=_least(bounds.end, high),
    )


def _timestamp(bounds: Bounds, single: Condition) -> Bounds:
    low, high = _interval(single, _microseconds)
    return replace(bounds, first_us=_greatest(bounds.first_us, low), end_us=_least(bounds.end_us, high))


def _interval(single: Condition, number: Callable[[Any], int | None]) -> tuple[int | None, int | None]:
    """Return the lowest value and the one above the highest that a comparison lets through."""
    values = _values(single)
    if values is not None:
        numbers = [number(value) for value in values]
        known = [value for value in numbers if value is not None]
        return (min(known), max(known) + 1) if known and len(known) == len(numbers) else (None, None)
    bound = number(single.value)
    if bound is None:
        return None, None
    match single.operator:
        case ">=":
            return bound, None
        case ">":
            return bound + 1, None
        case "<":
            return None, bound
        case "<=":
            return None, bound + 1
        case _:
            return None, None


def _microseconds(value: Any) -> int | None:
    if not isinstance(value, datetime.datetime):
        return None
    aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
    return (aware - _EPOCH) // _MICROSECOND


def _greatest(known: int | None, new: int | None) -> int | None:
    return known if new is None else new if known is None else max(known, new)


def _least(known: int | None, new: int | None) -> int | None:
    return known if new is None else new if known is None else min(known, new)


def _subject(bounds: Bounds, single: Condition) -> Bounds:
    patterns: tuple[str, ...] | None = None
    values = _values(single)
    if values is not None:
        patterns = tuple(dict.fromkeys(value for value in values if value is not None))
        # A name with a wildcard in it can be a subject, but as a filter it would mean others too.
        if not all(_is_filter(pattern) for pattern in patterns):
            return bounds
    elif single.operator == "prefix":
        prefix = single.value.rpartition(".")[0]
        if prefix and _is_filter(prefix):
            patterns = (f"{prefix}.>",)
    if patterns is None:
        return bounds
    if bounds.subjects is None:
        return replace(bounds, subjects=patterns)
    both = narrow_subjects(bounds.subjects, patterns) if bounds.subjects else ()
    return bounds if both is None else replace(bounds, subjects=both)


def _is_filter(subject: str) -> bool:
    """Return whether the subject, as a filter, stands for the messages that show it, and servers take it.

    U+FFFD also stands for bytes that are not UTF-8.
    """
    return is_valid_publish(subject.encode()) and is_valid_config(subject.encode())


def narrow_subjects(filters: tuple[str, ...], patterns: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return filters for what matches both, the read's own filters (none means all) and the patterns.

    None when that cannot be said exactly in filters; an empty tuple when nothing can match.
    """
    if not filters:
        return patterns if len(patterns) <= _SUBJECTS_MAX else None
    narrowed: list[str] = []
    for own in filters:
        for pattern in patterns:
            a, b = own.encode(), pattern.encode()
            if is_subset(a, b):
                narrowed.append(own)
            elif is_subset(b, a):
                narrowed.append(pattern)
            elif overlaps(a, b):
                return None
    unique = tuple(dict.fromkeys(narrowed))
    return unique if len(unique) <= _SUBJECTS_MAX else None
