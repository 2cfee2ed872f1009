"""Which messages a range holds, without reading them."""

from __future__ import annotations

from itertools import pairwise

from jetlake.errors import ApiError, PermissionsError, StreamNotFoundError
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.durations import nanoseconds
from jetlake.model.enums import AckPolicy, DeliverPolicy
from jetlake.protocol.nuid import next_nuid
from jetlake.spark.stream_api import StreamApi

__all__ = ["count_matching", "first_matching"]

_COUNT_ATTEMPTS_MAX = 4
_INACTIVE_S = 60.0


def first_matching(api: StreamApi, stream: str, subjects: tuple[str, ...], sequence: int) -> int | None:
    """The first sequence from that one on whose message matches, by the word of the leader; None when there is none."""
    found = [api.next_message(stream, sequence, subject) for subject in subjects or (">",)]
    return min((message.seq for message in found if message is not None), default=None)


def count_matching(api: StreamApi, stream: str, subjects: tuple[str, ...], edges: list[int]) -> list[int] | None:
    """How many messages match between each edge and the next, on a limits stream; None when nobody can tell.

    The server counts up to the stream's end. What arrives there while it is asked would count as well; so the last
    edge is asked first and once more in the end, and only if both answers are the same the counts are right.
    """
    try:
        for _ in range(_COUNT_ATTEMPTS_MAX):
            behind = _pending(api, stream, subjects, edges[-1])
            pending = [_pending(api, stream, subjects, edge) for edge in edges]
            if pending[-1] == behind:
                return [first - second for first, second in pairwise(pending)]
    except (ApiError, PermissionsError) as error:
        if isinstance(error, StreamNotFoundError):
            raise
    return None


def _pending(api: StreamApi, stream: str, subjects: tuple[str, ...], sequence: int) -> int:
    """How many messages match from that sequence on."""
    probe = api.create_consumer(stream, _config(subjects, sequence))
    api.forget_consumer(stream, probe.name)
    return probe.num_pending


def _config(subjects: tuple[str, ...], sequence: int) -> ConsumerConfig:
    return ConsumerConfig(
        name=f"jetlake-{next_nuid()}",
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=max(sequence, 1),
        ack_policy=AckPolicy.NONE,
        filter_subject=subjects[0] if len(subjects) == 1 else "",
        filter_subjects=subjects if len(subjects) > 1 else (),
        headers_only=True,
        mem_storage=True,
        num_replicas=1,
        inactive_threshold=nanoseconds(_INACTIVE_S),
    )
