"""Dead letters: messages that ran out of deliveries or were terminated, put where people find them, each once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from jetlake.client.tables.options.option_values import duration_s
from jetlake.errors import ConfigError
from jetlake.model.dead_letter import HEADER_PREFIX, MAX_DELIVERIES, TERMINATED
from jetlake.spark.pipelines.console import collect_shown, print_rows
from jetlake.spark.pipelines.events.dead_letter_task import MESSAGE_COLUMNS, message_at
from jetlake.spark.pipelines.events.event_pipeline import EventPipeline, event_options
from jetlake.spark.pipelines.events.event_stream import EVENTS_STREAM
from jetlake.spark.pipelines.runner import Run
from jetlake.spark.pipelines.sinks import is_own_header, start_folder, start_stream
from jetlake.spark.pipelines.target import Target
from jetlake.spark.pipelines.utc import utc_text

__all__ = ["DEATHS", "DeadLetters", "dead_letters", "letters_as_messages"]

DEATHS = {
    "io.nats.jetstream.advisory.v1.max_deliver": MAX_DELIVERIES,
    "io.nats.jetstream.advisory.v1.terminated": TERMINATED,
}
"""The events that mean a message's end, and what we call it."""

_SUBJECTS = ("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES", "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED")

_HEADERS = {
    "Stream": "stream",
    "Consumer": "consumer",
    "Sequence": "cast(sequence as string)",
    "Subject": "subject",
    "Reason": "reason",
    # A line break, which a worker may have written, would end the header.
    "Description": "nullif(translate(description, '\\r\\n', '  '), '')",
    "Deliveries": "cast(deliveries as string)",
    "Time": utc_text("died_at"),
    "Missing": "missing",
}


DEATH_COLUMNS = ("stream", "consumer", "sequence", "reason", "description", "deliveries", "died_at")
"""What is known of a death."""


def deaths(events: DataFrame) -> DataFrame:
    """Return the events of dead messages."""
    kinds = ", ".join(f"'{kind}', '{name}'" for kind, name in DEATHS.items())
    return events.select(
        sql.col("value.stream").alias("stream"),
        sql.col("value.consumer").alias("consumer"),
        sql.col("value.stream_seq").alias("sequence"),
        sql.expr(f"element_at(map({kinds}), value.type)").alias("reason"),
        sql.coalesce("value.reason", sql.lit("")).alias("description"),
        sql.col("value.deliveries").alias("deliveries"),
        sql.col("timestamp").alias("died_at"),
    ).where("reason is not null and stream is not null and consumer is not null and sequence is not null")


def dead_letters(events: DataFrame, connection: Mapping[str, str], once_within: str | None = None) -> DataFrame:
    """Dead messages, one row for each message and consumer.

    A stream that was deleted and made again gives its sequences to other messages: deaths of the same sequence count as
    one only when they are of the same stream.

    Args:
        once_within: for streaming queries, how long a death is remembered, so that it counts once.
    """
    found = deaths(events)
    if once_within is not None:
        found = found.withWatermark("died_at", once_within)
    letters = found.withColumn("message", message_at(connection)("stream", "sequence", sql.unix_micros("died_at")))
    letters = letters.select(*DEATH_COLUMNS, *(sql.col(f"message.{name}").alias(name) for name in MESSAGE_COLUMNS))
    keys = ["stream", "consumer", "sequence", "incarnation"]
    return letters.dropDuplicates(keys) if once_within is None else letters.dropDuplicatesWithinWatermark(keys)


def letters_as_messages(letters: DataFrame, subject: str) -> DataFrame:
    """Dead letters as rows for a stream: the message as it was, with headers that say what happened."""
    pairs = ", ".join(
        f"struct('{HEADER_PREFIX}{name}' as key, array({value}) as value)" for name, value in _HEADERS.items()
    )
    added = f"filter(array({pairs}), pair -> pair.value[0] is not null)"
    own = f"filter(map_entries(headers), pair -> {is_own_header('pair.key', HEADER_PREFIX)})"
    target = "concat('" + subject.replace("{stream}", "', stream, '").replace("{consumer}", "', consumer, '") + "')"
    return letters.select(
        sql.expr(target).alias("subject"),
        sql.expr(f"map_from_entries(concat({own}, {added}))").alias("headers"),
        sql.col("data"),
        sql.expr("concat_ws(':', stream, consumer, cast(sequence as string), incarnation)").alias("msg_id"),
    )


@dataclass(frozen=True)
class DeadLetters(EventPipeline):
    """Collects the dead letters of some streams.

    Attributes:
        streams: of which streams.
        subject: where they are published, with `{stream}` and `{consumer}`; empty for `<target>.{stream}.{consumer}`.
        remember: how long a death is remembered, so that a repeated event counts once.
    """

    kind = "dead-letters"

    streams: tuple[str, ...]
    target: Target
    events: str = EVENTS_STREAM
    subject: str = ""
    remember: str = "1 day"
    start: str = "earliest"

    def __post_init__(self) -> None:
        if not self.streams:
            raise ConfigError("name the stream whose dead letters are wanted")
        if "'" in self.subject or "\\" in self.subject:
            raise ConfigError(f"{self.subject!r} is no subject")
        try:
            duration_s(self.remember)
        except ValueError as error:
            raise ConfigError(f"remember {self.remember!r} can't be used: {error}") from None
        if self.target.kind == "stream" and self.target.value in self.streams:
            raise ConfigError(f"stream {self.target.value} can't take its own dead letters: choose another one")

    @property
    def name(self) -> str:
        """What reports call it."""
        return f"dead letters of {', '.join(self.streams)}"

    @property
    def publish_subject(self) -> str:
        """The subject of letters that go to a stream, with its places still open."""
        return self.subject or f"{self.target.value}.{{stream}}.{{consumer}}"

    def source_options(self) -> dict[str, str]:
        """Return the source options that select the events."""
        return event_options(self.events, _SUBJECTS, self.streams)

    def run(self, run: Run) -> None:
        """Collect."""
        settings = run.settings
        if self.target.kind == "console":
            self._show(run)
            return
        remember = f"{round(duration_s(self.remember) * 1000)} milliseconds"
        letters = dead_letters(self.follow(run), settings.connection, remember)
        checkpoint = self.checkpoint(settings)
        if self.target.kind == "stream":
            example = self.publish_subject.replace("{stream}", "*").replace("{consumer}", "*")
            self.ensure_target(run, example)
            messages = letters_as_messages(letters, self.publish_subject)
            query = start_stream(run, messages, self.target, name=self.name, owner=self.kind, checkpoint=checkpoint)
        else:
            rows = letters.drop("incarnation")
            query = start_folder(run, rows, self.target, name=self.name, owner=self.kind, checkpoint=checkpoint)
        run.watch([query])

    def _show(self, run: Run) -> None:
        """Print what there is."""
        if run.settings.follow:
            raise ConfigError("the console shows the dead letters that there are: to follow, choose a stream or folder")
        events = self.read(run.spark, run.settings)
        found = dead_letters(events, run.settings.connection).drop("headers", "data", "incarnation")
        letters = collect_shown(found.orderBy("died_at"))
        run.batch_done("", 0, len(letters), 0.0, 0)
        print_rows(letters)
