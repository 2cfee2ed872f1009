"""The reports on the server, its connections, subscriptions and accounts; none shows a secret."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jetlake.model.encoding.durations import format_duration
from jetlake.model.encoding.times import format_time
from jetlake.protocol.subjects import matches
from jetlake.server.engine.routing.subscription import Subscription
from jetlake.server.shell.connection.connection import Connection
from jetlake.server.shell.connection.traces import readable
from jetlake.server.shell.monitoring.jetstream_reports import jetstream_settings, jetstream_usage
from jetlake.server.shell.monitoring.leaf_report import leaf_connections, leaf_settings
from jetlake.server.shell.monitoring.query import BadQueryError, Query
from jetlake.server.shell.monitoring.server_view import ServerView
from jetlake.server.shell.monitoring.sharing_report import sharing_report
from jetlake.server.shell.statistics import MessageTotals
from jetlake.server.version import COMPATIBLE_VERSION, JETLAKE_VERSION, PROTOCOL

if TYPE_CHECKING:
    from jetlake.server.engine.routing.account import Account

__all__ = [
    "account_detail",
    "account_row",
    "account_statistics_report",
    "accounts_report",
    "connections_report",
    "cpu_percent",
    "format_uptime",
    "gateways_report",
    "message_totals",
    "resident_bytes",
    "routes_report",
    "server_report",
    "subscriptions_report",
    "uptime_ns",
]

_LIMIT_DEFAULT = 1024
_SECOND_NS = 1_000_000_000
_NO_PEERS = {kind: {"msgs": 0, "bytes": 0} for kind in ("gateways", "routes", "leafs")}


def format_uptime(duration_ns: int) -> str:
    """Format a duration as `1d2h3m4s`, without leading zero units."""
    rest = duration_ns // _SECOND_NS
    parts: list[str] = []
    for unit, size in (("y", 365 * 86_400), ("d", 86_400), ("h", 3600), ("m", 60)):
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count}{unit}")
    return "".join([*parts, f"{rest}s"])


def resident_bytes() -> int:
    """Read the resident memory of the process; 0 where the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def message_totals(server: ServerView) -> dict[str, int]:
    """Sum up the messages and bytes of all connections, those that have ended included."""
    return _sum_messages([server.statistics.closed, *server.connections.values()])


def _sum_messages(parts: Sequence[Connection | MessageTotals]) -> dict[str, int]:
    return {
        name: sum(getattr(part, name) for part in parts) for name in ("in_msgs", "in_bytes", "out_msgs", "out_bytes")
    }


def uptime_ns(server: ServerView) -> int:
    """Measure how long the server has run."""
    return server.clock.now_ns() - server.info.start_ns


def _head(server: ServerView) -> dict[str, Any]:
    return {"server_id": server.info.id, "now": format_time(server.clock.now_ns())}


def _websocket(server: ServerView) -> dict[str, Any]:
    """Report the WebSocket listener, with the keys of nats-server: those that say nothing are left out."""
    listener = server.websocket
    options = listener.settings.options if listener is not None else None
    if listener is None or options is None or options.websocket is None:
        return {}
    websocket = options.websocket
    fields: dict[str, Any] = {
        "host": options.host,
        "port": listener.settings.port,
        "advertise": websocket.advertise,
        "no_auth_user": websocket.no_auth_user,
        "handshake_timeout": int(websocket.handshake_timeout_s * _SECOND_NS),
        "auth_timeout": websocket.auth_timeout_s,
        "no_tls": websocket.tls is None,
        "tls_timeout": websocket.tls.timeout_s if websocket.tls is not None else 0,
        "same_origin": websocket.same_origin,
        "allowed_origins": list(websocket.allowed_origins),
        "compression": websocket.compression,
    }
    return {name: value for name, value in fields.items() if value}


def server_report(server: ServerView, query: Query) -> dict[str, Any]:
    """Report `/varz`: the server as a whole."""
    options = server.settings.options
    totals = message_totals(server)
    monitoring = server.monitoring
    report: dict[str, Any] = {
        "server_id": server.info.id,
        "server_name": server.info.name,
        "version": COMPATIBLE_VERSION,
        "jetlake_version": JETLAKE_VERSION,
        "proto": PROTOCOL,
        "go": "",
        "host": options.host,
        "port": server.info.port,
        "auth_required": server.settings.authenticator.required,
        "tls_required": options.tls is not None and not options.allow_non_tls,
        "tls_verify": options.tls is not None and options.tls.verify,
        "max_connections": options.max_connections,
        "max_subscriptions": options.max_subscriptions,
        "ping_interval": int(options.ping_interval_s * _SECOND_NS),
        "ping_max": options.ping_max,
        "http_host": monitoring.host if monitoring is not None else "",
        "http_port": monitoring.port if monitoring is not None and not options.https else 0,
        "http_base_path": options.http_base_path,
        "https_port": monitoring.port if monitoring is not None and options.https else 0,
        "auth_timeout": options.auth_timeout_s,
        "max_control_line": options.max_control_line,
        "max_payload": options.max_payload,
        "max_pending": options.max_pending,
        "cluster": {},
        "gateway": {},
        "leaf": leaf_settings(server),
        "mqtt": {},
        "websocket": _websocket(server),
        "jetstream": {},
        "tls_timeout": options.tls.timeout_s if options.tls is not None else 2,
        "write_deadline": int(options.write_deadline_s * _SECOND_NS),
        "start": format_time(server.info.start_ns),
        "now": format_time(server.clock.now_ns()),
        "uptime": format_uptime(uptime_ns(server)),
        "mem": resident_bytes(),
        "cores": os.cpu_count() or 1,
        "gomaxprocs": 1,
        "cpu": cpu_percent(server),
        "connections": len(server.connections),
        "total_connections": server.statistics.total_connections,
        "routes": 0,
        "remotes": 0,
        "leafnodes": len(leaf_connections(server)),
        **totals,
        **{name.replace("_", "_client_", 1): count for name, count in totals.items()},
        "slow_consumers": server.statistics.slow_consumers,
        "stale_connections": server.statistics.stale_connections,
        "stalled_clients": server.statistics.stalled,
        "internal_errors": server.defects,
        "subscriptions": sum(account.interest_count for account in server.accounts.values()),
        "http_req_stats": dict(monitoring.requests) if monitoring is not None else {},
        "config_load_time": format_time(server.settings.loaded_ns),
        "feature_flags": {"js_ack_fc_v2": options.ack_subject_v2},
        "system_account": options.system_account,
        "slow_consumer_stats": {"clients": server.statistics.slow_consumers, "routes": 0, "gateways": 0, "leafs": 0},
    }
    if server.engine_loop.engine is not None and options.jetstream is not None:
        report["jetstream"] = {
            "config": jetstream_settings(server),
            "stats": jetstream_usage(server),
            "limits": {},
        }
    if options.server_tags:
        report["tags"] = options.server_tags
    return report


def cpu_percent(server: ServerView) -> float:
    """Compute the processor time since the start, as a share of one core."""
    elapsed_s = max(uptime_ns(server) / _SECOND_NS, 0.001)
    return round(100 * time.process_time() / elapsed_s, 1)


# Connections

_SORTS: dict[str, Callable[[Connection], Any]] = {
    "": lambda connection: connection.peer.cid,
    "cid": lambda connection: connection.peer.cid,
    "start": lambda connection: connection.start_ns,
    "subs": lambda connection: -len(connection.subscriptions()),
    "pending": lambda connection: -connection.pending_bytes(),
    "msgs_to": lambda connection: -connection.out_msgs,
    "msgs_from": lambda connection: -connection.in_msgs,
    "bytes_to": lambda connection: -connection.out_bytes,
    "bytes_from": lambda connection: -connection.in_bytes,
    "last": lambda connection: -connection.pings.last_activity_ns,
    "idle": lambda connection: connection.pings.last_activity_ns,
    "uptime": lambda connection: connection.start_ns,
    "stop": lambda connection: -connection.stop_ns,
    "reason": lambda connection: connection.close_reason,
    "rtt": lambda connection: -connection.pings.rtt_ns,
}


def connections_report(server: ServerView, query: Query) -> dict[str, Any]:
    """Report `/connz`: the connections, filtered, sorted, one page of them."""
    key = _SORTS.get(query.text("sort"))
    if key is None:
        raise BadQueryError(f"invalid sorting option: {query.text('sort')}")
    state = query.text("state").lower() or "open"
    if state not in ("open", "closed", "any", "all"):
        raise BadQueryError(f"invalid connection state: {state}")
    chosen: list[Connection] = []
    if state != "closed":
        chosen += server.connections.values()
    if state != "open":
        chosen += server.closed_connections
    query.flag("auth")  # an invalid value is refused, also where no connection would show it
    cid, account, user = query.number("cid", 0), query.text("acc"), query.text("user")
    chosen = [
        connection
        for connection in chosen
        if (not cid or connection.peer.cid == cid)
        and (not account or connection.session.account.name == account)
        and (not user or (connection.session.identity is not None and connection.session.identity.user == user))
    ]
    chosen.sort(key=key)
    offset, limit = query.number("offset", 0), query.number("limit", _LIMIT_DEFAULT)
    page = chosen[offset : offset + limit] if limit else chosen[offset:]
    return {
        **_head(server),
        "num_connections": len(page),
        "total": len(chosen),
        "offset": offset,
        "limit": limit,
        "connections": [_connection(server, connection, query) for connection in page],
    }


def _connection(server: ServerView, connection: Connection, query: Query) -> dict[str, Any]:
    now_ns = connection.stop_ns or server.clock.now_ns()
    subscriptions = connection.subscriptions()
    options = connection.session.options
    report: dict[str, Any] = {
        "cid": connection.peer.cid,
        "kind": "Client",
        "type": connection.peer.client_type,
        "ip": connection.peer.host,
        "port": connection.peer.port,
        "start": format_time(connection.start_ns),
        "last_activity": format_time(connection.pings.last_activity_ns),
    }
    if connection.stop_ns:
        report["stop"] = format_time(connection.stop_ns)
        report["reason"] = connection.close_reason
    if connection.pings.rtt_ns:
        report["rtt"] = format_duration(connection.pings.rtt_ns)
    report |= {
        "uptime": format_uptime(now_ns - connection.start_ns),
        "idle": format_uptime(now_ns - connection.pings.last_activity_ns),
        "pending_bytes": connection.pending_bytes(),
        "in_msgs": connection.in_msgs,
        "out_msgs": connection.out_msgs,
        "in_bytes": connection.in_bytes,
        "out_bytes": connection.out_bytes,
        "subscriptions": len(subscriptions),
    }
    report |= {name: value for name in ("name", "lang", "version") if (value := getattr(options, name))}
    report |= connection.handshake.tls_description
    if query.flag("auth"):
        report["account"] = connection.session.account.name
        if connection.session.identity is not None and connection.session.identity.user:
            report["authorized_user"] = connection.session.identity.user
    wanted = query.text("subs").lower()
    if wanted == "detail":
        report["subscriptions_list_detail"] = [_subscription(connection, entry) for entry in subscriptions]
    elif wanted in ("1", "true"):
        report["subscriptions_list"] = [readable(entry.subject) for entry in subscriptions]
    return report


def _subscription(connection: Connection, subscription: Subscription) -> dict[str, Any]:
    report: dict[str, Any] = {"subject": readable(subscription.subject)}
    if subscription.queue:
        report["qgroup"] = readable(subscription.queue)
    report |= {"sid": readable(subscription.sid), "msgs": subscription.delivered}
    if subscription.max:
        report["max"] = subscription.max
    return report | {"cid": connection.peer.cid}


# Subscriptions


def subscriptions_report(server: ServerView, query: Query) -> dict[str, Any]:
    """Report `/subsz`: the counters of routing, and the subscriptions on request."""
    name, test = query.text("acc"), query.text("test").encode()
    accounts = [account for account in server.accounts.values() if not name or account.name == name]
    details: list[dict[str, Any]] = []
    if query.flag("subs") or test:
        for connection in server.connections.values():
            if connection.session.account in accounts:
                details += [
                    {"account": connection.session.account.name, **_subscription(connection, entry)}
                    for entry in connection.subscriptions()
                    if not test or matches(entry.subject, test)
                ]
    offset, limit = query.number("offset", 0), query.number("limit", _LIMIT_DEFAULT)
    report = {
        **_head(server),
        **_routing(accounts),
        "total": len(details),
        "offset": offset,
        "limit": limit,
    }
    if details:
        report["subscriptions_list"] = details[offset : offset + limit]
    return report


def _routing(accounts: list[Account]) -> dict[str, Any]:
    lookups = sum(account.stats.misses for account in accounts)
    routes = [route.takers for account in accounts for route in account.known_routes()]
    return {
        "num_subscriptions": sum(account.interest_count for account in accounts),
        "num_cache": len(routes),
        "num_inserts": sum(account.stats.inserts for account in accounts),
        "num_removes": sum(account.stats.removes for account in accounts),
        "num_matches": lookups,
        "cache_hit_rate": round(1 - min(lookups, len(routes)) / lookups, 3) if lookups else 0,
        "max_fanout": max(routes, default=0),
        "avg_fanout": sum(routes) / len(routes) if routes else 0,
    }


# Accounts


def accounts_report(server: ServerView, query: Query) -> dict[str, Any]:
    """Report `/accountz`: the names of the accounts, or one account in detail."""
    report = {**_head(server), "system_account": server.settings.options.system_account}
    name = query.text("acc")
    if not name:
        return {**report, "accounts": sorted(server.accounts)}
    account = server.accounts.get(name)
    if account is None:
        raise BadQueryError(f"Account {name} does not exist")
    return {**report, "account_detail": account_detail(server, account)}


def account_detail(server: ServerView, account: Account) -> dict[str, Any]:
    """Report one account."""
    return {
        "account_name": account.name,
        "update_time": format_time(server.settings.loaded_ns),
        "expired": False,
        "complete": True,
        "jetstream_enabled": account.js is not None,
        "leafnode_connections": len(leaf_connections(server, account.name)),
        "client_connections": len(_connections_of(server, account)),
        "subscriptions": account.interest_count,
        **sharing_report(server.settings.options, account.name),
        "sublist_stats": _routing([account]),
    }


def account_statistics_report(server: ServerView, query: Query) -> dict[str, Any]:
    """Report `/accstatz`: messages and bytes per account that has connections, or of all with `unused`."""
    rows = [
        account_row(server, account)
        for account in server.accounts.values()
        if query.flag("unused") or _connections_of(server, account)
    ]
    return {**_head(server), "account_statz": rows}


def account_row(server: ServerView, account: Account) -> dict[str, Any]:
    """Report the connections of one account and their messages, those of ended connections included."""
    connections = _connections_of(server, account)
    leaves = leaf_connections(server, account.name)
    closed = server.statistics.closed_by_account.get(account.name)
    totals = _sum_messages([*connections, *([closed] if closed is not None else [])])
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


# Clusters, which there are none of


def routes_report(server: ServerView, query: Query) -> dict[str, Any]:
    """Report `/routez`: no routes."""
    return {
        "server_id": server.info.id,
        "server_name": server.info.name,
        **_head(server),
        "num_routes": 0,
        "routes": [],
    }


def gateways_report(server: ServerView, query: Query) -> dict[str, Any]:
    """Report `/gatewayz`: no gateways."""
    return {**_head(server), "outbound_gateways": {}, "inbound_gateways": {}}
