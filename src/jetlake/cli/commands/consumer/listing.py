"""Commands that list, show, compare and explain consumers."""

from __future__ import annotations

import click

from jetlake.cli import output
from jetlake.cli.commands.consumer.facts import print_info
from jetlake.cli.name_completion import consumer_names, stream_names
from jetlake.cli.session import EXIT_FAILED, Session, command, json_option
from jetlake.cli.shared_options import SharedCommand
from jetlake.model.consumer import ConsumerInfo

__all__ = ["list_consumers", "print_report", "report", "show", "why"]


@click.command("ls", cls=SharedCommand, example="jetlake consumer ls ORDERS")
@click.argument("stream", shell_complete=stream_names)
@click.option("-n", "--names", "names_only", is_flag=True, help="Print only names.")
@json_option
@command
async def list_consumers(session: Session, stream: str, names_only: bool, as_json: bool) -> None:
    """List the consumers of STREAM."""
    async with session.jetstream() as js:
        handle = await js.stream(stream)
        if names_only:
            output.print_names(await handle.consumer_names(), as_json)
            return
        infos = await handle.consumers()
    if as_json:
        output.print_json(infos)
    elif not infos:
        click.echo(_none(stream))
    else:
        output.print_table(
            f"Consumers of {stream}",
            ["Name", "Kind", "Ack", "Pending", "Awaiting ack", "Redelivered", "Waiting", "Ack floor", "Delivered"],
            [_row(info) for info in infos],
            numbers=[3, 4, 5, 6, 7, 8],
            spare=[8, 7, 2, 1, 6],
        )


def _row(info: ConsumerInfo) -> list[str]:
    return [
        info.name,
        "push" if info.config.deliver_subject else "pull",
        info.config.ack_policy.value,
        output.count(info.num_pending),
        output.count(info.num_ack_pending),
        output.count(info.num_redelivered),
        output.count(info.num_waiting),
        output.count(info.ack_floor.stream_seq),
        output.count(info.delivered.stream_seq),
    ]


@click.command("info", cls=SharedCommand, example="jetlake consumer info ORDERS worker")
@click.argument("stream", shell_complete=stream_names)
@click.argument("name", shell_complete=consumer_names)
@json_option
@command
async def show(session: Session, stream: str, name: str, as_json: bool) -> None:
    """Show the configuration and state of consumer NAME on STREAM."""
    async with session.jetstream() as js:
        found = await (await js.stream(stream)).consumer_info(name)
    print_info(found, as_json, f"Consumer {stream} > {name}, made {output.when(found.created)}")


@click.command("report", cls=SharedCommand, example="jetlake consumer report ORDERS")
@click.argument("stream", shell_complete=stream_names)
@json_option
@command
async def report(session: Session, stream: str, as_json: bool) -> None:
    """Compare the consumers of STREAM, the furthest behind first: pending messages, messages awaiting acks."""
    async with session.jetstream() as js:
        infos = await (await js.stream(stream)).consumers()
    if as_json:
        output.print_json(sorted(infos, key=_left, reverse=True))
    elif infos:
        print_report(infos)
    else:
        click.echo(_none(stream))


def _none(stream: str) -> str:
    return f"No consumers on {stream}. Make one: jetlake consumer add {stream} worker --pull"


def _left(info: ConsumerInfo) -> int:
    return info.num_pending + info.num_ack_pending


def print_report(infos: list[ConsumerInfo]) -> None:
    """Print a table of consumers, the furthest behind first."""
    output.print_table(
        output.plural(len(infos), "consumer"),
        [
            "Consumer",
            "Kind",
            "Ack",
            "Pending",
            "Awaiting ack",
            "Redelivered",
            "Waiting",
            "Ack floor",
            "Last delivered",
        ],
        [
            [
                f"{info.stream_name} > {info.name}",
                ("push" if info.config.deliver_subject else "pull") + (", paused" if info.paused else ""),
                info.config.ack_policy.value,
                output.count(info.num_pending),
                output.count(info.num_ack_pending),
                output.count(info.num_redelivered),
                output.count(info.num_waiting),
                output.count(info.ack_floor.stream_seq),
                output.when(info.delivered.last_active),
            ]
            for info in sorted(infos, key=_left, reverse=True)
        ],
        numbers=[3, 4, 5, 6, 7],
        spare=[7, 8, 2, 6, 1],
    )


@click.command("why", cls=SharedCommand, example="jetlake consumer why ORDERS worker")
@click.argument("stream", shell_complete=stream_names)
@click.argument("name", shell_complete=consumer_names)
@json_option
@command
async def why(session: Session, stream: str, name: str, as_json: bool) -> None:
    """Explain why consumer NAME on STREAM delivers nothing; exits with 1 when messages are stuck."""
    async with session.jetstream() as js:
        explanation = await (await js.consumer(stream, name)).explain()
    if as_json:
        output.print_json(explanation)
    else:
        click.echo(str(explanation))
    if explanation.is_stalled:
        raise SystemExit(EXIT_FAILED)
