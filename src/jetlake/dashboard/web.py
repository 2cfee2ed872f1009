"""What every route shares: the guard against other sites, JSON answers and bodies, errors as sentences, and events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jetlake.errors import (
    ApiError,
    BadHeaderError,
    BadSubjectError,
    ConfigError,
    ConsumerNotFoundError,
    InvalidOptionError,
    JetlakeError,
    MessageNotFoundError,
    PermissionsError,
    StreamNotFoundError,
)
from jetlake.model.api import API_PREFIX, match
from jetlake.model.encoding.codec import encode_shown

_STATUSES: tuple[tuple[type[JetlakeError], int], ...] = (
    (ConfigError, 400),
    (BadSubjectError, 400),
    (BadHeaderError, 400),
    (PermissionsError, 403),
)


def json_answer(value: Any, status: int = 200) -> Response:
    return Response(encode_shown(value), status, media_type="application/json")


async def explain(_request: Request, error: Exception) -> Response:
    """Return an error of the library as one sentence."""
    if isinstance(error, ApiError) and 400 <= error.code < 500:
        status = error.code
    else:
        status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 502)
    return json_answer({"error": sentence(error)}, status)


def sentence(error: Exception) -> str:
    """Return an error for a person: a refusal of the server names the stream or consumer, and not the call."""
    if not isinstance(error, ApiError):
        return str(error)
    call = match(f"{API_PREFIX}.{error.request}")
    stream, consumer = (call.stream, call.consumer) if call else ("", "")
    if stream and isinstance(error, StreamNotFoundError):
        return f"Stream {stream} not found; it may have been deleted."
    if consumer and isinstance(error, ConsumerNotFoundError):
        return f"Consumer {consumer} of stream {stream} not found; it may have been deleted."
    if stream and isinstance(error, MessageNotFoundError):
        return f"Stream {stream} does not hold this message; it may have been deleted."
    about = f"{stream} > {consumer}: " if consumer else f"{stream}: " if stream else ""
    return f"{about}{error.description} ({error.err_code})" + (f": {error.hint}" if error.hint else "")


def whole_number(query: Mapping[str, str], name: str) -> int | None:
    """Return a number of the query; None when it is not there.

    Raises:
        InvalidOptionError: not a whole number.
    """
    text = query.get(name)
    if text is None or text == "":
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidOptionError(f"{name} must be a whole number, not {text[:40]!r}")
    return int(text)


class _Events(StreamingResponse):
    """An answer of events that says when it has ended, also when it never began."""

    def __init__(self, lines: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        super().__init__(lines, media_type="text/event-stream")
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


def events(
    items: AsyncGenerator[Any, None], request: Request, closing: asyncio.Event, ended: Callable[[], None]
) -> Response:
    """Send an event for each item until the page is closed; an error is the last one.

    Args:
        closing: ends the answer, also between two items.
        ended: called when the answer has ended.
    """

    async def lines() -> AsyncIterator[bytes]:
        try:
            async with aclosing(_until(closing, items)) as open_items:
                async for item in open_items:
                    if await request.is_disconnected():
                        return
                    yield b"data: " + encode_shown(item) + b"\n\n"
        except JetlakeError as error:
            yield b"event: failed\ndata: " + encode_shown({"error": sentence(error)}) + b"\n\n"
        except asyncio.CancelledError:
            return  # the page opens the stream again by itself

    return _Events(lines(), ended)


async def _until(closing: asyncio.Event, items: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Yield the items until the event is set; one that is waited for then is given up."""
    closed = asyncio.ensure_future(closing.wait())
    step: asyncio.Future[Any] | None = None
    try:
        while True:
            step = asyncio.ensure_future(anext(items))
            await asyncio.wait((step, closed), return_when=asyncio.FIRST_COMPLETED)
            if closed.done():
                return
            try:
                item = step.result()
            except StopAsyncIteration:
                return
            yield item
    finally:
        closed.cancel()
        if step is None or step.done():
            await items.aclose()
        else:
            step.cancel()  # which ends the items too, in the task of the step


BODY_BYTES_MAX = 2 * 1024 * 1024
"""The largest body: room for a payload of a megabyte in base64."""

BodyT = TypeVar("BodyT")


async def json_body(request: Request, kind: type[BodyT]) -> BodyT:
    """Read the body of a request, which must be JSON: forms of other sites can't send that without asking first.

    Raises:
        InvalidOptionError: it is too large, or not what is wanted.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise InvalidOptionError("the body must be application/json")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise InvalidOptionError(f"the body is larger than {BODY_BYTES_MAX:,} bytes")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidOptionError(str(error)) from None


_SECURITY_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]


class Guard:
    """Wraps the application: requests under a foreign name or from a page of another site do not reach it.

    Args:
        hosts: names under which the pages may be asked for besides addresses of this machine.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_SECURITY_HEADERS]
            await send(message)

        app = self._app if self._is_welcome(scope) else JSONResponse({"error": "host not allowed"}, 403)
        await app(scope, receive, send_guarded)

    def _is_welcome(self, scope: Scope) -> bool:
        headers = dict(scope["headers"])
        authority = headers.get(b"host", b"").decode("latin-1")
        host = _host_name(authority)
        if not (_is_address_or_local(host) or host in self._hosts):
            return False
        origin = headers.get(b"origin")
        if scope["method"] in ("GET", "HEAD"):
            return origin is None or _host_name(origin.decode("latin-1").rpartition("//")[2]) == host
        # A change comes from our own page or not at all. The port counts: on one machine, cookies are shared by all.
        return origin is not None and origin.decode("latin-1").rpartition("//")[2] == authority


def _host_name(authority: str) -> str:
    """Return the name in `name:port` or `[address]:port`."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


def _is_address_or_local(host: str) -> bool:
    """Tell whether a host is an address or local: only other names can be made to point elsewhere."""
    return host == "localhost" or ":" in host or host.replace(".", "").isdigit()
