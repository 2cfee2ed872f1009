"""The metadata that a server adds to streams and consumers: which API level each needs, and who answers."""

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
    """What is kept: the owner's keys, and the API level that a server must have to run this."""
    kept = {key: value for key, value in metadata.items() if key not in _SERVER_KEYS}
    return {**kept, REQUIRED_LEVEL: str(level)}


def served_metadata(metadata: dict[str, str]) -> dict[str, str]:
    """What answers show: what is kept, and the level and version of the server that answers."""
    return {**metadata, SERVER_LEVEL: str(API_LEVEL), SERVER_VERSION: COMPATIBLE_VERSION}


def with_stored_metadata(config: StreamConfig) -> StreamConfig:
    """The stream's configuration with the metadata that is kept."""
    return replace(config, metadata=stored_metadata(config.metadata, required_level(config)))
