"""`/metrics`: the server's metrics in the text format of Prometheus."""

from __future__ import annotations

from io import StringIO

from jetlake import platform
from jetlake.server.shell.committer import LatencyHistogram
from jetlake.server.shell.monitoring.server_report import message_totals, uptime_ns
from jetlake.server.shell.monitoring.server_view import ServerView
from jetlake.store.steps import Steps, sort_in_steps

__all__ = ["METRICS_TYPE", "metrics_text"]

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Page:
    """Metrics as text, each family headed by its help and type."""

    def __init__(self) -> None:
        self.text = StringIO()

    def family(self, name: str, kind: str, help: str) -> None:
        self.text.write(f"# HELP {name} {help}\n# TYPE {name} {kind}\n")

    def value(self, name: str, value: float, **labels: str) -> None:
        shown = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
        self.text.write(f"{name}{{{shown}}} {value:.17g}\n" if shown else f"{name} {value:.17g}\n")

    def counter(self, name: str, help: str, value: float) -> None:
        self.family(name, "counter", help)
        self.value(name, value)

    def gauge(self, name: str, help: str, value: float) -> None:
        self.family(name, "gauge", help)
        self.value(name, value)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def metrics_text(server: ServerView) -> Steps[str]:
    """Write all metrics of the server."""
    page = _Page()
    totals = message_totals(server)
    counts, engine_loop = server.statistics, server.engine_loop
    page.counter("jetlake_messages_received_total", "Messages from clients.", totals["in_msgs"])
    page.counter("jetlake_messages_sent_total", "Messages to clients.", totals["out_msgs"])
    page.counter("jetlake_bytes_received_total", "Header and payload bytes from clients.", totals["in_bytes"])
    page.counter("jetlake_bytes_sent_total", "Header and payload bytes to clients.", totals["out_bytes"])
    page.gauge("jetlake_connections", "Connected clients.", len(server.connections))
    page.counter("jetlake_connections_total", "Connections since the start.", counts.total_connections)
    page.counter("jetlake_slow_consumers_total", "Clients disconnected for reading too slowly.", counts.slow_consumers)
    page.counter(
        "jetlake_stale_connections_total",
        "Clients disconnected because they did not answer pings.",
        counts.stale_connections,
    )
    page.gauge(
        "jetlake_subscriptions",
        "Subscriptions of clients, listeners and streams.",
        sum(account.interest_count for account in server.accounts.values()),
    )
    page.counter(
        "jetlake_internal_errors_total",
        "Internal errors, each with a line in the log.",
        server.defects,
    )
    page.gauge("jetlake_memory_bytes", "Memory of the process.", platform.resident_bytes())
    page.gauge("jetlake_uptime_seconds", "Time since the start.", uptime_ns(server) / 1e9)
    yield from _add_streams(page, server)
    _add_histogram(page, "jetlake_turn_seconds", "Time that one turn of the event loop took.", engine_loop.durations)
    if engine_loop.committer is not None:
        _add_histogram(
            page,
            "jetlake_fsync_seconds",
            "How long the disk took to make a batch durable.",
            engine_loop.committer.latency,
        )
    return page.text.getvalue()


def _add_streams(page: _Page, server: ServerView) -> Steps[None]:
    engine = server.engine_loop.engine
    if engine is None:
        return
    streams = []
    consumers = missing = 0
    for account, jetstream in sorted(engine.jetstreams.items()):
        for name in (yield from sort_in_steps(list(jetstream.streams))):
            yield
            if (found := jetstream.streams.get(name)) is not None:
                streams.append((account, found))
                consumers += len(found.consumers)
                missing += len(found.storage.missing)
    page.gauge("jetlake_streams", "Streams.", len(streams))
    page.gauge("jetlake_consumers", "Consumers.", consumers)
    page.gauge(
        "jetlake_disk_failures",
        "Streams and consumers that cannot be written because the disk fails.",
        len(engine.commit.failures),
    )
    page.gauge(
        "jetlake_set_aside",
        "Streams and consumers that are on the disk and could not be opened.",
        len(engine.storage.set_aside) + missing,
    )
    page.family("jetlake_stream_lost_messages", "gauge", "Messages that can no longer be read from the disk.")
    for account, stream in streams:
        yield
        page.value("jetlake_stream_lost_messages", len(stream.store.lost), account=account, stream=stream.name)
    for name, help, attribute in (
        ("jetlake_stream_messages", "Messages in the stream.", "messages"),
        ("jetlake_stream_bytes", "Bytes in the stream.", "bytes"),
        ("jetlake_stream_last_sequence", "Sequence of the newest message.", "last_sequence"),
    ):
        page.family(name, "gauge", help)
        for account, stream in streams:
            yield
            page.value(name, getattr(stream.store, attribute), account=account, stream=stream.name)
    infos = []
    for account, stream in streams:
        for _, consumer in sorted(stream.consumers.items()):
            yield
            if not stream.is_closed and not consumer.is_closed:
                infos.append((account, stream.name, consumer.info()))
    for name, help, attribute in (
        ("jetlake_consumer_pending", "Messages that are not delivered yet.", "num_pending"),
        ("jetlake_consumer_ack_pending", "Messages that await an acknowledgement.", "num_ack_pending"),
        ("jetlake_consumer_redelivered", "Messages that were redelivered and are not acknowledged.", "num_redelivered"),
        ("jetlake_consumer_waiting", "Pull requests that wait for messages.", "num_waiting"),
    ):
        page.family(name, "gauge", help)
        for account, stream_name, info in infos:
            yield
            page.value(name, getattr(info, attribute), account=account, stream=stream_name, consumer=info.name)


def _add_histogram(page: _Page, name: str, help: str, latency: LatencyHistogram) -> None:
    page.family(name, "histogram", help)
    total = 0
    for bound, count in zip(latency.BOUNDS_S, latency.counts, strict=False):
        total += count
        page.value(f"{name}_bucket", total, le=f"{bound:g}")
    page.value(f"{name}_bucket", latency.count, le="+Inf")
    page.value(f"{name}_sum", latency.sum_s)
    page.value(f"{name}_count", latency.count)
