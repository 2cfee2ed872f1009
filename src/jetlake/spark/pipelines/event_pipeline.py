"""What the pipelines that read collected events share: the events stream, its checks and the checkpoint's path."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession

from jetlake.client.tables.archived import NOTES
from jetlake.client.tables.option_values import names_text
from jetlake.spark.options.connection_options import ConnectionOptions
from jetlake.spark.pipelines.runner import Run
from jetlake.spark.pipelines.settings import PipelineSettings, check_source, default_checkpoint, require_stream
from jetlake.spark.pipelines.sinks import Target, ensure_stream


def event_options(events: str, kinds: Iterable[str], streams: Sequence[str]) -> dict[str, str]:
    """Return the source options that read events of these kinds about the consumers of these streams."""
    return {
        "stream": events,
        "subjects": names_text(f"{kind}.{stream}.*" for kind in kinds for stream in streams),
        "payloadFormat": "json",
        "payloadSchema": EVENT_FIELDS,
        "badRows": "column",
    }


class EventPipeline(ABC):
    """A pipeline from the stream that collects events to a target.

    Attributes:
        kind: names its checkpoints.
        target: where its rows go.
        streams: the streams whose consumers the events are about.
        events: the stream that collects events.
        start: the starting position.
    """

    kind: ClassVar[str]
    target: Target
    streams: tuple[str, ...]
    events: str
    start: str

    @property
    def prints(self) -> bool:
        """Whether rows go to the console."""
        return self.target.kind == "console"

    def facts(self, settings: PipelineSettings) -> Mapping[str, Any]:
        """Return what reports say of source and target."""
        return {"events": self.events, "target": str(self.target), "checkpoint": self.checkpoint(settings)}

    def checkpoint(self, settings: PipelineSettings) -> str:
        """Return where the checkpoint is kept: where the settings say, in the target folder, or at home."""
        target = self.target
        if settings.checkpoint or target.kind == "console":
            return settings.checkpoint
        if target.is_folder:
            return f"{target.value.rstrip('/')}/{NOTES}/checkpoint"
        servers = settings.connection.get("servers", "")
        return default_checkpoint(self.kind, target.value, servers, self.events, *self.streams)

    @abstractmethod
    def source_options(self) -> dict[str, str]:
        """Return the source options that select the events."""

    def check(self, settings: PipelineSettings) -> None:
        """Check that events are collected, that the streams exist, and the source options.

        Raises:
            ConfigError: the first mistake.
        """
        check_events_stream(settings.connection_options, self.events)
        for stream in self.streams:
            require_stream(settings.connection_options, stream)
        check_source(settings.source_options(**self.source_options(), startingPosition=self.start))

    def read(self, spark: SparkSession, settings: PipelineSettings) -> DataFrame:
        """Read the events that there are, as a batch query that changes nothing."""
        options = {**settings.connection, **self.source_options(), "startingPosition": self.start}
        return spark.read.format("jetstream").options(**options).load()

    def follow(self, run: Run) -> DataFrame:
        """Read the events as a streaming query."""
        options = run.settings.source_options(**self.source_options(), startingPosition=self.start)
        return run.spark.readStream.format("jetstream").options(**options).load()

    def ensure_target(self, run: Run, subject: str) -> None:
        """Make sure that the target stream exists and takes the subject; the run's facts say when it was made.

        Raises:
            ConfigError: the stream exists and takes other subjects.
        """
        made = ensure_stream(run.settings.connection_options, self.target.value, subject)
        if made:
            run.facts["made"] = made


EVENTS_STREAM = "EVENTS"
"""The name that `jetlake events init` gives it."""

# Not the audit of API calls: every question to the server, the pipelines' own included, would be collected.
EVENT_SUBJECTS = (
    "$JS.EVENT.METRIC.>",
    "$JS.EVENT.ADVISORY.CONSUMER.>",
    "$JS.EVENT.ADVISORY.STREAM.>",
)
"""What it collects."""
EVENT_FIELDS = (
    "type string, id string, timestamp string, stream string, consumer string, stream_seq bigint, "
    "consumer_seq bigint, ack_time bigint, deliveries bigint, reason string"
)
"""The fields of the events that pipelines read, as the payload's schema."""


def events_config(*, max_age_s: float = 7 * 86_400, subjects: tuple[str, ...] = EVENT_SUBJECTS) -> dict[str, Any]:
    """Return the options of the stream, for `JetStream.create_stream`."""
    return {
        "description": "what the server says about streams and consumers",
        "subjects": list(subjects),
        "max_age": max_age_s,
        "allow_direct": True,
        # An event is published once and has no message id.
        "duplicate_window": min(max_age_s, 120) if max_age_s else 120,
    }


def check_events_stream(options: ConnectionOptions, name: str) -> None:
    """Make sure that events are collected.

    Raises:
        ConfigError: there is no such stream; the text says how to make it.
    """
    require_stream(
        options,
        name,
        "it collects events; make it with `jetlake events init`, and give consumers a sample frequency "
        "(`--sample 100`) so that their acks are measured",
    )
