"""The dashboard's application: the page, its files, and the routes."""

from __future__ import annotations

import time
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from jetlake.dashboard.access.sessions import Connect, LoginError, Sessions
from jetlake.dashboard.access.viewers import Viewers
from jetlake.dashboard.routes.access import access_routes, explain_login
from jetlake.dashboard.routes.browsing import browsing_routes
from jetlake.dashboard.routes.changes import change_routes
from jetlake.dashboard.routes.messages import message_routes
from jetlake.dashboard.routes.watching import watching_routes
from jetlake.dashboard.watching.collector import Collector
from jetlake.dashboard.web.answers import explain
from jetlake.dashboard.web.guard import Guard
from jetlake.errors import JetlakeError

__all__ = ["build_app"]

STATIC = Path(__file__).parent / "static"


def build_app(
    collector: Collector | None,
    *,
    connect: Connect | None = None,
    domain: str = "",
    hosts: frozenset[str] = frozenset(),
) -> ASGIApp:
    """Build the ASGI application.

    Args:
        collector: what everybody sees; None when nothing is shown without a login.
        connect: opens a connection as a user who logs in; None = nobody can, and the pages only read.
        domain: the JetStream domain, if not the server's own.
        hosts: names under which the page may be asked for besides addresses of this machine; a page of another site
            whose name was made to point here is refused by this.
    """
    sessions = None if connect is None else Sessions(connect, collector, domain=domain, now_s=time.monotonic)
    viewers = Viewers(collector, sessions)
    app = Starlette(
        routes=[
            Route("/", _index),
            Mount("/static", StaticFiles(directory=STATIC)),
            *access_routes(viewers),
            *watching_routes(viewers),
            *message_routes(viewers),
            *browsing_routes(viewers),
            *change_routes(viewers),
        ],
        exception_handlers={LoginError: explain_login, JetlakeError: explain},
    )
    # Around everything: answers to internal errors keep a browser strict too.
    return Guard(app, hosts)


async def _index(_request: Request) -> Response:
    return FileResponse(STATIC / "index.html")
