"""Draws the Grafana board and the alert rules of `packaging/monitoring` from the two tables below."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "packaging" / "monitoring"

PANELS = [
    ("Messages received", "rate(jetlake_messages_received_total[1m])", "{{instance}}", "ops"),
    ("Messages sent", "rate(jetlake_messages_sent_total[1m])", "{{instance}}", "ops"),
    ("Bytes received", "rate(jetlake_bytes_received_total[1m])", "{{instance}}", "Bps"),
    ("Bytes sent", "rate(jetlake_bytes_sent_total[1m])", "{{instance}}", "Bps"),
    ("Stored per second", "rate(jetlake_stream_last_sequence[1m])", "{{stream}}", "ops"),
    ("Messages in streams", "jetlake_stream_messages", "{{stream}}", "short"),
    ("Size of streams", "jetlake_stream_bytes", "{{stream}}", "bytes"),
    ("Consumer lag", "jetlake_consumer_pending", "{{stream}} / {{consumer}}", "short"),
    ("Waiting for acknowledgement", "jetlake_consumer_ack_pending", "{{stream}} / {{consumer}}", "short"),
    ("Redelivered and not acknowledged", "jetlake_consumer_redelivered", "{{stream}} / {{consumer}}", "short"),
    ("Sync, 99th percentile", "histogram_quantile(0.99, rate(jetlake_fsync_seconds_bucket[5m]))", "{{instance}}", "s"),
    ("Turn, 99th percentile", "histogram_quantile(0.99, rate(jetlake_turn_seconds_bucket[5m]))", "{{instance}}", "s"),
    ("Connections", "jetlake_connections", "{{instance}}", "short"),
    ("Slow consumers", "rate(jetlake_slow_consumers_total[5m])", "{{instance}}", "ops"),
    ("Memory", "jetlake_memory_bytes", "{{instance}}", "bytes"),
    ("Lost messages", "jetlake_stream_lost_messages", "{{stream}}", "short"),
]
"""Each panel: its title, its query, the legend and the unit."""

ALERTS = [
    ("JetlakeDown", 'up{job="jetlake"} == 0', "1m", "critical", "The server does not answer."),
    ("JetlakeDiskFailure", "jetlake_disk_failures > 0", "1m", "critical", "Streams take no messages: the disk failed."),
    ("JetlakeLostMessages", "jetlake_stream_lost_messages > 0", "0m", "critical", "Stored messages cannot be read."),
    ("JetlakeSetAside", "jetlake_set_aside > 0", "0m", "critical", "A stream or consumer could not be opened."),
    ("JetlakeInternalError", "increase(jetlake_internal_errors_total[10m]) > 0", "0m", "warning", "See the log."),
    (
        "JetlakeConsumerBehind",
        "jetlake_consumer_pending > 1000 and delta(jetlake_consumer_pending[10m]) > 0",
        "10m",
        "warning",
        "The consumer falls behind: run `jetlake consumer why`.",
    ),
    (
        "JetlakeConsumerStuck",
        "jetlake_consumer_pending > 0 and jetlake_consumer_waiting == 0",
        "15m",
        "warning",
        "Messages wait and nobody pulls: run `jetlake consumer why`.",
    ),
    (
        "JetlakeSlowSync",
        "histogram_quantile(0.99, rate(jetlake_fsync_seconds_bucket[5m])) > 0.5",
        "10m",
        "warning",
        "The disk keeps publishers waiting.",
    ),
    (
        "JetlakeSlowConsumers",
        "increase(jetlake_slow_consumers_total[10m]) > 0",
        "0m",
        "warning",
        "Clients were cut off.",
    ),
]
"""Each alert: its name, its query, how long it must hold, its severity, and what it means."""

_WIDTH, _HEIGHT, _COLUMNS = 12, 8, 2


def board() -> str:
    """Return the Grafana board as JSON."""
    source = {"type": "prometheus", "uid": "prometheus"}
    panels: list[dict[str, Any]] = [
        {
            "id": number + 1,
            "type": "timeseries",
            "title": title,
            "datasource": source,
            "gridPos": {
                "x": number % _COLUMNS * _WIDTH,
                "y": number // _COLUMNS * _HEIGHT,
                "w": _WIDTH,
                "h": _HEIGHT,
            },
            "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
            "targets": [{"refId": "A", "expr": query, "legendFormat": legend, "datasource": source}],
        }
        for number, (title, query, legend, unit) in enumerate(PANELS)
    ]
    shown = {"title": "jetlake", "uid": "jetlake", "schemaVersion": 39, "refresh": "15s", "tags": ["nats", "jetstream"]}
    return json.dumps({**shown, "time": {"from": "now-1h", "to": "now"}, "panels": panels}, indent=2) + "\n"


def alerts() -> str:
    """Return the alert rules as Prometheus reads them."""
    lines = ["groups:", "  - name: jetlake", "    rules:"]
    for name, query, hold, severity, meaning in ALERTS:
        lines += [
            f"      - alert: {name}",
            f"        expr: {json.dumps(query)}",
            f"        for: {hold}",
            f"        labels: {{ severity: {severity} }}",
            f"        annotations: {{ summary: {json.dumps(meaning)} }}",
        ]
    return "\n".join(lines) + "\n"


FILES = {"board.json": board, "alerts.yml": alerts}

if __name__ == "__main__":
    for name, draw in FILES.items():
        (FOLDER / name).write_text(draw())
