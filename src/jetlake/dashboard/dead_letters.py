"""Dead letters: the streams that hold them, pages of them, and their replay."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jetlake.client.streams.dead_letters import DeadLetterReplay, dead_letters_between
from jetlake.dashboard.changes import Done, Prepared, arguments, jetlake
from jetlake.dashboard.messages import MessagePages, shown_message
from jetlake.dashboard.viewers import Viewers
from jetlake.dashboard.watching.server_api import ServerApi, checked_name
from jetlake.dashboard.web import json_answer, sentence, whole_number
from jetlake.errors import ApiError, InvalidOptionError, NotFoundError, PermissionsError
from jetlake.model.dead_letter import HEADER_PREFIX, letter_header
from jetlake.model.stream import StreamInfo

LETTERS_PER_PAGE = 50
STREAMS_MAX = 200
"""How many streams are looked into; those whose names sound like it come first."""
_SOUNDS = ("dead", "letter", "dlq")
_NAMES = ("Stream", "Consumer", "Sequence", "Subject", "Reason", "Deliveries", "Description", "Time", "Missing")


async def letter_streams(api: ServerApi, infos: list[StreamInfo]) -> dict[str, Any]:
    """Return the streams whose newest message is a dead letter, and the streams that could not be read."""
    holding = [info for info in infos if info.state.messages]
    holding.sort(key=lambda info: not any(sound in info.config.name.lower() for sound in _SOUNDS))
    rows, unread = [], []
    for info in holding[:STREAMS_MAX]:
        name = info.config.name
        try:
            row = await _letter_stream(api, name)
        except (PermissionsError, ApiError) as error:
            # One stream that the user may not read, or that has no leader, does not hide the others.
            unread.append({"stream": name, "error": sentence(error)})
            continue
        if row is not None:
            rows.append(row)
    return {"rows": rows, "unread": unread, "is_whole": len(holding) <= STREAMS_MAX}


async def _letter_stream(api: ServerApi, name: str) -> dict[str, Any] | None:
    """Return what is shown of a stream whose newest message is a dead letter; None for another one."""
    try:
        stream = await api.jetstream.stream(name)
        # By subject: a letter that was replayed is deleted, and its sequence stays the last one.
        newest = await stream.get(last_by_subject=">", direct=False)
    except NotFoundError:
        return None  # deleted meanwhile
    if not letter_header(newest.headers, "Stream"):
        return None
    state = stream.cached_info.state
    return {"stream": name, "letters": state.messages, "last": newest.time, "bytes": state.bytes}


async def letters_page(api: ServerApi, name: str, before: int | None, limit: int) -> dict[str, Any]:
    """Return letters below a sequence, newest first."""
    stream = await api.jetstream.stream(checked_name(name))
    state = stream.cached_info.state
    end = min(before or state.last_seq + 1, state.last_seq + 1)
    found = await MessagePages(stream).before(end, limit, max(state.first_seq, 1))
    rows = [
        {
            **shown_message(letter),
            **{name.lower(): letter_header(letter.headers, name) for name in _NAMES if name != "Time"},
            "died": letter_header(letter.headers, "Time"),
            "traceback": "\n".join(letter.headers.get_all(HEADER_PREFIX + "Traceback")),
        }
        for letter in reversed(found)
    ]
    return {"rows": rows, "first_seq": state.first_seq, "last_seq": state.last_seq, "total": state.messages}


class _Replay(msgspec.Struct, forbid_unknown_fields=True):
    stream: str
    first: int
    last: int


async def _replay(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Replay, given)
    stream = await api.jetstream.stream(checked_name(wanted.stream))
    last = min(wanted.last, stream.cached_info.state.last_seq)
    first = await anext(dead_letters_between(stream, max(wanted.first, 1), last), None)
    if first is None:
        raise InvalidOptionError(f"{stream.name} has no dead letter in this range")
    origin, subject = (letter_header(first.headers, name) for name in ("Stream", "Subject"))
    if not origin:
        raise InvalidOptionError(f"message {first.sequence} of {stream.name} is not a dead letter")

    async def run() -> Done:
        counted: Counter[str] = Counter()
        refused: list[str] = []
        replaying = DeadLetterReplay(api.jetstream.publish, api.jetstream.stream, stream, refused.append)
        async for letter in dead_letters_between(stream, first.sequence, last):
            counted[await replaying.replay(letter)] += 1
        told = ", ".join(f"{number:,} {what}" for what, number in counted.items())
        reason = f" First error: {refused[0]}." if refused else ""
        return Done(f"{told or 'No dead letters left'}.{reason}")

    one = wanted.first == wanted.last
    which = ["--from-seq", str(wanted.first), "--to-seq", str(last)]
    return Prepared(
        f"Replay letter {first.sequence:,} of {stream.name}" if one else f"Replay letters of {stream.name}",
        jetlake("dead-letters", "replay", stream.name, *which),
        run,
        [("publish to", "", subject if one else "the original subjects"), ("in", "", origin if one else "")],
        "Every consumer of the stream gets the messages, not only the one that gave up. Replayed letters are deleted.",
    )


LETTER_CHANGES = {"letters.replay": _replay}


def letter_routes(viewers: Viewers) -> list[Route]:
    """Make the routes."""

    async def streams(request: Request) -> Response:
        viewer = await viewers.viewer(request)
        return json_answer(await letter_streams(viewer.api, viewer.collector.board.infos()))

    async def letters(request: Request) -> Response:
        api, before = (await viewers.viewer(request)).api, whole_number(request.query_params, "before")
        return json_answer(await letters_page(api, request.path_params["stream"], before, LETTERS_PER_PAGE))

    return [Route("/api/dead-letters", streams), Route("/api/dead-letters/{stream}", letters)]
