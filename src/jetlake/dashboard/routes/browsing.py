"""The routes of what a server holds besides streams: buckets, object stores, services, schedules, dead letters."""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from jetlake.dashboard.access.viewers import Viewers
from jetlake.dashboard.browsing.buckets import key_history, keys_page
from jetlake.dashboard.browsing.dead_letters import letter_streams, letters_page
from jetlake.dashboard.browsing.object_stores import object_content, objects_page
from jetlake.dashboard.browsing.schedules import found_schedules
from jetlake.dashboard.browsing.services import found_services
from jetlake.dashboard.routes.listing_query import listing_of
from jetlake.dashboard.web.answers import json_answer, whole_number

__all__ = ["browsing_routes"]

LETTERS_PER_PAGE = 50


def browsing_routes(viewers: Viewers) -> list[Route]:
    """Make the routes."""

    async def keys(request: Request) -> Response:
        api = (await viewers.viewer(request)).api
        return json_answer(await keys_page(api, request.path_params["bucket"], listing_of(request)))

    async def history(request: Request) -> Response:
        api = (await viewers.viewer(request)).api
        return json_answer(await key_history(api, request.path_params["bucket"], request.query_params.get("key", "")))

    async def objects(request: Request) -> Response:
        api = (await viewers.viewer(request)).api
        return json_answer(await objects_page(api, request.path_params["bucket"], listing_of(request)))

    async def content(request: Request) -> Response:
        api, name = (await viewers.viewer(request)).api, request.query_params.get("name", "")
        pieces = await object_content(api, request.path_params["bucket"], name)
        # Never shown by the browser itself: an object may be a page of somebody else.
        headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(name.rpartition('/')[2], safe='')}"}
        return StreamingResponse(pieces, media_type="application/octet-stream", headers=headers)

    async def services(request: Request) -> Response:
        return json_answer(await found_services((await viewers.viewer(request)).api))

    async def schedules(request: Request) -> Response:
        viewer = await viewers.viewer(request)
        return json_answer(await found_schedules(viewer.api, viewer.collector.board.infos()))

    async def letters(request: Request) -> Response:
        viewer = await viewers.viewer(request)
        return json_answer(await letter_streams(viewer.api, viewer.collector.board.infos()))

    async def letters_of(request: Request) -> Response:
        api, before = (await viewers.viewer(request)).api, whole_number(request.query_params, "before")
        return json_answer(await letters_page(api, request.path_params["stream"], before, LETTERS_PER_PAGE))

    return [
        Route("/api/buckets/{bucket}/keys", keys),
        Route("/api/buckets/{bucket}/history", history),
        Route("/api/object-stores/{bucket}/objects", objects),
        Route("/api/object-stores/{bucket}/content", content),
        Route("/api/services", services),
        Route("/api/schedules", schedules),
        Route("/api/dead-letters", letters),
        Route("/api/dead-letters/{stream}", letters_of),
    ]
