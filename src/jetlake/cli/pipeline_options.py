"""What all pipeline commands share: their options, the session they make of them, and their exit codes."""

from __future__ import annotations

import dataclasses
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jetlake.cli.contexts import Target, plain
from jetlake.cli.session import EXIT_INTERRUPTED, Session, guarded, pass_session
from jetlake.cli.values import DURATION, PAIR
from jetlake.client.settings.server_address import parse_address
from jetlake.client.tables.options.option_values import names
from jetlake.errors import ConfigError

if TYPE_CHECKING:
    from jetlake.spark.pipelines.runner import Pipeline
    from jetlake.spark.pipelines.settings import PipelineSettings

__all__ = ["EXIT_TERMINATED", "PipelineRun", "connection_options", "pipeline_options", "read_subjects"]

EXIT_TERMINATED = 143
"""The pipeline was told to stop by SIGTERM, and did so cleanly."""

_FOLLOW_RETRY_FOR = "24h"

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
    """How a pipeline is to be run, as it was typed."""

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
                click.echo(f"wrote {file}")
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
        return Path(file).expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"file {file} can't be read: {error}") from None


def pipeline_options(*, follows: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the shared options; the command gets a `PipelineRun` in their place.

    Args:
        follows: whether the pipeline can go on with what comes (`--follow`).
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
