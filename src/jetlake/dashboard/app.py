"""The dashboard's application: the page, its files, and the routes."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from jetlake.dashboard.routes.messages import message_routes
from jetlake.dashboard.routes.watching import watching_routes
from jetlake.dashboard.watching.collector import Collector
from jetlake.dashboard.web.answers import explain
from jetlake.dashboard.web.guard import Guard
from jetlake.errors import JetlakeError

__all__ = ["build_app"]

STATIC = Path(__file__).parent / "static"


def build_app(collector: Collector, *, hosts: frozenset[str] = frozenset()) -> ASGIApp:
    """The ASGI application.

    Args:
        hosts: names under which the page may be asked for besides addresses of this machine; a page of another site
            whose name was made to point here is refused by this.
    """

    def collector_of(_request: Request) -> Collector:
        return collector

    return Starlette(
        routes=[
            Route("/", _index),
            Mount("/static", StaticFiles(directory=STATIC)),
            *watching_routes(collector_of),
            *message_routes(collector_of),
        ],
        middleware=[Middleware(Guard, hosts=hosts)],
        exception_handlers={JetlakeError: explain},
    )


async def _index(_request: Request) -> Response:
    return FileResponse(STATIC / "index.html")
