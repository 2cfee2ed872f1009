"""Schedules: messages that tell their stream when to publish others."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jetlake.dashboard.messages import held_subjects, newest_messages
from jetlake.dashboard.viewers import Viewers
from jetlake.dashboard.watching.server_api import ServerApi
from jetlake.dashboard.web import json_answer, sentence
from jetlake.errors import ApiError, NotFoundError, PermissionsError
from jetlake.model.stream import StreamInfo

SUBJECTS_MAX = 2000
"""How many subjects are looked at, of all streams together, beside the number of all."""


async def found_schedules(api: ServerApi, infos: list[StreamInfo]) -> dict[str, Any]:
    """Return the schedules of all streams that allow them, and the streams that could not be looked into."""
    rows: list[dict[str, Any]] = []
    unread: list[dict[str, str]] = []
    left, is_whole = SUBJECTS_MAX, True
    streams = [info.config.name for info in infos if info.config.allow_msg_schedules]
    for name in streams:
        try:
            subjects, total = await held_subjects(api, name, ">")
            rows += await _schedules(api, name, subjects[:left])
        except NotFoundError:
            continue  # deleted meanwhile
        except (PermissionsError, ApiError) as error:
            # One stream that the user may not read, or that has no leader, does not hide the others.
            unread.append({"stream": name, "error": sentence(error)})
            continue
        is_whole = is_whole and total <= left
        left = max(0, left - len(subjects))
    return {"rows": rows, "unread": unread, "streams": streams, "is_whole": is_whole}


async def _schedules(api: ServerApi, name: str, subjects: list[str]) -> list[dict[str, Any]]:
    """Return the schedules among the newest messages of these subjects."""
    stream = await api.jetstream.stream(name)
    return [
        {
            "stream": name,
            "subject": message.subject,
            "seq": message.sequence,
            "schedule": headers["Nats-Schedule"],
            "target": headers.get("Nats-Schedule-Target") or "",
            "time_zone": headers.get("Nats-Schedule-Time-Zone") or "",
            "created": message.time,
        }
        for message in await newest_messages(stream, subjects, payload_bytes=0)
        if "Nats-Schedule" in (headers := message.headers)
    ]


def schedule_routes(viewers: Viewers) -> list[Route]:
    """Make the route."""

    async def schedules(request: Request) -> Response:
        viewer = await viewers.viewer(request)
        return json_answer(await found_schedules(viewer.api, viewer.collector.board.infos()))

    return [Route("/api/schedules", schedules)]
