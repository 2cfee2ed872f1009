"""The report on the server itself, and what the other reports share; none shows a secret."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from jetlake import platform
from jetlake.model.encoding.times import format_time
from jetlake.server.shell.connection.connection import Connection
from jetlake.server.shell.monitoring.jetstream_reports import jetstream_settings, jetstream_usage
from jetlake.server.shell.monitoring.leaf_report import leaf_connections, leaf_settings
from jetlake.server.shell.monitoring.query import Query
from jetlake.server.shell.monitoring.server_view import ServerView
from jetlake.server.shell.statistics import MessageTotals
from jetlake.server.version import COMPATIBLE_VERSION, JETLAKE_VERSION, PROTOCOL

__all__ = [
    "cpu_percent",
    "format_uptime",
    "gateways_report",
    "message_totals",
    "report_head",
    "routes_report",
    "server_report",
    "sum_messages",
    "uptime_ns",
]

_SECOND_NS = 1_000_000_000


def format_uptime(duration_ns: int) -> str:
    """Format a duration as `1d2h3m4s`, without leading zero units."""
    rest = duration_ns // _SECOND_NS
    parts: list[str] = []
    for unit, size in (("y", 365 * 86_400), ("d", 86_400), ("h", 3600), ("m", 60)):
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count}{unit}")
    return "".join([*parts, f"{rest}s"])


def message_totals(server: ServerView) -> dict[str, int]:
    """Sum up the messages and bytes of all connections, ended ones included."""
    return sum_messages([server.statistics.closed, *server.connections.values()])


def sum_messages(parts: Sequence[Connection | MessageTotals]) -> dict[str, int]:
    """Sum the messages and bytes in and out."""
    return {
        name: sum(getattr(part, name) for part in parts) for name in ("in_msgs", "in_bytes", "out_msgs", "out_bytes")
    }


def uptime_ns(server: ServerView) -> int:
    """Measure how long the server has run."""
    return server.clock.now_ns() - server.info.start_ns


def report_head(server: ServerView) -> dict[str, Any]:
    """Return what every report begins with: the server's id and the time."""
    return {"server_id": server.info.id, "now": format_time(server.clock.now_ns())}


def _websocket(server: ServerView) -> dict[str, Any]:
    """Report the WebSocket listener, with the keys of nats-server: empty ones are left out."""
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
        "mem": platform.resident_bytes(),
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
    if server.operators is not None:
        report |= server.operators.describe()
    if options.server_tags:
        report["tags"] = options.server_tags
    return report


def cpu_percent(server: ServerView) -> float:
    """Compute the processor time since the start, as a share of one core."""
    elapsed_s = max(uptime_ns(server) / _SECOND_NS, 0.001)
    return round(100 * time.process_time() / elapsed_s, 1)


# Clusters, of which this server is no member


def routes_report(server: ServerView, query: Query) -> dict[str, Any]:
    """Report `/routez`: no routes."""
    return {
        "server_id": server.info.id,
        "server_name": server.info.name,
        **report_head(server),
        "num_routes": 0,
        "routes": [],
    }


def gateways_report(server: ServerView, query: Query) -> dict[str, Any]:
    """Report `/gatewayz`: no gateways."""
    return {**report_head(server), "outbound_gateways": {}, "inbound_gateways": {}}
