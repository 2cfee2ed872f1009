"""The messages of a stream: pages of them, a search, a tail, downloads; publishing and deleting them.

Messages are read by sequence, without a consumer: reading acknowledges nothing and creates nothing.
"""

from __future__ import annotations

import asyncio
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jetlake.client.streams.stored_message import StoredMessage
from jetlake.client.streams.stream import Stream
from jetlake.dashboard.changes import Done, Prepared, arguments, jetlake, typed_text
from jetlake.dashboard.viewers import Viewer, Viewers
from jetlake.dashboard.watching.server_api import ServerApi, checked_name
from jetlake.dashboard.web import json_answer, whole_number
from jetlake.errors import ConfigError, InvalidOptionError, MessageNotFoundError
from jetlake.model import replies, requests
from jetlake.model.config_text import size_text
from jetlake.model.encoding.times import parse_time, wire_time
from jetlake.protocol.subjects import is_valid_publish, is_valid_subscribe, matches

MESSAGES_MAX = 200
"""How many messages one page has at most."""
PREVIEW_BYTES = 64 * 1024
"""How much of a payload and of the headers a page shows; the whole payload can be downloaded."""


class Preview(StoredMessage, frozen=True, kw_only=True):
    """A message cut to what is shown of it: a page of large messages is not kept in memory as a whole."""

    size: int
    """The bytes of the whole payload."""
    header_size: int
    """The bytes of all headers."""


def preview(message: StoredMessage, payload_bytes: int = PREVIEW_BYTES) -> Preview:
    """Cut a message to the shown part, with at most this many bytes of its payload."""
    header = message.header
    if len(header) > PREVIEW_BYTES:
        header = header[: max(header.rfind(b"\r\n", 0, PREVIEW_BYTES), 0)] + b"\r\n\r\n"
    return Preview(
        message.subject,
        message.sequence,
        message.time,
        header,
        message.payload[:payload_bytes],
        size=len(message.payload),
        header_size=len(message.header),
    )


class MessagePages:
    """Reads one stream's messages by sequence.

    Args:
        subject: only messages whose subject matches; empty = all.
    """

    def __init__(self, stream: Stream, subject: str = "") -> None:
        self._stream = stream
        self._subject = subject or ">"

    async def onwards(self, sequence: int, limit: int, end: int | None = None) -> list[Preview]:
        """Return messages from a sequence on, oldest first, up to a limit and below an end."""
        found: list[Preview] = []
        try:
            while len(found) < limit and (end is None or sequence < end):
                message = await self._stream.get(sequence, next_by_subject=self._subject, direct=False)
                if end is not None and message.sequence >= end:
                    break
                found.append(preview(message))
                sequence = message.sequence + 1
        except MessageNotFoundError:
            pass
        return found

    async def since(self, time: str, limit: int) -> list[Preview]:
        """Return messages that were stored at that time or later, oldest first.

        Raises:
            InvalidOptionError: not a time.
        """
        try:
            start = wire_time(parse_time(time))
        except ConfigError as error:
            raise InvalidOptionError(str(error)) from None
        try:
            first = await self._stream.get(next_by_subject=self._subject, start_time=start, direct=False)
        except MessageNotFoundError:
            return []
        return [preview(first), *await self.onwards(first.sequence + 1, limit - 1)]

    async def before(self, end: int, limit: int, first: int) -> list[Preview]:
        """Return the last messages below a sequence, oldest first.

        The server only reads forwards. So windows before the end are read, wider ones while they hold little, and
        narrower ones when a window holds more than is wanted: a few times as many requests as messages at most.

        Args:
            first: the first sequence that the stream holds.
        """
        found: list[Preview] = []
        width = limit
        while end > first and len(found) < limit:
            start = max(first, end - width)
            part = await self.onwards(start, limit + 1, end)
            if len(part) > limit:  # only a window wider than the limit can hold more
                width = max(limit, width // 4)
                continue
            found, end = part + found, start
            width *= 4
        return found[-limit:]


def shown_message(message: StoredMessage) -> dict[str, Any]:
    """Return a message as pages get it: the payload in base64, cut to what is shown."""
    cut = message if isinstance(message, Preview) else preview(message)
    headers = list(cut.headers.items())
    if cut.header_size > len(cut.header):
        headers.append(("…", f"{cut.header_size - len(cut.header):,} more bytes"))
    return {
        "seq": cut.sequence,
        "subject": cut.subject,
        "time": cut.time,
        "size": cut.size,
        "headers": headers,
        "data": b64encode(cut.payload).decode(),
        "cut": cut.size > len(cut.payload),
    }


_AT_ONCE = 50


async def held_subjects(api: ServerApi, stream: str, pattern: str) -> tuple[list[str], int]:
    """Return the subjects that match, sorted, and how many there are: one request gives a hundred thousand at most."""
    request = requests.StreamInfoRequest(subjects_filter=pattern)
    info = await api.ask(f"STREAM.INFO.{stream}", request, replies.StreamInfoReply)
    return sorted(info.state.subjects), max(info.total, len(info.state.subjects))


async def newest_messages(stream: Stream, subjects: Iterable[str], payload_bytes: int = PREVIEW_BYTES) -> list[Preview]:
    """Return the newest message of each subject that still has one. Any stream can be read so, also a work queue.

    Args:
        payload_bytes: how much is kept of each payload.
    """
    wanted = list(subjects)
    found: list[Preview] = []
    for first in range(0, len(wanted), _AT_ONCE):
        asked = (_newest(stream, subject, payload_bytes) for subject in wanted[first : first + _AT_ONCE])
        found += [message for message in await asyncio.gather(*asked) if message is not None]
    return found


async def _newest(stream: Stream, subject: str, payload_bytes: int) -> Preview | None:
    try:
        return preview(await stream.get(last_by_subject=subject, direct=False), payload_bytes)
    except MessageNotFoundError:
        return None


HITS_MAX = 200
"""A search ends after this many hits, and returns where it can continue."""
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


async def search(stream: Stream, wanted: Search) -> AsyncGenerator[dict[str, Any], None]:
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


TAIL_MESSAGES_MAX = 50
"""How many messages a tail shows of one step; of more, the newest."""


async def tail(stream: Stream, subject: str, steps: AsyncGenerator[None, None]) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the new messages of each step, newest first, and how many were left out.

    Args:
        steps: after each of them the stream is looked at again.
    """
    pages = MessagePages(stream, subject)
    last = (await stream.info()).state.last_seq
    async with aclosing(steps):
        async for _ in steps:
            newest = (await stream.info()).state.last_seq
            if newest <= last:
                continue
            found = await pages.before(newest + 1, TAIL_MESSAGES_MAX, last + 1)
            skipped = newest - last > TAIL_MESSAGES_MAX and len(found) == TAIL_MESSAGES_MAX
            last = newest
            if found:
                yield {"messages": [shown_message(message) for message in reversed(found)], "skipped": skipped}


_SEQUENCE_MAX = 1 << 63


def message_routes(viewers: Viewers) -> list[Route]:
    """Make the routes."""

    async def stream_of(request: Request) -> Stream:
        return await stream_for(await viewers.viewer(request), request)

    async def stream_for(viewer: Viewer, request: Request) -> Stream:
        return await viewer.api.jetstream.stream(checked_name(request.path_params["stream"]))

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

    async def value(request: Request) -> Response:
        """Answer with the payload as its schema reads it; a whole one only, asked for one by one."""
        viewer = await viewers.viewer(request)
        stream = await stream_for(viewer, request)
        message = await stream.get(_sequence(request), direct=False)
        found = await viewer.api.jetstream.schemas().shown(message.subject, message.payload, stream.name)
        return json_answer({"schema": found.title, "text": found.text, "reason": found.reason})

    async def payload(request: Request) -> Response:
        stream, sequence = await stream_of(request), _sequence(request)
        message = await stream.get(sequence, direct=False)
        # Never shown by the browser itself: a payload may be a hostile page.
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
        viewer = await viewers.viewer(request)
        return viewers.events(viewer, request, search(await stream_for(viewer, request), wanted))

    async def tailing(request: Request) -> Response:
        viewer, subject = await viewers.viewer(request), _subject(request)
        stream = await stream_for(viewer, request)
        return viewers.events(viewer, request, tail(stream, subject, viewer.collector.samples()))

    base = "/api/streams/{stream}"
    return [
        Route(f"{base}/messages", messages),
        Route(f"{base}/messages/{{sequence}}", one),
        Route(f"{base}/messages/{{sequence}}/payload", payload),
        Route(f"{base}/messages/{{sequence}}/value", value),
        Route(f"{base}/search", searching),
        Route(f"{base}/tail", tailing),
    ]


def _subject(request: Request) -> str:
    text = request.query_params.get("subject", "")
    if text and not is_valid_subscribe(text.encode()):
        raise InvalidOptionError(f"{text[:64]!r} is not a valid subject")
    return text


def _sequence(request: Request) -> int:
    return whole_number(request.path_params, "sequence") or 0


def _file_name(text: str) -> str:
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_") else "_" for letter in text)


class _Publish(msgspec.Struct, forbid_unknown_fields=True):
    subject: str
    payload: str = ""
    """In base64: any bytes."""
    headers: list[tuple[str, str]] = []


class _Again(msgspec.Struct, forbid_unknown_fields=True):
    stream: str
    sequence: int


class _Delete(msgspec.Struct, forbid_unknown_fields=True):
    stream: str
    sequence: int


def _prepared(api: ServerApi, subject: str, payload: bytes, headers: list[tuple[str, str]]) -> Prepared:
    if not is_valid_publish(subject.encode()):
        raise InvalidOptionError(f"{subject[:64]!r} is not a valid subject to publish to")
    by_name: dict[str, str | list[str]] = {}
    for name, value in headers:
        known = by_name.get(name)
        by_name[name] = value if known is None else [*([known] if isinstance(known, str) else known), value]

    async def run() -> Done:
        ack = await api.jetstream.publish(subject, payload, headers=by_name or None)
        return Done(f"Stored in {ack.stream} at sequence {ack.seq:,}" + (", as a duplicate." if ack.duplicate else "."))

    words = [word for name, value in headers for word in ("-H", f"{name}:{value}")]
    body = typed_text(payload)
    file = "" if body is not None else "The payload is not text: the command reads it from standard input."
    return Prepared(
        f"Publish to {subject}",
        jetlake("pub", "--jetstream", *words, arguments=[subject, *([] if body is None else [body])]),
        run,
        [("payload", "", size_text(len(payload))), *((name, "", value) for name, value in headers)],
        file=file,
    )


async def _publish(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Publish, given)
    try:
        payload = b64decode(wanted.payload, validate=True)
    except ValueError:
        raise InvalidOptionError("the payload is not base64") from None
    return _prepared(api, wanted.subject, payload, wanted.headers)


async def _publish_again(api: ServerApi, given: dict[str, Any]) -> Prepared:
    """Return the whole message as it is stored, also when the page shows only its beginning."""
    wanted = arguments(_Again, given)
    stream = await api.jetstream.stream(checked_name(wanted.stream))
    message = await stream.get(wanted.sequence, direct=False)
    # What told the server how to treat the first one would make it refuse or drop the second.
    headers = [(name, value) for name, value in message.headers.items() if not name.lower().startswith("nats-")]
    return _prepared(api, message.subject, message.payload, headers)


async def _delete(api: ServerApi, given: dict[str, Any]) -> Prepared:
    wanted = arguments(_Delete, given)
    stream = await api.jetstream.stream(checked_name(wanted.stream))
    message = await stream.get(wanted.sequence, direct=False)

    async def run() -> Done:
        await stream.delete_message(wanted.sequence)
        return Done(f"Deleted message {wanted.sequence:,} of {stream.name}.")

    return Prepared(
        f"Delete message {wanted.sequence:,} of {stream.name}",
        jetlake("stream", "rmm", stream.name, str(wanted.sequence), "--force"),
        run,
        [("subject", message.subject, ""), ("payload", size_text(len(message.payload)), "overwritten")],
        "The message can't be recovered.",
    )


MESSAGE_CHANGES = {
    "message.publish": _publish,
    "message.again": _publish_again,
    "message.delete": _delete,
}
