"""The answers to `$SYS.REQ.…`: the reports of monitoring in the envelope of system replies."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from typing import Any

from msgspec import DecodeError
from msgspec.json import decode, encode

from jetlake import platform
from jetlake.model.encoding.durations import nanoseconds
from jetlake.model.encoding.times import format_time
from jetlake.protocol.nuid import next_nuid
from jetlake.server.config.options import Permissions
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.shell.connection.connection import Connection
from jetlake.server.shell.monitoring.account_reports import (
    account_detail,
    account_row,
    account_statistics_report,
    accounts_report,
)
from jetlake.server.shell.monitoring.connection_reports import connections_report, subscriptions_report
from jetlake.server.shell.monitoring.jetstream_reports import (
    account_report,
    health_report,
    jetstream_report,
    jetstream_settings,
    jetstream_usage,
)
from jetlake.server.shell.monitoring.leaf_report import leafs_report
from jetlake.server.shell.monitoring.query import BadQueryError, Query
from jetlake.server.shell.monitoring.server_report import (
    cpu_percent,
    gateways_report,
    message_totals,
    routes_report,
    server_report,
)
from jetlake.server.shell.monitoring.server_view import ServerView
from jetlake.store.steps import Steps

__all__ = ["ACCOUNT_REPORTS", "SERVER_REPORTS", "account_answer", "server_answer", "statistics", "user_answer"]

_Report = dict[str, Any]


class _UnknownAccountError(LookupError):
    """There is no such account, or it has no JetStream; the text is for the client."""


# About the server


def _health(server: ServerView, query: Query) -> Steps[_Report]:
    status, report = yield from health_report(server, query)
    return {**report, "status_code": status}


def _memory(server: ServerView, query: Query) -> _Report:
    return {"memstats": {"Sys": platform.resident_bytes()}}


def _nothing(server: ServerView, query: Query) -> _Report:
    return {}


def _profile(server: ServerView, query: Query) -> _Report:
    return {"profile": None, "error": "this server has no profiles"}


SERVER_REPORTS: dict[str, Callable[[ServerView, Query], _Report | Steps[_Report]] | None] = {
    "IDZ": None,
    "STATSZ": None,
    "VARZ": server_report,
    "CONNZ": connections_report,
    "JSZ": jetstream_report,
    "SUBSZ": subscriptions_report,
    "ACCOUNTZ": accounts_report,
    "HEALTHZ": _health,
    "ROUTEZ": routes_report,
    "GATEWAYZ": gateways_report,
    "LEAFZ": leafs_report,
    "EXPVARZ": _memory,
    "IPQUEUESZ": _nothing,
    "RAFTZ": _nothing,
    "PROFILEZ": _profile,
}


def _whole(report: _Report | Steps[_Report]) -> Steps[_Report]:
    return (yield from report) if isinstance(report, Generator) else report


def server_answer(server: ServerView, name: str, body: bytes) -> Steps[bytes | None]:
    """Encode the answer to a request for a report about the server; None when another server is asked."""
    if name == "IDZ":
        return encode(server.info.identify())
    try:
        query = Query.from_json(body)
        if not _is_asked(server, query):
            return None
        report = SERVER_REPORTS[name]
        if report is None:
            return encode({"server": server.info.describe_sender(), "statsz": statistics(server)})
        return _encode_data(server, (yield from _whole(report(server, query))))
    except BadQueryError as error:
        return _encode_error(server, 400, str(error))


def _is_asked(server: ServerView, query: Query) -> bool:
    """Return whether the filters of a request fit this server, which has neither cluster nor tags."""
    options = server.settings.options
    domain = options.jetstream.domain if options.jetstream is not None else ""
    own = {"server_name": server.info.name, "host": options.host, "domain": domain, "cluster": ""}
    is_exact = query.flag("exact_match")
    for key, value in own.items():
        wanted = query.text(key)
        if wanted and (wanted != value if is_exact or key == "domain" else wanted not in value):
            return False
    return query.text("tags") in ("", "[]", "None")


def statistics(server: ServerView) -> _Report:
    """Report the counters of the server, as heartbeats carry them."""
    totals = message_totals(server)
    sent = {"msgs": totals["out_msgs"], "bytes": totals["out_bytes"]}
    received = {"msgs": totals["in_msgs"], "bytes": totals["in_bytes"]}
    report: _Report = {
        "start": format_time(server.info.start_ns),
        "mem": platform.resident_bytes(),
        "cores": os.cpu_count() or 1,
        "cpu": cpu_percent(server),
        "connections": len(server.connections),
        "total_connections": server.statistics.total_connections,
        "active_accounts": len({connection.session.account.name for connection in server.connections.values()}),
        "subscriptions": sum(account.interest_count for account in server.accounts.values()),
        "sent": sent,
        "sent_to_clients": sent,
        "received": received,
        "received_from_clients": received,
        "slow_consumers": server.statistics.slow_consumers,
        "active_servers": 1,
        "gomaxprocs": 1,
    }
    if server.engine_loop.engine is not None:
        settings = jetstream_settings(server)
        del settings["store_dir"]
        report["jetstream"] = {"config": settings, "stats": jetstream_usage(server), "limits": {}}
    return report


# About an account


def _account_info(server: ServerView, name: str, query: Query) -> _Report:
    return account_detail(server, _account(server, name))


def _account_connections(server: ServerView, name: str, query: Query) -> Steps[_Report]:
    return connections_report(server, query if name == "PING" else query.narrowed(acc=name))


def _account_subscriptions(server: ServerView, name: str, query: Query) -> Steps[_Report]:
    return subscriptions_report(server, query.narrowed(acc=name, subs="1"))


def _account_jetstream(server: ServerView, name: str, query: Query) -> Steps[_Report]:
    engine = server.engine_loop.engine
    jetstream = engine.jetstreams.get(name) if engine is not None else None
    if jetstream is None:
        reason = "not jetstream enabled" if name in server.accounts else "not found"
        raise _UnknownAccountError(f'account "{name}" {reason}')
    return account_report(server, jetstream, query)


def _account_leafs(server: ServerView, name: str, query: Query) -> _Report:
    return leafs_report(server, query.narrowed(acc=name))


ACCOUNT_REPORTS: dict[str, Callable[[ServerView, str, Query], _Report | Steps[_Report]] | None] = {
    "INFO": _account_info,
    "CONNZ": _account_connections,
    "SUBSZ": _account_subscriptions,
    "JSZ": _account_jetstream,
    "LEAFZ": _account_leafs,
    "STATZ": None,
    "CONNS": None,
}


def account_answer(server: ServerView, name: str, report: str, body: bytes) -> Steps[bytes | None]:
    """Encode the answer to a request for a report about an account; None when it is not for this server."""
    try:
        query = Query.from_json(body)
        if not _is_asked(server, query):
            return None
        if report == "STATZ":
            return _account_statistics(server, name, body)
        if report == "CONNS":
            return _connections_event(server, name)
        make = ACCOUNT_REPORTS[report]
        assert make is not None
        return _encode_data(server, (yield from _whole(make(server, name, query))))
    except BadQueryError as error:
        return _encode_error(server, 400, str(error))
    except _UnknownAccountError as error:
        return _encode_error(server, 500, str(error))


def _account(server: ServerView, name: str) -> Account:
    account = server.accounts.get(name)
    if account is None:
        raise _UnknownAccountError(f"Account {name} does not exist")
    return account


def _account_statistics(server: ServerView, name: str, body: bytes) -> bytes | None:
    """Report the counters of one account, of the requested ones, or of all with connections."""
    names, with_unused = [name], True
    if name == "PING":
        names, with_unused = _wanted_accounts(body)
    elif name not in server.accounts:
        return None
    report = account_statistics_report(server, Query("unused=1" if with_unused else ""))
    if names:
        report["account_statz"] = [row for row in report["account_statz"] if row["acc"] in names]
    return _encode_data(server, report)


def _wanted_accounts(body: bytes) -> tuple[list[str], bool]:
    try:
        given = decode(body, type=dict[str, Any]) if body.strip() else {}
        names = given.get("accounts") or []
        return [str(name) for name in names], bool(given.get("include_unused"))
    except (DecodeError, TypeError) as error:
        raise BadQueryError(f"the request is not valid: {error}") from None


def _connections_event(server: ServerView, name: str) -> bytes | None:
    """Encode the event that tells the connections of an account, which has no envelope."""
    account = server.accounts.get(name)
    if account is None:
        return None
    head = {
        "type": "io.nats.server.advisory.v1.account_connections",
        "id": next_nuid(),
        "timestamp": format_time(server.clock.now_ns()),
        "server": server.info.describe_sender(),
    }
    return encode(head | account_row(server, account))


# About a user


def user_answer(server: ServerView, account: Account, origin: Subscriber | None) -> bytes:
    """Encode the answer that tells a client its user, account and permissions."""
    identity = origin.session.identity if isinstance(origin, Connection) else None
    report: _Report = {"user": identity.user if identity is not None else ""}
    claims = identity.claims if identity is not None else None
    report |= {"account": account.name, "account_name": account.label}
    if claims is not None and claims.name:
        report["user_name"] = claims.name
    if identity is not None and identity.expires_ns:
        report["expires"] = max(identity.expires_ns - server.clock.now_ns(), 0)
    if identity is not None and identity.permissions is not None:
        report["permissions"] = _permissions(identity.permissions)
    return _encode_data(server, report)


def _permissions(permissions: Permissions) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for name, rules in (("publish", permissions.publish), ("subscribe", permissions.subscribe)):
        lists = {"allow": rules.allow, "deny": rules.deny} if rules is not None else {}
        report[name] = {key: subjects for key, subjects in lists.items() if subjects}
    if permissions.responses is not None:
        responses = permissions.responses
        report["responses"] = {"max": responses.max, "ttl": nanoseconds(responses.expires_s)}
    return report


def _encode_data(server: ServerView, data: _Report) -> bytes:
    return encode({"server": server.info.describe_sender(), "data": data})


def _encode_error(server: ServerView, code: int, description: str) -> bytes:
    error = {"code": code, "description": description}
    return encode({"server": server.info.describe_sender(), "data": None, "error": error})
