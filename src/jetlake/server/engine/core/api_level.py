"""The API level that a message may ask for in its header."""

from __future__ import annotations

from jetlake.protocol.headers import find_value
from jetlake.server.version import API_LEVEL

__all__ = ["requires_newer_api"]

_REQUIRED_LEVEL = b"Nats-Required-Api-Level"


def requires_newer_api(header: bytes) -> bool:
    """Whether the message asks for an API level that this server does not have."""
    if not header:
        return False
    level = find_value(header, _REQUIRED_LEVEL)
    if not level:
        return False
    try:
        return int(level) > API_LEVEL
    except ValueError:
        return True  # What is no number asks for more than anyone has.
