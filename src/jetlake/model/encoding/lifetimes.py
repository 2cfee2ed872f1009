"""Lifetimes of messages: `90` (seconds), `2m` or `never`, as headers carry them."""

from __future__ import annotations

from jetlake.errors import ConfigError
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND, parse_duration

__all__ = ["FOREVER", "parse_lifetime"]

FOREVER = -1
"""TTL `never`: exempt from the stream's `max_age` as well."""


def parse_lifetime(text: bytes) -> int | None:
    """Parse `90`, `2m` or `never` in any case (`FOREVER`) into nanoseconds; None when malformed or under a second."""
    if text.lower() == b"never":
        return FOREVER
    if text.isdigit():
        seconds = int(text) if len(text) <= 9 else 0
        return seconds * NANOSECONDS_PER_SECOND if seconds else None
    try:
        lifetime_ns = parse_duration(text.decode("utf-8", "replace"))
    except ConfigError:
        return None
    return lifetime_ns if lifetime_ns >= NANOSECONDS_PER_SECOND else None
