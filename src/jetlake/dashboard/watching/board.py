"""What the dashboard knows: fed with infos, advisories and samples, it gives pages. Pure; time is passed in."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Set
from typing import Any

import msgspec

from jetlake.dashboard.watching.attention import Finding, health_finding
from jetlake.dashboard.watching.listing import Listing, listed
from jetlake.dashboard.watching.rows import ConsumerRow, StreamRow, percentiles_ms
from jetlake.dashboard.watching.timeline import Timelines
from jetlake.model.consumer import ConsumerInfo
from jetlake.model.stream import StreamInfo

__all__ = ["ADVISORIES_MAX", "FINDINGS_MAX", "PIPELINES_MAX", "SAMPLES_PER_CONSUMER", "Board"]

ADVISORIES_MAX = 500
"""How many advisories are kept; older ones fall out."""
SAMPLES_PER_CONSUMER = 1024
"""How many ack samples of one consumer its percentiles are taken from; older ones fall out."""
PIPELINES_MAX = 64
"""How many pipelines are shown; the one that has been silent longest makes room."""
FINDINGS_MAX = 10
"""How many findings are shown, the worst first, beside the number of all."""
DEATHS_S = 600.0
"""How long messages that ran out of deliveries are reported."""
PIPELINE_SILENT_S = 600.0
"""A pipeline that has not reported for this long is no longer shown."""

_STREAM_ORDERS: dict[str, Callable[[StreamRow], Any]] = {
    "name": lambda row: row.info.config.name,
    "messages": lambda row: row.info.state.messages,
    "bytes": lambda row: row.info.state.bytes,
    "consumers": lambda row: row.info.state.consumer_count,
    "rate": lambda row: row.published.per_second,
}
_CONSUMER_ORDERS: dict[str, Callable[[ConsumerRow], Any]] = {
    "name": lambda row: row.info.name,
    "stream": lambda row: row.stream,
    # The worst first.
    "state": lambda row: {"bad": 0, "warn": 1}.get(row.finding.level if row.finding else "", 2),
    "pending": lambda row: row.info.num_pending,
    "ack_pending": lambda row: row.info.num_ack_pending,
    "redelivered": lambda row: row.info.num_redelivered,
    "waiting": lambda row: row.info.num_waiting,
    "rate": lambda row: row.delivered.per_second,
}


class Board:
    """The state behind the pages. Everything it keeps is bounded by what exists or by a constant above.

    Args:
        histories: what an earlier run dumped of its timelines, by stream and consumer.
    """

    def __init__(self, histories: dict[str, Any] | None = None) -> None:
        self._streams: dict[str, StreamRow] = {}
        self._consumers: dict[str, dict[str, ConsumerRow]] = {}
        self._timelines = Timelines()
        self._histories = histories or {}
        self._ack_times_ns: dict[tuple[str, str], deque[int]] = {}
        self._advisories: deque[dict[str, Any]] = deque(maxlen=ADVISORIES_MAX)
        self._pipelines: dict[str, dict[str, Any]] = {}
        self.account: dict[str, Any] = {}
        self.server: dict[str, Any] = {"connected": False}
        self.connections: dict[str, Any] | None = None
        self.health: dict[str, Any] | None = None

    def observe_streams(self, infos: Iterable[StreamInfo], time_s: float, gap_s: float = math.inf) -> None:
        """Record the state of streams.

        Args:
            gap_s: samples further apart than this say nothing about the time between.
        """
        for info in infos:
            name = info.config.name
            row = self._streams.get(name)
            if row is None or row.info.created != info.created:
                if row is not None:
                    row.series.release()
                row = self._streams[name] = StreamRow(info, self._timelines)
                self._load(row, name, info.created)
            row.observe(info, time_s, gap_s)

    def drop_unlisted(self, names: Set[str]) -> None:
        """Forget the streams that are none of these, with their consumers."""
        for name in self._streams.keys() - names:
            self._streams.pop(name).series.release()
            for consumer in self._consumers.pop(name, {}).values():
                consumer.series.release()
        for key in [key for key in self._ack_times_ns if key[0] not in names]:
            del self._ack_times_ns[key]

    def observe_consumers(self, stream: str, infos: list[ConsumerInfo], time_s: float, gap_s: float = math.inf) -> None:
        """Record the state of all consumers of one stream."""
        if stream not in self._streams:
            return
        known = self._consumers.get(stream, {})
        seen: dict[str, ConsumerRow] = {}
        for info in infos:
            row = known.pop(info.name, None)
            if row is None or row.info.created != info.created:
                if row is not None:
                    row.series.release()
                row = ConsumerRow(stream, info, self._timelines)
                self._load(row, f"{stream} {info.name}", info.created)
            row.observe(info, time_s, gap_s)
            seen[info.name] = row
        for gone in known.values():
            gone.series.release()
        self._consumers[stream] = seen

    def _load(self, row: StreamRow | ConsumerRow, key: str, created: str) -> None:
        """Give a row the history that an earlier run kept of it."""
        kept = self._histories.pop(key, None)
        if kept is None or kept["created"] != created:
            return
        try:
            row.series.load(kept["series"])
        except ValueError:
            pass  # of a version with other ranges: the history begins anew

    def dump(self) -> dict[str, Any]:
        """Return the long histories, for a later run; of what was not seen yet, as they were loaded."""
        dumped = dict(self._histories)
        for name, row in self._streams.items():
            dumped[name] = {"created": row.info.created, "series": row.series.dump()}
        for stream, rows in self._consumers.items():
            for name, consumer in rows.items():
                dumped[f"{stream} {name}"] = {"created": consumer.info.created, "series": consumer.series.dump()}
        return {key: kept for key, kept in dumped.items() if kept["series"]}

    def observe_advisory(self, subject: str, payload: bytes, time_s: float) -> None:
        """Record one event of `$JS.EVENT.>`: an ack sample feeds the percentiles, the rest is listed."""
        event = _decoded(payload)
        if event is None:
            return
        if ".METRIC.CONSUMER.ACK." in subject:
            ack_time_ns = event.get("ack_time")
            if isinstance(ack_time_ns, int):
                key = (str(event.get("stream", "")), str(event.get("consumer", "")))
                if key[0] in self._streams:
                    self._ack_times_ns.setdefault(key, deque(maxlen=SAMPLES_PER_CONSUMER)).append(ack_time_ns)
            return
        kind = str(event.get("type", "")).rpartition(".")[2]
        text = ", ".join(
            f"{name} {event[name]}"
            for name in ("stream", "consumer", "action", "stream_seq", "deliveries", "reason", "group", "subject")
            if event.get(name) not in (None, "")
        )
        about = {name: str(event.get(name, "")) for name in ("stream", "consumer")}
        self._advisories.append({"time": time_s, "kind": kind, "text": text, "subject": subject, **about})

    def observe_pipeline(self, payload: bytes, time_s: float) -> None:
        """Record one progress report of a running pipeline."""
        report = _decoded(payload)
        if report is None or not isinstance(report.get("id"), str):
            return
        self._pipelines.pop(report["id"], None)
        if len(self._pipelines) >= PIPELINES_MAX:
            del self._pipelines[next(iter(self._pipelines))]
        self._pipelines[report["id"]] = {**report, "seen": time_s}

    def summary(self, time_s: float) -> dict[str, Any]:
        """Return what every page shows: the server, the totals, and what needs attention."""
        findings = self._findings(time_s)
        rows = self._streams.values()
        return {
            "time": time_s,
            "server": self.server,
            "account": self.account,
            "attention": msgspec.to_builtins(findings[:FINDINGS_MAX]),
            "attention_total": len(findings),
            "totals": {
                "streams": len(self._streams),
                "messages": sum(row.info.state.messages for row in rows),
                "bytes": sum(row.info.state.bytes for row in rows),
                "consumers": sum(row.info.state.consumer_count for row in rows),
                "rate": round(sum(row.published.per_second for row in rows), 1),
                "pending": sum(one.info.num_pending for ones in self._consumers.values() for one in ones.values()),
            },
        }

    def _findings(self, time_s: float) -> list[Finding]:
        """Return what a person should look at, the worst first."""
        found = [health_finding(self.health), *(row.finding for row in self._streams.values())]
        found += [row.finding for rows in self._consumers.values() for row in rows.values()]
        found += self._deaths(time_s)
        found += [
            Finding("bad", "failed", f"pipeline {report.get('name') or report['id']} failed" + _reason(report))
            for report in self._pipelines.values()
            if report.get("state") == "failed" and time_s - report["seen"] < PIPELINE_SILENT_S
        ]
        return sorted((one for one in found if one is not None), key=lambda one: (one.level != "bad", -one.weight))

    def _deaths(self, time_s: float) -> list[Finding]:
        """Return messages that ran out of deliveries a short while ago, by consumer."""
        numbers = Counter(
            (event["stream"], event["consumer"])
            for event in self._advisories
            if event["kind"] == "max_deliver" and time_s - event["time"] < DEATHS_S
        )
        return [
            Finding(
                "bad", "given up", f"gave up on {number:,} of its messages: no deliveries are left", stream, consumer
            )
            for (stream, consumer), number in numbers.items()
        ]

    def streams(self, listing: Listing, time_s: float, prefix: str = "") -> dict[str, Any]:
        """Return one page of the table of streams, of all or of those whose names begin so."""
        rows = self._streams.values()
        return listed(
            [row for name, row in self._streams.items() if name.startswith(prefix)] if prefix else rows,
            listing,
            search=lambda row: f"{row.info.config.name} {' '.join(row.info.config.subjects)}",
            orders=_STREAM_ORDERS,
            shown=lambda row: row.shown(time_s),
        )

    def consumers(self, listing: Listing, time_s: float, stream: str | None = None) -> dict[str, Any]:
        """Return one page of the table of consumers, of all streams or of one."""
        if stream is not None:
            rows = list(self._consumers.get(stream, {}).values())
        else:
            rows = [row for ones in self._consumers.values() for row in ones.values()]
        return listed(
            rows,
            listing,
            search=lambda row: f"{row.info.name} {row.stream}",
            orders=_CONSUMER_ORDERS,
            shown=lambda row: row.shown(time_s),
        )

    def pipelines(self, time_s: float) -> list[dict[str, Any]]:
        """Return what runs, or ran a short while ago."""
        return [report for report in self._pipelines.values() if time_s - report["seen"] < PIPELINE_SILENT_S]

    def advisories(self) -> list[dict[str, Any]]:
        """Return all that are kept, newest first."""
        return list(self._advisories)[::-1]

    def stream_names(self) -> list[str]:
        """Return the streams that have consumers, whose infos are worth asking for."""
        return [name for name, row in self._streams.items() if row.info.state.consumer_count]

    def infos(self) -> list[StreamInfo]:
        """Return all streams as they were last seen."""
        return [row.info for row in self._streams.values()]

    def stream(self, name: str, listing: Listing, time_s: float) -> dict[str, Any] | None:
        """Return one stream with its configuration, charts and consumers."""
        row = self._streams.get(name)
        if row is None:
            return None
        return {**row.detail(listing.range, time_s), "consumers_list": self.consumers(listing, time_s, name)}

    def consumer(self, stream: str, name: str, listing: Listing, time_s: float) -> dict[str, Any] | None:
        """Return one consumer with its configuration, charts, ack times and priority groups."""
        row = self._consumers.get(stream, {}).get(name)
        if row is None:
            return None
        times = percentiles_ms(self._ack_times_ns.get((stream, name), ()))
        return {**row.detail(listing.range, time_s), "ack_times": times}


def _decoded(payload: bytes) -> dict[str, Any] | None:
    """Return a JSON object; None for anything else that may be published."""
    try:
        value = msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _reason(report: dict[str, Any]) -> str:
    error = str(report.get("error") or "").strip()
    return f": {error.splitlines()[0][:200]}" if error else ""
