"""The API level that a stream or consumer needs of its server."""

from __future__ import annotations

from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.times import ZERO_TIME
from jetlake.model.enums import AckPolicy, PersistMode, PriorityPolicy
from jetlake.model.stream import StreamConfig

__all__ = ["required_level"]


def required_level(config: StreamConfig | ConsumerConfig) -> int:
    """Return the lowest API level that has all features the configuration uses."""
    if isinstance(config, ConsumerConfig):
        if config.ack_policy is AckPolicy.FLOW_CONTROL:
            return 4
        uses_pause_or_groups = (
            config.pause_until not in (None, ZERO_TIME) or config.priority_policy is not PriorityPolicy.NONE
        )
        return 1 if uses_pause_or_groups else 0
    if config.allow_batched:
        return 4
    if (
        config.allow_msg_counter
        or config.allow_atomic
        or config.allow_msg_schedules
        or config.persist_mode is PersistMode.ASYNC
    ):
        return 2
    return 1 if config.allow_msg_ttl or config.subject_delete_marker_ttl > 0 else 0
