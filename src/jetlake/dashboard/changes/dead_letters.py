"""Replays dead letters: publishes their messages again, where they were first published."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from jetlake.client.streams.letter_replay import LetterReplay, letters_between
from jetlake.dashboard.changes.commands import jetlake
from jetlake.dashboard.changes.prepared import Done, Prepared, arguments
from jetlake.dashboard.watching.server_api import ServerApi, checked_name
from jetlake.errors import InvalidOptionError
from jetlake.model.dead_letter import letter_header

__all__ = ["LETTER_CHANGES"]


class _Replay(msgspec.Struct, forbid_unknown_fields=True):
    stream: str
    first: int
    last: int


async def _replay(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Replay, given)
    stream = await api.jetstream.stream(checked_name(wanted.stream))
    last = min(wanted.last, stream.cached_info.state.last_seq)
    first = await anext(letters_between(stream, max(wanted.first, 1), last), None)
    if first is None:
        raise InvalidOptionError(f"{stream.name} has no letter there")
    origin, subject = (letter_header(first.headers, name) for name in ("Stream", "Subject"))
    if not origin:
        raise InvalidOptionError(f"message {first.sequence} of {stream.name} is no dead letter")

    async def run() -> Done:
        counted: Counter[str] = Counter()
        refused: list[str] = []
        replaying = LetterReplay(api.jetstream.publish, api.jetstream.stream, stream, refused.append)
        async for letter in letters_between(stream, first.sequence, last):
            counted[await replaying.replay(letter)] += 1
        told = ", ".join(f"{number:,} {what}" for what, number in counted.items())
        reason = f" Refused first: {refused[0]}." if refused else ""
        return Done(f"{told or 'No letter is left'}.{reason}")

    one = wanted.first == wanted.last
    which = ["--from-seq", str(wanted.first), "--to-seq", str(last)]
    return Prepared(
        f"Replay letter {first.sequence:,} of {stream.name}" if one else f"Replay letters of {stream.name}",
        jetlake("dead-letters", "replay", stream.name, *which),
        run,
        [("publish to", "", subject if one else "the subjects they came from"), ("in", "", origin if one else "")],
        "Every consumer of their stream gets them, not only the one that gave up; the letters are deleted.",
    )


LETTER_CHANGES = {"letters.replay": _replay}
