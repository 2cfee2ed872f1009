"""A stream and a consumer as they are watched: the latest info, rates, timelines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from jetlake.dashboard.watching.attention import (
    BEHIND_GROWTH_MIN,
    Finding,
    Standstill,
    consumer_finding,
    stream_finding,
)
from jetlake.dashboard.watching.timeline import LIVE, Rate, Timeline, Timelines
from jetlake.model.config_text import config_text
from jetlake.model.consumer import ConsumerInfo
from jetlake.model.stream import ClusterInfo, StreamInfo, StreamSourceInfo

__all__ = ["ConsumerRow", "StreamRow", "Totals", "percentiles_ms"]

SUBJECTS_SHOWN = 100
"""How many subjects of a stream a table lists; its configuration has all of them."""
_FLOW_SHARE = 0.1
"""How much one sample counts in the flow of a stream."""
_EMPTY: dict[str, Any] = {"start": 0, "step": 1, "mean": [], "high": []}


class _Series:
    """The timelines of a row, by what they show, and when they were last fed."""

    __slots__ = ("_seen_s", "_timelines", "lines")

    def __init__(self, timelines: Timelines, names: tuple[str, ...]) -> None:
        self._timelines = timelines
        self._seen_s: float | None = None
        self.lines: dict[str, Timeline | None] = {name: timelines.make() for name in names}

    def add(self, values: Mapping[str, float | None], time_s: float, gap_s: float) -> None:
        """Add a sample to each timeline; None = not known for the time since the last one."""
        since_s = self._seen_s if self._seen_s is not None and time_s - self._seen_s <= gap_s else None
        self._seen_s = time_s
        for name, value in values.items():
            line = self.lines[name]
            if line is not None and value is not None:
                line.add(value, since_s, time_s)

    def windows(self, name: str, now_s: float) -> dict[str, Any]:
        return {what: _EMPTY if line is None else line.window(name, now_s) for what, line in self.lines.items()}

    def spark(self, what: str, now_s: float, name: str = LIVE) -> dict[str, Any]:
        """Return the means of a range, the last five minutes by default."""
        line = self.lines[what]
        window = _EMPTY if line is None else line.window(name, now_s)
        return {"start": window["start"], "step": window["step"], "mean": window["mean"]}

    def means(self, what: str, now_s: float) -> list[float]:
        line = self.lines[what]
        return [] if line is None else line.means(now_s)

    def dump(self) -> dict[str, Any]:
        return {what: line.dump() for what, line in self.lines.items() if line is not None and line.is_long}

    def take_over(self, other: _Series) -> None:
        self._seen_s = other._seen_s
        for what, line in self.lines.items():
            before = other.lines[what]
            if line is not None and before is not None:
                line.take_over(before)

    def load(self, dumped: Mapping[str, Any]) -> None:
        for what, line in self.lines.items():
            if line is not None and what in dumped:
                line.load(dumped[what])

    def release(self) -> None:
        for line in self.lines.values():
            self._timelines.release(line)


class Totals:
    """All streams and consumers together, over time."""

    __slots__ = ("series",)

    def __init__(self, timelines: Timelines) -> None:
        self.series = _Series(timelines, ("published", "delivered", "pending"))

    def observe(
        self, streams: Iterable[StreamRow], consumers: Iterable[ConsumerRow], time_s: float, gap_s: float
    ) -> None:
        """Add up the latest of each. A rate is known when one of the rates is."""
        consumers = list(consumers)
        published = [row.published.known for row in streams if row.is_published and row.published.known is not None]
        delivered = [row.delivered.known for row in consumers if row.delivered.known is not None]
        values = {
            "published": sum(published) if published else None,
            "delivered": sum(delivered) if delivered else None,
            "pending": sum(row.info.num_pending for row in consumers),
        }
        self.series.add(values, time_s, gap_s)


class StreamRow:
    """One stream."""

    __slots__ = ("finding", "flow", "info", "published", "series")

    def __init__(self, info: StreamInfo, timelines: Timelines) -> None:
        self.info = info
        self.finding: Finding | None = None
        self.published = Rate()
        self.flow = 0.0
        """The rate of the last samples together: who is busiest does not change with each."""
        self.series = _Series(timelines, ("published", "messages"))

    @property
    def is_published(self) -> bool:
        """Whether its messages were published to it; those of a mirror count where they came from."""
        return self.info.config.mirror is None

    def take_over(self, other: StreamRow) -> None:
        """Continue where another watch of the same stream is."""
        self.published.take_over(other.published)
        self.flow = other.flow
        self.series.take_over(other.series)

    def observe(self, info: StreamInfo, time_s: float, gap_s: float) -> None:
        """Record the state of the stream."""
        self.info = info
        self.finding = stream_finding(info)
        is_known = self.published.read(info.state.last_seq, time_s, gap_s)
        rate = self.published.per_second if is_known else None
        self.flow += (self.published.per_second - self.flow) * _FLOW_SHARE
        self.series.add({"published": rate, "messages": info.state.messages}, time_s, gap_s)

    def shown(self, now_s: float) -> dict[str, Any]:
        config, state = self.info.config, self.info.state
        return {
            "name": config.name,
            "subjects": _subjects(config.subjects),
            "retention": config.retention.value,
            "storage": config.storage.value,
            "messages": state.messages,
            "bytes": state.bytes,
            "first_seq": state.first_seq,
            "last_seq": state.last_seq,
            "last_ts": state.last_ts,
            "num_subjects": state.num_subjects,
            "consumers": state.consumer_count,
            "rate": self.published.known,
            "chart": self.series.spark("published", now_s),
            "finding": msgspec.to_builtins(self.finding),
            "cluster": _cluster(self.info.cluster),
        }

    def detail(self, name: str, now_s: float) -> dict[str, Any]:
        """Return what the stream's own page shows, with charts of the range of that name."""
        copies = (self.info.mirror,) if self.info.mirror is not None else self.info.sources
        return {
            **self.shown(now_s),
            "config": msgspec.to_builtins(self.info.config),
            "settings": _settings(self.info.config, _STREAM_SETTINGS),
            "created": self.info.created,
            "charts": self.series.windows(name, now_s),
            "copies": [_copy(copy) for copy in copies],
        }


class ConsumerRow:
    """One consumer of a stream."""

    __slots__ = ("acked", "delivered", "finding", "info", "series", "standstill", "stream")

    def __init__(self, stream: str, info: ConsumerInfo, timelines: Timelines) -> None:
        self.stream = stream
        self.info = info
        self.delivered = Rate()
        self.acked = Rate()
        self.finding: Finding | None = None
        self.standstill = Standstill()
        self.series = _Series(timelines, ("delivered", "acked", "pending", "redelivered"))

    def take_over(self, other: ConsumerRow) -> None:
        """Continue where another watch of the same consumer is."""
        self.delivered.take_over(other.delivered)
        self.acked.take_over(other.acked)
        self.standstill.take_over(other.standstill)
        self.series.take_over(other.series)

    def observe(self, info: ConsumerInfo, time_s: float, gap_s: float) -> None:
        """Record the state of the consumer."""
        self.info = info
        known = self.delivered.read(info.delivered.consumer_seq, time_s, gap_s)
        acks_known = self.acked.read(info.ack_floor.consumer_seq, time_s, gap_s)
        values = {
            "delivered": self.delivered.per_second if known else None,
            "acked": self.acked.per_second if acks_known else None,
            "pending": info.num_pending,
            "redelivered": info.num_redelivered,
        }
        self.series.add(values, time_s, gap_s)
        self.standstill.observe(info, time_s)
        # A consumer with few pending messages can't have fallen behind.
        pending = self.series.means("pending", time_s) if info.num_pending >= BEHIND_GROWTH_MIN else []
        self.finding = consumer_finding(info, self.standstill.seconds, pending)

    def shown(self, now_s: float) -> dict[str, Any]:
        info = self.info
        return {
            "stream": self.stream,
            "name": info.name,
            "kind": "push" if info.config.deliver_subject else "pull",
            "ack_policy": info.config.ack_policy.value,
            "pending": info.num_pending,
            "ack_pending": info.num_ack_pending,
            "redelivered": info.num_redelivered,
            "waiting": info.num_waiting,
            "paused": info.paused,
            "rate": self.delivered.known,
            "chart": self.series.spark("pending", now_s),
            "finding": msgspec.to_builtins(self.finding),
            "is_known": self.standstill.is_known,
            "cluster": _cluster(info.cluster),
        }

    def detail(self, name: str, now_s: float) -> dict[str, Any]:
        """Return what the consumer's own page shows, with charts of the range of that name."""
        info = self.info
        return {
            **self.shown(now_s),
            "config": msgspec.to_builtins(info.config),
            "settings": _settings(info.config, _CONSUMER_SETTINGS),
            "created": info.created,
            "delivered": msgspec.to_builtins(info.delivered),
            "ack_floor": msgspec.to_builtins(info.ack_floor),
            "ack_rate": self.acked.known,
            "pause_remaining_s": info.pause_remaining / 1e9,
            "priority_groups": msgspec.to_builtins(info.priority_groups),
            "charts": self.series.windows(name, now_s),
        }


_STREAM_SETTINGS = ("max_msgs", "max_bytes", "max_age", "discard", "duplicate_window", "num_replicas")
_CONSUMER_SETTINGS = ("deliver_policy", "ack_wait", "max_deliver", "max_ack_pending", "replay_policy")
"""What is shown of every configuration; the rest where it says something."""
_ELSEWHERE = frozenset(
    {"name", "durable_name", "subjects", "retention", "storage", "ack_policy", "mirror", "sources", "metadata"}
)


def _settings(config: msgspec.Struct, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return fields of a configuration as people read them."""
    values = msgspec.to_builtins(config)
    said = [name for name, value in values.items() if value and value not in (-1, "none", "default")]
    shown = [*names, *(name for name in said if name not in names and name not in _ELSEWHERE)]
    return [(name.removeprefix("num_"), config_text(name, values[name])) for name in shown if name in values]


def _subjects(subjects: tuple[str, ...]) -> list[str]:
    more = len(subjects) - SUBJECTS_SHOWN
    return list(subjects) if more <= 0 else [*subjects[:SUBJECTS_SHOWN], f"and {more:,} more"]


def _cluster(cluster: ClusterInfo | None) -> dict[str, Any] | None:
    """Return leader and replicas; None on a server that is not in a cluster."""
    if cluster is None or not (cluster.replicas or cluster.raft_group):
        return None
    return {
        "name": cluster.name,
        "leader": cluster.leader,
        "replicas": [
            {
                "name": peer.name,
                "current": peer.current,
                "offline": peer.offline,
                "lag": peer.lag,
                "active": peer.active,
            }
            for peer in cluster.replicas
        ],
    }


def _copy(copy: StreamSourceInfo) -> dict[str, Any]:
    return {
        "name": copy.name,
        "external": "" if copy.external is None else copy.external.api,
        "lag": copy.lag,
        "active": copy.active,
        "error": "" if copy.error is None else copy.error.description,
    }


def percentiles_ms(ack_times_ns: Any) -> dict[str, float]:
    """Return ack time percentiles in milliseconds; empty when nothing was sampled."""
    ordered = sorted(ack_times_ns)
    if not ordered:
        return {}
    last = len(ordered) - 1
    return {
        "samples": len(ordered),
        **{f"p{percent}": round(ordered[round(last * percent / 100)] / 1e6, 3) for percent in (50, 95, 99)},
    }
