"""What is published to a stream from now on. Reads by sequence: no consumer is made, nothing is taken."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from jetlake.client.streams.stream import Stream
from jetlake.dashboard.browsing.messages import MessagePages, shown_message

__all__ = ["TAIL_MESSAGES_MAX", "tail"]

TAIL_MESSAGES_MAX = 50
"""How many messages a tail shows of one step; of more, the newest."""


async def tail(stream: Stream, subject: str, steps: AsyncIterator[None]) -> AsyncIterator[dict[str, Any]]:
    """Yield the new messages of each step, newest first, and how many were left out.

    Args:
        steps: after each of them the stream is looked at again.
    """
    pages = MessagePages(stream, subject)
    last = (await stream.info()).state.last_seq
    async for _ in steps:
        newest = (await stream.info()).state.last_seq
        if newest <= last:
            continue
        found = await pages.before(newest + 1, TAIL_MESSAGES_MAX, last + 1)
        skipped = newest - last > TAIL_MESSAGES_MAX and len(found) == TAIL_MESSAGES_MAX
        last = newest
        if found:
            yield {"messages": [shown_message(message) for message in reversed(found)], "skipped": skipped}
