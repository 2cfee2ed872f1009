"""The dashboard's routes: the page, its live data by server-sent events, messages, and the few actions with a token."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jetlake.dashboard.collector import Collector
from jetlake.errors import InvalidOptionError, JetlakeError

__all__ = ["build_app"]

STATIC = Path(__file__).parent / "static"
MESSAGES_MAX = 200
"""How many messages one request may ask for."""

_SECURITY_HEADERS = [
    (b"content-security-policy", b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]

Action = Callable[..., Awaitable[None]]


def build_app(collector: Collector, *, token: str | None = None, hosts: frozenset[str] = frozenset()) -> ASGIApp:
    """The ASGI application. Without a token it only reads.

    Args:
        token: whoever sends it in `X-Jetlake-Token` may purge, pause, resume and unpin.
        hosts: names under which the page may be asked for besides addresses of this machine; a page of another site
            whose name was made to point here is refused by this.
    """
    routes = _Routes(collector, token)
    return Starlette(
        routes=[
            Route("/", routes.index),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/api/live", routes.live),
            Route("/api/overview", routes.overview),
            Route("/api/advisories", routes.advisories),
            Route("/api/streams/{stream}", routes.stream),
            Route("/api/streams/{stream}/messages", routes.messages),
            Route("/api/streams/{stream}/tail", routes.tail),
            Route("/api/streams/{stream}/consumers/{consumer}", routes.consumer),
            Route("/api/actions/purge/{stream}", routes.purge, methods=["POST"]),
            Route("/api/actions/{action}/{stream}/{consumer}", routes.act, methods=["POST"]),
        ],
        middleware=[Middleware(_Guard, hosts=hosts)],
        exception_handlers={JetlakeError: _explain},
    )


class _Guard:
    """Refuses pages of other sites and adds the headers that keep a browser strict."""

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

        app = self._app if self._is_welcome(scope) else JSONResponse({"error": "this host is not served"}, 403)
        await app(scope, receive, send_guarded)

    def _is_welcome(self, scope: Scope) -> bool:
        headers = dict(scope["headers"])
        host = _host_name(headers.get(b"host", b"").decode("latin-1"))
        if not (_is_address_or_local(host) or host in self._hosts):
            return False
        origin = headers.get(b"origin")
        return origin is None or _host_name(origin.decode("latin-1").rpartition("//")[2]) == host


def _host_name(authority: str) -> str:
    """The name in `name:port` or `[address]:port`."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


def _is_address_or_local(host: str) -> bool:
    """Only names can be made to point elsewhere; an address is where the browser really went."""
    return host == "localhost" or ":" in host or host.replace(".", "").isdigit()


async def _explain(_request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400 if isinstance(error, InvalidOptionError) else 502)


class _Routes:
    """One method a route."""

    def __init__(self, collector: Collector, token: str | None) -> None:
        self._collector = collector
        self._token = token

    async def index(self, _request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def overview(self, _request: Request) -> Response:
        return JSONResponse(self._collector.overview())

    async def advisories(self, _request: Request) -> Response:
        return JSONResponse(self._collector.board.advisories())

    async def stream(self, request: Request) -> Response:
        return _found(await self._collector.stream(request.path_params["stream"]))

    async def consumer(self, request: Request) -> Response:
        return _found(await self._collector.consumer(**request.path_params))

    async def live(self, request: Request) -> Response:
        """One event a sample: the overview, and the stream or consumer that the page has open."""
        stream, consumer = request.query_params.get("stream"), request.query_params.get("consumer")
        return _events(self._live(stream, consumer), request)

    async def _live(self, stream: str | None, consumer: str | None) -> AsyncIterator[Any]:
        async for _ in self._collector.samples():
            detail = None
            if stream and consumer:
                detail = await self._collector.consumer(stream, consumer) or {"error": "this consumer is gone"}
            elif stream:
                detail = await self._collector.stream(stream) or {"error": "this stream is gone"}
            yield {"board": self._collector.overview(), "detail": detail, "can_act": self._token is not None}

    async def messages(self, request: Request) -> Response:
        query = request.query_params
        found = await self._collector.messages(
            request.path_params["stream"],
            sequence=_whole(query, "seq"),
            subject=query.get("subject"),
            time=query.get("time"),
            last=_whole(query, "last"),
            limit=min(_whole(query, "limit") or 20, MESSAGES_MAX),
        )
        return JSONResponse({"messages": found})

    async def tail(self, request: Request) -> Response:
        return _events(self._collector.tail(request.path_params["stream"]), request)

    async def purge(self, request: Request) -> Response:
        return await self._with_token(request, self._collector.purge, request.path_params["stream"])

    async def act(self, request: Request) -> Response:
        actions: dict[str, Action] = {
            "pause": self._collector.pause,
            "resume": self._collector.resume,
            "unpin": self._collector.unpin,
        }
        action = actions.get(request.path_params["action"])
        if action is None:
            return JSONResponse({"error": f"there is no action {request.path_params['action']!r}"}, 404)
        return await self._with_token(request, action, request.path_params["stream"], request.path_params["consumer"])

    async def _with_token(self, request: Request, action: Action, *names: str) -> Response:
        if self._token is None:
            return JSONResponse({"error": "read-only: start with --page-token to allow actions"}, 403)
        # The token comes in a header of our own, which a page of another site can't set.
        given = request.headers.get("x-jetlake-token", "")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return JSONResponse({"error": "wrong token"}, 403)
        await action(*names)
        return JSONResponse({"done": True})


def _found(value: dict[str, Any] | None) -> Response:
    return JSONResponse({"error": "not found"}, 404) if value is None else JSONResponse(value)


def _whole(query: Any, name: str) -> int | None:
    text = query.get(name)
    if text is None or text == "":
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidOptionError(f"{name} must be a whole number, not {text[:40]!r}")
    return int(text)


def _events(items: AsyncIterator[Any], request: Request) -> Response:
    async def lines() -> AsyncIterator[bytes]:
        try:
            async for item in items:
                if await request.is_disconnected():
                    return
                yield b"data: " + msgspec.json.encode(item) + b"\n\n"
        except (JetlakeError, asyncio.CancelledError):
            return  # the page opens the stream again by itself

    return StreamingResponse(lines(), media_type="text/event-stream")
