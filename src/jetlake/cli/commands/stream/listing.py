"""Commands that list, find, show and compare streams."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from jetlake.cli import output
from jetlake.cli.commands.stream.facts import print_info
from jetlake.cli.name_completion import stream_names
from jetlake.cli.session import EXIT_USAGE, Session, command, fail, json_option
from jetlake.cli.shared_options import SharedCommand
from jetlake.cli.values import DURATION
from jetlake.model.encoding.times import parse_time
from jetlake.model.stream import StreamInfo

__all__ = ["find", "list_streams", "print_report", "report", "show", "subjects"]

_NONE = "No streams. Make one: jetlake stream add ORDERS --subjects 'orders.>'"

names_option = click.option("-n", "--names", "names_only", is_flag=True, help="Print only names.")


@click.command("ls", cls=SharedCommand, example="jetlake stream ls --subject orders.new")
@click.option("--subject", metavar="SUBJECT", default="", help="Only streams that capture this subject.")
@names_option
@json_option
@command
async def list_streams(session: Session, subject: str, names_only: bool, as_json: bool) -> None:
    """List streams."""
    async with session.jetstream() as js:
        if names_only:
            output.print_names(await js.stream_names(subject=subject), as_json)
            return
        infos = await js.streams(subject=subject)
    if not infos and not as_json:
        click.echo(_NONE)
    else:
        _print_list("Streams", infos, as_json)


def _print_list(title: str, infos: list[StreamInfo], as_json: bool) -> None:
    if as_json:
        output.print_json(infos)
        return
    output.print_table(
        title,
        ["Name", "Subjects", "Retention", "Storage", "Messages", "Size", "Consumers", "Last message"],
        [
            [
                info.config.name,
                ", ".join(info.config.subjects),
                info.config.retention.value,
                info.config.storage.value,
                output.count(info.state.messages),
                output.size(info.state.bytes),
                output.count(info.state.consumer_count),
                output.when(info.state.last_ts),
            ]
            for info in infos
        ],
        numbers=[4, 5, 6],
        spare=[3, 2, 1, 7],
    )


@click.command("find", cls=SharedCommand, example="jetlake stream find --empty --idle 30d")
@click.option("--subject", metavar="SUBJECT", default="", help="Streams that capture this subject.")
@click.option("--empty", is_flag=True, default=None, help="Streams without messages.")
@click.option("--idle", type=DURATION, help="Streams without a new message for this long.")
@click.option("--created", type=DURATION, help="Streams created within this time.")
@click.option("--consumers", type=click.IntRange(0), metavar="N", help="Streams with at most N consumers.")
@click.option("--replicas", type=click.IntRange(1), metavar="N", help="Streams with at most N replicas.")
@click.option("--sourced", is_flag=True, default=None, help="Streams that copy from sources.")
@click.option("--mirrored", is_flag=True, default=None, help="Streams that are mirrors.")
@click.option("--leader", metavar="SERVER", help="Streams that this server of a cluster leads.")
@click.option("--invert", is_flag=True, help="List the streams that do not match instead.")
@names_option
@json_option
@command
async def find(session: Session, invert: bool, names_only: bool, as_json: bool, **wanted: Any) -> None:
    """List the streams that match all of the options."""
    tests = _tests({name: value for name, value in wanted.items() if value not in (None, "")})
    if not tests and not wanted["subject"]:
        fail("what to look for? give an option such as --empty or --idle 30d", EXIT_USAGE)
    async with session.jetstream() as js:
        infos = await js.streams()
        taking = set(await js.stream_names(subject=wanted["subject"]))
    found = [info for info in infos if (info.config.name in taking and all(fits(info) for fits in tests)) is not invert]
    if names_only:
        output.print_names([info.config.name for info in found], as_json)
    elif not found and not as_json:
        click.echo("No stream fits")
    else:
        _print_list(f"{output.plural(len(found), 'stream')} of {len(infos):,}", found, as_json)


def _tests(wanted: dict[str, Any]) -> list[Callable[[StreamInfo], bool]]:
    """Make one function for each condition, by the name of its option."""
    now_ns = time.time_ns()

    def idle(info: StreamInfo) -> bool:
        # A stream that never had a message is idle since it was made.
        last = info.state.last_ts
        return bool(now_ns - parse_time(info.created if last.startswith("0001-") else last) >= wanted["idle"])

    tests: dict[str, Callable[[StreamInfo], bool]] = {
        "empty": lambda info: not info.state.messages,
        "idle": idle,
        "created": lambda info: now_ns - parse_time(info.created) <= wanted["created"],
        "consumers": lambda info: info.state.consumer_count <= wanted["consumers"],
        "replicas": lambda info: info.config.num_replicas <= wanted["replicas"],
        "sourced": lambda info: bool(info.config.sources),
        "mirrored": lambda info: info.config.mirror is not None,
        "leader": lambda info: info.cluster is not None and info.cluster.leader == wanted["leader"],
    }
    return [test for name, test in tests.items() if name in wanted]


@click.command("report", cls=SharedCommand, example="jetlake stream report")
@click.option("--subject", metavar="SUBJECT", default="", help="Only streams that capture this subject.")
@json_option
@command
async def report(session: Session, subject: str, as_json: bool) -> None:
    """Compare streams, the largest first: messages, size, consumers, deleted and lost messages, replicas."""
    async with session.jetstream() as js:
        infos = sorted(await js.streams(subject=subject), key=lambda info: -info.state.bytes)
    if as_json:
        output.print_json(infos)
    else:
        print_report(infos)


def print_report(infos: list[StreamInfo]) -> None:
    """Print the table of streams, and a second one of mirrors and sources if there are any."""
    if not infos:
        click.echo(_NONE)
        return
    total_bytes = sum(info.state.bytes for info in infos)
    output.print_table(
        f"{output.plural(len(infos), 'stream')}, {output.size(total_bytes)}",
        ["Stream", "Messages", "Size", "Subjects", "Consumers", "Deleted", "Lost", "Replicas", "Last message"],
        [
            [
                info.config.name,
                output.count(info.state.messages),
                output.size(info.state.bytes),
                output.count(info.state.num_subjects),
                output.count(info.state.consumer_count),
                output.count(info.state.num_deleted),
                output.count(len(info.state.lost.msgs or ()) if info.state.lost else 0),
                info.config.num_replicas,
                output.when(info.state.last_ts),
            ]
            for info in infos
        ],
        numbers=[1, 2, 3, 4, 5, 6, 7],
        spare=[7, 5, 3, 8, 4, 6],
    )
    copies = [
        [info.config.name, kind, source.name, output.count(source.lag), output.heard(source.active)]
        for info in infos
        for kind, sources in (("mirror", (info.mirror,) if info.mirror else ()), ("source", info.sources))
        for source in sources
    ]
    if copies:
        output.print_table(
            "Mirrors and sources", ["Stream", "Kind", "Copied from", "To come", "State"], copies, numbers=[3]
        )


@click.command("info", cls=SharedCommand, example="jetlake stream info ORDERS")
@click.argument("name", shell_complete=stream_names)
@json_option
@command
async def show(session: Session, name: str, as_json: bool) -> None:
    """Show the configuration and state of stream NAME."""
    async with session.jetstream() as js:
        print_info((await js.stream(name)).cached_info, as_json, f"Stream {name}, made {{created}}")


@click.command("subjects", cls=SharedCommand, example="jetlake stream subjects ORDERS --filter 'orders.eu.*'")
@click.argument("name", shell_complete=stream_names)
@click.option("--filter", "pattern", default=">", show_default=True, help="Only subjects that match.")
@json_option
@command
async def subjects(session: Session, name: str, pattern: str, as_json: bool) -> None:
    """Show the subjects in stream NAME and their numbers of messages."""
    async with session.jetstream() as js:
        info = await (await js.stream(name)).info(subjects_filter=pattern)
    held = dict(sorted(info.state.subjects.items(), key=lambda pair: (-pair[1], pair[0])))
    if as_json:
        output.print_json(held)
    else:
        rows = [[subject, output.count(number)] for subject, number in held.items()]
        title = f"{output.plural(len(held), 'subject')} in {name}"
        output.print_table(title, ["Subject", "Messages"], rows, numbers=[1])
