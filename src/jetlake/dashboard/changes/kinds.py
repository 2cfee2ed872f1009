"""Every kind of change, by its name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from jetlake.dashboard.changes.buckets import BUCKET_CHANGES
from jetlake.dashboard.changes.consumers import CONSUMER_CHANGES
from jetlake.dashboard.changes.dead_letters import LETTER_CHANGES
from jetlake.dashboard.changes.messages import MESSAGE_CHANGES
from jetlake.dashboard.changes.prepared import Prepared
from jetlake.dashboard.changes.streams import STREAM_CHANGES
from jetlake.dashboard.watching.server_api import ServerApi
from jetlake.errors import InvalidOptionError

__all__ = ["KINDS", "prepare"]

KINDS: dict[str, Callable[[ServerApi, dict[str, Any]], Awaitable[Prepared]]] = {
    **STREAM_CHANGES,
    **CONSUMER_CHANGES,
    **MESSAGE_CHANGES,
    **BUCKET_CHANGES,
    **LETTER_CHANGES,
}


async def prepare(api: ServerApi, kind: str, given: dict[str, Any]) -> Prepared:
    """Return a change, looked up and checked, and not run.

    Args:
        api: the connection of whoever wants it.

    Raises:
        InvalidOptionError: there is no such change, or its arguments don't fit.
    """
    preparing = KINDS.get(kind)
    if preparing is None:
        raise InvalidOptionError(f"there is no change {kind[:40]!r}")
    return await preparing(api, given)
