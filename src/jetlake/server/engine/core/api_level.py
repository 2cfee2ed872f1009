"""The API level that a request may require in its header."""

from __future__ import annotations

from jetlake.protocol.headers import find_value
from jetlake.server.version import API_LEVEL

__all__ = ["REQUIRED_LEVEL", "requires_newer_api"]

REQUIRED_LEVEL = b"Nats-Required-Api-Level"


def requires_newer_api(header: bytes) -> bool:
    """Return whether the request requires a higher API level than this server's."""
    if not header:
        return False
    level = find_value(header, REQUIRED_LEVEL)
    if not level:
        return False
    try:
        return int(level) > API_LEVEL
    except ValueError:
        return True  # As in nats-server, a malformed level is refused.
