"""Positions as sequences: what `earliest`, a time or `last:100` mean in a stream as it is now."""

from __future__ import annotations

from jetlake.client.tables.options.positions import Position
from jetlake.client.tables.plan.reader_choice import BATCH_DIRECT_GET, Version
from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.client.tables.requests.survey import sequence_of_last
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.times import format_time
from jetlake.model.enums import AckPolicy, DeliverPolicy, RetentionPolicy
from jetlake.model.stream import StreamInfo
from jetlake.protocol.nuid import next_nuid

__all__ = ["end_sequence", "is_open", "sequence_at_time", "start_sequence"]


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
    """Return whether that position, found at `sequence`, means the stream's beginning as it is when it is read.

    Only a sequence that was named is meant as it stands; every other position means messages that are still there.
    """
    return position.kind != "sequence" and sequence <= max(info.state.first_seq, 1)


def end_sequence(
    api: StreamApi, version: Version, info: StreamInfo, position: Position, now_ns: int, subjects: tuple[str, ...]
) -> int:
    """Return the sequence behind the last to read: a sequence is meant inclusively, a time exclusively."""
    after = info.state.last_seq + 1
    if position.kind == "sequence":
        return min(position.value + 1, after)
    return start_sequence(api, version, info, position, now_ns, subjects)


def sequence_at_time(api: StreamApi, version: Version, info: StreamInfo, time_ns: int) -> int:
    """Return the first sequence that was stored at that time or later; the one behind the last when there is none."""
    name = info.config.name
    if version >= BATCH_DIRECT_GET or info.config.retention is not RetentionPolicy.LIMITS:
        message = api.message_at(name, time_ns)
        return message.seq if message is not None else info.state.last_seq + 1
    # Older servers know times only as a consumer's beginning.
    probe = api.create_consumer(
        name,
        ConsumerConfig(
            name=f"jetlake-{next_nuid()}",
            deliver_policy=DeliverPolicy.BY_START_TIME,
            opt_start_time=format_time(time_ns),
            ack_policy=AckPolicy.NONE,
            mem_storage=True,
            num_replicas=1,
        ),
    )
    api.forget_consumer(name, probe.name)
    return probe.delivered.stream_seq + 1
