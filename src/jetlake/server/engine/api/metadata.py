"""The metadata that a server adds to streams and consumers: required API level, server level and version."""

from __future__ import annotations

from msgspec.structs import replace

from jetlake.model.stream import StreamConfig
from jetlake.model.versioning import required_level
from jetlake.server.version import API_LEVEL, COMPATIBLE_VERSION

__all__ = ["served_metadata", "stored_metadata", "with_stored_metadata"]

REQUIRED_LEVEL = "_nats.req.level"
SERVER_VERSION = "_nats.ver"
SERVER_LEVEL = "_nats.level"

_SERVER_KEYS = frozenset({REQUIRED_LEVEL, SERVER_VERSION, SERVER_LEVEL})


def stored_metadata(metadata: dict[str, str], level: int) -> dict[str, str]:
    """Return the metadata to store: the owner's keys and the required API level."""
    kept = {key: value for key, value in metadata.items() if key not in _SERVER_KEYS}
    return {**kept, REQUIRED_LEVEL: str(level)}


def served_metadata(metadata: dict[str, str]) -> dict[str, str]:
    """Return the metadata for answers: the stored keys with this server's level and version."""
    return {**metadata, SERVER_LEVEL: str(API_LEVEL), SERVER_VERSION: COMPATIBLE_VERSION}


def with_stored_metadata(config: StreamConfig) -> StreamConfig:
    """Return the stream's configuration with the metadata to store."""
    return replace(config, metadata=stored_metadata(config.metadata, required_level(config)))
