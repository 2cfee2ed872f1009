"""The reports on accounts; none shows a secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetlake.model.encoding.times import format_time
from jetlake.model.subject_mapping import SubjectMapping
from jetlake.server.config.options import GLOBAL_ACCOUNT, Options
from jetlake.server.config.sharing import ExportOptions, ImportOptions
from jetlake.server.shell.connection.connection import Connection
from jetlake.server.shell.monitoring.connection_reports import routing_report
from jetlake.server.shell.monitoring.leaf_report import leaf_connections
from jetlake.server.shell.monitoring.query import BadQueryError, Query
from jetlake.server.shell.monitoring.server_report import report_head, sum_messages
from jetlake.server.shell.monitoring.server_view import ServerView

if TYPE_CHECKING:
    from jetlake.server.engine.routing.account import Account

__all__ = ["account_detail", "account_row", "account_statistics_report", "accounts_report"]

_NO_PEERS = {kind: {"msgs": 0, "bytes": 0} for kind in ("gateways", "routes", "leafs")}


def accounts_report(server: ServerView, query: Query) -> dict[str, Any]:
    """Report `/accountz`: the names of the accounts, or one account in detail."""
    report = {**report_head(server), "system_account": server.settings.options.system_account}
    name = query.text("acc")
    if not name:
        return {**report, "accounts": sorted(server.accounts)}
    account = server.accounts.get(name)
    if account is None:
        raise BadQueryError(f"Account {name} does not exist")
    return {**report, "account_detail": account_detail(server, account)}


def account_detail(server: ServerView, account: Account) -> dict[str, Any]:
    """Report one account."""
    engine = server.engine_loop.engine
    return {
        "account_name": account.name,
        "update_time": format_time(server.settings.loaded_ns),
        **({"is_system": True} if account.name == server.settings.options.system_account else {}),
        "expired": False,
        "complete": True,
        "jetstream_enabled": engine is not None and engine.is_enabled(account),
        "leafnode_connections": len(leaf_connections(server, account.name)),
        "client_connections": len(_connections_of(server, account)),
        "subscriptions": account.interest_count,
        "name_tag": account.label,
        **(server.operators.describe_account(account.name) if server.operators is not None else {}),
        **_sharing(server.settings.options, account.name),
        "sublist_stats": routing_report([account]),
    }


def account_statistics_report(server: ServerView, query: Query) -> dict[str, Any]:
    """Report `/accstatz`: messages and bytes per account that has connections, or of all with `unused`."""
    rows = [
        account_row(server, account)
        for account in server.accounts.values()
        if query.flag("unused") or _connections_of(server, account)
    ]
    return {**report_head(server), "account_statz": rows}


def account_row(server: ServerView, account: Account) -> dict[str, Any]:
    """Report the connections of one account and their messages, ended connections included."""
    connections = _connections_of(server, account)
    leaves = leaf_connections(server, account.name)
    closed = server.statistics.closed_by_account.get(account.name)
    totals = sum_messages([*connections, *([closed] if closed is not None else [])])
    return {
        "acc": account.name,
        "name": account.name,
        "conns": len(connections),
        "leafnodes": len(leaves),
        "total_conns": len(connections) + len(leaves),
        "num_subscriptions": account.interest_count,
        "sent": {"msgs": totals["out_msgs"], "bytes": totals["out_bytes"], **_NO_PEERS},
        "received": {"msgs": totals["in_msgs"], "bytes": totals["in_bytes"], **_NO_PEERS},
        "slow_consumers": 0,
    }


def _connections_of(server: ServerView, account: Account) -> list[Connection]:
    return [connection for connection in server.connections.values() if connection.session.account is account]


_RESPONSES = {"singleton": "Singleton", "stream": "Streamed", "chunked": "Chunked"}


def _sharing(options: Options, name: str) -> dict[str, Any]:
    """Report exports, imports and mappings of an account; what it has none of is left out."""
    account = next((account for account in options.accounts if account.name == name), None)
    mappings = options.mappings if name == GLOBAL_ACCOUNT else account.mappings if account is not None else ()
    report: dict[str, Any] = {
        "mappings": {
            mapping.source: [
                {"subject": destination.subject, "weight": destination.weight} for destination in mapping.destinations
            ]
            for mapping in mappings
        },
        "exports": [_export(entry) for entry in account.exports] if account is not None else [],
        "imports": [_import(entry) for entry in account.imports] if account is not None else [],
    }
    return {key: value for key, value in report.items() if value}


def _export(entry: ExportOptions) -> dict[str, Any]:
    report: dict[str, Any] = {"subject": entry.subject, "type": entry.kind}
    if entry.kind == "service":
        report["response_type"] = _RESPONSES[entry.response]
    if entry.accounts is not None:
        report["approved_accounts"] = list(entry.accounts)
    return report


def _import(entry: ImportOptions) -> dict[str, Any]:
    local = SubjectMapping(entry.subject, entry.to).local.decode()
    report: dict[str, Any] = {"subject": entry.subject, "account": entry.account}
    if entry.kind == "service":
        report["to"] = local
    return report | {
        "local_subject": local,
        "type": entry.kind,
        "invalid": False,
        "share": entry.share,
        "tracking": False,
    }
