"""Subject filters of a read."""

from __future__ import annotations

from collections.abc import Iterable

from jetlake.protocol.subjects import is_subset, is_valid_config

__all__ = ["subject_filters"]


def subject_filters(subjects: Iterable[str]) -> tuple[str, ...]:
    """Return the filters; one that another one covers is left out, for the server refuses such pairs.

    Raises:
        ValueError: one of them is no subject or pattern.
    """
    filters = tuple(dict.fromkeys(subjects))
    for subject in filters:
        if not is_valid_config(subject.encode()):
            raise ValueError(f"{subject!r} is no valid subject or pattern")
    encoded = [subject.encode() for subject in filters]
    return tuple(
        subject.decode()
        for subject in encoded
        if not any(other is not subject and is_subset(subject, other) for other in encoded)
    )
