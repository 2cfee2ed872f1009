"""Asks a server's monitoring address who is connected, and whether all is well."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from jetlake.errors import InvalidOptionError

__all__ = ["connections_of", "health_of"]

ANSWER_BYTES_MAX = 4 * 1024 * 1024


def connections_of(monitor_url: str) -> Callable[[], Awaitable[dict[str, Any] | None]]:
    """Return a function that gives what `/connz` says now, None when it does not answer.

    Raises:
        InvalidOptionError: not an http address.
    """
    return _asking(monitor_url, "/connz?limit=1024")


def health_of(monitor_url: str) -> Callable[[], Awaitable[dict[str, Any] | None]]:
    """Return a function that gives what `/healthz` says now, None when it does not answer.

    Raises:
        InvalidOptionError: not an http address.
    """
    return _asking(monitor_url, "/healthz")


def _asking(monitor_url: str, page: str) -> Callable[[], Awaitable[dict[str, Any] | None]]:
    if not monitor_url.startswith(("http://", "https://")):
        raise InvalidOptionError(f"a monitoring address begins with http:// or https://, not {monitor_url!r}")
    url = monitor_url.rstrip("/") + page

    def ask() -> dict[str, Any] | None:
        try:
            with _answer(url) as answer:
                found = msgspec.json.decode(answer.read(ANSWER_BYTES_MAX))
        except (OSError, msgspec.DecodeError):
            return None
        return found if isinstance(found, dict) else None

    return lambda: asyncio.to_thread(ask)


def _answer(url: str) -> Any:
    """Return what the server answers, also when it says that something is wrong."""
    try:
        return urllib.request.urlopen(url, timeout=2)
    except urllib.error.HTTPError as error:
        return error
