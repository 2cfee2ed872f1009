"""Searches the messages of a stream, in payloads and headers, and reports progress meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from jetlake.client.streams.stored_message import StoredMessage
from jetlake.client.streams.stream import Stream
from jetlake.dashboard.browsing.messages import shown_message
from jetlake.errors import MessageNotFoundError
from jetlake.protocol.subjects import matches

__all__ = ["HITS_MAX", "Search", "search"]

HITS_MAX = 200
"""After so many hits a search ends, and says from where on it can go on."""
WINDOW = 64
"""How many messages are asked for at a time."""
_BATCH_BYTES_MAX = 4 * 1024 * 1024
_TELL_S = 0.2


class Search(msgspec.Struct, frozen=True):
    """What is looked for, in which messages."""

    text: str
    """In payload or headers, in any case; empty finds all."""
    subject: str
    """Only messages whose subject matches; empty = all."""
    first: int
    last: int


async def search(stream: Stream, wanted: Search) -> AsyncIterator[dict[str, Any]]:
    """Yield reports of how far the search is, each with the hits since the last one; the final one says `ended`."""
    text = wanted.text.lower()
    state = stream.cached_info.state
    begin, last = max(wanted.first, state.first_seq, 1), min(wanted.last, state.last_seq)
    position, scanned, total_hits = begin, 0, 0
    hits: list[dict[str, Any]] = []
    told_s = time.monotonic()
    while position <= last and total_hits < HITS_MAX:
        found, following = await _window(stream, wanted.subject, position, last)
        for message in found:
            scanned += 1
            if _has(message, text):
                hits.append(shown_message(message))
                total_hits += 1
                if total_hits == HITS_MAX:
                    following = message.sequence + 1
                    break
        position = following
        if time.monotonic() - told_s > _TELL_S:
            yield _report(begin, position, last, scanned, hits)
            hits, told_s = [], time.monotonic()
    yield {**_report(begin, position, last, scanned, hits), "ended": True, "more": position <= last}


def _report(begin: int, position: int, last: int, scanned: int, hits: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "done": max(position - begin, 0),
        "total": max(last - begin + 1, 0),
        "next": position,
        "scanned": scanned,
        "hits": hits,
    }


async def _window(stream: Stream, subject: str, position: int, last: int) -> tuple[list[StoredMessage], int]:
    """Return some messages from a position on, and the position after them."""
    if stream.config.allow_direct:
        batch = stream.get_batch(
            4 * WINDOW, sequence=position, next_by_subject=subject or ">", max_bytes=_BATCH_BYTES_MAX
        )
        found = [message async for message in batch]
        following = found[-1].sequence + 1 if found else last + 1
        return [message for message in found if message.sequence <= last], following
    end = min(position + _width(stream), last + 1)
    found = [one for one in await asyncio.gather(*(_one(stream, at) for at in range(position, end))) if one]
    if not found and end <= last:  # a stretch of deleted messages
        try:
            following = (await stream.get(end, next_by_subject=subject or ">", direct=False)).sequence
        except MessageNotFoundError:
            following = last + 1
        return [], following
    if subject:
        pattern = subject.encode()
        found = [one for one in found if matches(pattern, one.subject.encode())]
    return found, end


def _width(stream: Stream) -> int:
    """Return how many messages to ask for at a time: fewer of large ones."""
    state = stream.cached_info.state
    size = max(state.bytes // max(state.messages, 1), 1)
    return max(1, min(WINDOW, _BATCH_BYTES_MAX // size))


async def _one(stream: Stream, sequence: int) -> StoredMessage | None:
    try:
        return await stream.get(sequence, direct=False)
    except MessageNotFoundError:
        return None


def _has(message: StoredMessage, text: str) -> bool:
    if text in message.payload.decode("utf-8", "replace").lower():
        return True
    return any(text in f"{name}: {value}".lower() for name, value in message.headers.items())
