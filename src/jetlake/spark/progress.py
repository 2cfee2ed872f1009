"""How far a streaming query is behind its streams, read out of Spark's progress reports."""

from __future__ import annotations

import json
from typing import Any

from jetlake.client.tables.plan.offsets import Offset, read_offset
from jetlake.errors import OffsetError

__all__ = ["lag", "lost"]


def lag(progress: Any) -> dict[str, int]:
    """Sequences that each stream has beyond the batch that the report is about.

    Args:
        progress: `query.lastProgress`, an element of `query.recentProgress`, or a listener's `event.progress`.
    """
    behind = {}
    for _, end, latest in _sources(progress):
        for stream, offset in latest.streams:
            read = end.of(stream)
            if read is not None:
                behind[stream] = max(offset.next - read.next, 0)
    return behind


def lost(progress: Any) -> dict[str, int]:
    """Messages of each stream that were removed before the query could read them, since it began."""
    return {stream: offset.lost for _, end, _ in _sources(progress) for stream, offset in end.streams}


def _sources(progress: Any) -> list[tuple[Any, Offset, Offset]]:
    """Return the jetstream sources of a report, each with the end of its batch and the end of its streams."""
    found = []
    for source in _field(progress, "sources"):
        try:
            end, latest = read_offset(_json(source, "endOffset")), read_offset(_json(source, "latestOffset"))
        except OffsetError:
            # Another kind of source.
            continue
        found.append((source, end, latest))
    return found


def _field(value: Any, name: str) -> Any:
    return value[name] if isinstance(value, dict) else getattr(value, name)


def _json(source: Any, name: str) -> Any:
    value = _field(source, name)
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None
