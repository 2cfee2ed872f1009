"""`jetlake pipeline …`: the ready-made pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jetlake.cli.commands.dead_letter_commands import replay as replay_letters
from jetlake.cli.pipeline_options import PipelineRun, pipeline_options, read_subjects
from jetlake.cli.shared_options import SharedGroup
from jetlake.cli.values import SIZE, TIME

if TYPE_CHECKING:
    from jetlake.spark.pipelines.runner import Pipeline

__all__ = ["pipeline"]


@click.group(cls=SharedGroup)
def pipeline() -> None:
    """Run a ready-made data pipeline on Spark.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no server, 130 stopped by Ctrl-C, 143 stopped by SIGTERM. However
    it ended, the same command continues where it left off.
    """


@pipeline.command(example="jetlake pipeline archive ORDERS lake/orders --once")
@click.argument("stream")
@click.argument("target")
@click.option(
    "--format",
    "format_name",
    default="parquet",
    show_default=True,
    type=click.Choice(["parquet", "orc", "json", "delta"]),
    help="File format.",
)
@click.option(
    "--by",
    default="date,subject:1",
    show_default=True,
    metavar="COLUMNS",
    help="Partition folders by date, hour, subject:K or none.",
)
@click.option(
    "--subjects", multiple=True, callback=read_subjects, metavar="PATTERN", help="Only messages of these subjects."
)
@click.option("--start", default="earliest", show_default=True, help="Where a new archive starts.")
@click.option(
    "--compact",
    type=SIZE,
    is_flag=False,
    flag_value="128MiB",
    metavar="[SIZE]",
    help="Afterwards, merge files that are smaller than this (128MiB).",
)
@click.option("--raw-headers", is_flag=True, help="Also keep the raw bytes of the headers, in column headers_raw.")
@pipeline_options()
def archive(
    run: PipelineRun,
    stream: str,
    target: str,
    format_name: str,
    by: str,
    subjects: tuple[str, ...],
    start: str,
    compact: int | None,
    raw_headers: bool,
) -> None:
    """Copy STREAM into files below the folder TARGET, every message once."""

    def build() -> Pipeline:
        from jetlake.spark.pipelines.archive.archive import Archive
        from jetlake.spark.pipelines.lake.partitioning import parse_partitioning

        return Archive(stream, target, format_name, parse_partitioning(by), subjects, start, compact or 0, raw_headers)

    run.start(build)


@pipeline.command(example="jetlake pipeline verify ORDERS lake/orders")
@click.argument("stream")
@click.argument("target")
@pipeline_options(follows=False)
def verify(run: PipelineRun, stream: str, target: str) -> None:
    """Compare the archive TARGET with STREAM by sequence; exits with 1 when a message is missing, double or wrong."""

    def build() -> Pipeline:
        from jetlake.spark.pipelines.archive.verify import Verify

        return Verify(stream, target)

    run.start(build)


@pipeline.command(example="jetlake pipeline replay lake/orders ORDERS2 --rate 1000")
@click.argument("source")
@click.argument("stream")
@click.option("--format", "format_name", default="", help="File format, when SOURCE is not a jetlake archive.")
@click.option("--from", "from_time", type=TIME, help="Only messages stored at this time or later.")
@click.option("--to", "to_time", type=TIME, help="Only messages stored before this time.")
@click.option("--from-seq", type=click.IntRange(1), help="Only messages from this sequence on.")
@click.option("--to-seq", type=click.IntRange(1), help="Only messages up to this sequence.")
@click.option(
    "--subjects", multiple=True, callback=read_subjects, metavar="PATTERN", help="Only messages of these subjects."
)
@click.option("--from-stream", default="", help="Only messages of this stream, when SOURCE holds several.")
@click.option(
    "--subject-map", multiple=True, metavar="FROM:TO", help="Rename subjects, such as 'orders.>:again.orders.>'."
)
@click.option("--rate", default=0.0, metavar="N", help="Messages per second.  [default: as fast as it goes]")
@click.option("--original", is_flag=True, help="Keep the original time between messages.")
@click.option("--speed", default=0.0, metavar="X", help="Like --original, X times as fast.")
@click.option("--unordered", is_flag=True, help="Publish from several tasks at once, without order.")
@click.option("--force", is_flag=True, help="Allow replaying into the archived stream itself while it holds messages.")
@click.option("--restart", is_flag=True, help="Ignore the progress of an earlier run.")
@click.option("--dry-run", is_flag=True, help="Show what would be published, without publishing.")
@pipeline_options(follows=False)
def replay(
    run: PipelineRun,
    source: str,
    stream: str,
    format_name: str,
    from_time: int | None,
    to_time: int | None,
    from_seq: int | None,
    to_seq: int | None,
    subjects: tuple[str, ...],
    from_stream: str,
    subject_map: tuple[str, ...],
    rate: float,
    original: bool,
    speed: float,
    unordered: bool,
    force: bool,
    restart: bool,
    dry_run: bool,
) -> None:
    """Publish the archive SOURCE into STREAM again; running it twice adds nothing."""

    def build() -> Pipeline:
        from jetlake.spark.pipelines.archive.pacing import Pace
        from jetlake.spark.pipelines.archive.replay import Replay, parse_subject_map
        from jetlake.spark.pipelines.archive.selection import Selection

        return Replay(
            source=source,
            target=stream,
            format=format_name,
            selection=Selection(from_time, to_time, from_seq, to_seq, subjects, from_stream),
            subject_map=parse_subject_map(subject_map),
            pace=Pace(rate=rate, speed=speed or (1.0 if original else 0.0)),
            unordered=unordered,
            force=force,
            restart=restart,
            dry_run=dry_run,
        )

    run.start(build)


@pipeline.command(example="jetlake pipeline health ORDERS --to console")
@click.argument("streams", nargs=-1)
@click.option(
    "--to",
    default="console",
    show_default=True,
    metavar="TARGET",
    help="console, stream:NAME, parquet:DIR, orc:DIR, json:DIR.",
)
@click.option("--events", "events_stream", default="EVENTS", show_default=True, help="Stream that collects events.")
@click.option("--window", default="1 minute", show_default=True, help="Time window of one row.")
@click.option("--late", default="10 seconds", show_default=True, help="How long to wait for late events.")
@click.option("--subject", default="", help="Subject of rows that go to a stream.  [default: NAME.consumers]")
@click.option("--start", default="earliest", show_default=True, help="Where a new watch starts.")
@pipeline_options()
def health(
    run: PipelineRun,
    streams: tuple[str, ...],
    to: str,
    events_stream: str,
    window: str,
    late: str,
    subject: str,
    start: str,
) -> None:
    """Summarise the health of consumers of STREAMS (or of all): ack times, redeliveries, naks, terminations."""

    def build() -> Pipeline:
        from jetlake.spark.pipelines.events.health import Health
        from jetlake.spark.pipelines.target import parse_target

        return Health(parse_target(to), streams, events_stream, window, late, subject, start)

    run.start(build)


@pipeline.command("dead-letters", example="jetlake pipeline dead-letters ORDERS --to DEAD")
@click.argument("streams", nargs=-1, required=True)
@click.option(
    "--to", required=True, metavar="TARGET", help="A stream's name, parquet:DIR, orc:DIR, json:DIR or console."
)
@click.option("--events", "events_stream", default="EVENTS", show_default=True, help="Stream that collects events.")
@click.option("--subject", default="", help="Subject in the stream.  [default: NAME.{stream}.{consumer}]")
@click.option(
    "--remember",
    default="1 day",
    show_default=True,
    help="How long a dead letter is remembered, so that it is collected once.",
)
@click.option("--start", default="earliest", show_default=True, help="Where a new collection starts.")
@pipeline_options()
def dead_letters(
    run: PipelineRun, streams: tuple[str, ...], to: str, events_stream: str, subject: str, remember: str, start: str
) -> None:
    """Collect messages of STREAMS that ran out of deliveries or were terminated, each once."""

    def build() -> Pipeline:
        from jetlake.spark.pipelines.events.dead_letters import DeadLetters
        from jetlake.spark.pipelines.target import parse_target

        return DeadLetters(streams, parse_target(to, plain="stream"), events_stream, subject, remember, start)

    run.start(build)


@pipeline.command(example="jetlake pipeline sql revenue.yaml")
@click.argument("file")
@click.option("--reset", metavar="SINK", help="Do not run: reset this sink, and remove the files it wrote.")
@pipeline_options()
def sql(run: PipelineRun, file: str, reset: str | None) -> None:
    """Run the sources, steps and sinks of a YAML FILE; it is checked before anything starts."""

    def build() -> Pipeline:
        from jetlake.spark.pipelines.sql.sql import SqlPipeline, SqlReset
        from jetlake.spark.pipelines.sql.sql_file import read_sql_file

        spec = read_sql_file(file)
        return SqlPipeline(spec) if reset is None else SqlReset(spec, reset)

    run.start(build)


pipeline.add_command(replay_letters, "requeue")
