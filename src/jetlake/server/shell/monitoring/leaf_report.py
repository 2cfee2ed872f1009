"""The report of leaf connections, with the keys of nats-server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetlake.model.encoding.durations import format_duration
from jetlake.model.encoding.times import format_time
from jetlake.server.shell.monitoring.query import Query
from jetlake.server.shell.monitoring.server_view import ServerView

if TYPE_CHECKING:  # Loaded by servers with leaf nodes.
    from jetlake.server.shell.leaf.connection import LeafConnection

__all__ = ["leaf_connections", "leaf_settings", "leafs_report"]


def leaf_connections(server: ServerView, account: str = "") -> list[LeafConnection]:
    """List the leaf connections of all accounts or of one."""
    found = server.leafnodes.open() if server.leafnodes is not None else []
    return [connection for connection in found if account in ("", connection.link.account.name)]


def leaf_settings(server: ServerView) -> dict[str, Any]:
    """Report where leaf nodes are accepted, and the hubs that the options name."""
    options = server.settings.options
    report: dict[str, Any] = {}
    listen, port = options.leafnodes.listen, server.leafnodes_port
    if listen is not None and port is not None:
        report = {
            "host": listen.host,
            "port": port,
            "auth_timeout": listen.auth_timeout_s or options.auth_timeout_s,
            **({"tls_required": True} if listen.tls is not None else {}),
            "tls_timeout": listen.tls.timeout_s if listen.tls is not None else 2,
        }
    remotes = options.leafnodes.remotes
    rows = [{"local_account": remote.account, "urls": [str(url) for url in remote.urls]} for remote in remotes]
    return {**report, "remotes": rows} if rows else report


def leafs_report(server: ServerView, query: Query) -> dict[str, Any]:
    """Report `/leafz`: the leaf connections, with `subs` also the subjects that the other servers want."""
    with_subjects = query.flag("subs")
    rows = [_row(connection, with_subjects) for connection in leaf_connections(server, query.text("acc"))]
    head = {"server_id": server.info.id, "now": format_time(server.clock.now_ns())}
    return {**head, "leafnodes": len(rows), "leafs": rows}


def _row(connection: LeafConnection, with_subjects: bool) -> dict[str, Any]:
    link = connection.link
    subjects = link.subjects
    row: dict[str, Any] = {
        "id": connection.peer.cid,
        "name": link.info.name,
        "is_spoke": not link.is_hub or link.info.is_hub,
        "account": link.account.name,
        "ip": connection.peer.host,
        "port": connection.peer.port,
        "rtt": format_duration(connection.pings.rtt_ns),
        "in_msgs": link.in_msgs,
        "out_msgs": link.out_msgs,
        "in_bytes": link.in_bytes,
        "out_bytes": link.out_bytes,
        "subscriptions": len(subjects),
    }
    if with_subjects:
        row["subscriptions_list"] = [subject.decode("utf-8", "replace") for subject in subjects]
    return {**row, "compression": "off"}
