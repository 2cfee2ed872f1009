"""The routes of pages that watch: each page as one answer, or as events, one a sample."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jetlake.dashboard.access.viewers import Viewers
from jetlake.dashboard.browsing.buckets import KV_PREFIX
from jetlake.dashboard.browsing.object_stores import OBJECT_PREFIX
from jetlake.dashboard.routes.listing_query import listing_of
from jetlake.dashboard.watching.collector import Collector
from jetlake.dashboard.watching.copies import copies
from jetlake.dashboard.watching.listing import Listing
from jetlake.dashboard.web.answers import events, json_answer
from jetlake.errors import InvalidOptionError

__all__ = ["watching_routes"]


def watching_routes(viewers: Viewers) -> list[Route]:
    """Make the routes."""

    async def view(request: Request) -> Response:
        return json_answer(await _view((await viewers.viewer(request)).collector, request))

    async def live(request: Request) -> Response:
        viewer = await viewers.viewer(request)
        collector = viewer.collector
        await _view(collector, request)  # a bad question is answered as such

        async def views() -> AsyncIterator[Any]:
            async for _ in collector.samples():
                if viewer.is_over():
                    return
                yield await _view(collector, request)

        return events(views(), request)

    return [Route("/api/view", view), Route("/api/live", live)]


async def _view(collector: Collector, request: Request) -> dict[str, Any]:
    """Return what is on every page, and the page that the query names."""
    query = request.query_params
    listing = listing_of(request)
    page, stream, consumer = query.get("page", "streams"), query.get("stream"), query.get("consumer")
    return {"board": collector.summary(), "page": await _page(collector, page, stream, consumer, listing)}


async def _page(
    collector: Collector, page: str, stream: str | None, consumer: str | None, listing: Listing
) -> dict[str, Any]:
    board, now_s = collector.board, time.time()
    match page:
        case "stream" if stream:
            return await collector.stream(stream, listing) or {"error": f"There is no stream {stream}."}
        case "consumer" if stream and consumer:
            detail = await collector.consumer(stream, consumer, listing)
            return detail or {"error": f"{stream} has no consumer {consumer}."}
        case "streams":
            return board.streams(listing, now_s)
        case "consumers":
            return board.consumers(listing, now_s)
        case "buckets":
            return board.streams(listing, now_s, KV_PREFIX)
        case "object-stores":
            return board.streams(listing, now_s, OBJECT_PREFIX)
        case "copies":
            return copies(board.infos())
        case "pipelines":
            return {"rows": board.pipelines(now_s)}
        case "connections":
            return {"rows": None if board.connections is None else board.connections.get("connections", [])}
        case "events":
            return {"rows": board.advisories()}
        case "none":
            return {}
    raise InvalidOptionError(f"there is no page {page[:40]!r}")
