"""`jetlake stream state`, `gaps`, `graph` and `cluster`: what a stream holds, how it changes, who leads it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from jetlake.cli import output
from jetlake.cli.choosing import chosen_stream
from jetlake.cli.clusters import ask_cluster, require_cluster, spread_leaders
from jetlake.cli.graphs import Chart, show_graphs
from jetlake.cli.name_completion import stream_names
from jetlake.cli.session import EXIT_USAGE, Session, command, confirm, fail, force_option, json_option
from jetlake.cli.shared_options import SharedCommand, SharedGroup
from jetlake.cli.stream_conditions import condition_options, conditions
from jetlake.model.stream import StreamInfo

if TYPE_CHECKING:
    pass

_GAPS_MAX = 100_000
"""How many gaps are listed; a stream of a work queue may have millions."""

_name = click.argument("name", required=False, shell_complete=stream_names)


def print_state(info: StreamInfo, as_json: bool) -> None:
    """Print the state of a stream without its configuration."""
    if as_json:
        output.print_json(info.state)
        return
    state = info.state
    output.print_facts(
        f"State for Stream {info.config.name} created {output.when(info.created)}",
        {
            "": [
                ("Messages", output.count(state.messages)),
                ("Bytes", output.size(state.bytes)),
                ("First Sequence", f"{output.count(state.first_seq)} @ {output.when(state.first_ts)}"),
                ("Last Sequence", f"{output.count(state.last_seq)} @ {output.when(state.last_ts)}"),
                ("Deleted Messages", output.count(state.num_deleted) if state.num_deleted else None),
                ("Lost Messages", len(state.lost.msgs or ()) if state.lost else None),
                ("Active Consumers", output.count(state.consumer_count)),
                ("Number of Subjects", output.count(state.num_subjects)),
            ],
            "Cluster Information": output.cluster_facts(info.cluster),
        },
    )


@click.command("state", cls=SharedCommand, example="jetlake stream state ORDERS")
@_name
@click.option("--no-select", is_flag=True, help="Do not ask for the name.")
@json_option
@command
async def state(session: Session, name: str | None, no_select: bool, as_json: bool) -> None:
    """Show the state of stream NAME."""
    if no_select and not name:
        fail("stream name is missing. List streams: jetlake stream ls", EXIT_USAGE)
    async with session.jetstream() as js:
        print_state((await js.stream(await chosen_stream(js, name))).cached_info, as_json)


@click.command("gaps", cls=SharedCommand, example="jetlake stream gaps ORDERS --force")
@_name
@click.option("--progress/--no-progress", default=True, help="Whether a progress bar is shown on a terminal.")
@force_option
@json_option
@command
async def gaps(session: Session, name: str | None, progress: bool, force: bool, as_json: bool) -> None:
    """List the ranges of deleted sequences in stream NAME; reads the headers of all its messages."""
    async with session.jetstream() as js:
        handle = await js.stream(await chosen_stream(js, name))
        info = handle.cached_info
        found: list[tuple[int, int]] = []
        if info.state.num_deleted:
            held = output.plural(info.state.messages, "message")
            confirm(f"Read all {held} ({output.size(info.state.bytes)}) of stream {handle.name}?", force or as_json)
            expected = info.state.first_seq
            with output.Bar("Reading", info.state.messages, is_shown=progress and not as_json) as bar:
                async for batch in handle.ordered(headers_only=True).batches():
                    for message in batch:
                        sequence = message.metadata.stream_seq
                        if sequence > expected and len(found) < _GAPS_MAX:
                            found.append((expected, sequence - 1))
                        expected = sequence + 1
                    bar.advance(len(batch))
                    if batch[-1].metadata.pending == 0 or expected > info.state.last_seq:
                        break
    if as_json:
        output.print_json(found)
    elif not found:
        click.echo(f"No deleted messages in {handle.name}")
    else:
        output.print_table(
            f"{output.plural(len(found), 'gap')} found in stream {handle.name}",
            ["First Message", "Last Message", "Messages"],
            [[output.count(first), output.count(last), output.count(last - first + 1)] for first, last in found],
            numbers=[0, 1, 2],
        )


@click.command("graph", cls=SharedCommand, example="jetlake stream graph ORDERS")
@_name
@click.option("--count", type=click.IntRange(0), default=0, metavar="N", help="Stop after N samples.")
@json_option
@command
async def graph(session: Session, name: str | None, count: int, as_json: bool) -> None:
    """Draw the messages of stream NAME and how many are stored and removed each second; with --json, a line each."""
    async with session.jetstream(stay=True) as js:
        handle = await js.stream(await chosen_stream(js, name))
        charts = [Chart("Messages Stored"), Chart("Messages Removed / second"), Chart("Messages Stored / second")]
        before: list[Any] = [time.monotonic(), handle.cached_info.state]

        async def sample() -> None:
            after: Any = [time.monotonic(), (await handle.info()).state]
            passed, old, new = max(after[0] - before[0], 1e-3), before[1], after[1]
            stored = new.last_seq - old.last_seq
            charts[0].values.append(new.messages)
            charts[1].values.append(max(old.messages + stored - new.messages, 0) / passed)
            charts[2].values.append(max(stored, 0) / passed)
            before[:] = after

        await show_graphs(f"Stream Statistics for {handle.name}", charts, sample, count=count, as_json=as_json)


@click.group("cluster", cls=SharedGroup)
def cluster() -> None:
    """Manage the leader and the replicas of a stream in a cluster."""


@cluster.command("step-down", example="jetlake stream cluster step-down ORDERS --preferred s2")
@_name
@click.option("--preferred", metavar="SERVER", help="Server that should lead next.")
@force_option
@json_option
@command
async def step_down(session: Session, name: str | None, preferred: str | None, force: bool, as_json: bool) -> None:
    """Let the cluster elect another leader for stream NAME."""
    async with await session.connect() as client:
        require_cluster(client)
        js = session.jetstream_of(client)
        stream = await chosen_stream(js, name)
        leader = _leader((await js.stream(stream)).cached_info)
        if not leader and not force:
            fail(f"stream {stream} has no leader; use --force to try anyway")
        body = {"placement": {"preferred": preferred}} if preferred else {}
        await ask_cluster(client, f"{js.api.prefix}.STREAM.LEADER.STEPDOWN.{stream}", body, session.timeout_s)
        elected = _leader(await (await js.stream(stream)).info())
    output.tell(
        f"Leader {leader or 'none'} of stream {stream} stepped down; now {elected or 'an election is in progress'}",
        {"stream": stream, "before": leader, "leader": elected},
        as_json,
    )


def _leader(info: StreamInfo) -> str:
    return info.cluster.leader if info.cluster else ""


@cluster.command("peer-remove", example="jetlake stream cluster peer-remove ORDERS s2 --force")
@click.argument("name", shell_complete=stream_names)
@click.argument("peer")
@force_option
@json_option
@command
async def peer_remove(session: Session, name: str, peer: str, force: bool, as_json: bool) -> None:
    """Move the replica of stream NAME away from server PEER."""
    async with await session.connect() as client:
        require_cluster(client)
        confirm(f"Remove peer {peer} from stream {name}?", force)
        subject = f"{session.jetstream_of(client).api.prefix}.STREAM.PEER.REMOVE.{name}"
        await ask_cluster(client, subject, {"peer": peer}, session.timeout_s)
    output.tell(f"Removed peer {peer} from stream {name}", {"stream": name, "peer": peer}, as_json)


@cluster.command("balance", example="jetlake stream cluster balance --force")
@click.option("--subject", metavar="SUBJECT", default="", help="Streams that capture this subject.")
@condition_options
@click.option("--invert", is_flag=True, help="The streams that do not match instead.")
@force_option
@json_option
@command
async def balance(session: Session, subject: str, invert: bool, force: bool, as_json: bool, **wanted: Any) -> None:
    """Spread the leaders of the account's streams, or of those that match, over the servers that hold them."""
    tests = conditions(wanted)
    async with await session.connect() as client:
        require_cluster(client)
        js = session.jetstream_of(client)
        infos = [info for info in await js.streams(subject=subject) if info.cluster and info.cluster.replicas]
        infos = [info for info in infos if all(fits(info) for fits in tests) is not invert]
        confirm(f"Balance the leaders of {output.plural(len(infos), 'stream')}?", force)
        subjects = {info.config.name: f"{js.api.prefix}.STREAM.LEADER.STEPDOWN.{info.config.name}" for info in infos}
        clusters = {info.config.name: info.cluster for info in infos if info.cluster is not None}
        moved = await spread_leaders(client, subjects, clusters, session.timeout_s)
    output.tell(f"Moved the leaders of {output.plural(len(moved), 'stream')}", {"moved": moved}, as_json)
