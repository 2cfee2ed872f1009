"""Which sequences two positions mean in a stream as it is now, and the tasks that read them.

`position_range` resolves `earliest`, a time or `last:100` with the server's help; `plan_tasks` gives every part of a
range what its reader must know to account for each sequence: the number of matching messages, the sequences that were
deleted already, and what it means when the part's first messages are gone.
"""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from jetlake.client.tables.bounds import Bounds
from jetlake.client.tables.data_loss import data_loss_error, lost_at_head, supersedes
from jetlake.client.tables.planning import (
    BATCH_DIRECT_GET,
    ReadOptions,
    ReadPartition,
    SequenceRange,
    StreamOffset,
    Version,
)
from jetlake.client.tables.positions import Position
from jetlake.client.tables.stream_api import StreamApi
from jetlake.client.tables.survey import count_matching, sequence_of_last
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.times import ZERO_TIME, parse_time, wire_time
from jetlake.model.enums import AckPolicy, DeliverPolicy, RetentionPolicy
from jetlake.model.stream import StreamInfo
from jetlake.protocol.nuid import next_nuid

_log = logging.getLogger("jetlake.tables")


def position_range(
    api: StreamApi,
    version: Version,
    info: StreamInfo,
    start: Position,
    end: Position,
    now_ns: int,
    subjects: tuple[str, ...],
) -> tuple[SequenceRange, bool]:
    """Return the sequences between two positions, and whether they start wherever the stream starts when it is read."""
    first = start_sequence(api, version, info, start, now_ns, subjects)
    last = end_sequence(api, version, info, end, now_ns, subjects)
    return SequenceRange(first, last), is_open(info, start, first)


def behind_seam(named: SequenceRange, soft: bool, seam: int) -> tuple[SequenceRange, bool]:
    """Return the part of a range that only the stream has when an archive has the messages before sequence `seam`.

    It begins at a sequence that must be there, wherever the stream starts.
    """
    first = seam if soft else max(named.first, seam)
    return SequenceRange(first, max(first, named.end)), False


def check_head(info: StreamInfo, first: int, subjects: tuple[str, ...], *, fail: bool) -> None:
    """Check whether messages from that sequence on are gone before they were read; log it where that is no error.

    Raises:
        DataLossError: messages are gone, and `fail` is set.
    """
    lost = lost_at_head(info, StreamOffset(info.created, first), bool(subjects))
    if lost:
        error = data_loss_error(info.config.name, first, first + lost)
        if fail:
            raise error
        _log.warning("%s (continuing, as the option says)", error)


# For which times after its planning an offset records which messages of a range may have expired.
_EXPIRY_STEPS_S = (10, 60, 600, 3600, 21_600)
_CLOCKS_APART_S = 2


def start_sequence(
    api: StreamApi, version: Version, info: StreamInfo, position: Position, now_ns: int, subjects: tuple[str, ...]
) -> int:
    """Return the first sequence to read; `last:N` counts messages that match the filters."""
    first, after = max(info.state.first_seq, 1), info.state.last_seq + 1
    time_ns = position.time_ns(now_ns)
    if time_ns is not None:
        return sequence_at_time(api, version, info, time_ns)
    if position.kind == "latest":
        return after
    if position.kind == "sequence":
        return position.value
    if position.kind == "last" and subjects:
        return sequence_of_last(api, info, subjects, position.value)
    if position.kind == "last":
        return max(first, after - position.value)
    return first


def is_open(info: StreamInfo, position: Position, sequence: int) -> bool:
    """Return whether the position, resolved to `sequence`, means the stream's beginning as it is when it is read.

    Only a sequence that the user named is fixed; every other position means messages that are still there.
    """
    return position.kind != "sequence" and sequence <= max(info.state.first_seq, 1)


def expiring_soon(api: StreamApi, version: Version, info: StreamInfo) -> tuple[tuple[int, int], ...]:
    """Return which messages the stream's age limit may remove in which time, as `BatchRange.expiring`.

    A message that is gone later although it was too young to expire was purged.
    """
    max_age_s = info.config.max_age // 1_000_000_000
    if max_age_s <= 0 or info.ts == ZERO_TIME:
        return ()
    oldest_ns = parse_time(info.ts) - info.config.max_age
    return tuple(
        (
            seconds,
            sequence_at_time(api, version, info, oldest_ns + (seconds + _CLOCKS_APART_S) * 1_000_000_000),
        )
        for seconds in _EXPIRY_STEPS_S
        if seconds + _CLOCKS_APART_S < max_age_s
    )


def end_sequence(
    api: StreamApi, version: Version, info: StreamInfo, position: Position, now_ns: int, subjects: tuple[str, ...]
) -> int:
    """Return the sequence after the last one to read: `seq:N` is inclusive, a time exclusive."""
    after = info.state.last_seq + 1
    if position.kind == "sequence":
        return min(position.value + 1, after)
    return start_sequence(api, version, info, position, now_ns, subjects)


def sequence_at_time(api: StreamApi, version: Version, info: StreamInfo, time_ns: int) -> int:
    """Return the first sequence that was stored at that time or later; the one after the last when there is none."""
    name = info.config.name
    if version >= BATCH_DIRECT_GET or info.config.retention is not RetentionPolicy.LIMITS:
        message = api.message_at(name, time_ns)
        return message.seq if message is not None else info.state.last_seq + 1
    # Older servers know times only as the start of a consumer.
    probe = api.create_consumer(
        name,
        ConsumerConfig(
            name=f"jetlake-{next_nuid()}",
            deliver_policy=DeliverPolicy.BY_START_TIME,
            opt_start_time=wire_time(time_ns),
            ack_policy=AckPolicy.NONE,
            mem_storage=True,
            num_replicas=1,
        ),
    )
    api.forget_consumer(name, probe.name)
    return probe.delivered.stream_seq + 1


# More deleted messages than this are not listed; a gap that the stream's head passes during the read is then a loss.
_DELETED_MAX = 100_000


def bounded_range(
    api: StreamApi, version: Version, info: StreamInfo, whole: SequenceRange, bounds: Bounds
) -> SequenceRange:
    """Return the part of a range that bounds let through."""
    first, end = max(whole.first, bounds.first), whole.end
    if bounds.end is not None:
        end = min(end, bounds.end)
    if bounds.first_us is not None:
        first = max(first, sequence_at_time(api, version, info, bounds.first_us * 1000))
    if bounds.end_us is not None:
        end = min(end, sequence_at_time(api, version, info, bounds.end_us * 1000))
    return SequenceRange(first, end)


def plan_tasks(
    api: StreamApi,
    info: StreamInfo,
    parts: list[SequenceRange],
    options: ReadOptions,
    reader: str,
    *,
    planned: StreamOffset,
    note: str = "",
) -> list[ReadPartition]:
    """Return the consecutive parts of a range as tasks.

    Args:
        planned: the end of the batch.
        note: prefix of the keys under which tasks note their losses.
    """
    if not parts:
        return []
    state, stream = info.state, info.config.name
    soft = planned.batch is not None and planned.batch.soft
    counts: list[int] | list[None] = [None] * len(parts)
    removed = _NONE
    may_count = info.config.retention is RetentionPolicy.LIMITS
    if options.subjects and may_count:
        edges = [part.first for part in parts] + [parts[-1].end]
        counts = _counts(api, info, options, edges, planned) or counts
    if 0 < state.num_deleted <= _DELETED_MAX and (soft or not options.subjects) and not supersedes(info):
        removed = np.array(api.stream_info(stream, deleted=True).state.deleted, np.int64)
    return [
        ReadPartition(
            stream=stream,
            first=part.first,
            end=part.end,
            subjects=options.subjects,
            reader=reader,
            created=info.created,
            bytes_per_message=state.bytes / state.messages if state.messages else 0.0,
            beginning=_beginning(info, planned, is_first=part is parts[0]),
            may_count=may_count,
            messages=count,
            removed=runs_of(removed[np.searchsorted(removed, part.first) : np.searchsorted(removed, part.end)]),
            seen=planned.seen,
            expiring=planned.batch.expiring if planned.batch is not None else (),
            note=f"{note}{part.first}" if note else "",
        )
        for part, count in zip(parts, counts, strict=True)
    ]


def _beginning(info: StreamInfo, planned: StreamOffset, *, is_first: bool) -> str:
    """Return what it means that the first messages of a part are gone, as in `ReadPartition`."""
    if planned.batch is None or not planned.batch.soft:
        return "strict"
    # A reader that does not own the queue can't tell messages that its consumers took from purged ones.
    is_shared = info.config.retention is not RetentionPolicy.LIMITS and not planned.owner
    return "open" if is_shared and is_first else "limits"


def _counts(
    api: StreamApi, info: StreamInfo, options: ReadOptions, edges: list[int], planned: StreamOffset
) -> list[int] | None:
    """Return how many messages match in each part.

    A batch that is planned again may have fewer messages than at first. The missing ones left from the beginning of the
    first part, so they are added to its count, and its task finds them missing.
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
