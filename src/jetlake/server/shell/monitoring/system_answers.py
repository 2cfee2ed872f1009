"""The answers to `$SYS.REQ.…`: the reports of monitoring in the envelope of system replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.json import encode

from jetlake.model.encoding.durations import nanoseconds
from jetlake.model.encoding.times import format_time
from jetlake.server.config.options import Permissions
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.shell.connection.connection import Connection
from jetlake.server.shell.monitoring.jetstream_reports import health_report, jetstream_report
from jetlake.server.shell.monitoring.query import BadQueryError, Query
from jetlake.server.shell.monitoring.reports import (
    account_statistics_report,
    accounts_report,
    connections_report,
    message_totals,
    resident_bytes,
    server_report,
    subscriptions_report,
)
from jetlake.server.shell.monitoring.server_view import ServerView

__all__ = ["answer"]


def answer(server: ServerView, account: Account, name: str, body: bytes, origin: Subscriber | None) -> bytes:
    """Encode the answer to a request for this report; the body of the request is the query."""
    try:
        query = Query.from_json(body)
        if name == "IDZ":
            return encode(server.info.identify())
        if name == "STATSZ":
            return encode(_envelope(server, "statsz", _statistics(server)))
        if name == "USER":
            return encode(_envelope(server, "data", _user(account, origin)))
        if name == "OWN CONNZ":
            return encode(_envelope(server, "data", connections_report(server, query.narrowed(acc=account.name))))
        if name == "OWN STATZ":
            return encode(_envelope(server, "data", _own_statistics(server, account, query)))
        return encode(_envelope(server, "data", _REPORTS[name](server, query)))
    except BadQueryError as error:
        return encode(_envelope(server, "error", {"code": 400, "description": str(error)}))


def _health(server: ServerView, query: Query) -> dict[str, Any]:
    status, report = health_report(server, query)
    return {**report, "status_code": status}


_REPORTS: dict[str, Callable[[ServerView, Query], dict[str, Any]]] = {
    "VARZ": server_report,
    "CONNZ": connections_report,
    "JSZ": jetstream_report,
    "SUBSZ": subscriptions_report,
    "ACCOUNTZ": accounts_report,
    "HEALTHZ": _health,
}


def _envelope(server: ServerView, name: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"server": server.info.describe_sender(), name: content}


def _user(account: Account, origin: Subscriber | None) -> dict[str, Any]:
    identity = origin.session.identity if isinstance(origin, Connection) else None
    report: dict[str, Any] = {"user": identity.user if identity is not None else ""}
    report |= {"account": account.name, "account_name": account.name}
    if identity is not None and identity.permissions is not None:
        report["permissions"] = _permissions(identity.permissions)
    return report


def _permissions(permissions: Permissions) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for name, rules in (("publish", permissions.publish), ("subscribe", permissions.subscribe)):
        lists = {"allow": rules.allow, "deny": rules.deny} if rules is not None else {}
        report[name] = {key: subjects for key, subjects in lists.items() if subjects}
    if permissions.responses is not None:
        responses = permissions.responses
        report["responses"] = {"max": responses.max, "ttl": nanoseconds(responses.expires_s)}
    return report


def _own_statistics(server: ServerView, account: Account, query: Query) -> dict[str, Any]:
    report = account_statistics_report(server, query.narrowed(unused="1"))
    report["account_statz"] = [row for row in report["account_statz"] if row["acc"] == account.name]
    return report


def _statistics(server: ServerView) -> dict[str, Any]:
    totals = message_totals(server)
    return {
        "start": format_time(server.info.start_ns),
        "mem": resident_bytes(),
        "connections": len(server.connections),
        "total_connections": server.statistics.total_connections,
        "active_accounts": len({connection.session.account.name for connection in server.connections.values()}),
        "subscriptions": sum(account.interest_count for account in server.accounts.values()),
        "sent": {"msgs": totals["out_msgs"], "bytes": totals["out_bytes"]},
        "received": {"msgs": totals["in_msgs"], "bytes": totals["in_bytes"]},
        "slow_consumers": server.statistics.slow_consumers,
        "active_servers": 1,
    }
