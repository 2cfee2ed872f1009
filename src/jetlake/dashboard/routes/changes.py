"""The routes of changes: one prepares and shows, one runs what was shown, one gives the file that came of it."""

from __future__ import annotations

import shutil
from typing import Any

import msgspec
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from jetlake.dashboard.access.sessions import LoginError, Session
from jetlake.dashboard.access.viewers import Viewers
from jetlake.dashboard.changes.kinds import prepare
from jetlake.dashboard.routes.access import check_csrf
from jetlake.dashboard.web.answers import json_answer
from jetlake.dashboard.web.body import json_body
from jetlake.errors import InvalidOptionError

__all__ = ["change_routes"]


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    arguments: dict[str, Any] = {}


def change_routes(viewers: Viewers) -> list[Route]:
    """Make the routes. Each asks for a session that may change things, and for the token of its own page."""

    async def allowed(request: Request) -> Session:
        session = await viewers.session(request)
        if session is None:
            raise LoginError("read-only: log in to change something", 403)
        check_csrf(request, session)
        if not session.may_change:
            raise LoginError("read-only: log in again and allow changes", 403)
        return session

    async def preview(request: Request) -> Response:
        session = await allowed(request)
        wanted = await json_body(request, _Wanted)
        prepared = await prepare(session.api, wanted.kind, wanted.arguments)
        return json_answer(prepared.shown(session.keep(prepared)))

    async def confirm(request: Request) -> Response:
        session = await allowed(request)
        # Taken out before it runs: a second click does not run it a second time.
        prepared = session.prepared.pop(request.path_params["change"], None)
        if prepared is None:
            raise InvalidOptionError("this change was not shown, or is done already: begin again")
        done = await prepared.run()
        download = "" if done.file is None else f"api/files/{await session.keep_file(done.file)}"
        return json_answer({"done": done.text, "download": download})

    async def file(request: Request) -> Response:
        session = await viewers.session(request)
        path = None if session is None else session.files.pop(request.path_params["file"], None)
        if path is None:
            return json_answer({"error": "there is no such file any more"}, 404)
        removal = BackgroundTask(shutil.rmtree, path.parent, ignore_errors=True)
        return FileResponse(path, media_type="application/octet-stream", filename=path.name, background=removal)

    return [
        Route("/api/changes", preview, methods=["POST"]),
        Route("/api/changes/{change}", confirm, methods=["POST"]),
        Route("/api/files/{file}", file),
    ]
