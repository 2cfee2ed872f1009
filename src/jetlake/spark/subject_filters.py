"""Several subject filters as one, and messages by several filters: pure, over patterns and subjects."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np

from jetlake.protocol.subjects import compile_matcher
from jetlake.spark.message_columns import MessageColumns, arrow_of

__all__ = ["cover", "keep_matching"]


def cover(filters: tuple[str, ...]) -> str:
    """One pattern that every subject of the filters matches, as narrow as one pattern can be; `>` for none."""
    if len(filters) <= 1:
        return filters[0] if filters else ">"
    covered: list[str] = []
    for column in zip_longest(*(pattern.split(".") for pattern in filters)):
        if None in column:
            # Some filters end here and others go on: only `>` says that, in the place of the token before.
            return ".".join([*covered[:-1], ">"])
        if ">" in column:
            return ".".join([*covered, ">"])
        covered.append(column[0] if len(set(column)) == 1 else "*")
    return ".".join(covered)


def keep_matching(messages: MessageColumns, filters: tuple[str, ...]) -> MessageColumns:
    """Only the messages whose subject matches one of the filters."""
    matchers = [compile_matcher(pattern.encode()) for pattern in filters]
    subjects = messages.subject.dictionary_encode()
    wanted = [any(match(subject) for match in matchers) for subject in subjects.dictionary.to_pylist()]
    if all(wanted):
        return messages
    chosen = np.flatnonzero(np.array(wanted, np.bool_)[subjects.indices.to_numpy()])
    rows = arrow_of(chosen)
    return MessageColumns(
        messages.sequence[chosen],
        messages.time_ns[chosen],
        messages.subject.take(rows),
        messages.header.take(rows),
        messages.payload.take(rows),
        messages.pending,
    )
