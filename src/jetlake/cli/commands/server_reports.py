"""`jetlake server report accounts`, `cpu`, `mem`, `health`, `routes`, `gateways` and `leafnodes`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from jetlake.cli import output
from jetlake.cli.commands.servers import ACCOUNT_SORTS, account_totals, print_accounts
from jetlake.cli.session import EXIT_FAILED, Session, command, json_option
from jetlake.cli.shared_options import SharedCommand
from jetlake.cli.system import ask_servers

_BAR_COLUMNS = 30


def server_filters(function: Any) -> Any:
    """Add the options that choose servers."""
    for option in (
        click.option("--tags", multiple=True, metavar="TAG", help="Only servers with these tags."),
        click.option("--cluster", metavar="CLUSTER", help="Only servers of this cluster."),
        click.option("--host", metavar="NAME", help="Only servers whose name contains this."),
    ):
        function = option(function)
    return function


def filter_of(host: str | None, cluster: str | None, tags: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a request that choose servers."""
    wanted = {"server_name": host, "cluster": cluster, "tags": list(tags)}
    return {key: value for key, value in wanted.items() if value}


@click.command("accounts", cls=SharedCommand, example="jetlake server report accounts --user sys --password secret")
@click.argument("account", required=False)
@server_filters
@click.option("--sort", type=click.Choice(list(ACCOUNT_SORTS)), default="subs", show_default=True, help="Sort by this.")
@click.option(
    "--top", type=click.IntRange(1), default=1000, show_default=True, metavar="N", help="Maximum number of accounts."
)
@json_option
@command
async def accounts(
    session: Session,
    account: str | None,
    host: str | None,
    cluster: str | None,
    tags: tuple[str, ...],
    sort: str,
    top: int,
    as_json: bool,
) -> None:
    """Show the connections and messages of each account, or of ACCOUNT; for users of the system account."""
    body = {"auth": True, "limit": 65_536, **filter_of(host, cluster, tags), **({"acc": account} if account else {})}
    answers = await ask_servers(session, "CONNZ", body)
    if as_json:
        output.print_json(account_totals(answers))
    else:
        print_accounts(answers, sort, top)


def _usage(name: str, title: str, field: str) -> click.Command:
    """Make the report of one measure of all servers, as bars."""

    async def run(
        session: Session, host: str | None, cluster: str | None, tags: tuple[str, ...], as_json: bool
    ) -> None:
        answers = await ask_servers(session, "", filter_of(host, cluster, tags))
        found = sorted(((one["server"]["name"], one["statsz"][field]) for one in answers), key=lambda pair: -pair[1])
        if as_json:
            output.print_json(dict(found))
            return
        top = max((value for _, value in found), default=0) or 1
        click.echo(f"{title}\n")
        width = max(len(name) for name, _ in found)
        for name, value in found:
            shown = output.size(value) if field == "mem" else f"{value:.1f}%"
            click.echo(f"{output.printable(name):>{width}}: {'█' * round(value / top * _BAR_COLUMNS)} {shown}")

    text = f"Show the {title.lower()} of all servers; for users of the system account."
    run.__doc__ = text
    wrapped: Any = command(run)
    wrapped.__doc__ = text
    example = f"jetlake server report {name} --user sys --password secret"
    return click.command(name, cls=SharedCommand, example=example)(server_filters(json_option(wrapped)))


@click.command("health", cls=SharedCommand, example="jetlake server report health --user sys --password secret")
@click.option("-J", "--js-enabled", "js_enabled", is_flag=True, help="Also fail where JetStream is off.")
@click.option("-S", "--server-only", is_flag=True, help="Leave streams and consumers out.")
@click.option("--account", metavar="ACCOUNT", help="Only this account.")
@click.option("--stream", metavar="STREAM", help="Only this stream.")
@click.option("--consumer", metavar="CONSUMER", help="Only this consumer.")
@server_filters
@json_option
@command
async def health(
    session: Session,
    js_enabled: bool,
    server_only: bool,
    account: str | None,
    stream: str | None,
    consumer: str | None,
    host: str | None,
    cluster: str | None,
    tags: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show the health of all servers; exits with 1 when one is not well; for users of the system account."""
    wanted = {
        "js-enabled-only": js_enabled,
        "js-server-only": server_only,
        "account": account,
        "stream": stream,
        "consumer": consumer,
        "details": True,
        **filter_of(host, cluster, tags),
    }
    answers = await ask_servers(session, "HEALTHZ", {key: value for key, value in wanted.items() if value})
    if as_json:
        output.print_json([{"server": one["server"]["name"], **one["data"]} for one in answers])
    else:
        rows: list[list[Any]] = []
        for one in sorted(answers, key=lambda one: str(one["server"]["name"])):
            server, data = one["server"], one["data"]
            status = f"{data.get('status')} ({data.get('status_code', 200)})"
            rows.append(
                [server["name"], server.get("cluster", ""), server.get("domain", ""), status, "", data.get("error", "")]
            )
            rows += [
                ["", "", "", "", fault.get("type", ""), fault.get("error", "")] for fault in data.get("errors") or ()
            ]
        output.print_table("Health Report", ["Server", "Cluster", "Domain", "Status", "Type", "Error"], rows)
    if any(one["data"].get("status") != "ok" for one in answers):
        raise SystemExit(EXIT_FAILED)


_name_filter = click.option("--filter-name", "wanted", metavar="NAME", help="Only gateways whose name contains this.")
_account_filter = click.option("--account", "wanted", metavar="ACCOUNT", help="Only leaf nodes of this account.")


def _links(name: str, report: str, title: str, links_of: Any, *more: Any) -> click.Command:
    """Make the report of the connections between servers.

    Args:
        links_of: takes the name and the facts of each connection out of an answer.
        more: an option that chooses connections.
    """

    async def run(
        session: Session,
        host: str | None,
        cluster: str | None,
        tags: tuple[str, ...],
        sort: str,
        as_json: bool,
        wanted: str | None = None,
    ) -> None:
        answers = await ask_servers(session, report, filter_of(host, cluster, tags))
        found = sorted(
            ((one["server"]["name"], *link) for one in answers for link in links_of(one["data"])),
            key=_SORT_KEYS[sort],
        )
        if wanted:
            found = [link for link in found if _is_wanted(report, wanted, *link)]
        if as_json:
            output.print_json([{**facts, "server": server, "name": link} for server, link, facts in found])
        elif not found:
            click.echo(f"No {name}")
        else:
            rows = [[server, *_cells(link, facts)] for server, link, facts in found]
            output.print_table(
                title,
                ["Server", "Name", "Account", "Address", "RTT", "Subs", "Bytes In", "Bytes Out"],
                rows,
                numbers=[4, 5, 6, 7],
                spare=[3, 4],
            )

    text = f"Show the {name} of all servers; for users of the system account."
    run.__doc__ = text
    wrapped: Any = command(run)
    wrapped.__doc__ = text
    example = f"jetlake server report {name} --user sys --password secret"
    sort_option = click.option(
        "--sort", type=click.Choice(list(_SORT_KEYS)), default="server", show_default=True, help="Sort by this."
    )
    for option in (json_option, sort_option, *more, server_filters):
        wrapped = option(wrapped)
    return click.command(name, cls=SharedCommand, example=example)(wrapped)


_SORT_KEYS: dict[str, Callable[[tuple[str, str, dict[str, Any]]], Any]] = {
    "server": lambda link: link[:2],
    "name": lambda link: (link[1], link[0]),
    "account": lambda link: str(link[2].get("account", "")),
    "subs": lambda link: -link[2].get("subscriptions", 0),
    "in-bytes": lambda link: -link[2].get("in_bytes", 0),
    "out-bytes": lambda link: -link[2].get("out_bytes", 0),
}


def _is_wanted(report: str, wanted: str, _server: str, name: str, facts: dict[str, Any]) -> bool:
    return facts.get("account") == wanted if report == "LEAFZ" else wanted in name


def _cells(name: str, one: dict[str, Any]) -> list[str]:
    return [
        name,
        one.get("account", ""),
        f"{one.get('ip', '')}:{one.get('port', '')}",
        one.get("rtt", ""),
        output.count(one.get("subscriptions", 0)),
        output.size(one.get("in_bytes", 0)),
        output.size(one.get("out_bytes", 0)),
    ]


Links = list[tuple[str, dict[str, Any]]]


def _routes(data: dict[str, Any]) -> Links:
    return [(one.get("remote_name", one.get("remote_id", "")), one) for one in data.get("routes") or ()]


def _leafs(data: dict[str, Any]) -> Links:
    return [(one.get("name", ""), one) for one in data.get("leafs") or ()]


def _gateways(data: dict[str, Any]) -> Links:
    outbound = data.get("outbound_gateways") or {}
    inbound = data.get("inbound_gateways") or {}
    return [(f"{name} (out)", one.get("connection") or {}) for name, one in outbound.items()] + [
        (f"{name} (in)", one.get("connection") or {}) for name, many in inbound.items() for one in many
    ]


REPORT_COMMANDS: tuple[click.Command, ...] = (
    accounts,
    _usage("cpu", "CPU Usage", "cpu"),
    _usage("mem", "Memory Usage", "mem"),
    health,
    _links("routes", "ROUTEZ", "Cluster Report", _routes),
    _links("gateways", "GATEWAYZ", "Super Cluster Report", _gateways, _name_filter),
    _links("leafnodes", "LEAFZ", "Leafnode Report", _leafs, _account_filter),
)
