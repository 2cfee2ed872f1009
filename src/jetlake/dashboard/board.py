"""What the dashboard knows: fed with infos, advisories and samples, it gives snapshots. Pure; time is passed in."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import msgspec

from jetlake.dashboard.attention import Finding, Standstill, consumer_finding, health_finding, stream_finding
from jetlake.dashboard.history import History, Rate
from jetlake.model.consumer import ConsumerInfo
from jetlake.model.stream import StreamInfo

__all__ = ["ADVISORIES_MAX", "FINDINGS_MAX", "PIPELINES_MAX", "SAMPLES_PER_CONSUMER", "Board"]

ADVISORIES_MAX = 200
"""How many advisories are kept; older ones fall out."""
SAMPLES_PER_CONSUMER = 1024
"""How many ack samples of one consumer its percentiles are taken from; older ones fall out."""
PIPELINES_MAX = 64
"""How many pipelines are shown; the one that has been silent longest makes room."""
FINDINGS_MAX = 10
"""How many things to look at are shown, the worst first; the number of all is told."""
DEATHS_S = 600.0
"""How long messages that ran out of deliveries are told of."""
PIPELINE_SILENT_S = 600.0
"""A pipeline that has not reported for this long is no longer shown."""


class _StreamRow:
    __slots__ = ("backlog", "info", "published")

    def __init__(self, info: StreamInfo) -> None:
        self.info = info
        self.published = Rate()
        self.backlog = History()


class _ConsumerRow:
    __slots__ = ("acked", "delivered", "info", "pending", "redelivered", "standstill")

    def __init__(self, info: ConsumerInfo) -> None:
        self.info = info
        self.delivered = Rate()
        self.acked = Rate()
        self.pending = History()
        self.redelivered = History()
        self.standstill = Standstill()

    def finding(self) -> Finding | None:
        return consumer_finding(self.info, self.standstill.seconds, self.pending.values())


class Board:
    """The state behind the page. Everything it keeps is bounded by what exists or by a constant above."""

    def __init__(self) -> None:
        self._streams: dict[str, _StreamRow] = {}
        self._consumers: dict[str, dict[str, _ConsumerRow]] = {}
        self._ack_times_ns: dict[tuple[str, str], deque[int]] = {}
        self._advisories: deque[dict[str, Any]] = deque(maxlen=ADVISORIES_MAX)
        self._pipelines: dict[str, dict[str, Any]] = {}
        self.account: dict[str, Any] = {}
        self.server: dict[str, Any] = {"connected": False}
        self.connections: dict[str, Any] | None = None
        self.health: dict[str, Any] | None = None

    def see_streams(self, infos: list[StreamInfo], time_s: float) -> None:
        """Take the whole list of streams as it is now; what is not in it is gone."""
        seen: dict[str, _StreamRow] = {}
        for info in infos:
            row = self._streams.get(info.config.name)
            if row is None or row.info.created != info.created:
                row = _StreamRow(info)
            row.info = info
            row.published.read(info.state.last_seq, time_s)
            row.backlog.add(info.state.messages)
            seen[info.config.name] = row
        self._streams = seen
        for name in self._consumers.keys() - seen.keys():
            del self._consumers[name]
        for key in [key for key in self._ack_times_ns if key[0] not in seen]:
            del self._ack_times_ns[key]

    def see_consumers(self, stream: str, infos: list[ConsumerInfo], time_s: float) -> None:
        """Take all consumers of one stream as they are now."""
        known = self._consumers.get(stream, {})
        seen: dict[str, _ConsumerRow] = {}
        for info in infos:
            row = known.get(info.name)
            if row is None or row.info.created != info.created:
                row = _ConsumerRow(info)
            row.info = info
            row.delivered.read(info.delivered.consumer_seq, time_s)
            row.acked.read(info.ack_floor.consumer_seq, time_s)
            row.pending.add(info.num_pending)
            row.redelivered.add(info.num_redelivered)
            row.standstill.see(info, time_s)
            seen[info.name] = row
        if stream in self._streams:
            self._consumers[stream] = seen

    def see_advisory(self, subject: str, payload: bytes, time_s: float) -> None:
        """Take one event of `$JS.EVENT.>`: an ack sample feeds the percentiles, the rest is listed."""
        try:
            event = msgspec.json.decode(payload)
        except (msgspec.DecodeError, RecursionError):
            event = None
        if not isinstance(event, dict):
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

    def see_pipeline(self, payload: bytes, time_s: float) -> None:
        """Take one progress report of a running pipeline."""
        try:
            report = msgspec.json.decode(payload)
        except (msgspec.DecodeError, RecursionError):
            return
        if not isinstance(report, dict) or not isinstance(report.get("id"), str):
            return
        self._pipelines.pop(report["id"], None)
        if len(self._pipelines) >= PIPELINES_MAX:
            del self._pipelines[next(iter(self._pipelines))]
        self._pipelines[report["id"]] = {**report, "seen": time_s}

    def overview(self, time_s: float) -> dict[str, Any]:
        """Everything the overview shows, with charts of the streams only where there is something to draw."""
        findings = self._findings(time_s)
        return {
            "time": time_s,
            "server": self.server,
            "account": self.account,
            "attention": msgspec.to_builtins(findings[:FINDINGS_MAX]),
            "attention_total": len(findings),
            "streams": [self._stream(row) for row in self._streams.values()],
            "consumers": [
                self._consumer(stream, row) for stream, rows in self._consumers.items() for row in rows.values()
            ],
            "pipelines": [report for report in self._pipelines.values() if time_s - report["seen"] < PIPELINE_SILENT_S],
            "advisories": list(self._advisories)[::-1][:50],
            "connections": self.connections,
        }

    def _findings(self, time_s: float) -> list[Finding]:
        """What a person should look at, the worst first."""
        found = [health_finding(self.health), *(stream_finding(row.info) for row in self._streams.values())]
        found += [row.finding() for rows in self._consumers.values() for row in rows.values()]
        found += self._deaths(time_s)
        found += [
            Finding("bad", "failed", f"pipeline {report.get('name') or report['id']} failed")
            for report in self._pipelines.values()
            if report.get("state") == "failed" and time_s - report["seen"] < PIPELINE_SILENT_S
        ]
        return sorted((one for one in found if one is not None), key=lambda one: (one.level != "bad", -one.weight))

    def _deaths(self, time_s: float) -> list[Finding]:
        """Messages that ran out of deliveries a short while ago, by consumer."""
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

    def advisories(self) -> list[dict[str, Any]]:
        """All that are kept, newest first."""
        return list(self._advisories)[::-1]

    def stream_names(self) -> list[str]:
        """The streams that have consumers, whose infos are worth asking for."""
        return [name for name, row in self._streams.items() if row.info.state.consumer_count]

    def stream(self, name: str) -> dict[str, Any] | None:
        """One stream with its configuration, charts and consumers."""
        row = self._streams.get(name)
        if row is None:
            return None
        return {
            **self._stream(row),
            "config": msgspec.to_builtins(row.info.config),
            "created": row.info.created,
            "finding": msgspec.to_builtins(stream_finding(row.info)),
            "consumers_list": [self._consumer(name, one) for one in self._consumers.get(name, {}).values()],
        }

    def consumer(self, stream: str, name: str) -> dict[str, Any] | None:
        """One consumer with its configuration, charts, ack times and priority groups."""
        row = self._consumers.get(stream, {}).get(name)
        if row is None:
            return None
        return {
            **self._consumer(stream, row),
            "config": msgspec.to_builtins(row.info.config),
            "created": row.info.created,
            "delivered": msgspec.to_builtins(row.info.delivered),
            "ack_floor": msgspec.to_builtins(row.info.ack_floor),
            "ack_times": _percentiles_ms(self._ack_times_ns.get((stream, name), ())),
            "priority_groups": msgspec.to_builtins(row.info.priority_groups),
            "charts": {
                "delivered": row.delivered.history.values(),
                "acked": row.acked.history.values(),
                "pending": row.pending.values(),
                "redelivered": row.redelivered.values(),
            },
        }

    def _stream(self, row: _StreamRow) -> dict[str, Any]:
        config, state = row.info.config, row.info.state
        return {
            "name": config.name,
            "subjects": list(config.subjects),
            "retention": config.retention.value,
            "storage": config.storage.value,
            "messages": state.messages,
            "bytes": state.bytes,
            "first_seq": state.first_seq,
            "last_seq": state.last_seq,
            "last_ts": state.last_ts,
            "num_subjects": state.num_subjects,
            "consumers": state.consumer_count,
            "rate": row.published.per_second,
            "chart": row.published.history.values(),
            "backlog": row.backlog.values(),
        }

    def _consumer(self, stream: str, row: _ConsumerRow) -> dict[str, Any]:
        info = row.info
        return {
            "stream": stream,
            "name": info.name,
            "kind": "push" if info.config.deliver_subject else "pull",
            "ack_policy": info.config.ack_policy.value,
            "pending": info.num_pending,
            "ack_pending": info.num_ack_pending,
            "redelivered": info.num_redelivered,
            "waiting": info.num_waiting,
            "paused": info.paused,
            "rate": row.delivered.per_second,
            "chart": row.pending.values(),
            "finding": msgspec.to_builtins(row.finding()),
        }


def _percentiles_ms(ack_times_ns: Any) -> dict[str, float]:
    """Ack time percentiles in milliseconds; empty when nothing was sampled."""
    ordered = sorted(ack_times_ns)
    if not ordered:
        return {}
    last = len(ordered) - 1
    return {
        "samples": len(ordered),
        **{f"p{percent}": round(ordered[round(last * percent / 100)] / 1e6, 3) for percent in (50, 95, 99)},
    }
