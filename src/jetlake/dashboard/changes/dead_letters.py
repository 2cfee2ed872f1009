"""Replays dead letters: publishes their messages again, where they were first published."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from jetlake.client.streams.stored_message import StoredMessage
from jetlake.client.streams.stream import Stream
from jetlake.dashboard.changes.commands import jetlake
from jetlake.dashboard.changes.prepared import Done, Prepared, arguments
from jetlake.dashboard.watching.server_api import ServerApi, checked_name
from jetlake.errors import InvalidOptionError, MessageNotFoundError
from jetlake.model.dead_letter import HEADER_PREFIX, own_headers, replay_id

__all__ = ["LETTER_CHANGES"]


class _Replay(msgspec.Struct, forbid_unknown_fields=True):
    stream: str
    first: int
    last: int


async def _replay(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Replay, given)
    stream = await api.jetstream.stream(checked_name(wanted.stream))
    last = min(wanted.last, stream.cached_info.state.last_seq)
    first = await _next(stream, max(wanted.first, 1), last)
    if first is None:
        raise InvalidOptionError(f"{stream.name} has no letter there")
    origin, subject = _header(first, "Stream"), _header(first, "Subject")
    if not origin:
        raise InvalidOptionError(f"message {first.sequence} of {stream.name} is no dead letter")

    async def run() -> Done:
        counted: Counter[str] = Counter()
        letter: StoredMessage | None = first
        while letter is not None:
            counted[await _publish(api, stream, letter)] += 1
            letter = await _next(stream, letter.sequence + 1, last)
        return Done(", ".join(f"{number:,} {what}" for what, number in counted.items()) + ".")

    one = wanted.first == wanted.last
    which = ["--from-seq", str(wanted.first), "--to-seq", str(last)]
    return Prepared(
        f"Replay letter {first.sequence:,} of {stream.name}" if one else f"Replay letters of {stream.name}",
        jetlake("dead-letters", "replay", stream.name, *which),
        run,
        [("publish to", "", subject if one else "the subjects they came from"), ("in", "", origin if one else "")],
        "Every consumer of their stream gets them, not only the one that gave up; the letters are deleted.",
    )


async def _next(stream: Stream, sequence: int, last: int) -> StoredMessage | None:
    if sequence > last:
        return None
    try:
        letter = await stream.get(sequence, next_by_subject=">", direct=False)
    except MessageNotFoundError:
        return None
    return letter if letter.sequence <= last else None


async def _publish(api: ServerApi, letters: Stream, letter: StoredMessage) -> str:
    """Publish one letter's message, and delete the letter when it is stored; return what was done, for counting."""
    origin, subject = _header(letter, "Stream"), _header(letter, "Subject")
    if not origin:
        return "no dead letters, left where they are"
    if _header(letter, "Missing") or not subject:
        return "without their message, left where they are"
    ack = await api.jetstream.publish(
        subject,
        letter.payload,
        headers=own_headers(letter.headers.items()),
        msg_id=replay_id(letters.name, letter.sequence),
        expected_stream=origin,
    )
    await letters.delete_message(letter.sequence)
    return "published before" if ack.duplicate else "published"


def _header(letter: StoredMessage, name: str) -> str:
    return letter.headers.get(HEADER_PREFIX + name) or ""


LETTER_CHANGES = {"letters.replay": _replay}
