"""The reading of collected events that health and dead letters share: options, checks and the checkpoint's place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jetlake.spark.pipelines.checks import check_source, require_stream
from jetlake.spark.pipelines.events.event_stream import EVENT_FIELDS, check_events_stream
from jetlake.spark.pipelines.lake.folder_sink import NOTES
from jetlake.spark.pipelines.settings import PipelineSettings, default_checkpoint
from jetlake.spark.pipelines.target import Target

__all__ = ["check_events", "checkpoint_of", "event_options"]


def event_options(events: str, kinds: Iterable[str], streams: Sequence[str]) -> dict[str, str]:
    """Return the source options that read events of these kinds about the consumers of these streams."""
    return {
        "stream": events,
        "subjects": ",".join(f"{kind}.{stream}.*" for kind in kinds for stream in streams),
        "payloadFormat": "json",
        "payloadSchema": EVENT_FIELDS,
        "badRows": "column",
    }


def check_events(settings: PipelineSettings, options: dict[str, str], start: str, streams: Iterable[str]) -> None:
    """Check that events are collected, that the streams exist, and the source options.

    Raises:
        ConfigError: the first mistake.
    """
    check_events_stream(settings.connection_options, options["stream"])
    for stream in streams:
        require_stream(settings.connection_options, stream)
    check_source(settings.source_options(**options, startingPosition=start))


def checkpoint_of(kind: str, target: Target, settings: PipelineSettings, events: str, streams: Iterable[str]) -> str:
    """Return where a pipeline's checkpoint is kept: where the settings say, in the target folder, or at home."""
    if settings.checkpoint or target.kind == "console":
        return settings.checkpoint
    if target.is_folder:
        return f"{target.value.rstrip('/')}/{NOTES}/checkpoint"
    return default_checkpoint(kind, target.value, settings.connection.get("servers", ""), events, *streams)
