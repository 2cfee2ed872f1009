"""The subjects that a stream holds, and the newest message of some of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from jetlake.client.streams.stored_message import StoredMessage
from jetlake.client.streams.stream import Stream
from jetlake.dashboard.watching.server_api import ServerApi
from jetlake.errors import MessageNotFoundError
from jetlake.model import replies, requests

__all__ = ["held_subjects", "newest_messages"]

_AT_ONCE = 50


async def held_subjects(api: ServerApi, stream: str, pattern: str) -> tuple[list[str], int]:
    """Return the subjects that match, sorted, and how many there are: one request gives a hundred thousand at most."""
    request = requests.StreamInfoRequest(subjects_filter=pattern)
    info = await api.ask(f"STREAM.INFO.{stream}", request, replies.StreamInfoReply)
    return sorted(info.state.subjects), max(info.total, len(info.state.subjects))


async def newest_messages(stream: Stream, subjects: Iterable[str]) -> list[StoredMessage]:
    """Return the newest message of each subject that still has one. Any stream can be read so, also a work queue."""
    wanted = list(subjects)
    found: list[StoredMessage] = []
    for first in range(0, len(wanted), _AT_ONCE):
        asked = (_newest(stream, subject) for subject in wanted[first : first + _AT_ONCE])
        found += [message for message in await asyncio.gather(*asked) if message is not None]
    return found


async def _newest(stream: Stream, subject: str) -> StoredMessage | None:
    try:
        return await stream.get(last_by_subject=subject, direct=False)
    except MessageNotFoundError:
        return None
