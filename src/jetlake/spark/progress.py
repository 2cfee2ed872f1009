"""How far a streaming query is behind its streams, read out of Spark's progress reports."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from jetlake.client.tables.spark_offsets import Offset, read_offset
from jetlake.errors import OffsetError

__all__ = ["StreamMetrics", "lag", "lost", "metrics"]


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


class StreamMetrics(NamedTuple):
    """How a query is doing with one of its streams.

    Attributes:
        lag: sequences that the stream has beyond the batch that the report is about.
        behind: messages at most that are left to read: fewer than the lag where some are gone, and an upper bound under
            filters.
        lost: messages that were removed before the query could read them, since it began.
        server: the name of the server that the query asks.
    """

    lag: int
    behind: int
    lost: int
    server: str


def metrics(progress: Any) -> dict[str, StreamMetrics]:
    """Return the figures of each stream of a query.

    Args:
        progress: `query.lastProgress`, an element of `query.recentProgress`, or a listener's `event.progress`.
    """
    behind, missing = lag(progress), lost(progress)
    found = {}
    for source, _, latest in _sources(progress):
        figures = _json(source, "latestOffset").get("metrics", {})
        for stream, _ in latest.streams:
            sequences = behind.get(stream, 0)
            messages = min(sequences, figures.get("messages", {}).get(stream, sequences))
            found[stream] = StreamMetrics(sequences, messages, missing.get(stream, 0), figures.get("server", ""))
    return found


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
