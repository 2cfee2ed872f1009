"""One stream's range as tasks, each with what it must know to account for its sequences."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jetlake.client.tables.options.read_options import ReadOptions
from jetlake.client.tables.plan.data_loss import supersedes
from jetlake.client.tables.plan.offsets import StreamOffset
from jetlake.client.tables.plan.partition import ReadPartition
from jetlake.client.tables.plan.planning import SequenceRange
from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.client.tables.requests.survey import count_matching
from jetlake.model.enums import RetentionPolicy
from jetlake.model.stream import StreamInfo

__all__ = ["plan_pieces", "runs_of"]

# More deleted messages than this are not listed; a gap that the stream's head passes while it is read is then a loss.
_DELETED_MAX = 100_000


def plan_pieces(
    api: StreamApi,
    info: StreamInfo,
    pieces: list[SequenceRange],
    options: ReadOptions,
    reader: str,
    *,
    planned: StreamOffset,
    note: str = "",
) -> list[ReadPartition]:
    """Return the pieces of a range, which follow each other, as tasks.

    Args:
        planned: the end of the batch.
        note: what the keys begin with under which tasks note their losses.
    """
    if not pieces:
        return []
    state, stream = info.state, info.config.name
    strict = planned.batch is None or not planned.batch.soft
    counts: list[int] | list[None] = [None] * len(pieces)
    removed = _NONE
    may_count = info.config.retention is RetentionPolicy.LIMITS
    if strict and options.subjects and may_count:
        edges = [piece.first for piece in pieces] + [pieces[-1].end]
        counts = _counts(api, info, options, edges, planned) or counts
    elif 0 < state.num_deleted <= _DELETED_MAX and not options.subjects and not supersedes(info):
        removed = np.array(api.stream_info(stream, deleted=True).state.deleted, np.int64)
    return [
        ReadPartition(
            stream=stream,
            first=piece.first,
            end=piece.end,
            subjects=options.subjects,
            reader=reader,
            created=info.created,
            bytes_per_message=state.bytes / state.messages if state.messages else 0.0,
            beginning="strict" if strict else "open" if piece is pieces[0] else "pushed",
            may_count=may_count,
            messages=count,
            removed=runs_of(removed[np.searchsorted(removed, piece.first) : np.searchsorted(removed, piece.end)]),
            seen=planned.seen,
            note=f"{note}{piece.first}" if note else "",
        )
        for piece, count in zip(pieces, counts, strict=True)
    ]


def _counts(
    api: StreamApi, info: StreamInfo, options: ReadOptions, edges: list[int], planned: StreamOffset
) -> list[int] | None:
    """Return how many messages match in each piece.

    A batch that is planned again may have fewer than it was planned with. What is missing is expected of the first
    piece, from whose beginning it went; so its task finds it missing.
    """
    known = planned.batch.messages if planned.batch is not None else None
    if known is not None and len(edges) == 2:
        return [known]
    counts = count_matching(api, info.config.name, options.subjects, edges)
    if counts and known is not None:
        counts[0] += max(known - sum(counts), 0)
    return counts


_NONE: NDArray[np.int64] = np.empty(0, np.int64)


def runs_of(sequences: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    """Ascending sequences as runs `(first, last)` without gaps."""
    if not len(sequences):
        return ()
    breaks = np.flatnonzero(np.diff(sequences) != 1)
    firsts = sequences[np.concatenate(([0], breaks + 1))]
    lasts = sequences[np.concatenate((breaks, [len(sequences) - 1]))]
    return tuple(zip(firsts.tolist(), lasts.tolist(), strict=True))
