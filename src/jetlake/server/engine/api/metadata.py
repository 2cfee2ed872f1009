"""The metadata that a server adds to streams and consumers: required API level, server level and version."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.times import ZERO_TIME
from jetlake.model.enums import AckPolicy, PersistMode, PriorityPolicy
from jetlake.model.stream import StreamConfig
from jetlake.server.version import API_LEVEL, COMPATIBLE_VERSION

__all__ = ["REQUIRED_LEVEL", "is_same_metadata", "with_served_metadata", "with_stored_metadata"]

REQUIRED_LEVEL = "_nats.req.level"
SERVER_VERSION = "_nats.ver"
SERVER_LEVEL = "_nats.level"

_SERVER_KEYS = frozenset({REQUIRED_LEVEL, SERVER_VERSION, SERVER_LEVEL})

ConfigT = TypeVar("ConfigT", StreamConfig, ConsumerConfig)


def with_stored_metadata(config: ConfigT) -> ConfigT:
    """Return the configuration with the metadata to store: the owner's keys and the required API level."""
    return replace(config, metadata={**_owners(config), REQUIRED_LEVEL: str(_required_level(config))})


def with_served_metadata(config: ConfigT) -> ConfigT:
    """Return the configuration with the metadata for answers: the stored keys with this server's level and version."""
    metadata = {**config.metadata, SERVER_LEVEL: str(API_LEVEL), SERVER_VERSION: COMPATIBLE_VERSION}
    return replace(config, metadata=metadata)


def is_same_metadata(one: ConfigT, other: ConfigT) -> bool:
    """Return whether the owners of two configurations gave them the same metadata."""
    return _owners(one) == _owners(other)


def _owners(config: StreamConfig | ConsumerConfig) -> dict[str, str]:
    return {key: value for key, value in config.metadata.items() if key not in _SERVER_KEYS}


def _required_level(config: StreamConfig | ConsumerConfig) -> int:
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
