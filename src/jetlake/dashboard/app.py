"""The application of the dashboard: the page and its files, the routes, and every kind of change.

A change takes two requests: the first prepares it and shows what it does, the second runs exactly what was shown.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from jetlake.dashboard.buckets import BUCKET_CHANGES, bucket_routes
from jetlake.dashboard.changes import Prepared
from jetlake.dashboard.consumer_changes import CONSUMER_CHANGES
from jetlake.dashboard.dead_letters import LETTER_CHANGES, letter_routes
from jetlake.dashboard.messages import MESSAGE_CHANGES, message_routes
from jetlake.dashboard.restores import restore_routes
from jetlake.dashboard.schedules import schedule_routes
from jetlake.dashboard.services import service_routes
from jetlake.dashboard.sessions import Connect, LoginError, Sessions
from jetlake.dashboard.stream_changes import STREAM_CHANGES
from jetlake.dashboard.viewers import Viewers, access_routes, changing_session, explain_login
from jetlake.dashboard.views import watching_routes
from jetlake.dashboard.watching.collector import Collector
from jetlake.dashboard.watching.server_api import ServerApi
from jetlake.dashboard.web import Guard, explain, json_answer, json_body
from jetlake.errors import InvalidOptionError, JetlakeError
from jetlake.model.encoding.codec import encode_shown

STATIC = Path(__file__).parent / "static"


def build_app(
    collector: Collector | None,
    *,
    connect: Connect | None = None,
    domain: str = "",
    hosts: frozenset[str] = frozenset(),
    is_public: bool = True,
    watch: Callable[[ServerApi], Collector] = Collector,
) -> ASGIApp:
    """Build the ASGI application.

    Args:
        collector: what everybody sees; None when nothing is shown without a login.
        is_public: whether everybody may see it; if not, only the user as whom it is connected.
        connect: opens a connection as a user who logs in; None = there are no logins, and the pages only read.
        domain: the JetStream domain, if not the server's own.
        hosts: names under which the page may be asked for besides addresses of this machine; a page of another site
            whose name was made to point here is refused by this.
        watch: makes the collector of a session that sees something else than everybody.
    """
    sessions = (
        None
        if connect is None
        else Sessions(connect, collector, domain=domain, now_s=time.monotonic, is_public=is_public, watch=watch)
    )
    viewers = Viewers(collector if is_public else None, sessions)
    app = Starlette(
        routes=[
            Route("/", _index),
            Mount("/static", StaticFiles(directory=STATIC)),
            *access_routes(viewers),
            *watching_routes(viewers),
            *message_routes(viewers),
            *bucket_routes(viewers),
            *letter_routes(viewers),
            *service_routes(viewers),
            *schedule_routes(viewers),
            *change_routes(viewers),
            *restore_routes(viewers),
        ],
        exception_handlers={LoginError: explain_login, JetlakeError: explain},
    )
    # Around everything: answers to internal errors keep a browser strict too.
    return Guard(app, hosts)


async def _index(_request: Request) -> Response:
    return FileResponse(STATIC / "index.html")


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    arguments: dict[str, Any] = {}


def change_routes(viewers: Viewers) -> list[Route]:
    """Make the routes. Each asks for a session that may change things, and for the token of its own page."""

    async def preview(request: Request) -> Response:
        session = await changing_session(viewers, request)
        wanted = await json_body(request, _Wanted)
        prepared = await prepare(session.api, wanted.kind, wanted.arguments)
        return json_answer(prepared.shown(session.keep(prepared, len(encode_shown(wanted)))))

    async def confirm(request: Request) -> Response:
        session = await changing_session(viewers, request)
        prepared = session.take_prepared(request.path_params["change"])
        if prepared is None:
            raise InvalidOptionError("this change expired or was already applied; start again")
        done = await prepared.run()
        download = "" if done.file is None else f"api/files/{await session.keep_file(done.file)}"
        return json_answer({"done": done.text, "download": download})

    async def file(request: Request) -> Response:
        session = await viewers.session(request)
        path = None if session is None else session.files.pop(request.path_params["file"], None)
        if path is None:
            return json_answer({"error": "file not found"}, 404)
        removal = BackgroundTask(shutil.rmtree, path.parent, ignore_errors=True)
        return FileResponse(path, media_type="application/octet-stream", filename=path.name, background=removal)

    return [
        Route("/api/changes", preview, methods=["POST"]),
        Route("/api/changes/{change}", confirm, methods=["POST"]),
        Route("/api/files/{file}", file),
    ]


KINDS: dict[str, Callable[[ServerApi, dict[str, Any]], Awaitable[Prepared]]] = {
    **STREAM_CHANGES,
    **CONSUMER_CHANGES,
    **MESSAGE_CHANGES,
    **BUCKET_CHANGES,
    **LETTER_CHANGES,
}


async def prepare(api: ServerApi, kind: str, given: dict[str, Any]) -> Prepared:
    """Return a change, looked up and checked, and not run.

    Args:
        api: the user's connection.

    Raises:
        InvalidOptionError: there is no such change, or its arguments don't fit.
    """
    preparing = KINDS.get(kind)
    if preparing is None:
        raise InvalidOptionError(f"unknown change {kind[:40]!r}")
    return await preparing(api, given)
