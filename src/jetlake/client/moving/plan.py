"""The plan of a move: whether a stream can be moved, and whether its bulk is copied before the pause or in it."""

from __future__ import annotations

from jetlake.client.moving.positions import RESETTABLE
from jetlake.errors import MigrationError
from jetlake.model.consumer import ConsumerInfo
from jetlake.model.consumer_features import features_of
from jetlake.model.enums import RetentionPolicy
from jetlake.model.stream import StreamConfig, StreamInfo

__all__ = ["WHOLE_MAX_BYTES", "check_movable", "reason_for_whole"]

WHOLE_MAX_BYTES = 32 * 1024 * 1024
"""Streams up to this size are copied whole in the pause."""

# Publishing a stored message again would do something else than it did the first time.
_NOT_REPEATABLE = (
    "allow_msg_counter",
    "allow_atomic",
    "allow_batched",
    "allow_msg_schedules",
    "subject_delete_marker_ttl",
)


def check_movable(config: StreamConfig, consumers: list[ConsumerInfo], target_features: frozenset[str]) -> None:
    """Refuse what cannot be moved, before anything is done.

    Raises:
        MigrationError: the stream copies from others, is sealed, or a consumer needs what the target lacks.
    """
    if config.mirror is not None or config.sources:
        raise MigrationError(f"{config.name} copies from other streams: configure that at the target instead")
    if config.sealed:
        raise MigrationError(f"{config.name} is sealed and does not change: back it up and restore it")
    for info in consumers:
        missing = features_of(info.config) - target_features
        if missing:
            raise MigrationError(f"consumer {info.name} has {', '.join(sorted(missing))}, which the target lacks")


def reason_for_whole(info: StreamInfo, consumers: list[ConsumerInfo], whole_max_bytes: int) -> str:
    """Return why a stream is copied whole in the pause; empty when its bulk is copied before."""
    config = info.config
    if info.state.bytes <= whole_max_bytes:
        return "it is small"
    if config.retention is RetentionPolicy.INTEREST:
        return "its retention is interest"
    if config.retention is RetentionPolicy.WORKQUEUE and not config.allow_direct:
        return "it is a work queue without allow_direct"
    for field in _NOT_REPEATABLE:
        if getattr(config, field):
            return f"it has {field}"
    for consumer in consumers:
        if consumer.config.deliver_policy not in RESETTABLE:
            return f"consumer {consumer.name} delivers {consumer.config.deliver_policy.value}"
    return ""
