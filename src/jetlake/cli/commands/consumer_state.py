"""`jetlake consumer state`, `find`, `graph` and `cluster`: how far a consumer is, how it changes, who leads it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
import msgspec

from jetlake.cli import output
from jetlake.cli.choosing import chosen_consumer, chosen_stream
from jetlake.cli.clusters import ask_cluster, require_cluster, spread_leaders
from jetlake.cli.expressions import compile_expression
from jetlake.cli.graphs import Chart, show_graphs
from jetlake.cli.name_completion import consumer_names, stream_names
from jetlake.cli.session import EXIT_USAGE, Session, command, confirm, fail, force_option, json_option
from jetlake.cli.shared_options import SharedCommand, SharedGroup
from jetlake.cli.values import DURATION
from jetlake.model.consumer import ConsumerInfo
from jetlake.model.encoding.times import parse_time
from jetlake.model.replies import ConsumerListReply
from jetlake.model.requests import ConsumerListRequest

if TYPE_CHECKING:
    from jetlake.client import JetStream

stream_argument = click.argument("stream", required=False, shell_complete=stream_names)
name_argument = click.argument("name", required=False, shell_complete=consumer_names)


@click.command("state", cls=SharedCommand, example="jetlake consumer state ORDERS worker")
@stream_argument
@name_argument
@click.option("--no-select", is_flag=True, help="Do not ask for names.")
@json_option
@command
async def state(session: Session, stream: str | None, name: str | None, no_select: bool, as_json: bool) -> None:
    """Show the state of consumer NAME on STREAM."""
    if no_select and not (stream and name):
        fail("stream and consumer names are missing. List consumers: jetlake consumer ls STREAM", EXIT_USAGE)
    async with session.jetstream() as js:
        stream = await chosen_stream(js, stream)
        name = await chosen_consumer(js, stream, name)
        info = await (await js.stream(stream)).consumer_info(name)
    if as_json:
        fields = msgspec.to_builtins(info)
        del fields["config"]
        output.print_json(fields)
        return
    delivered, floor = info.delivered, info.ack_floor
    output.print_facts(
        f"State for Consumer {stream} > {name} created {output.when(info.created)}",
        {
            "": [
                ("Last Delivered Message", _position(delivered.consumer_seq, delivered.stream_seq)),
                ("Acknowledgment Floor", _position(floor.consumer_seq, floor.stream_seq)),
                ("Outstanding Acks", output.count(info.num_ack_pending)),
                ("Redelivered Messages", output.count(info.num_redelivered)),
                ("Unprocessed Messages", output.count(info.num_pending)),
                ("Waiting Pulls", None if info.config.deliver_subject else output.count(info.num_waiting)),
                ("Active Interest", output.yes_no(info.push_bound) if info.config.deliver_subject else None),
                ("Paused", f"for {output.duration(info.pause_remaining)}" if info.paused else None),
            ],
            "Cluster Information": output.cluster_facts(info.cluster),
        },
    )


def _position(consumer_seq: int, stream_seq: int) -> str:
    return f"Consumer sequence: {consumer_seq:,} Stream sequence: {stream_seq:,}"


_CONDITIONS = {
    "pull": click.option("--pull", is_flag=True, default=None, help="Pull consumers."),
    "push": click.option("--push", is_flag=True, default=None, help="Push consumers."),
    "bound": click.option(
        "--bound", is_flag=True, default=None, help="Push consumers with a subscriber, pull ones with a waiting pull."
    ),
    "waiting": click.option(
        "--waiting", type=click.IntRange(0), metavar="N", help="Consumers with at most N waiting pulls."
    ),
    "ack_pending": click.option(
        "--ack-pending", type=click.IntRange(0), metavar="N", help="At most N messages that await an ack."
    ),
    "pending": click.option(
        "--pending", type=click.IntRange(0), metavar="N", help="At most N messages that are not delivered."
    ),
    "idle": click.option("--idle", type=DURATION, help="Consumers without a delivery for this long."),
    "created": click.option("--created", type=DURATION, help="Consumers created longer ago than this."),
    "replicas": click.option(
        "--replicas", type=click.IntRange(0), metavar="N", help="Consumers with at most N replicas."
    ),
    "leader": click.option("--leader", metavar="SERVER", help="Consumers that this server of a cluster leads."),
    "pinned": click.option(
        "--pinned", is_flag=True, default=None, help="Consumers whose groups all have a pinned client."
    ),
    "expression": click.option(
        "--expression", metavar="EXPRESSION", help="Consumers for which this holds, such as: info.num_pending > 10"
    ),
}
"""The options of `find`; `cluster balance` takes some of them."""


def _conditions(*names: str) -> Callable[[Any], Any]:
    """Add options by which consumers are chosen to a command."""

    def decorate(function: Any) -> Any:
        for name in reversed(names):
            function = _CONDITIONS[name](function)
        return function

    return decorate


@click.command("find", cls=SharedCommand, example="jetlake consumer find ORDERS --idle 1d")
@stream_argument
@_conditions(*_CONDITIONS)
@click.option("--offline", is_flag=True, help="List only consumers that their cluster can't run, and why.")
@click.option("--invert", is_flag=True, help="List the consumers that do not match instead.")
@click.option("-n", "--names", "names_only", is_flag=True, help="Print only names.")
@json_option
@command
async def find(
    session: Session,
    stream: str | None,
    offline: bool,
    invert: bool,
    names_only: bool,
    as_json: bool,
    **wanted: Any,
) -> None:
    """List the consumers of STREAM that match all of the options.

    An expression compares fields of a consumer's info and configuration, as its JSON names them:
    'info.num_pending > 10 && config.ack_policy == "explicit"'.
    """
    tests = _tests(wanted)
    if not tests and not offline:
        fail("no condition given; use an option such as --idle 1d", EXIT_USAGE)
    if tests and offline:
        fail(
            "--offline can not be combined with other conditions: nothing else is known of these consumers", EXIT_USAGE
        )
    async with session.jetstream() as js:
        stream = await chosen_stream(js, stream)
        if offline:
            _print_offline(stream, await _offline(js, stream), names_only, as_json)
            return
        infos = await (await js.stream(stream)).consumers()
    found = [info for info in infos if all(fits(info) for fits in tests) is not invert]
    if names_only:
        output.print_names([info.name for info in found], as_json)
    elif as_json:
        output.print_json(found)
    elif not found:
        click.echo(f"No matching consumers on {stream}")
    else:
        output.print_table(
            f"{output.plural(len(found), 'consumer')} of {len(infos):,} on {stream}",
            ["Name", "Mode", "Ack Pending", "Waiting", "Unprocessed", "Last Delivery"],
            [
                [
                    info.name,
                    "Push" if info.config.deliver_subject else "Pull",
                    output.count(info.num_ack_pending),
                    output.count(info.num_waiting),
                    output.count(info.num_pending),
                    output.when(info.delivered.last_active),
                ]
                for info in found
            ],
            numbers=[2, 3, 4],
            spare=[3, 2],
        )


async def _offline(js: JetStream, stream: str) -> dict[str, str]:
    """Return the consumers that the list of a stream names without an info, and why."""
    found: dict[str, str] = {}

    def items(page: ConsumerListReply) -> tuple[ConsumerInfo, ...]:
        found.update(page.offline)
        return page.consumers

    await js.api.list_all(
        ConsumerListReply,
        "CONSUMER.LIST",
        stream,
        request=lambda offset: ConsumerListRequest(offset=offset),
        items=items,
    )
    return found


def _print_offline(stream: str, found: dict[str, str], names_only: bool, as_json: bool) -> None:
    if names_only:
        output.print_names(sorted(found), as_json)
    elif as_json:
        output.print_json(found)
    elif not found:
        click.echo(f"No offline consumers on {stream}")
    else:
        output.print_table(
            f"Offline consumers of {stream}", ["Name", "Reason"], [list(row) for row in sorted(found.items())]
        )


def _tests(wanted: dict[str, Any]) -> list[Callable[[ConsumerInfo], bool]]:
    """Make one function for each option that was given."""
    wanted = {name: value for name, value in wanted.items() if value is not None}
    now_ns = time.time_ns()

    def idle(info: ConsumerInfo) -> bool:
        # A consumer that never delivered is idle since it was created.
        last = info.delivered.last_active or info.created
        return bool(now_ns - parse_time(info.created if last.startswith("0001-") else last) >= wanted["idle"])

    def pinned(info: ConsumerInfo) -> bool:
        clients = {group.group: group.pinned_client_id for group in info.priority_groups}
        return bool(info.config.priority_groups) and all(clients.get(name) for name in info.config.priority_groups)

    tests: dict[str, Callable[[ConsumerInfo], bool]] = {
        "pull": lambda info: not info.config.deliver_subject,
        "push": lambda info: bool(info.config.deliver_subject),
        "bound": lambda info: info.push_bound or info.num_waiting > 0,
        "waiting": lambda info: info.num_waiting <= wanted["waiting"],
        "ack_pending": lambda info: info.num_ack_pending <= wanted["ack_pending"],
        "pending": lambda info: info.num_pending <= wanted["pending"],
        "idle": idle,
        "created": lambda info: now_ns - parse_time(info.created) >= wanted["created"],
        "replicas": lambda info: info.config.num_replicas <= wanted["replicas"],
        "leader": lambda info: info.cluster is not None and info.cluster.leader == wanted["leader"],
        "pinned": pinned,
        "expression": _holds(wanted["expression"]) if "expression" in wanted else lambda info: True,
    }
    return [test for name, test in tests.items() if name in wanted]


def _holds(expression: str) -> Callable[[ConsumerInfo], bool]:
    holds = compile_expression(expression)

    def fits(info: ConsumerInfo) -> bool:
        fields = msgspec.to_builtins(info)
        return holds({"config": fields["config"], "state": fields, "info": fields})

    return fits


@click.command("graph", cls=SharedCommand, example="jetlake consumer graph ORDERS worker")
@stream_argument
@name_argument
@click.option("--count", type=click.IntRange(0), default=0, metavar="N", help="Stop after N samples.")
@json_option
@command
async def graph(session: Session, stream: str | None, name: str | None, count: int, as_json: bool) -> None:
    """Draw the backlog of consumer NAME and how many it delivers each second; with --json, a line each."""
    async with session.jetstream(stay=True) as js:
        stream = await chosen_stream(js, stream)
        name = await chosen_consumer(js, stream, name)
        handle = await js.stream(stream)
        info = await handle.consumer_info(name)
        charts = [
            Chart("Unprocessed Messages"),
            Chart("Outstanding Acks"),
            Chart("Messages Acknowledged / second"),
            Chart("Messages Delivered / second"),
        ]
        before: list[Any] = [time.monotonic(), info]

        async def sample() -> None:
            after: list[Any] = [time.monotonic(), await handle.consumer_info(str(name))]
            passed, old, new = max(after[0] - before[0], 1e-3), before[1], after[1]
            charts[0].values.append(new.num_pending)
            charts[1].values.append(new.num_ack_pending)
            charts[2].values.append(max(new.ack_floor.consumer_seq - old.ack_floor.consumer_seq, 0) / passed)
            charts[3].values.append(max(new.delivered.consumer_seq - old.delivered.consumer_seq, 0) / passed)
            before[:] = after

        await show_graphs(f"Consumer Statistics for {stream} > {name}", charts, sample, count=count, as_json=as_json)


@click.group("cluster", cls=SharedGroup)
def cluster() -> None:
    """Manage the leader of a consumer in a cluster."""


@cluster.command("step-down", example="jetlake consumer cluster step-down ORDERS worker")
@stream_argument
@name_argument
@click.option("--preferred", metavar="SERVER", help="Server that should lead next.")
@force_option
@json_option
@command
async def step_down(
    session: Session, stream: str | None, name: str | None, preferred: str | None, force: bool, as_json: bool
) -> None:
    """Let the cluster elect another leader for consumer NAME on STREAM."""
    async with await session.connect() as client:
        require_cluster(client)
        js = session.jetstream_of(client)
        stream = await chosen_stream(js, stream)
        name = await chosen_consumer(js, stream, name)
        handle = await js.stream(stream)
        before = (await handle.consumer_info(name)).cluster
        if not (before and before.leader) and not force:
            fail(f"consumer {stream} > {name} has no leader; use --force to try anyway")
        body = {"placement": {"preferred": preferred}} if preferred else {}
        subject = f"{js.api.prefix}.CONSUMER.LEADER.STEPDOWN.{stream}.{name}"
        await ask_cluster(client, subject, body, session.timeout_s)
        after = (await handle.consumer_info(name)).cluster
    old, new = before.leader if before else "", after.leader if after else ""
    output.tell(
        f"Leader {old or 'none'} of consumer {stream} > {name} stepped down; now {new or 'an election is in progress'}",
        {"stream": stream, "consumer": name, "before": old, "leader": new},
        as_json,
    )


@cluster.command("balance", example="jetlake consumer cluster balance ORDERS --force")
@stream_argument
@_conditions("pull", "push", "bound", "idle", "created")
@force_option
@json_option
@command
async def balance(session: Session, stream: str | None, force: bool, as_json: bool, **wanted: Any) -> None:
    """Spread the leaders of the consumers of STREAM, or of those that match, over the servers that hold them."""
    tests = _tests(wanted)
    async with await session.connect() as client:
        require_cluster(client)
        js = session.jetstream_of(client)
        stream = await chosen_stream(js, stream)
        infos = [info for info in await (await js.stream(stream)).consumers() if info.cluster and info.cluster.replicas]
        infos = [info for info in infos if all(fits(info) for fits in tests)]
        confirm(f"Balance the leaders of {output.plural(len(infos), 'consumer')}?", force)
        subjects = {info.name: f"{js.api.prefix}.CONSUMER.LEADER.STEPDOWN.{stream}.{info.name}" for info in infos}
        clusters = {info.name: info.cluster for info in infos if info.cluster is not None}
        moved = await spread_leaders(client, subjects, clusters, session.timeout_s)
    output.tell(f"Moved the leaders of {output.plural(len(moved), 'consumer')}", {"moved": moved}, as_json)
