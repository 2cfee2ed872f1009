"""`jetlake server ls`, `ping`, `request`, `watch`, `graph`, `account`, `config`, `cluster`: all servers at once.

They ask the system account. `mappings` sends no request.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from statistics import mean
from typing import TYPE_CHECKING, Any

import click
import msgspec

from jetlake.cli import output
from jetlake.cli.clusters import ask_cluster, require_cluster
from jetlake.cli.graphs import NEEDS_TERMINAL, Chart, plot, show_graphs
from jetlake.cli.session import EXIT_USAGE, Session, command, confirm, fail, force_option, json_option, raise_refused
from jetlake.cli.shared_options import SharedCommand, SharedGroup
from jetlake.cli.system import NEEDS_SYSTEM_ACCOUNT, ask_servers, collect
from jetlake.cli.values import WAIT
from jetlake.errors import JetlakeError, NoRespondersError
from jetlake.model.api import API_ROWS
from jetlake.model.encoding.times import parse_time

if TYPE_CHECKING:
    from jetlake.client import Message

Rows = list[dict[str, Any]]


def uptime_s(now: str, start: str) -> float:
    """Return how long a server runs."""
    return max(parse_time(now) - parse_time(start), 0) / 1e9


_SORTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "name": lambda one: one["server"]["name"],
    "cluster": lambda one: (one["server"].get("cluster", ""), one["server"]["name"]),
    "conns": lambda one: -one["statsz"]["connections"],
    "subs": lambda one: -one["statsz"]["subscriptions"],
    "routes": lambda one: -len(one["statsz"].get("routes") or ()),
    "gws": lambda one: -len(one["statsz"].get("gateways") or ()),
    "mem": lambda one: -one["statsz"]["mem"],
    "cpu": lambda one: -one["statsz"]["cpu"],
    "slow": lambda one: -one["statsz"]["slow_consumers"],
    "uptime": lambda one: one["statsz"]["start"],
    "rtt": lambda one: one["rtt_s"],
}


compact_option = click.option(
    "--compact/--no-compact",
    default=True,
    help="Shorten names by the domain that all servers share, like .example.net.",
)


def shown_names(answers: Rows, compact: bool) -> list[str]:
    """Return the names of servers, compact without the last words that they have in common."""
    names = [str(one["server"]["name"]) for one in answers]
    shared = 0
    if compact and len(names) > 1:
        words = [name.split(".") for name in names]
        while shared < min(map(len, words)) - 1 and len({one[-1 - shared] for one in words}) == 1:
            shared += 1
    return [".".join(name.split(".")[:-shared]) if shared else name for name in names]


@click.command("ls", cls=SharedCommand, example="jetlake server ls --sort conns --user sys --password secret")
@click.argument("expect", type=click.IntRange(0), default=0)
@click.option("--sort", type=click.Choice(list(_SORTS)), default="rtt", show_default=True, help="Sort by this.")
@click.option("-R", "--reverse", is_flag=True, help="Reverse the order.")
@compact_option
@json_option
@command
async def list_servers(session: Session, expect: int, sort: str, reverse: bool, compact: bool, as_json: bool) -> None:
    """List all servers with their load; stops waiting after EXPECT answers."""
    found = sorted(await _pinged(session, expect), key=_SORTS[sort], reverse=reverse)
    if as_json:
        output.print_json(found)
        return
    clusters = {one["server"]["cluster"] for one in found if one["server"].get("cluster")}
    output.print_table(
        f"Server Overview: {output.plural(len(found), 'server')}"
        + (f" in {output.plural(len(clusters), 'cluster')}" if clusters else ""),
        [*_COLUMNS, "RTT"],
        [[name, *_server_row(one)[1:]] for name, one in zip(shown_names(found, compact), found, strict=True)],
        numbers=[5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
        spare=[8, 11, 7, 2, 12, 1, 6, 3],
    )


_COLUMNS = (
    *("Name", "Cluster", "Host", "Version", "JS", "Conns", "Subs", "Routes", "GWs", "Mem", "CPU %", "Cores"),
    *("Slow", "Uptime"),
)


def _server_row(one: dict[str, Any]) -> list[str]:
    server, stats = one["server"], one["statsz"]
    return [
        server["name"],
        server.get("cluster", ""),
        server.get("host", ""),
        server.get("ver", ""),
        (server.get("domain") or "yes") if server.get("jetstream") else "no",
        output.count(stats["connections"]),
        output.count(stats["subscriptions"]),
        output.count(len(stats.get("routes") or ())),
        output.count(len(stats.get("gateways") or ())),
        output.size(stats["mem"]),
        f"{stats['cpu']:.0f}",
        output.count(stats["cores"]),
        output.count(stats["slow_consumers"]),
        output.age(uptime_s(server["time"], stats["start"])),
        f"{one['rtt_s'] * 1000:.1f}ms",
    ]


async def _pinged(session: Session, expect: int) -> Rows:
    """Ping all servers; each answer gets the time that it took."""
    found: Rows = []
    async with await session.connect() as client:
        began = time.perf_counter()
        asked = client.request_many(
            "$SYS.REQ.SERVER.PING", b"", timeout=session.timeout_s, stall=0.3, max_messages=expect or None
        )
        with suppress(NoRespondersError):
            async for answer in asked:
                found.append({**msgspec.json.decode(answer.data), "rtt_s": round(time.perf_counter() - began, 6)})
    if not found:
        raise JetlakeError(NEEDS_SYSTEM_ACCOUNT)
    return found


@click.command("ping", cls=SharedCommand, example="jetlake server ping --user sys --password secret")
@click.argument("expect", type=click.IntRange(0), default=0)
@click.option("--id", "show_id", is_flag=True, help="Show ids beside names.")
@click.option("--graph", "draws", is_flag=True, help="Also draw how long the answers took; needs a terminal.")
@json_option
@command
async def ping(session: Session, expect: int, show_id: bool, draws: bool, as_json: bool) -> None:
    """Ping all servers, and show how long each took; stops waiting after EXPECT answers."""
    if draws and not sys.stdout.isatty():
        fail(NEEDS_TERMINAL, EXIT_USAGE)
    found = await _pinged(session, expect)
    if as_json:
        output.print_json([{"server": one["server"], "rtt_s": one["rtt_s"]} for one in found])
        return
    for one in found:
        name = f"{one['server']['name']} {one['server']['id']}" if show_id else one["server"]["name"]
        click.echo(f"{output.printable(name):<40} rtt={one['rtt_s'] * 1000:.3f}ms")
    times_ms = [one["rtt_s"] * 1000 for one in found]
    click.echo(f"\n---- ping statistics ----\n{output.plural(len(found), 'response')}")
    click.echo(f"rtt min/avg/max = {min(times_ms):.2f}/{mean(times_ms):.2f}/{max(times_ms):.2f} ms")
    if draws:
        click.echo("\n" + "\n".join(plot(times_ms, "RTT in ms", width=max(len(times_ms), 10), height=10)))


# Requests, as the server answers them


@click.group("request", cls=SharedGroup)
def request() -> None:
    """Print what servers answer to requests for monitoring data, as JSON, one server a line."""


_FILTERS = (
    ("--name", "server_name", "Only servers whose name contains this."),
    ("--host", "host", "Only servers whose host contains this."),
    ("--cluster", "cluster", "Only servers whose cluster's name contains this."),
)


# The options are called apart from the shared ones, `user` among them; and a few fields have dashes.
_FIELDS = {"of_js_enabled": "js-enabled-only", "of_js_server_only": "js-server-only"}


def _request(name: str, report: str, text: str, *options: tuple[str, str, Any, str]) -> None:
    """Make a command that sends one request.

    Args:
        options: the option, the field of the request, its type (bool for a flag), and its help.
    """

    async def run(session: Session, wait: int, tags: tuple[str, ...], as_json: bool, **given: Any) -> None:
        no_empty = given.pop("of_filter_empty", False)
        renamed = {_FIELDS.get(name, name.removeprefix("of_")): value for name, value in given.items()}
        body = {field: value for field, value in renamed.items() if value not in (None, False, "")}
        if tags:
            body["tags"] = list(tags)
        if body.pop("all", False):
            body.update(accounts=True, streams=True, consumer=True, config=True)
        if "state" in body:
            body["state"] = ["open", "closed", "all"].index(body["state"])
        for answer in await ask_servers(session, report, body, expect=wait):
            if no_empty and not answer["data"].get("connections"):
                continue
            click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2 if as_json else -1))

    run.__doc__ = text
    wrapped: Any = command(run)
    wrapped.__doc__ = text
    for flag, field, kind, help_text in reversed(
        (*options, *((flag, field, str, told) for flag, field, told in _FILTERS))
    ):
        more: dict[str, Any] = {"is_flag": True} if kind is bool else {"type": kind, "metavar": None}
        wrapped = click.option(flag, f"of_{field}", help=help_text, **more)(wrapped)
    wrapped = click.option("--tags", multiple=True, metavar="TAG", help="Only servers with these tags.")(wrapped)
    wrapped = click.argument("wait", type=click.IntRange(0), default=0)(wrapped)
    request.command(name, example=f"jetlake server request {name} --user sys --password secret")(json_option(wrapped))


_LIMITS = (
    ("--limit", "limit", click.IntRange(1), "Maximum number of records."),
    ("--offset", "offset", click.IntRange(0), "Records to skip."),
)
_STATES = click.Choice(["open", "closed", "all"])
_request("variables", "VARZ", "Show runtime variables.")
_request(
    "connections",
    "CONNZ",
    "Show the clients.",
    *_LIMITS,
    ("--sort", "sort", str, "Sort by this, such as subs, bytes_to or uptime."),
    ("--subscriptions", "subscriptions", bool, "Also their subscriptions."),
    ("--filter-cid", "cid", click.IntRange(1), "Only the client with this id."),
    ("--filter-state", "state", _STATES, "Only clients in this state."),
    ("--filter-user", "user", str, "Only clients of this user."),
    ("--filter-account", "acc", str, "Only clients of this account."),
    ("--filter-subject", "filter_subject", str, "Only clients with a subscription that matches."),
    ("--filter-empty", "filter_empty", bool, "Leave out servers without such clients."),
)
_request(
    "subscriptions",
    "SUBSZ",
    "Show the subscriptions.",
    *_LIMITS,
    ("--detail", "subscriptions", bool, "Also each subscription."),
    ("--filter-account", "account", str, "Only subscriptions of this account."),
    ("--filter-subject", "test", str, "Only subscriptions that match this subject."),
)
_request(
    "routes",
    "ROUTEZ",
    "Show the routes of a cluster.",
    ("--subscriptions", "subscriptions", bool, "Also subscriptions."),
)
_request(
    "gateways",
    "GATEWAYZ",
    "Show the gateways of a super cluster.",
    ("--accounts", "accounts", bool, "Also accounts."),
    ("--filter-account", "account_name", str, "Of the accounts, only this one."),
)
_request(
    "leafnodes", "LEAFZ", "Show the leaf nodes.", ("--subscriptions", "subscriptions", bool, "Also subscriptions.")
)
_request("accounts", "ACCOUNTZ", "Show accounts.", ("--account", "account", str, "Details of this account."))
_request(
    "jetstream",
    "JSZ",
    "Show JetStream.",
    *_LIMITS,
    ("--account", "account", str, "Only this account."),
    ("--accounts", "accounts", bool, "Also accounts."),
    ("--streams", "streams", bool, "Also streams."),
    ("--consumer", "consumer", bool, "Also consumers."),
    ("--config", "config", bool, "Also configurations."),
    ("--leader", "leader_only", bool, "Only the leader of the cluster."),
    ("--all", "all", bool, "Accounts, streams, consumers and configurations."),
)
_request(
    "jetstream-health",
    "HEALTHZ",
    "Show the health of JetStream.",
    ("--js-enabled", "js_enabled", bool, "Only check whether JetStream is enabled."),
    ("--server-only", "js_server_only", bool, "Leave streams and consumers out."),
    ("--account", "account", str, "Only this account."),
    ("--stream", "stream", str, "Only this stream."),
    ("--consumer", "consumer", str, "Only this consumer."),
    ("--details", "details", bool, "Also every failure."),
)
_request(
    "profile",
    "PROFILEZ",
    "Show a profile of a nats-server; jetlake has none.",
    ("--kind", "name", str, "heap, …"),
    ("--debug", "debug", click.IntRange(0), "Level of detail; 1 is text instead of a binary profile."),
)


@request.command("kick", example="jetlake server request kick 12 SERVER_ID --user sys --password secret --force")
@click.argument("client", type=click.IntRange(1))
@click.argument("server_id")
@force_option
@json_option
@command
async def kick(session: Session, client: int, server_id: str, force: bool, as_json: bool) -> None:
    """Disconnect CLIENT, by its id, from the server with SERVER_ID."""
    confirm(f"Disconnect client {client} from server {server_id}?", force)
    reply = await _command_of(session, server_id, "KICK", {"cid": client})
    output.tell(f"Disconnected client {client}", reply, as_json)


async def _command_of(session: Session, server_id: str, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send a command to one server; its reply."""
    async with await session.connect() as connected:
        subject = f"$SYS.REQ.SERVER.{server_id}.{verb}"
        answer = await connected.request(subject, msgspec.json.encode(body), timeout=session.timeout_s)
    reply: dict[str, Any] = msgspec.json.decode(answer.data)
    if "error" in reply:
        raise JetlakeError(f"server {server_id}: {reply['error'].get('description')}")
    return reply


# Configuration, accounts, cluster


@click.group("config", cls=SharedGroup)
def config() -> None:
    """Manage a server's configuration."""


@config.command("reload", example="jetlake server config reload SERVER_ID --user sys --password secret --force")
@click.argument("server_id")
@force_option
@json_option
@command
async def reload(session: Session, server_id: str, force: bool, as_json: bool) -> None:
    """Let the server with SERVER_ID, or this name, read its configuration file again."""
    found = [
        one["server"] for one in await _pinged(session, 0) if server_id in (one["server"]["id"], one["server"]["name"])
    ]
    if len(found) != 1:
        which = (
            f"{len(found)} servers are called {server_id}; use an id"
            if found
            else f"no server has the id or name {server_id}"
        )
        fail(f"{which}. List ids: jetlake server ping --id")
    confirm(f"Reload the configuration of server {found[0]['name']}?", force)
    reply = await _command_of(session, found[0]["id"], "RELOAD", {})
    output.tell(f"Reloaded the configuration of server {found[0]['name']}", reply, as_json)


@click.group("account", cls=SharedGroup)
def account() -> None:
    """Show accounts of the server, and remove what they hold."""


@account.command("info", example="jetlake server account info A --user sys --password secret")
@click.argument("name")
@click.option("--host", metavar="NAME", help="Ask only servers whose name contains this.")
@json_option
@command
async def account_info(session: Session, name: str, host: str | None, as_json: bool) -> None:
    """Show account NAME as servers know it."""
    request_body = {"account": name, **({"server_name": host} if host else {})}
    answer = (await ask_servers(session, "ACCOUNTZ", request_body, expect=1))[0]
    found = answer["data"].get("account_detail")
    if not found:
        fail(f"account {name} not found. List accounts: jetlake server request accounts")
    if as_json:
        output.print_json(found)
        return
    output.print_facts(
        f"Account information for account {name}",
        {
            "Details": [
                ("Complete", output.yes_no(bool(found.get("complete")))),
                ("Expired", output.yes_no(bool(found.get("expired")))),
                ("System Account", output.yes_no(bool(found.get("is_system")))),
                ("Updated", output.when(found.get("update_time"))),
                ("JetStream", output.yes_no(bool(found.get("jetstream_enabled")))),
                ("Leafnodes", found.get("leafnode_connections", 0)),
                ("Client Connections", found.get("client_connections", 0)),
                ("Subscriptions", found.get("subscriptions", 0)),
            ],
            "Exports": [(one.get("subject", ""), one.get("type", "")) for one in found.get("exports") or ()],
            "Imports": [(one.get("subject", ""), one.get("account", "")) for one in found.get("imports") or ()],
        },
    )


@account.command("purge", example="jetlake server account purge A --user sys --password secret --force")
@click.argument("name")
@force_option
@json_option
@command
async def account_purge(session: Session, name: str, force: bool, as_json: bool) -> None:
    """Delete all streams and consumers of account NAME. This can't be undone."""
    confirm(f"Permanently delete everything in account {name}?", force)
    async with await session.connect() as client:
        answer = await client.request(f"$JS.API.ACCOUNT.PURGE.{name}", b"", timeout=session.timeout_s)
    reply = msgspec.json.decode(answer.data)
    if "error" in reply:
        raise JetlakeError(f"account {name}: {reply['error'].get('description')}")
    output.tell(f"Purged account {name}", reply, as_json)


@click.group("cluster", cls=SharedGroup)
def cluster() -> None:
    """Manage the servers of a JetStream cluster."""


@cluster.command("step-down", example="jetlake server cluster step-down --user sys --password secret")
@click.option("--cluster", "name", metavar="CLUSTER", help="Cluster in which the next leader should be.")
@click.option("--tags", multiple=True, metavar="TAG", help="Tags that the next leader should have.")
@click.option("--host", "preferred", metavar="SERVER", help="Server that should lead next.")
@force_option
@json_option
@command
async def meta_step_down(
    session: Session, name: str | None, tags: tuple[str, ...], preferred: str | None, force: bool, as_json: bool
) -> None:
    """Let the cluster elect another leader of JetStream."""
    async with await session.connect() as client:
        require_cluster(client)
        confirm("Elect another leader of JetStream?", force)
        wanted = {"cluster": name, "tags": list(tags) or None, "preferred": preferred}
        placement = {key: value for key, value in wanted.items() if value}
        body = {"placement": placement} if placement else {}
        reply = await ask_cluster(client, "$JS.API.META.LEADER.STEPDOWN", body, session.timeout_s)
    output.tell("The leader of JetStream stepped down", reply, as_json)


@cluster.command("peer-remove", example="jetlake server cluster peer-remove s3 --user sys --password secret --force")
@click.argument("peer")
@force_option
@json_option
@command
async def meta_peer_remove(session: Session, peer: str, force: bool, as_json: bool) -> None:
    """Remove server PEER, which is gone for good, from the JetStream cluster."""
    async with await session.connect() as client:
        require_cluster(client)
        confirm(f"Permanently remove server {peer} from the cluster?", force)
        reply = await ask_cluster(client, "$JS.API.SERVER.REMOVE", {"peer": peer}, session.timeout_s)
    output.tell(f"Removed server {peer} from the cluster", reply, as_json)


# Mappings


@click.command(
    "mappings", cls=SharedCommand, example="jetlake server mappings 'orders.*' 'eu.{{wildcard(1)}}' orders.new"
)
@click.argument("source")
@click.argument("destination")
@click.argument("subject", required=False)
@json_option
def mappings(source: str, destination: str, subject: str | None, as_json: bool) -> None:
    """Show what a mapping or transform of SOURCE to DESTINATION makes of SUBJECT; without one, of typed subjects."""
    from jetlake.errors import ConfigError
    from jetlake.model.transforms import compile_transform
    from jetlake.protocol.subjects import matches

    try:
        transform = compile_transform(source, destination)
    except ConfigError as error:
        fail(str(error), EXIT_USAGE)

    def shown(one: str) -> str | None:
        mapped = transform.apply(one.encode()) if matches(source.encode(), one.encode()) else None
        return None if mapped is None else mapped.decode()

    if subject is not None:
        result = shown(subject)
        if result is None:
            fail(f"subject {subject!r} does not match {source!r}")
        output.tell(result, {"subject": subject, "mapped": result}, as_json)
        return
    for line in sys.stdin:
        click.echo(shown(line.strip()) or f"{line.strip()!r} does not match {source!r}")


# Live views


@click.group("watch", cls=SharedGroup)
def watch() -> None:
    """Watch accounts, servers and JetStream, redrawn at an interval."""


_interval = click.option("--interval", type=WAIT, default="1s", show_default=True, help="Time between two views.")
_rows = click.option("-n", "--number", type=click.IntRange(1), default=10, show_default=True, metavar="N", help="Rows.")
_count = click.option("--count", type=click.IntRange(0), default=0, metavar="N", help="Stop after N views.")


async def _watch(
    session: Session,
    report: str,
    body: dict[str, Any],
    show: Callable[[Rows], None],
    interval_s: float,
    count: int,
    as_json: bool,
) -> None:
    """Ask at an interval, and show the answers."""
    async with await session.connect(stay=True) as client:
        drawn = 0
        while True:
            answers = await collect(client, session.timeout_s, report, body)
            if as_json:
                click.echo(msgspec.json.encode(answers))
            else:
                if sys.stdout.isatty():
                    click.clear()
                show(answers)
            drawn += 1
            if drawn == count:
                return
            await asyncio.sleep(interval_s)


@watch.command("servers", example="jetlake server watch servers --sort mem --user sys --password secret")
@click.option("--sort", type=click.Choice(["conns", "subs", "mem", "cpu", "slow"]), default="conns", show_default=True)
@_rows
@_interval
@_count
@json_option
@command
async def watch_servers(session: Session, sort: str, number: int, interval: float, count: int, as_json: bool) -> None:
    """Watch the load of all servers."""

    def show(answers: Rows) -> None:
        rows = [_server_row({**one, "rtt_s": 0.0})[:-1] for one in sorted(answers, key=_SORTS[sort])[:number]]
        output.print_table(
            f"Servers by {sort}",
            _COLUMNS,
            rows,
            numbers=[5, 6, 7, 8, 9, 10, 11, 12, 13],
            spare=[8, 11, 7, 2, 12, 1, 6, 3],
        )

    await _watch(session, "", {}, show, interval, count, as_json)


@watch.command("jetstream", example="jetlake server watch jetstream --user sys --password secret")
@click.option("--sort", type=click.Choice(["mem", "file", "assets", "api", "err"]), default="assets", show_default=True)
@_rows
@_interval
@_count
@json_option
@command
async def watch_jetstream(session: Session, sort: str, number: int, interval: float, count: int, as_json: bool) -> None:
    """Watch the JetStream of all servers."""

    def stats(one: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = (one["statsz"].get("jetstream") or {}).get("stats") or {}
        return found

    keys: dict[str, Callable[[dict[str, Any]], int]] = {
        "mem": lambda one: stats(one).get("memory", 0),
        "file": lambda one: stats(one).get("storage", 0),
        "assets": lambda one: stats(one).get("ha_assets", 0),
        "api": lambda one: stats(one).get("api", {}).get("total", 0),
        "err": lambda one: stats(one).get("api", {}).get("errors", 0),
    }

    def show(answers: Rows) -> None:
        output.print_table(
            f"JetStream by {sort}",
            ["Server", "HA Assets", "Memory", "File", "API Requests", "API Errors"],
            [
                [
                    one["server"]["name"],
                    output.count(keys["assets"](one)),
                    output.size(keys["mem"](one)),
                    output.size(keys["file"](one)),
                    output.count(keys["api"](one)),
                    output.count(keys["err"](one)),
                ]
                for one in sorted(answers, key=keys[sort], reverse=True)[:number]
            ],
            numbers=[1, 2, 3, 4, 5],
        )

    await _watch(session, "", {}, show, interval, count, as_json)


@watch.command("accounts", example="jetlake server watch accounts --sort conns --user sys --password secret")
@click.option(
    "--sort",
    type=click.Choice(["conns", "subs", "in-msgs", "out-msgs", "in-bytes", "out-bytes"]),
    default="conns",
    show_default=True,
)
@_rows
@_interval
@_count
@json_option
@command
async def watch_accounts(session: Session, sort: str, number: int, interval: float, count: int, as_json: bool) -> None:
    """Watch the connections and messages of each account."""
    body = {"auth": True, "limit": 65_536}
    await _watch(
        session, "CONNZ", body, lambda answers: print_accounts(answers, sort, number), interval, count, as_json
    )


ACCOUNT_SORTS = {
    "conns": "connections",
    "subs": "subscriptions",
    "in-msgs": "in_msgs",
    "out-msgs": "out_msgs",
    "in-bytes": "in_bytes",
    "out-bytes": "out_bytes",
}


def account_totals(answers: Rows) -> dict[str, dict[str, int]]:
    """Add up the connections of each account on all servers."""
    totals: dict[str, dict[str, int]] = {}
    for one in answers:
        for each in one["data"].get("connections") or ():
            row = totals.setdefault(each.get("account") or "$G", dict.fromkeys(ACCOUNT_SORTS.values(), 0))
            row["connections"] += 1
            for field in ("subscriptions", "in_msgs", "out_msgs", "in_bytes", "out_bytes"):
                row[field] += each.get(field, 0)
    return totals


def print_accounts(answers: Rows, sort: str, number: int) -> None:
    """Print a table of accounts."""
    totals = sorted(account_totals(answers).items(), key=lambda pair: -pair[1][ACCOUNT_SORTS[sort]])
    output.print_table(
        f"{output.plural(len(totals), 'Account')} Overview",
        ["Account", "Connections", "In Msgs", "Out Msgs", "In Bytes", "Out Bytes", "Subs"],
        [
            [
                name,
                output.count(row["connections"]),
                output.count(row["in_msgs"]),
                output.count(row["out_msgs"]),
                output.size(row["in_bytes"]),
                output.size(row["out_bytes"]),
                output.count(row["subscriptions"]),
            ]
            for name, row in totals[:number]
        ],
        numbers=[1, 2, 3, 4, 5, 6],
    )


@watch.command("api", example="jetlake server watch api")
@_rows
@_interval
@_count
@json_option
@command
async def watch_api(session: Session, number: int, interval: float, count: int, as_json: bool) -> None:
    """Watch who uses the JetStream API of this account, and for what: the requests since the start."""
    requests: Counter[tuple[str, str]] = Counter()
    errors: Counter[tuple[str, str]] = Counter()

    def seen(message: Message) -> None:
        with suppress(msgspec.DecodeError):
            audited = msgspec.json.decode(message.data, type=_Audited)
            # By kind of request: names of streams and consumers would make a row each.
            words = audited.subject.removeprefix("$JS.API.").split(".")
            kind = " ".join(itertools.takewhile(_API_WORDS.__contains__, words[:3])) or audited.subject
            user = audited.client.get("user") or audited.client.get("name") or audited.client.get("kind") or "unknown"
            key = str(user), kind
            if key in requests or len(requests) < _AUDITED_MAX:
                requests[key] += 1
                errors[key] += '"error"' in audited.response

    async with await session.connect(stay=True) as client:
        await client.subscribe("$JS.EVENT.ADVISORY.API", callback=seen)
        await client.flush()
        raise_refused(client)
        click.echo("Watching requests of the API; press Ctrl-C to stop", err=True)
        for drawn in itertools.count(1):
            await asyncio.sleep(interval)
            rows = [(*key, asked, errors[key]) for key, asked in requests.most_common(number)]
            if as_json:
                fields = ("user", "request", "requests", "errors")
                click.echo(msgspec.json.encode([dict(zip(fields, row, strict=True)) for row in rows]))
            else:
                if sys.stdout.isatty():
                    click.clear()
                shown = [[user, kind, output.count(asked), output.count(bad)] for user, kind, asked, bad in rows]
                output.print_table("API requests", ["User", "Request", "Requests", "Errors"], shown, numbers=[2, 3])
            if drawn == count:
                return


_API_WORDS = frozenset(word for route in API_ROWS for word in route.verb.split("."))
"""The words of the API's subjects that are not names."""
_AUDITED_MAX = 10_000
"""How many pairs of users and requests are counted."""


class _Audited(msgspec.Struct):
    """The part of an audit of the API that is counted."""

    subject: str
    response: str = ""
    client: dict[str, Any] = {}


@click.command("graph", cls=SharedCommand, example="jetlake server graph s1 --user sys --password secret")
@click.argument("name", metavar="[SERVER]", required=False)
@click.option("--jetstream", "of_jetstream", is_flag=True, help="Draw JetStream's storage and requests.")
@_count
@json_option
@command
async def graph(session: Session, name: str | None, of_jetstream: bool, count: int, as_json: bool) -> None:
    """Draw the load of SERVER, by its id or name; without it, of the first that answers."""
    captions = (
        ("Storage in MiB", "Memory in MiB", "API Requests / second")
        if of_jetstream
        else ("CPU %", "Memory in MiB", "Connections", "Messages In / second", "Messages Out / second")
    )
    charts = [Chart(caption) for caption in captions]
    last: dict[str, float] = {}

    async with await session.connect(stay=True) as client:

        async def sample() -> None:
            answers = await collect(client, session.timeout_s, "", {}, expect=0 if name else 1)
            found = [one for one in answers if name in (None, one["server"]["id"], one["server"]["name"])]
            if not found:
                raise JetlakeError(f"server {name} does not answer. List servers: jetlake server ls")
            stats, now = found[0]["statsz"], time.monotonic()
            if of_jetstream:
                own = (stats.get("jetstream") or {}).get("stats") or {}
                values = [own.get("storage", 0) / 1024**2, own.get("memory", 0) / 1024**2]
                counters = {"api": own.get("api", {}).get("total", 0)}
            else:
                values = [stats["cpu"], stats["mem"] / 1024**2, stats["connections"]]
                counters = {"in": stats["received"]["msgs"], "out": stats["sent"]["msgs"]}
            passed = max(now - last.get("at", now), 1e-3)
            rates = [max(value - last.get(key, value), 0) / passed for key, value in counters.items()]
            last.update(counters, at=now)
            for chart, value in zip(charts, (*values, *rates), strict=True):
                chart.values.append(value)

        await show_graphs(
            f"Server Statistics for {name or 'the first server'}", charts, sample, count=count, as_json=as_json
        )


SERVER_COMMANDS: tuple[click.Command, ...] = (
    list_servers,
    ping,
    request,
    config,
    account,
    cluster,
    mappings,
    watch,
    graph,
)
