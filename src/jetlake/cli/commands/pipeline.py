"""`jetlake pipeline …`: the ready-made pipelines, the options they share, and their exit codes."""

from __future__ import annotations

import dataclasses
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jetlake import platform
from jetlake.cli.command_table import EXIT_INTERRUPTED
from jetlake.cli.commands.dead_letters import replay as replay_letters
from jetlake.cli.contexts import Target, plain
from jetlake.cli.session import Session, guarded, pass_session
from jetlake.cli.shared_options import SharedGroup
from jetlake.cli.values import DURATION, PAIR, SIZE, TIME
from jetlake.client.settings.server_address import parse_address
from jetlake.client.tables.option_values import names
from jetlake.errors import ConfigError
from jetlake.lake.iceberg import Policy

if TYPE_CHECKING:
    from jetlake.spark.pipelines.runner import Pipeline
    from jetlake.spark.pipelines.settings import PipelineSettings


EXIT_TERMINATED = 143
"""The pipeline was stopped by SIGTERM, and ended cleanly."""

_FOLLOW_RETRY_FOR = "24h"
_PARTITIONED_BY = "date,subject:1"

_EXIT_CODES: dict[int, int] = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}


def read_subjects(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the subjects of an option that may be given again; each text is read as the source's `subjects` is.

    Raises:
        BadParameter: a text names nothing.
    """
    try:
        return tuple(subject for text in texts for subject in names(text))
    except ValueError as error:
        raise click.BadParameter(f"{error}", context, parameter) from None


@dataclasses.dataclass(frozen=True)
class PipelineRun:
    """How to run a pipeline, as it was typed."""

    session: Session
    master: str
    conf: dict[str, str]
    log_level: str
    spec_out: str | None
    settings: PipelineSettings

    def start(self, build: Callable[[], Pipeline]) -> None:
        """Build it and run it, or write it down as a declarative project; ends the process with its exit code."""
        guarded(lambda: self._start(build()), self.session)

    def _start(self, pipeline: Pipeline) -> None:
        if self.spec_out is not None:
            from jetlake.spark.pipelines.declarative import write_project

            for file in write_project(pipeline, self.settings, Path(self.spec_out)):
                click.echo(f"Wrote {file}")
            return
        from jetlake.spark.pipelines.progress import ServerReports, reporter_for
        from jetlake.spark.pipelines.runner import leave_on_signals, run_pipeline, stop_on_signals
        from jetlake.spark.pipelines.session import build_session

        connection = self.settings.connection_options
        _check_server(connection)
        pipeline.check(self.settings)
        reporter = reporter_for(sys.stderr if pipeline.prints else sys.stdout)
        with leave_on_signals(_EXIT_CODES):
            reporter.note(f"starting Spark at {self.master}")
            spark = build_session(pipeline.name, self.master, self.conf, log_level=self.log_level)
        stopping = threading.Event()
        # After the session: Spark takes Ctrl-C for itself when it starts.
        with stop_on_signals(stopping) as received:
            try:
                reporters = (reporter, ServerReports(connection))
                run_pipeline(pipeline, spark, self.settings, reporters, stopping=stopping)
            finally:
                spark.stop()
        if received:
            sys.exit(_EXIT_CODES[received[0]])


def _check_server(connection: Any) -> None:
    """Connect once, so that a missing server or a refused login is reported before Spark starts."""
    from jetlake.spark.options.connection_options import open_connection

    open_connection(connection).close()


def connection_options(target: Target) -> dict[str, str]:
    """Return the target as options of `format("jetstream")`; files are read here, for executors do not have them.

    Raises:
        ConfigError: a file can't be read.
    """
    target = plain(target)
    options: dict[str, str] = {}
    servers = [parse_address(server) for server in target.server.split(",")]
    options["servers"] = ",".join(str(server) for server in servers)
    login = servers[0]
    pairs = {
        "auth.user": target.user or login.user,
        "auth.password": target.password or login.password,
        "auth.token": target.token or login.token,
        "auth.credsSecret": _content(target.creds),
        "auth.nkeySecret": _content(target.nkey).strip(),
        "tls.ca": _content(target.tls_ca),
        "tls.cert": _content(target.tls_cert),
        "tls.keySecret": _content(target.tls_key),
        "domain": target.domain,
    }
    return options | {key: value for key, value in pairs.items() if value}


def _content(file: str) -> str:
    if not file:
        return ""
    try:
        return platform.expand_user(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read {file}: {error}") from None


def pipeline_options(*, follows: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the shared options; the command gets a `PipelineRun` in their place.

    Args:
        follows: whether the pipeline can follow new messages (`--follow`).
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @pass_session
        def run(session: Session, /, **options: Any) -> None:
            own = {key: options.pop(key) for key in _SHARED if key in options}
            function(guarded(lambda: _run_of(session, own), session), **options)

        run.__doc__ = function.__doc__
        run.__name__ = function.__name__
        # Options that the command's own decorators added are kept in this attribute.
        parameters = getattr(function, "__click_params__", [])
        run.__click_params__ = parameters  # type: ignore[attr-defined]
        for option in reversed(_OPTIONS + (_FOLLOWING if follows else ())):
            run = option(run)
        return run

    return decorate


def _run_of(session: Session, own: Mapping[str, Any]) -> PipelineRun:
    from jetlake.spark.pipelines.settings import PipelineSettings

    source = dict(own.get("source_options") or ())
    # Who follows a stream waits for its server; who wants an end wants to know that there is none.
    patience = {key: value for key, value in source.items() if key.lower() == "retryfor"}
    if own.get("follow", False) and not patience:
        patience = {"retryFor": _FOLLOW_RETRY_FOR}
    settings = PipelineSettings(
        connection={**connection_options(session.target), **patience},
        checkpoint=own["checkpoint"] or "",
        follow=own.get("follow", False),
        every_s=own.get("every", 1_000_000_000) / 1e9,
        batch_messages=own["batch_messages"],
        source=source,
    )
    return PipelineRun(session, own["master"], dict(own["conf"]), own["log_level"], own["spec_out"], settings)


_OPTIONS = (
    click.option("--master", default="local[*]", show_default=True, metavar="URL", help="Spark master."),
    click.option("--conf", multiple=True, type=PAIR, help="A Spark setting; may be repeated."),
    click.option("--checkpoint", metavar="DIR", help="Folder of the pipeline's checkpoint."),
    click.option(
        "--batch-messages",
        default=500_000,
        show_default=True,
        type=click.IntRange(1),
        help="Maximum messages per batch.",
    ),
    click.option(
        "--spark-log",
        "log_level",
        default="off",
        show_default=True,
        type=click.Choice(["off", "error", "warn", "info", "debug"]),
        help="Level of Spark's own log.",
    ),
    click.option(
        "--spec-out", metavar="DIR", help="Do not run: write the pipeline as a Spark declarative pipelines project."
    ),
)
_FOLLOWING = (
    click.option("--follow/--once", help="Keep following the stream, or end when everything is done.  [default: once]"),
    click.option(
        "--every", default="1s", show_default=True, type=DURATION, help="Time between batches, with --follow."
    ),
    click.option(
        "--source",
        "source_options",
        multiple=True,
        type=PAIR,
        help="An option of the jetstream source; may be repeated.",
    ),
)
_SHARED = (
    "master",
    "conf",
    "checkpoint",
    "batch_messages",
    "log_level",
    "spec_out",
    "follow",
    "every",
    "source_options",
)


@click.group(cls=SharedGroup)
def pipeline() -> None:
    """Run a ready-made data pipeline on Spark.

    Exit codes: 0 done, 1 failed, 2 usage error, 3 no server, 130 stopped by Ctrl-C, 143 stopped by SIGTERM. In all
    cases, the same command resumes where it stopped.
    """


@pipeline.command(example="jetlake pipeline archive ORDERS lake/orders --once")
@click.argument("stream")
@click.argument("target", required=False)
@click.option(
    "--format",
    "format_name",
    default="parquet",
    show_default=True,
    type=click.Choice(["parquet", "orc", "json", "delta", "iceberg"]),
    help="File format.",
)
@click.option(
    "--by",
    default=_PARTITIONED_BY,
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
@click.option(
    "--catalog", default="", metavar="NAME", help="Iceberg: a catalog of pyiceberg's configuration.  [default: a file]"
)
@click.option("--table", default="", metavar="NAME", help="Iceberg: the table's name.  [default: lake.<folder>]")
@click.option(
    "--maintain-every",
    default=Policy.every,
    show_default=True,
    type=click.IntRange(0),
    help="Iceberg: commits between two merges of small files, with --follow; 0 for none.",
)
@click.option(
    "--keep-snapshots",
    default=Policy.snapshots,
    show_default=True,
    type=click.IntRange(1),
    help="Iceberg: snapshots that are kept when older ones expire.",
)
@click.option(
    "--payload",
    default="raw",
    show_default=True,
    type=click.Choice(["raw", "json", "avro", "protobuf"]),
    help="Decode payloads into column value.",
)
@click.option(
    "--schema",
    default="",
    metavar="FILE|DDL|bucket:SUBJECT",
    help="DDL for JSON, an Avro schema, a Protobuf descriptor set, or a schema of the bucket.  [default: inferred]",
)
@click.option("--message", default="", metavar="NAME", help="Protobuf: the message in the descriptor set.")
@click.option("--keep-raw", is_flag=True, help="Keep the payload's bytes beside the decoded value.")
@click.option(
    "--rejects-to",
    default="",
    metavar="NAME",
    help="Also publish messages whose payload does not fit to this stream, under NAME.STREAM.",
)
@click.option(
    "--upsert",
    is_flag=True,
    help="STREAM is a key-value bucket: keep the newest value of each key, in an Iceberg or Delta table.",
)
@pipeline_options()
def archive(
    run: PipelineRun,
    stream: str,
    target: str | None,
    format_name: str,
    by: str,
    subjects: tuple[str, ...],
    start: str,
    compact: int | None,
    raw_headers: bool,
    catalog: str,
    table: str,
    maintain_every: int,
    keep_snapshots: int,
    payload: str,
    schema: str,
    message: str,
    keep_raw: bool,
    rejects_to: str,
    upsert: bool,
) -> None:
    """Copy STREAM into files below the folder TARGET (lake/<stream>), every message once."""

    def build() -> Pipeline:
        from jetlake.spark.pipelines.archive import Archive, parse_partitioning
        from jetlake.spark.pipelines.sinks import parse_target
        from jetlake.spark.pipelines.typed_payload import typed_payload

        if payload == "raw" and (schema or message or keep_raw):
            raise ConfigError("--schema, --message and --keep-raw are for decoded payloads: add --payload json, avro …")
        rejects = parse_target(rejects_to or "stream:none", plain="stream")
        if rejects.kind != "stream":
            raise ConfigError(f"--rejects-to names a stream, not {rejects}: rejected messages are in a table anyway")
        kind, name, parts = Archive, stream, by
        if upsert:
            from jetlake.spark.pipelines.bucket_archive import BucketArchive, bucket_stream

            kind, name, parts = BucketArchive, bucket_stream(stream), "none" if by == _PARTITIONED_BY else by
        return kind(
            name,
            target or f"lake/{stream.lower()}",
            format_name,
            parse_partitioning(parts),
            subjects,
            start,
            compact or 0,
            raw_headers,
            catalog,
            table,
            Policy(every=maintain_every, snapshots=keep_snapshots),
            None if payload == "raw" else typed_payload(payload, schema, message, keep_raw=keep_raw),
            rejects.value if rejects_to else "",
        )

    run.start(build)


@pipeline.command(example="jetlake pipeline verify ORDERS lake/orders")
@click.argument("stream")
@click.argument("target")
@click.option("--repair", is_flag=True, help="Iceberg: delete files that broken attempts have left behind.")
@pipeline_options(follows=False)
def verify(run: PipelineRun, stream: str, target: str, repair: bool) -> None:
    """Compare the archive TARGET with STREAM by sequence; exits with 1 when a message is missing, double or wrong."""

    def build() -> Pipeline:
        from jetlake.spark.pipelines.verify import Verify

        return Verify(stream, target, repair)

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
@click.option(
    "--allow-system-subjects", is_flag=True, help="Also publish to subjects that begin with $, such as keys of buckets."
)
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
    allow_system_subjects: bool,
) -> None:
    """Publish the archive SOURCE into STREAM again; running it twice adds nothing."""

    def build() -> Pipeline:
        from jetlake.spark.pipelines.replay import Replay, Selection, parse_subject_map
        from jetlake.spark.pipelines.replay_task import Pace

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
            allow_system_subjects=allow_system_subjects,
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
        from jetlake.spark.pipelines.health import Health
        from jetlake.spark.pipelines.sinks import parse_target

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
    """Collect messages of STREAMS that reached max_deliver or were terminated, each once."""

    def build() -> Pipeline:
        from jetlake.spark.pipelines.dead_letters import DeadLetters
        from jetlake.spark.pipelines.sinks import parse_target

        return DeadLetters(streams, parse_target(to, plain="stream"), events_stream, subject, remember, start)

    run.start(build)


@pipeline.command(example="jetlake pipeline sql revenue.yaml")
@click.argument("file")
@click.option("--reset", metavar="SINK", help="Do not run: reset this sink, and remove the files it wrote.")
@pipeline_options()
def sql(run: PipelineRun, file: str, reset: str | None) -> None:
    """Run the sources, steps and sinks of a YAML FILE; it is checked before anything starts."""

    def build() -> Pipeline:
        from jetlake.spark.pipelines.sql import SqlPipeline, SqlReset
        from jetlake.spark.pipelines.sql_file import read_sql_file

        spec = read_sql_file(file)
        return SqlPipeline(spec) if reset is None else SqlReset(spec, reset)

    run.start(build)


pipeline.add_command(replay_letters, "requeue")
