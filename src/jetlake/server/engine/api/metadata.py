"""The metadata that a server adds to streams and consumers: required API level, server level and version."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from jetlake.model.consumer import ConsumerConfig
from jetlake.model.stream import StreamConfig
from jetlake.model.versioning import required_level
from jetlake.server.version import API_LEVEL, COMPATIBLE_VERSION

__all__ = ["REQUIRED_LEVEL", "is_same_metadata", "with_served_metadata", "with_stored_metadata"]

REQUIRED_LEVEL = "_nats.req.level"
SERVER_VERSION = "_nats.ver"
SERVER_LEVEL = "_nats.level"

_SERVER_KEYS = frozenset({REQUIRED_LEVEL, SERVER_VERSION, SERVER_LEVEL})

ConfigT = TypeVar("ConfigT", StreamConfig, ConsumerConfig)


def with_stored_metadata(config: ConfigT) -> ConfigT:
    """Return the configuration with the metadata to store: the owner's keys and the required API level."""
    return replace(config, metadata={**_owners(config), REQUIRED_LEVEL: str(required_level(config))})


def with_served_metadata(config: ConfigT) -> ConfigT:
    """Return the configuration with the metadata for answers: the stored keys with this server's level and version."""
    metadata = {**config.metadata, SERVER_LEVEL: str(API_LEVEL), SERVER_VERSION: COMPATIBLE_VERSION}
    return replace(config, metadata=metadata)


def is_same_metadata(one: ConfigT, other: ConfigT) -> bool:
    """Return whether the owners of two configurations gave them the same metadata."""
    return _owners(one) == _owners(other)


def _owners(config: StreamConfig | ConsumerConfig) -> dict[str, str]:
    return {key: value for key, value in config.metadata.items() if key not in _SERVER_KEYS}
