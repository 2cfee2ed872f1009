"""Consumer health: how long acks take and what goes wrong, per consumer and minute."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from jetlake.client.tables.option_values import duration_s
from jetlake.errors import ConfigError
from jetlake.spark.pipelines.console import collect_shown, print_rows
from jetlake.spark.pipelines.event_pipeline import EVENTS_STREAM, EventPipeline, event_options
from jetlake.spark.pipelines.runner import Run
from jetlake.spark.pipelines.settings import PipelineSettings
from jetlake.spark.pipelines.sinks import Target, start_folder, start_stream
from jetlake.spark.pipelines.utc import utc_text

HEALTH_SUBJECTS = (
    "$JS.EVENT.METRIC.CONSUMER.ACK.>",
    "$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.>",
    "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>",
    "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>",
)
"""The events that say how a consumer is."""
_IS = {
    "ack": "type = 'io.nats.jetstream.metric.v1.consumer_ack'",
    "nak": "type = 'io.nats.jetstream.advisory.v1.nak'",
    "terminated": "type = 'io.nats.jetstream.advisory.v1.terminated'",
    "max_deliver": "type = 'io.nats.jetstream.advisory.v1.max_deliver'",
}
_FIGURES = {
    "acks": f"count_if({_IS['ack']})",
    "ack_p50_ms": f"percentile_approx(ack_time, 0.5, 1000) FILTER (WHERE {_IS['ack']}) / 1e6",
    "ack_p95_ms": f"percentile_approx(ack_time, 0.95, 1000) FILTER (WHERE {_IS['ack']}) / 1e6",
    "ack_p99_ms": f"percentile_approx(ack_time, 0.99, 1000) FILTER (WHERE {_IS['ack']}) / 1e6",
    # A message's deliveries are known when it comes to an end, one way or another.
    "redeliveries": f"coalesce(sum(greatest(deliveries - 1, 0)) FILTER (WHERE NOT {_IS['nak']}), 0)",
    "naks": f"count_if({_IS['nak']})",
    "terminated": f"count_if({_IS['terminated']})",
    "max_deliveries": f"count_if({_IS['max_deliver']})",
}
HEALTH_COLUMNS = ("minute", "stream", "consumer", *_FIGURES)
"""The columns of the table."""


def health_table(events: DataFrame, window: str = "1 minute", late: str | None = None) -> DataFrame:
    """Events as read by `format("jetstream")` to one row per consumer and window; batch or streaming.

    Args:
        late: how long a streaming query waits for events that come late, before a window is over.
    """
    known = events.withWatermark("timestamp", late) if late else events
    known = known.select(sql.col("timestamp").alias("at"), "value.*").where(
        "stream is not null and consumer is not null"
    )
    figures = [sql.expr(expression).alias(name) for name, expression in _FIGURES.items()]
    grouped = known.groupBy(sql.window("at", window), "stream", "consumer").agg(*figures)
    return grouped.select(sql.col("window.start").alias("minute"), *HEALTH_COLUMNS[1:])


@dataclass(frozen=True)
class Health(EventPipeline):
    """Watches consumers by what the server says of them.

    A window's row is written once, when the window is over; the console shows it as it grows.

    Attributes:
        streams: only consumers of these streams, when given.
        events: the stream that collects events.
    """

    kind = "health"

    target: Target
    streams: tuple[str, ...] = ()
    events: str = EVENTS_STREAM
    window: str = "1 minute"
    late: str = "10 seconds"
    subject: str = ""
    start: str = "earliest"

    def __post_init__(self) -> None:
        for what, value in (("window", self.window), ("late", self.late)):
            try:
                seconds = duration_s(value)
            except ValueError as error:
                raise ConfigError(f"{what} {value!r} can't be used: {error}") from None
            if what == "window" and seconds <= 0:
                raise ConfigError("a window must be longer than zero")

    @property
    def name(self) -> str:
        """What reports call it."""
        return "health" + (f" of {', '.join(self.streams)}" if self.streams else "")

    def source_options(self) -> dict[str, str]:
        """Return the source options that select the events."""
        kinds = [subject.removesuffix(".>") for subject in HEALTH_SUBJECTS]
        return event_options(self.events, kinds, self.streams or ("*",))

    def publish_subject(self) -> str:
        """Return the subject of rows that go to a stream."""
        return self.subject or f"{self.target.value}.consumers"

    def run(self, run: Run) -> None:
        """Watch."""
        if self.target.kind == "console":
            self._show(run)
            return
        events = self.follow(run)
        table = health_table(events, _spark_interval(self.window), _spark_interval(self.late))
        checkpoint = self.checkpoint(run.settings)
        if self.target.kind == "stream":
            self.ensure_target(run, self.publish_subject())
            rows = table.withColumn("msg_id", sql.concat_ws("/", sql.expr(utc_text("minute")), "stream", "consumer"))
            query = start_stream(
                run,
                rows,
                self.target,
                name=self.name,
                owner=self.kind,
                checkpoint=checkpoint,
                subject=self.publish_subject(),
                payloadFormat="json",
            )
        else:
            query = start_folder(run, table, self.target, name=self.name, owner=self.kind, checkpoint=checkpoint)
        run.watch([query])

    def present_table(self, spark: SparkSession, settings: PipelineSettings) -> DataFrame:
        """Return the table of all events that there are, open windows included; a batch query that changes nothing."""
        events = self.read(spark, settings)
        return health_table(events, _spark_interval(self.window)).orderBy("minute", "stream", "consumer")

    def _show(self, run: Run) -> None:
        """Print tables: one of all there is, or of every batch what it changed."""
        if not run.settings.follow:
            rows = collect_shown(self.present_table(run.spark, run.settings))
            run.batch_done("", 0, sum(row["acks"] for row in rows), 0.0, 0)
            print_rows(rows)
            return

        def show(frame: DataFrame, batch: int) -> None:
            print_rows(collect_shown(frame.orderBy("minute", "stream", "consumer")))

        table = health_table(self.follow(run), _spark_interval(self.window), _spark_interval(self.late))
        writer = table.writeStream.queryName(self.name).outputMode("update").foreachBatch(show)
        if run.settings.checkpoint:
            writer = writer.option("checkpointLocation", run.settings.checkpoint)
        run.watch([writer.trigger(processingTime=f"{round(run.settings.every_s * 1000)} milliseconds").start()])


def _spark_interval(text: str) -> str:
    return f"{round(duration_s(text) * 1000)} milliseconds"
