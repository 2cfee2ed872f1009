"""`jetlake rtt`: how long each server takes to answer a PING."""

from __future__ import annotations

from statistics import median

import click
import msgspec

from jetlake.cli import output
from jetlake.cli.session import Session, command, json_option
from jetlake.cli.shared_options import SharedCommand
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND

__all__ = ["rtt"]


@click.command("rtt", cls=SharedCommand, example="jetlake rtt -s nats://one:4222,nats://two:4222 --count 20")
@click.option(
    "--count", type=click.IntRange(1), default=5, show_default=True, metavar="N", help="Number of PINGs to each server."
)
@json_option
@command
async def rtt(session: Session, count: int, as_json: bool) -> None:
    """Measure the round trip to each server of the target: the fastest, the median and the slowest PING."""
    rows = []
    for address in session.target.server.split(","):
        target = msgspec.structs.replace(session.target, server=address)
        async with await Session.of_target(target, session.timeout_s).connect() as client:
            times_ns = [round(await client.rtt() * NANOSECONDS_PER_SECOND) for _ in range(count)]
        rows.append((target.shown, min(times_ns), round(median(times_ns)), max(times_ns)))
    if as_json:
        output.print_json([dict(zip(("server", "min", "median", "max"), row, strict=True)) for row in rows])
        return
    output.print_table(
        f"{output.plural(count, 'PING')} to each server",
        ["Server", "Fastest", "Median", "Slowest"],
        [[server, *map(output.duration, times_ns)] for server, *times_ns in rows],
        numbers=[1, 2, 3],
    )
