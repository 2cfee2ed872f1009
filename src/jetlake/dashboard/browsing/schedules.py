"""Schedules: messages that tell their stream when to publish others."""

from __future__ import annotations

from typing import Any

from jetlake.dashboard.browsing.subjects import held_subjects, newest_messages
from jetlake.dashboard.watching.server_api import ServerApi
from jetlake.model.stream import StreamInfo

__all__ = ["found_schedules"]

SUBJECTS_MAX = 2000
"""How many subjects are looked at, of all streams together, beside the number of all."""


async def found_schedules(api: ServerApi, infos: list[StreamInfo]) -> dict[str, Any]:
    """Return the schedules of all streams that allow them."""
    rows: list[dict[str, Any]] = []
    left, is_whole = SUBJECTS_MAX, True
    streams = [info.config.name for info in infos if info.config.allow_msg_schedules]
    for name in streams:
        subjects, total = await held_subjects(api, name, ">")
        is_whole = is_whole and total <= left
        stream = await api.jetstream.stream(name)
        for message in await newest_messages(stream, subjects[:left]):
            headers = message.headers
            if "Nats-Schedule" in headers:
                rows.append(
                    {
                        "stream": name,
                        "subject": message.subject,
                        "seq": message.sequence,
                        "schedule": headers["Nats-Schedule"],
                        "target": headers.get("Nats-Schedule-Target") or "",
                        "time_zone": headers.get("Nats-Schedule-Time-Zone") or "",
                        "created": message.time,
                    }
                )
        left = max(0, left - len(subjects))
    return {"rows": rows, "streams": streams, "is_whole": is_whole}
