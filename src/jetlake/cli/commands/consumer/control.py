"""Commands that pause, resume and move a consumer, and take the pin of its client."""

from __future__ import annotations

from typing import Any

import click

from jetlake.cli import output
from jetlake.cli.name_completion import consumer_names, stream_names
from jetlake.cli.session import EXIT_USAGE, Session, command, confirm, fail, force_option, json_option
from jetlake.cli.shared_options import SharedCommand
from jetlake.cli.values import DURATION
from jetlake.client.api.consumer_api import pause_consumer
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND

__all__ = ["pause", "reset", "resume", "unpin"]


@click.command("pause", cls=SharedCommand, example="jetlake consumer pause ORDERS worker 1h")
@click.argument("stream", shell_complete=stream_names)
@click.argument("name", shell_complete=consumer_names)
@click.argument("until", metavar="DURATION|TIME")
@json_option
@command
async def pause(session: Session, stream: str, name: str, until: str, as_json: bool) -> None:
    """Pause consumer NAME on STREAM for a duration, like 1h, or until a time."""
    end: Any = until if "T" in until else DURATION.convert(until, None, None) / NANOSECONDS_PER_SECOND
    async with session.jetstream() as js:
        reply = await pause_consumer(js.api, stream, name, end)
    output.print_json(reply) if as_json else click.echo(
        f"{stream} > {name} is paused until {output.when(reply.pause_until)}"
    )


@click.command("resume", cls=SharedCommand, example="jetlake consumer resume ORDERS worker")
@click.argument("stream", shell_complete=stream_names)
@click.argument("name", shell_complete=consumer_names)
@json_option
@command
async def resume(session: Session, stream: str, name: str, as_json: bool) -> None:
    """Resume paused consumer NAME on STREAM."""
    async with session.jetstream() as js:
        reply = await pause_consumer(js.api, stream, name, None)
    output.print_json(reply) if as_json else click.echo(f"{stream} > {name} delivers again")


@click.command("reset", cls=SharedCommand, example="jetlake consumer reset ORDERS worker --seq 100 --force")
@click.argument("stream", shell_complete=stream_names)
@click.argument("name", shell_complete=consumer_names)
@click.option(
    "--seq", "sequence", type=int, default=0, metavar="N", help="Sequence to continue from. Default: the ack floor."
)
@force_option
@json_option
@command
async def reset(session: Session, stream: str, name: str, sequence: int, force: bool, as_json: bool) -> None:
    """Move consumer NAME on STREAM to another sequence."""
    async with session.jetstream() as js:
        handle = await js.consumer(stream, name)
        confirm(f"Move {stream} > {name} to {f'sequence {sequence}' if sequence else 'its ack floor'}?", force)
        reply = await handle.reset(sequence)
    output.print_json(reply) if as_json else click.echo(f"{stream} > {name} goes on from sequence {reply.reset_seq}")


@click.command("unpin", cls=SharedCommand, example="jetlake consumer unpin ORDERS worker jobs --force")
@click.argument("stream", shell_complete=stream_names)
@click.argument("name", shell_complete=consumer_names)
@click.argument("group", required=False)
@force_option
@json_option
@command
async def unpin(session: Session, stream: str, name: str, group: str | None, force: bool, as_json: bool) -> None:
    """Unpin the client of consumer NAME on STREAM, so that another is pinned."""
    async with session.jetstream() as js:
        handle = await js.consumer(stream, name)
        groups = handle.config.priority_groups
        if not group and not groups:
            fail(f"{stream} > {name} has no priority group", EXIT_USAGE)
        confirm(f"Take the pin of {stream} > {name} from its client?", force)
        await handle.unpin(group or groups[0])
    output.tell(f"The pin of {stream} > {name} is free", {"stream": stream, "consumer": name}, as_json)
