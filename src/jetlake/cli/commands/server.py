"""`jetlake server …`, `account …`, `rtt` and `serve`: the server, its clients and storage; password hashes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median
from typing import Any

import click
import msgspec

from jetlake.cli import output
from jetlake.cli.commands.account import ACCOUNT_COMMANDS
from jetlake.cli.commands.consumer import print_report as print_consumers
from jetlake.cli.commands.local_server import run
from jetlake.cli.commands.server_check import check
from jetlake.cli.commands.server_reports import REPORT_COMMANDS, filter_of, server_filters
from jetlake.cli.commands.servers import SERVER_COMMANDS, compact_option, shown_names
from jetlake.cli.commands.stream import print_report as print_streams
from jetlake.cli.expressions import compile_expression
from jetlake.cli.session import EXIT_USAGE, Session, command, fail, json_option, pass_session
from jetlake.cli.shared_options import SharedCommand, SharedGroup
from jetlake.cli.system import ask_servers
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND

_PASSWORD_BYTES_MAX = 72
"""What bcrypt hashes; it leaves the rest out."""


@click.group(cls=SharedGroup)
def server() -> None:
    """Inspect the server, its clients and its storage."""


for _command in (check, run, *SERVER_COMMANDS):
    server.add_command(_command)


@server.command("info", example="jetlake server info")
@json_option
@command
async def show(session: Session, as_json: bool) -> None:
    """Show the server's version, address and settings."""
    async with await session.connect() as client:
        info, rtt_s = client.server_info, await client.rtt()
    if as_json:
        output.print_json(info)
        return
    output.print_facts(
        f"Server {info.server_name}",
        {
            "About": [
                ("Version", output.version(info.version, info.jetlake)),
                ("Id", info.server_id),
                ("Address", f"{info.host}:{info.port}"),
                ("JetStream", "on" if info.jetstream else "off"),
                ("Maximum Payload", output.size(info.max_payload)),
                ("Round Trip", f"{rtt_s * 1000:.2f} ms"),
            ]
        },
    )


@server.group("report", invoke_without_command=True, example="jetlake server report")
@json_option
@click.pass_context
def report(ctx: click.Context, /, **options: Any) -> None:
    """Show every stream and consumer of the account, the largest and furthest behind first; or a report below."""
    if ctx.invoked_subcommand is None:
        _report(**options)


@command
async def _report(session: Session, as_json: bool) -> None:
    async with session.jetstream() as js:
        streams = sorted(await js.streams(), key=lambda info: -info.state.bytes)
        consumers = [
            info
            for stream in streams
            if stream.state.consumer_count
            for info in await (await js.stream(stream.config.name)).consumers()
        ]
    if as_json:
        output.print_json({"streams": streams, "consumers": consumers})
        return
    print_streams(streams)
    if consumers:
        print_consumers(consumers)


_CONNECTION_SORTS = {
    **{name: name for name in ("cid", "subs", "pending", "idle", "uptime")},
    "in-msgs": "msgs_from",
    "out-msgs": "msgs_to",
    "in-bytes": "bytes_from",
    "out-bytes": "bytes_to",
    **{name: name for name in ("msgs_from", "msgs_to", "bytes_from", "bytes_to")},
}
"""What the report is sorted by, in the words of `nats` and of the server's own report."""


@report.command("connections", example="jetlake server report connections --user sys --password secret --sort bytes_to")
@click.option(
    "--sort",
    type=click.Choice(list(_CONNECTION_SORTS)),
    default="cid",
    show_default=True,
    help="Sort clients by this.",
)
@click.option(
    "--top", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="Maximum clients per server."
)
@click.option("--account", metavar="ACCOUNT", help="Only clients of this account.")
@click.option("--username", metavar="USER", help="Only clients of this user.")
@click.option("--subject", metavar="SUBJECT", help="Only clients with a subscription that matches.")
@click.option(
    "--state", type=click.Choice(["open", "closed", "all"]), default="open", help="Only clients in this state."
)
@click.option("--closed-reason", metavar="TEXT", help="Only closed clients whose reason contains this.")
@click.option(
    "--filter",
    "expression",
    metavar="EXPRESSION",
    help="Only clients for which this holds, such as: conns.subscriptions > 10",
)
@server_filters
@json_option
@command
async def connections(
    session: Session,
    sort: str,
    top: int,
    account: str | None,
    username: str | None,
    subject: str | None,
    state: str,
    closed_reason: str | None,
    expression: str | None,
    host: str | None,
    cluster: str | None,
    tags: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show the clients of all servers; for users of the system account.

    An expression compares fields of a client and of its server, as --json names them:
    'conns.lang == "python3" && conns.out_bytes > 1000000'.
    """
    holds = compile_expression(expression) if expression else None
    wanted = {
        **filter_of(host, cluster, tags),
        "sort": _CONNECTION_SORTS[sort],
        "limit": top,
        "auth": True,
        "acc": account,
        "user": username,
        "filter_subject": subject,
        "state": ["open", "closed", "all"].index("closed" if closed_reason else state),
    }
    answers = await ask_servers(session, "CONNZ", {key: value for key, value in wanted.items() if value})
    found = [
        (one["server"]["name"], each)
        for one in answers
        for each in one["data"].get("connections") or ()
        if not closed_reason or closed_reason.lower() in str(each.get("reason", "")).lower()
        if holds is None or holds({"conns": each, "server": one["server"]})
    ]
    if as_json:
        output.print_json([{"server": name, **each} for name, each in found])
        return
    total = sum(one["data"].get("num_connections", 0) for one in answers)
    output.print_table(
        f"{output.plural(len(found), 'connection')} of {total:,} on {output.plural(len(answers), 'server')}",
        [
            "Id",
            "Name",
            "Server",
            "Address",
            "Account",
            "Uptime",
            "Pending",
            "Msgs in",
            "Msgs out",
            "Bytes in",
            "Bytes out",
        ],
        [
            [
                each["cid"],
                each.get("name", ""),
                name,
                f"{each.get('ip', '')}:{each.get('port', '')}",
                each.get("account", ""),
                each.get("uptime", ""),
                output.size(each.get("pending_bytes", 0)),
                output.count(each.get("in_msgs", 0)),
                output.count(each.get("out_msgs", 0)),
                output.size(each.get("in_bytes", 0)),
                output.size(each.get("out_bytes", 0)),
            ]
            for name, each in found
        ],
        numbers=[0, 6, 7, 8, 9, 10],
        spare=[2, 3, 4, 5, 7, 8, 6],
    )


_JETSTREAM_SORTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "name": lambda one: one["server"]["name"],
    "cluster": lambda one: (one["server"].get("cluster", ""), one["server"]["name"]),
    "streams": lambda one: -one["data"].get("streams", 0),
    "consumers": lambda one: -one["data"].get("consumers", 0),
    "msgs": lambda one: -one["data"].get("messages", 0),
    "mbytes": lambda one: -one["data"].get("bytes", 0),
    "mem": lambda one: -one["data"].get("memory", 0),
    "file": lambda one: -one["data"].get("storage", 0),
    "api": lambda one: -one["data"].get("api", {}).get("total", 0),
    "err": lambda one: -one["data"].get("api", {}).get("errors", 0),
}


@report.command("jetstream", example="jetlake server report jetstream --sort file --user sys --password secret")
@click.option("--account", metavar="ACCOUNT", help="Only the streams of this account.")
@click.option(
    "--sort", type=click.Choice(list(_JETSTREAM_SORTS)), default="cluster", show_default=True, help="Sort by this."
)
@compact_option
@server_filters
@json_option
@command
async def jetstream(
    session: Session,
    account: str | None,
    sort: str,
    compact: bool,
    host: str | None,
    cluster: str | None,
    tags: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show the storage used and available on all servers; for users of the system account."""
    details = {"account": account, "streams": True} if account else {}
    wanted = {**filter_of(host, cluster, tags), **details}
    answers = sorted(await ask_servers(session, "JSZ", wanted), key=_JETSTREAM_SORTS[sort])
    if account:
        # A server reports itself beside the account that is asked for.
        answers = [{**one, "data": _of_account(one["data"], account)} for one in answers]
    if as_json:
        output.print_json([{"server": one["server"]["name"], **one["data"]} for one in answers])
        return
    output.print_table(
        f"JetStream on {output.plural(len(answers), 'server')}",
        ["Server", "Streams", "Consumers", "Messages", "Bytes", "On disk", "In memory", "API requests", "API errors"],
        [
            [
                name,
                output.count(one["data"].get("streams", 0)),
                output.count(one["data"].get("consumers", 0)),
                output.count(one["data"].get("messages", 0)),
                output.size(one["data"].get("bytes", 0)),
                _used(one["data"], "storage"),
                _used(one["data"], "memory"),
                output.count(one["data"].get("api", {}).get("total", 0)),
                output.count(one["data"].get("api", {}).get("errors", 0)),
            ]
            for name, one in zip(shown_names(answers, compact), answers, strict=True)
        ],
        numbers=[1, 2, 3, 4, 5, 6, 7, 8],
        spare=[8, 7, 2, 6, 4],
    )


for _command in REPORT_COMMANDS:
    report.add_command(_command)


def _of_account(data: dict[str, Any], account: str) -> dict[str, Any]:
    """Return the part of a server's report that is about one account."""
    accounts: list[dict[str, Any]] = data.get("account_details") or []
    found = next((one for one in accounts if account in (one.get("name"), one.get("id"))), {})
    streams = found.get("stream_detail") or ()
    states = [one.get("state") or {} for one in streams]
    return {
        **found,
        "config": data.get("config", {}),
        "streams": len(streams),
        "consumers": sum(state.get("consumer_count", 0) for state in states),
        "messages": sum(state.get("messages", 0) for state in states),
        "bytes": sum(state.get("bytes", 0) for state in states),
    }


def _used(data: dict[str, Any], kind: str) -> str:
    return f"{output.size(data.get(kind, 0))} of {output.size(data.get('config', {}).get(f'max_{kind}', -1))}"


@server.command("passwd", example="jetlake server passwd --generate")
@click.option("--cost", type=click.IntRange(4, 31), default=11, show_default=True, help="Cost of the bcrypt hash.")
@click.option("-g", "--generate", is_flag=True, help="Generate a password, and print it too.")
@click.option("-p", "--pass", "given", metavar="TEXT", help="The password; the shell's history and other users see it.")
@json_option
@pass_session
def passwd(_session: Session, cost: int, generate: bool, given: str | None, as_json: bool) -> None:
    """Hash a password for the server's configuration; asked for on a terminal, else read from standard input."""
    try:
        import bcrypt
    except ImportError:
        fail("bcrypt is not installed: pip install 'jetlake[server]'")
    password = given if given is not None else _password(generate)
    if not password or len(password.encode()) > _PASSWORD_BYTES_MAX:
        fail(f"a password must have 1 to {_PASSWORD_BYTES_MAX} bytes", EXIT_USAGE)
    hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost, b"2a")).decode()
    if as_json:
        output.print_json({"hash": hashed, **({"password": password} if generate else {})})
        return
    if generate:
        click.echo(f"Password: {password}\nHash: {hashed}")
    else:
        click.echo(hashed)


def _password(generate: bool) -> str:
    if generate:
        import secrets

        return secrets.token_urlsafe(24)
    if sys.stdin.isatty():
        typed: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return typed
    return sys.stdin.readline().rstrip("\r\n")


@click.group(cls=SharedGroup)
def account() -> None:
    """Show the account's JetStream usage, limits and connections; back up and restore all its streams."""


@account.command("info", example="jetlake account info")
@json_option
@command
async def account_info(session: Session, as_json: bool) -> None:
    """Show what the account uses of JetStream, and its limits."""
    async with await session.connect() as client:
        js = session.jetstream_of(client)
        info = await js.account_info()
        server_info, rtt_s = client.server_info, await client.rtt()
    if as_json:
        output.print_json(info)
        return
    limits = info.limits
    output.print_facts(
        "Account",
        {
            "Connection": [
                ("Server", f"{server_info.server_name}, {output.version(server_info.version, server_info.jetlake)}"),
                ("Address", session.target.shown),
                ("Round Trip", f"{rtt_s * 1000:.2f} ms"),
                ("Maximum Payload", output.size(server_info.max_payload)),
            ],
            "JetStream": [
                ("Domain", info.domain),
                ("Streams", f"{output.count(info.streams)} of {output.count(limits.max_streams)}"),
                ("Consumers", f"{output.count(info.consumers)} of {output.count(limits.max_consumers)}"),
                ("Memory", f"{output.size(info.memory)} of {output.size(limits.max_memory)}"),
                ("Storage", f"{output.size(info.storage)} of {output.size(limits.max_storage)}"),
                ("API Requests", f"{output.count(info.api.total)}, {output.plural(info.api.errors, 'error')}"),
            ],
        },
    )


for _command in ACCOUNT_COMMANDS:
    account.add_command(_command)


@click.command("rtt", cls=SharedCommand, example="jetlake rtt -s nats://one:4222,nats://two:4222 --count 20")
@click.argument("iterations", type=click.IntRange(1), required=False)
@click.option(
    "--count", type=click.IntRange(1), default=5, show_default=True, metavar="N", help="Number of PINGs to each server."
)
@json_option
@command
async def rtt(session: Session, iterations: int | None, count: int, as_json: bool) -> None:
    """Measure the round trip to each server of the target: the fastest, the median and the slowest PING.

    ITERATIONS is the same as --count.
    """
    count = iterations or count
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


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def serve(arguments: tuple[str, ...]) -> None:
    """Run the embedded JetStream server."""
    from jetlake.server.command import serve as run

    raise SystemExit(run(list(arguments)))
