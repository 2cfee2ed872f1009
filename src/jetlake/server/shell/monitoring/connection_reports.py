"""The reports on connections and their subscriptions; none shows a secret."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Raw
from msgspec.json import encode

from jetlake.model.encoding.durations import format_duration
from jetlake.model.encoding.times import format_time
from jetlake.protocol.subjects import matches, overlaps
from jetlake.server.engine.routing.subscription import Subscription
from jetlake.server.shell.connection.connection import Connection
from jetlake.server.shell.connection.traces import readable
from jetlake.server.shell.monitoring.query import BadQueryError, Query
from jetlake.server.shell.monitoring.server_report import format_uptime, report_head
from jetlake.server.shell.monitoring.server_view import ServerView
from jetlake.store.steps import Steps, in_groups

if TYPE_CHECKING:
    from jetlake.server.engine.routing.account import Account

__all__ = ["connections_report", "routing_report", "subscriptions_report"]

_LIMIT_DEFAULT = 1024
_ITEMS_PER_STEP = 256

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

_STATE_NUMBERS = {"0": "open", "1": "closed", "2": "all"}
"""The states of connections as requests of the system account write them."""


def connections_report(server: ServerView, query: Query) -> Steps[dict[str, Any]]:
    """Report `/connz`: the connections, filtered, sorted, one page of them."""
    key = _SORTS.get(query.text("sort"))
    if key is None:
        raise BadQueryError(f"invalid sorting option: {query.text('sort')}")
    state = query.text("state").lower() or "open"
    state = _STATE_NUMBERS.get(state, state)
    if state not in ("open", "closed", "any", "all"):
        raise BadQueryError(f"invalid connection state: {state}")
    chosen: list[Connection] = []
    if state != "closed":
        chosen += server.connections.values()
    if state != "open":
        chosen += server.closed_connections
    # An invalid value is refused, also where no connection would show it.
    query.flag("auth")
    _listing(query)
    cid, account, user = query.number("cid", 0), query.text("acc"), query.text("user")
    pattern = query.text("filter_subject").encode()
    fitting: list[Connection] = []
    for group in in_groups(chosen, _ITEMS_PER_STEP):
        fitting += [
            connection
            for connection in group
            if (not cid or connection.peer.cid == cid)
            and (not account or connection.session.account.name == account)
            and (not user or (connection.session.identity is not None and connection.session.identity.user == user))
            and (not pattern or any(overlaps(pattern, entry.subject) for entry in connection.subscriptions()))
        ]
        yield
    fitting.sort(key=key)
    offset, limit = query.page(_LIMIT_DEFAULT)
    page = fitting[offset : offset + limit] if limit else fitting[offset:]
    rows = []
    for connection in page:
        row = yield from _connection(server, connection, query)
        rows.append(row)
        yield
    return {
        **report_head(server),
        "num_connections": len(page),
        "total": len(fitting),
        "offset": offset,
        "limit": limit,
        "connections": rows,
    }


def _connection(server: ServerView, connection: Connection, query: Query) -> Steps[dict[str, Any]]:
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
            report |= connection.session.identity.describe_token()
            if connection.session.account.label != connection.session.account.name:
                report["name_tag"] = connection.session.account.label
    listing = _listing(query)
    if listing == "detail":
        report["subscriptions_list_detail"] = yield from _encoded(
            subscriptions, lambda entry: _subscription(connection, entry)
        )
    elif listing == "subjects":
        report["subscriptions_list"] = yield from _encoded(subscriptions, lambda entry: readable(entry.subject))
    return report


def _listing(query: Query) -> str:
    """Read how subscriptions are listed: in detail, by their subjects, or not at all."""
    if query.text("subs").lower() == "detail":
        return "detail"
    return "subjects" if query.flag("subs") else ""


def _encoded(subscriptions: list[Subscription], described: Callable[[Subscription], Any]) -> Steps[Raw]:
    """Encode a description of each subscription as one list, in steps."""
    parts = []
    for group in in_groups(subscriptions, _ITEMS_PER_STEP):
        parts.append(encode([described(entry) for entry in group])[1:-1])
        yield
    return Raw(b"[%b]" % b",".join(parts))


def _subscription(connection: Connection, subscription: Subscription) -> dict[str, Any]:
    report: dict[str, Any] = {"subject": readable(subscription.subject)}
    if subscription.queue:
        report["qgroup"] = readable(subscription.queue)
    report |= {"sid": readable(subscription.sid), "msgs": subscription.delivered}
    if subscription.max:
        report["max"] = subscription.max
    return report | {"cid": connection.peer.cid}


def subscriptions_report(server: ServerView, query: Query) -> Steps[dict[str, Any]]:
    """Report `/subsz`: the counters of routing, and the subscriptions on request."""
    name, test = query.text("acc"), query.text("test").encode()
    accounts = [account for account in server.accounts.values() if not name or account.name == name]
    offset, limit = query.page(_LIMIT_DEFAULT)
    total = 0
    details: list[Raw] = []
    for connection in tuple(server.connections.values()) if query.flag("subs") or test else ():
        if connection.session.account not in accounts:
            continue
        account = connection.session.account.name
        for group in in_groups(connection.subscriptions(), _ITEMS_PER_STEP):
            for entry in group:
                if not test or matches(entry.subject, test):
                    if offset <= total < offset + limit:
                        details.append(Raw(encode({"account": account, **_subscription(connection, entry)})))
                    total += 1
            yield
    report = {
        **report_head(server),
        **routing_report(accounts),
        "total": total,
        "offset": offset,
        "limit": limit,
    }
    if total:
        report["subscriptions_list"] = details
    return report


def routing_report(accounts: list[Account]) -> dict[str, Any]:
    """Report the counters of routing in these accounts."""
    lookups = sum(account.stats.misses for account in accounts)
    routes = [route.recipients for account in accounts for route in account.known_routes()]
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
