"""The server's own metadata: which API level a stream or consumer needs, and which the server speaks."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.times import ZERO_TIME
from jetlake.model.enums import AckPolicy, PersistMode, PriorityPolicy
from jetlake.model.stream import StreamConfig

__all__ = [
    "API_LEVEL",
    "LEVEL_KEY",
    "REQUIRED_LEVEL_KEY",
    "VERSION_KEY",
    "required_level",
    "same_config",
    "with_required_level",
    "with_version",
    "without_server_metadata",
]

API_LEVEL = 5
"""The API level that is spoken here."""

REQUIRED_LEVEL_KEY = "_nats.req.level"
"""Stored with a configuration: the API level that its features need."""
LEVEL_KEY = "_nats.level"
"""Added to answers: the API level of the server."""
VERSION_KEY = "_nats.ver"
"""Added to answers: the version of the server."""

_PREFIX = "_nats."

ConfigT = TypeVar("ConfigT", StreamConfig, ConsumerConfig)


def required_level(config: StreamConfig | ConsumerConfig) -> int:
    """The lowest API level that has all features the configuration uses."""
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


def with_required_level(config: ConfigT) -> ConfigT:
    """The configuration as it is stored: with the level it needs, without what only answers have."""
    metadata = {key: value for key, value in config.metadata.items() if key not in (LEVEL_KEY, VERSION_KEY)}
    metadata[REQUIRED_LEVEL_KEY] = str(required_level(config))
    return replace(config, metadata=dict(sorted(metadata.items())))


def with_version(config: ConfigT, version: str) -> ConfigT:
    """The configuration as answers to create, update and info show it."""
    metadata = {**config.metadata, LEVEL_KEY: str(API_LEVEL), VERSION_KEY: version}
    return replace(config, metadata=dict(sorted(metadata.items())))


def without_server_metadata(config: ConfigT) -> ConfigT:
    """The configuration without the server's own keys, as its author wrote it."""
    metadata = {key: value for key, value in config.metadata.items() if not key.startswith(_PREFIX)}
    return replace(config, metadata=metadata)


def same_config(a: ConfigT, b: ConfigT) -> bool:
    """Whether two configurations, with their defaults filled in, ask for the same; the server's own keys aside."""
    return without_server_metadata(a) == without_server_metadata(b)
