"""`jetlake server report accounts`, `cpu`, `mem`, `health`, `routes`, `gateways` and `leafnodes`."""

from __future__ import annotations

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
@click.option("--top", type=click.IntRange(1), default=1000, show_default=True, metavar="N", help="Most accounts.")
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


def _links(name: str, report: str, title: str, rows_of: Any) -> click.Command:
    """Make the report of the connections between servers."""

    async def run(
        session: Session, host: str | None, cluster: str | None, tags: tuple[str, ...], as_json: bool
    ) -> None:
        answers = await ask_servers(session, report, filter_of(host, cluster, tags))
        rows = [[one["server"]["name"], *row] for one in answers for row in rows_of(one["data"])]
        if as_json:
            output.print_json([{"server": one["server"]["name"], **one["data"]} for one in answers])
        elif not rows:
            click.echo(f"No {name}")
        else:
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
    return click.command(name, cls=SharedCommand, example=example)(server_filters(json_option(wrapped)))


def _link(name: str, one: dict[str, Any]) -> list[str]:
    return [
        name,
        one.get("account", ""),
        f"{one.get('ip', '')}:{one.get('port', '')}",
        one.get("rtt", ""),
        output.count(one.get("subscriptions", 0)),
        output.size(one.get("in_bytes", 0)),
        output.size(one.get("out_bytes", 0)),
    ]


def _routes(data: dict[str, Any]) -> list[list[str]]:
    return [_link(one.get("remote_name", one.get("remote_id", "")), one) for one in data.get("routes") or ()]


def _leafs(data: dict[str, Any]) -> list[list[str]]:
    return [_link(one.get("name", ""), one) for one in data.get("leafs") or ()]


def _gateways(data: dict[str, Any]) -> list[list[str]]:
    outbound = data.get("outbound_gateways") or {}
    inbound = data.get("inbound_gateways") or {}
    return [_link(f"{name} (out)", one.get("connection") or {}) for name, one in outbound.items()] + [
        _link(f"{name} (in)", one.get("connection") or {}) for name, many in inbound.items() for one in many
    ]


REPORT_COMMANDS: tuple[click.Command, ...] = (
    accounts,
    _usage("cpu", "CPU Usage", "cpu"),
    _usage("mem", "Memory Usage", "mem"),
    health,
    _links("routes", "ROUTEZ", "Cluster Report", _routes),
    _links("gateways", "GATEWAYZ", "Super Cluster Report", _gateways),
    _links("leafnodes", "LEAFZ", "Leafnode Report", _leafs),
)
