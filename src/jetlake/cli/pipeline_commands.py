"""`jetlake pipeline …` and `jetlake events …`: the ready-made pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jetlake.cli.pipeline_options import PipelineRun, pipeline_options
from jetlake.cli.session import guarded
from jetlake.cli.values import SIZE

if TYPE_CHECKING:
    from jetlake.spark.pipelines.archive import Archive

__all__ = ["events", "pipeline"]


@click.group()
def pipeline() -> None:
    """Run a ready-made data pipeline on Spark."""


@pipeline.command()
@click.argument("stream")
@click.argument("target")
@click.option(
    "--format",
    "format_name",
    default="parquet",
    show_default=True,
    type=click.Choice(["parquet", "orc", "json", "delta"]),
    help="What the files are.",
)
@click.option(
    "--by", default="date,subject:1", show_default=True, metavar="COLUMNS", help="Folders: date, hour, subject:K, none."
)
@click.option("--subjects", multiple=True, metavar="PATTERN", help="Only messages of these subjects.")
@click.option("--start", default="earliest", show_default=True, help="Where a new archive begins.")
@click.option(
    "--compact", type=SIZE, is_flag=False, flag_value="128MiB", metavar="[SIZE]", help="Then join files smaller than this."
)
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
) -> None:
    """Copy STREAM into files below the folder TARGET, every message once."""

    def build() -> Archive:
        from jetlake.spark.pipelines.archive import Archive
        from jetlake.spark.pipelines.partitioning import parse_partitioning

        return Archive(stream, target, format_name, parse_partitioning(by), subjects, start, compact or 0)

    run.start(guarded(build, run.session))


@click.group()
def events() -> None:
    """Collect what the server announces in a stream."""
