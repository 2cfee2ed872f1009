"""The routes of a stream's messages: pages of them, a search, what comes in, one payload as a file."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jetlake.client.streams.stream import Stream
from jetlake.dashboard.access.viewers import Viewers
from jetlake.dashboard.browsing.messages import MESSAGES_MAX, MessagePages, shown_message
from jetlake.dashboard.browsing.search import Search, search
from jetlake.dashboard.browsing.tail import tail
from jetlake.dashboard.watching.server_api import checked_name
from jetlake.dashboard.web.answers import events, json_answer, whole_number
from jetlake.errors import InvalidOptionError
from jetlake.protocol.subjects import is_valid_subscribe

__all__ = ["message_routes"]

_SEQUENCE_MAX = 1 << 63


def message_routes(viewers: Viewers) -> list[Route]:
    """Make the routes."""

    async def stream_of(request: Request) -> Stream:
        name = checked_name(request.path_params["stream"])
        return await (await viewers.viewer(request)).api.jetstream.stream(name)

    async def messages(request: Request) -> Response:
        query, subject = request.query_params, _subject(request)
        limit = max(1, min(whole_number(query, "limit") or 50, MESSAGES_MAX))
        before, onwards = whole_number(query, "before"), whole_number(query, "from")
        time = query.get("time")
        stream = await stream_of(request)
        state = stream.cached_info.state
        pages = MessagePages(stream, subject)
        if time:
            found = await pages.since(time, limit)
        elif onwards is not None:
            found = await pages.onwards(max(onwards, 1), limit)
        else:
            end = min(before or _SEQUENCE_MAX, state.last_seq + 1)
            found = await pages.before(end, limit, max(state.first_seq, 1))
        return json_answer(
            {
                "messages": [shown_message(message) for message in reversed(found)],
                "first_seq": state.first_seq,
                "last_seq": state.last_seq,
            }
        )

    async def one(request: Request) -> Response:
        message = await (await stream_of(request)).get(_sequence(request), direct=False)
        return json_answer(shown_message(message))

    async def payload(request: Request) -> Response:
        stream, sequence = await stream_of(request), _sequence(request)
        message = await stream.get(sequence, direct=False)
        # Never shown by the browser itself: a payload may be a page of somebody else.
        headers = {"content-disposition": f'attachment; filename="{_file_name(stream.name)}-{sequence}"'}
        return Response(message.payload, media_type="application/octet-stream", headers=headers)

    async def searching(request: Request) -> Response:
        query = request.query_params
        wanted = Search(
            query.get("text", ""),
            _subject(request),
            whole_number(query, "from") or 1,
            whole_number(query, "to") or _SEQUENCE_MAX,
        )
        return events(search(await stream_of(request), wanted), request)

    async def tailing(request: Request) -> Response:
        stream, subject = await stream_of(request), _subject(request)
        steps = (await viewers.viewer(request)).collector.samples()
        return events(tail(stream, subject, steps), request)

    base = "/api/streams/{stream}"
    return [
        Route(f"{base}/messages", messages),
        Route(f"{base}/messages/{{sequence}}", one),
        Route(f"{base}/messages/{{sequence}}/payload", payload),
        Route(f"{base}/search", searching),
        Route(f"{base}/tail", tailing),
    ]


def _subject(request: Request) -> str:
    text = request.query_params.get("subject", "")
    if text and not is_valid_subscribe(text.encode()):
        raise InvalidOptionError(f"{text[:64]!r} is not a subject")
    return text


def _sequence(request: Request) -> int:
    return whole_number(request.path_params, "sequence") or 0


def _file_name(text: str) -> str:
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_") else "_" for letter in text)
