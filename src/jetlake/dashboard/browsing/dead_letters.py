"""Dead letters: the streams that hold them, and pages of them."""

from __future__ import annotations

from typing import Any

from jetlake.client.streams.stored_message import StoredMessage
from jetlake.dashboard.browsing.messages import MessagePages, shown_message
from jetlake.dashboard.watching.server_api import ServerApi, checked_name
from jetlake.errors import MessageNotFoundError
from jetlake.model.dead_letter import HEADER_PREFIX
from jetlake.model.stream import StreamInfo

__all__ = ["letter_header", "letter_streams", "letters_page"]

STREAMS_MAX = 200
"""How many streams are looked into; those whose names sound like it come first."""
_SOUNDS = ("dead", "letter", "dlq")
_NAMES = ("Stream", "Consumer", "Sequence", "Subject", "Reason", "Deliveries", "Description", "Time", "Missing")


def letter_header(letter: StoredMessage, name: str) -> str:
    """Return one of the headers that make a message a dead letter; empty when it is missing."""
    return letter.headers.get(HEADER_PREFIX + name) or ""


async def letter_streams(api: ServerApi, infos: list[StreamInfo]) -> dict[str, Any]:
    """Return the streams whose newest message is a dead letter."""
    holding = [info for info in infos if info.state.messages]
    holding.sort(key=lambda info: not any(sound in info.config.name.lower() for sound in _SOUNDS))
    rows = []
    for info in holding[:STREAMS_MAX]:
        stream = await api.jetstream.stream(info.config.name)
        try:
            # By subject: a letter that was replayed is deleted, and its sequence stays the last one.
            newest = await stream.get(last_by_subject=">", direct=False)
        except MessageNotFoundError:
            continue
        if letter_header(newest, "Stream"):
            state = stream.cached_info.state
            rows.append({"stream": stream.name, "letters": state.messages, "last": newest.time, "bytes": state.bytes})
    return {"rows": rows, "is_whole": len(holding) <= STREAMS_MAX}


async def letters_page(api: ServerApi, name: str, before: int | None, limit: int) -> dict[str, Any]:
    """Return letters below a sequence, newest first."""
    stream = await api.jetstream.stream(checked_name(name))
    state = stream.cached_info.state
    end = min(before or state.last_seq + 1, state.last_seq + 1)
    found = await MessagePages(stream).before(end, limit, max(state.first_seq, 1))
    rows = [
        {
            **shown_message(letter),
            **{name.lower(): letter_header(letter, name) for name in _NAMES if name != "Time"},
            "died": letter_header(letter, "Time"),
            "traceback": "\n".join(letter.headers.get_all(HEADER_PREFIX + "Traceback")),
        }
        for letter in reversed(found)
    ]
    return {"rows": rows, "first_seq": state.first_seq, "last_seq": state.last_seq, "total": state.messages}
