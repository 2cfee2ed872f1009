"""Asks a server's monitoring address who is connected."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from jetlake.errors import InvalidOptionError

__all__ = ["connections_of"]

ANSWER_BYTES_MAX = 4 * 1024 * 1024


def connections_of(monitor_url: str) -> Callable[[], Awaitable[dict[str, Any] | None]]:
    """A function that gives what `/connz` says now, None when it does not answer.

    Raises:
        InvalidOptionError: not an http address.
    """
    if not monitor_url.startswith(("http://", "https://")):
        raise InvalidOptionError(f"a monitoring address begins with http:// or https://, not {monitor_url!r}")
    url = monitor_url.rstrip("/") + "/connz?limit=1024"

    def ask() -> dict[str, Any] | None:
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                found = msgspec.json.decode(answer.read(ANSWER_BYTES_MAX))
        except (OSError, msgspec.DecodeError):
            return None
        return found if isinstance(found, dict) else None

    return lambda: asyncio.to_thread(ask)
