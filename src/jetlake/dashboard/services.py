"""Services that answer discovery: instances, endpoints, and how they are doing."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jetlake.dashboard.viewers import Viewers
from jetlake.dashboard.watching.server_api import ServerApi
from jetlake.dashboard.web import json_answer

_WAIT_S = 0.5
"""How long instances have to answer."""


async def found_services(api: ServerApi) -> dict[str, Any]:
    """Return every endpoint of every instance that answers in time, as one row."""
    rows = [
        {
            "service": stats.name,
            "version": stats.version,
            "instance": stats.id,
            "started": stats.started,
            "endpoint": endpoint.name,
            "subject": endpoint.subject,
            "queue": endpoint.queue_group,
            "requests": endpoint.num_requests,
            "errors": endpoint.num_errors,
            "last_error": endpoint.last_error or "",
            "average_ms": round(endpoint.average_processing_time / 1e6, 3),
        }
        for stats in await api.client.services().stats(timeout=_WAIT_S)
        for endpoint in stats.endpoints or ()
    ]
    return {"rows": sorted(rows, key=lambda row: (row["service"], row["instance"], row["endpoint"]))}


def service_routes(viewers: Viewers) -> list[Route]:
    """Make the route."""

    async def services(request: Request) -> Response:
        return json_answer(await found_services((await viewers.viewer(request)).api))

    return [Route("/api/services", services)]
