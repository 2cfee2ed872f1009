"""What the dashboard knows: fed with infos, advisories and samples, it gives pages. Pure; time is passed in.

Events and reports of pipelines are ordinary messages, which everybody with the permission can publish. The board keeps
a bounded number of them, of a bounded size, for a bounded time, and counts the rest. Only a consumer that exists and is
sampled has ack times, and only one that exists is reported for messages that ran out of deliveries.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from operator import attrgetter
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from jetlake.dashboard.watching.attention import Finding, command_line, health_finding, messages
from jetlake.dashboard.watching.listing import Listing, listed
from jetlake.dashboard.watching.rows import ConsumerRow, StreamRow, Totals, percentiles_ms
from jetlake.dashboard.watching.timeline import HISTORY_S, LONG_MAX, Timelines, newest_s
from jetlake.model.config_text import size_text
from jetlake.model.consumer import ConsumerInfo
from jetlake.model.stream import StreamInfo

__all__ = [
    "ADVISORIES_MAX",
    "EVENT_BYTES_MAX",
    "FINDINGS_MAX",
    "PIPELINES_MAX",
    "SAMPLED_CONSUMERS_MAX",
    "SAMPLES_PER_CONSUMER",
    "Board",
]

EVENT_BYTES_MAX = 64 * 1024
"""The largest event or report that is read; nats-server's own have a few hundred bytes."""
EVENTS_S = 24 * 3600.0
"""How long advisories are kept, and the ack times of a consumer of which no sample comes any more."""
ADVISORIES_MAX = 500
"""How many advisories are kept; older ones fall out."""
SAMPLES_PER_CONSUMER = 1024
"""How many ack samples of one consumer its percentiles are taken from; older ones fall out."""
SAMPLED_CONSUMERS_MAX = 1000
"""How many consumers have ack times (8 KiB each); the one that has been silent longest makes room."""
NAME_MAX, TEXT_MAX, ERROR_MAX = 255, 500, 4000
"""The longest name, description of an advisory and error of a pipeline that are kept, in characters."""
PIPELINES_MAX = 64
"""How many pipelines are shown; the one that has been silent longest makes room."""
FINDINGS_MAX = 10
"""How many findings are shown, the worst first, beside the number of all."""
COMPARISONS_MAX = 20
"""How many samples are compared with the samples of a board that saw more before, to take over its sums."""
SHARES_MAX = 5
"""How many streams and consumers are drawn beside each other, those with the most."""
FLOW_MIN = 0.05
"""Messages per second from which on a stream is drawn among the busiest."""
DISK_SHARE = 0.9
"""A store is reported from this share of its limit on."""
SLOW_S = 600.0
"""How long a client that was cut off for reading too slowly is reported."""
DEATHS_S = 600.0
"""How long messages that ran out of deliveries are reported."""
PIPELINE_SILENT_S = 600.0
"""A pipeline that has not reported for this long is no longer shown."""

_IS_PUBLISHED, _FLOW = attrgetter("is_published"), attrgetter("flow")
_ACTIONS = {"create": "created", "modify": "updated", "delete": "deleted"}
_TOTALS = " "
"""The key of the sums among the histories: no stream is called so."""

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


class _AckSample(msgspec.Struct, frozen=True):
    """The part of an ack metric that is read; stream and consumer are in its subject."""

    ack_time: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class _Advisory(msgspec.Struct, frozen=True):
    """The part of an advisory that is shown."""

    type: str = ""
    stream: str = ""
    consumer: str = ""
    action: str = ""
    stream_seq: int | None = None
    deliveries: int | None = None
    reason: str = ""
    group: str = ""
    subject: str = ""


class _PipelineReport(msgspec.Struct, frozen=True):
    """The part of a pipeline's progress report that is shown."""

    id: Annotated[str, Meta(max_length=NAME_MAX)]
    name: str | None = None
    state: str | None = None
    batch: int | None = None
    rows_total: int | None = None
    rows_per_second: float | None = None
    lag: int | None = None
    error: str | None = None


EventT = TypeVar("EventT")


class _AckTimes:
    """The newest ack times of one consumer."""

    __slots__ = ("_next", "ns", "seen_s")

    def __init__(self) -> None:
        self.ns = array("q")
        self.seen_s = 0.0
        self._next = 0

    def add(self, ack_time_ns: int, time_s: float) -> None:
        self.seen_s = time_s
        if len(self.ns) < SAMPLES_PER_CONSUMER:
            self.ns.append(ack_time_ns)
            return
        self.ns[self._next] = ack_time_ns
        self._next = (self._next + 1) % SAMPLES_PER_CONSUMER


class Board:
    """The state behind the pages. Everything it keeps is bounded by what exists or by a constant above.

    Args:
        histories: what an earlier run dumped of its timelines, by stream and consumer.
        before: a board that has watched the same account for longer. What is seen here for the first time continues
            from there.
        timelines: where the room for timelines comes from, when several boards share it.

    Attributes:
        dropped: events and reports that were not kept, or made room for newer ones, by reason.
        unheard: subjects of events and reports that the user may not subscribe to.
    """

    def __init__(
        self,
        histories: dict[str, Any] | None = None,
        *,
        before: Board | None = None,
        timelines: Timelines | None = None,
    ) -> None:
        self._streams: dict[str, StreamRow] = {}
        self._consumers: dict[str, dict[str, ConsumerRow]] = {}
        self._timelines = timelines or Timelines()
        self._before = before
        self._totals = Totals(self._timelines)
        self._has_totals = False
        self._comparisons_left = COMPARISONS_MAX
        self._denials: dict[str, str] = {}
        self._histories = histories or {}
        # By stream and consumer, the one that was sampled last at the end.
        self._ack_times: OrderedDict[tuple[str, str], _AckTimes] = OrderedDict()
        self._advisories: deque[dict[str, Any]] = deque()
        self._pipelines: dict[str, dict[str, Any]] = {}
        self.dropped: Counter[str] = Counter()
        self.unheard: list[str] = []
        self.account: dict[str, Any] = {}
        self.server: dict[str, Any] = {"connected": False}
        self.connections: dict[str, Any] | None = None
        self.health: dict[str, Any] | None = None
        self._variables: dict[str, Any] | None = None
        # When the number of clients that were too slow grew, and by how many.
        self._slow: deque[tuple[float, int]] = deque(maxlen=ADVISORIES_MAX)

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
                earlier = None if self._before is None else self._before._streams.get(name)
                if earlier is not None and earlier.info.created == info.created:
                    row.take_over(earlier)
            row.observe(info, time_s, gap_s)
            if not info.state.consumer_count:
                for gone in self._consumers.pop(name, {}).values():
                    self._release(gone)

    def drop_unlisted(self, names: Set[str]) -> None:
        """Forget the streams that are none of these, with their consumers."""
        for name in self._streams.keys() - names:
            self._streams.pop(name).series.release()
            self._denials.pop(name, None)
            for consumer in self._consumers.pop(name, {}).values():
                self._release(consumer)

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
                    self._release(row)
                row = ConsumerRow(stream, info, self._timelines)
                self._load(row, f"{stream} {info.name}", info.created)
                earlier = None if self._before is None else self._before._consumers.get(stream, {}).get(info.name)
                if earlier is not None and earlier.info.created == info.created:
                    row.take_over(earlier)
            row.observe(info, time_s, gap_s)
            seen[info.name] = row
        for gone in known.values():
            self._release(gone)
        self._consumers[stream] = seen
        self._denials.pop(stream, None)

    def observe_totals(self, time_s: float, gap_s: float = math.inf) -> None:
        """Record the sums of the observed values: once a sample, when all of it is."""
        if not self._has_totals:
            self._has_totals = True
            kept = self._histories.pop(_TOTALS, None)
            if kept is not None:
                with suppress(ValueError):
                    self._totals.series.load(kept["series"])
        # The sums of a board that sees more are not for this one's reader. One that was looked at a few seconds ago
        # may only miss what is new or have what is gone, so it is compared a few times.
        if self._before is not None and self._comparisons_left:
            self._comparisons_left -= 1
            if self._before.names() <= self.names():
                self._comparisons_left = 0
                self._totals.series.take_over(self._before._totals.series)
        consumers = [row for rows in self._consumers.values() for row in rows.values()]
        self._totals.observe(self._streams.values(), consumers, time_s, gap_s)

    def totals(self, listing: Listing, time_s: float) -> dict[str, Any]:
        """Return the charts of all streams and consumers together."""
        shown = self._totals.series
        rates = [row.delivered.known for ones in self._consumers.values() for row in ones.values()]
        known = [rate for rate in rates if rate is not None]
        return {
            "charts": shown.windows(listing.range, time_s),
            "delivered": round(sum(known), 1) if known else None,
            "busiest": [
                {"stream": row.info.config.name, **row.series.spark("published", time_s, listing.range)}
                for row in heapq.nlargest(SHARES_MAX, filter(_IS_PUBLISHED, self._streams.values()), key=_FLOW)
                if row.flow >= FLOW_MIN
            ],
            "lagging": [
                {"stream": row.stream, "consumer": row.info.name, **row.series.spark("pending", time_s, listing.range)}
                for row in heapq.nlargest(
                    SHARES_MAX,
                    (one for ones in self._consumers.values() for one in ones.values()),
                    key=lambda row: row.info.num_pending,
                )
                if row.info.num_pending
            ],
        }

    def names(self) -> set[tuple[str, str]]:
        """Return the streams and consumers that were seen, each with when it was made."""
        streams = {(name, row.info.created) for name, row in self._streams.items()}
        return streams | {
            (f"{stream} {name}", row.info.created)
            for stream, rows in self._consumers.items()
            for name, row in rows.items()
        }

    def observe_server(self, variables: dict[str, Any] | None, time_s: float) -> None:
        """Record what `/varz` says; None = not known."""
        if variables is None:
            return
        before, self._variables = self._variables, variables
        if before is not None:
            more = _whole(variables.get("slow_consumers")) - _whole(before.get("slow_consumers"))
            if more > 0:
                self._slow.append((time_s, more))

    def _storage(self) -> tuple[int | None, int]:
        """Return the bytes on disk, of the server or of an account with its own limit, and the limit (0 = none)."""
        own, own_limit = self.account.get("storage"), self.account.get("max_storage", 0)
        if own_limit > 0 or self._variables is None:
            return own, max(own_limit, 0)
        jetstream = self._variables.get("jetstream")
        jetstream = jetstream if isinstance(jetstream, dict) else {}
        stats, config = jetstream.get("stats"), jetstream.get("config")
        if not isinstance(stats, dict) or not isinstance(config, dict):
            return own, 0
        return _whole(stats.get("storage")), _whole(config.get("max_storage"))

    def _server_findings(self, time_s: float) -> list[Finding]:
        """Return what is wrong with the server rather than with a stream or consumer."""
        found = []
        stored, most = self._storage()
        if stored is not None and 0 < most * DISK_SHARE <= stored:
            text = f"{size_text(stored)} of {size_text(most)} of storage are used: a full store rejects new messages"
            advice = "Raise the limit of the server or account, or purge what nobody needs."
            found.append(Finding("bad", "disk", text, advice=advice, command=command_line("stream", "report")))
        slow = sum(number for seen_s, number in self._slow if time_s - seen_s < SLOW_S)
        if slow:
            clients = "1 client was" if slow == 1 else f"{slow:,} clients were"
            text = f"{clients} disconnected in the last ten minutes for reading too slowly"
            advice = "Let these clients do less work per message, start more of them, or use pull consumers."
            command = command_line("server", "report", "connections")
            found.append(Finding("warn", "slow", text, advice=advice, command=command))
        return found

    def observe_denial(self, stream: str, reason: str) -> None:
        """Record that the consumers of a stream may not be listed."""
        if stream in self._streams:
            self._denials[stream] = reason

    def _release(self, consumer: ConsumerRow) -> None:
        """Drop what is kept of a consumer that is gone."""
        consumer.series.release()
        self._ack_times.pop((consumer.stream, consumer.info.name), None)

    def _load(self, row: StreamRow | ConsumerRow, key: str, created: str) -> None:
        """Give a row the history that an earlier run kept of it."""
        kept = self._histories.pop(key, None)
        if kept is None or kept["created"] != created:
            return
        try:
            row.series.load(kept["series"])
        except ValueError:
            pass  # of a version with other ranges: the history starts over

    def dump(self, time_s: float) -> dict[str, Any]:
        """Return the long histories, for a later run; unused ones as they were loaded.

        Histories of streams and consumers that are not seen again end with their time.
        """
        unseen = sorted(
            ((newest_s(kept["series"]), key) for key, kept in self._histories.items()),
            reverse=True,
        )
        dumped = {key: self._histories[key] for seen_s, key in unseen[:LONG_MAX] if time_s - seen_s < HISTORY_S}
        for name, row in self._streams.items():
            dumped[name] = {"created": row.info.created, "series": row.series.dump()}
        for stream, rows in self._consumers.items():
            for name, consumer in rows.items():
                dumped[f"{stream} {name}"] = {"created": consumer.info.created, "series": consumer.series.dump()}
        if self._has_totals:
            dumped[_TOTALS] = {"created": "", "series": self._totals.series.dump()}
        return {key: kept for key, kept in dumped.items() if kept["series"]}

    def observe_advisory(self, subject: str, payload: bytes, time_s: float) -> None:
        """Record one event of `$JS.EVENT.>`: an ack sample feeds the percentiles, the rest is listed."""
        if ".METRIC.CONSUMER.ACK." in subject:
            self._observe_ack(subject, payload, time_s)
            return
        event = self._decoded(payload, _Advisory)
        if event is None:
            return
        text = ", ".join(
            f"{name} {value}"
            for name in ("stream", "consumer", "stream_seq", "deliveries", "reason", "group", "subject")
            if (value := getattr(event, name)) not in (None, "")
        )
        if len(self._advisories) >= ADVISORIES_MAX:
            self._advisories.popleft()
            self.dropped["older"] += 1
        self._advisories.append(
            {
                "time": time_s,
                "kind": _cut(event.type.rpartition(".")[2], NAME_MAX),
                "title": _cut(_title(event), NAME_MAX),
                "text": _cut(text, TEXT_MAX),
                "subject": _cut(subject, TEXT_MAX),
                "stream": _cut(event.stream, NAME_MAX),
                "consumer": _cut(event.consumer, NAME_MAX),
            }
        )

    def _observe_ack(self, subject: str, payload: bytes, time_s: float) -> None:
        """Record one ack sample of `$JS.EVENT.METRIC.CONSUMER.ACK.<stream>.<consumer>`."""
        # The subject counts: who may publish there is a matter of permissions, what a payload says is not.
        before, _, name = subject.rpartition(".")
        key = before.rpartition(".")[2], name
        row = self._consumers.get(key[0], {}).get(name)
        if row is None or not row.info.config.sample_freq:
            self.dropped["of unknown consumers"] += 1
            return
        sample = self._decoded(payload, _AckSample)
        if sample is None:
            return
        times = self._ack_times.get(key)
        if times is None:
            while len(self._ack_times) >= SAMPLED_CONSUMERS_MAX:
                self.dropped["older"] += len(self._ack_times.popitem(last=False)[1].ns)
            times = self._ack_times[key] = _AckTimes()
        self._ack_times.move_to_end(key)
        times.add(sample.ack_time, time_s)

    def observe_pipeline(self, payload: bytes, time_s: float) -> None:
        """Record one progress report of a running pipeline."""
        report = self._decoded(payload, _PipelineReport)
        if report is None:
            return
        self._pipelines.pop(report.id, None)
        if len(self._pipelines) >= PIPELINES_MAX:
            del self._pipelines[next(iter(self._pipelines))]
            self.dropped["older"] += 1
        texts = {"name": NAME_MAX, "state": NAME_MAX, "error": ERROR_MAX}
        self._pipelines[report.id] = {
            name: _cut(value, texts[name]) if name in texts else value
            for name, value in msgspec.structs.asdict(report).items()
            if value is not None
        } | {"seen": time_s}

    def _decoded(self, payload: bytes, kind: type[EventT]) -> EventT | None:
        """Return an event; None, and count it, when it is too large or something else."""
        if len(payload) > EVENT_BYTES_MAX:
            self.dropped["too large"] += 1
            return None
        try:
            return msgspec.json.decode(payload, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.dropped["unreadable"] += 1
            return None

    def _expire(self, time_s: float) -> None:
        """Drop events and reports that are too old."""
        while self._advisories and time_s - self._advisories[0]["time"] > EVENTS_S:
            self._advisories.popleft()
        while self._ack_times and time_s - next(iter(self._ack_times.values())).seen_s > EVENTS_S:
            self._ack_times.popitem(last=False)
        for silent in [one for one, report in self._pipelines.items() if time_s - report["seen"] >= PIPELINE_SILENT_S]:
            del self._pipelines[silent]

    def summary(self, time_s: float) -> dict[str, Any]:
        """Return what every page shows: the server, the totals, and what needs attention."""
        self._expire(time_s)
        findings = self._findings(time_s)
        rows = self._streams.values()
        return {
            "time": time_s,
            "server": self.server,
            "account": self.account,
            "attention": msgspec.to_builtins(findings[:FINDINGS_MAX]),
            "attention_total": len(findings),
            "unknown": self._count_unknown(),
            "storage": self._storage()[0],
            "storage_max": self._storage()[1],
            "slow_consumers": None if self._variables is None else _whole(self._variables.get("slow_consumers")),
            "totals": {
                "streams": len(self._streams),
                "messages": sum(row.info.state.messages for row in rows),
                "bytes": sum(row.info.state.bytes for row in rows),
                "consumers": sum(row.info.state.consumer_count for row in rows),
                "rate": self._published(),
                "pending": sum(one.info.num_pending for ones in self._consumers.values() for one in ones.values()),
            },
        }

    def _published(self) -> float | None:
        rows = filter(_IS_PUBLISHED, self._streams.values())
        known = [row.published.known for row in rows if row.published.known is not None]
        return round(sum(known), 1) if known or not self._streams else None

    def _count_unknown(self) -> int:
        """Count the consumers of which it is not known yet whether they are stuck."""
        unlisted = sum(
            row.info.state.consumer_count
            for name, row in self._streams.items()
            if name not in self._consumers and name not in self._denials
        )
        return unlisted + sum(not one.standstill.is_known for ones in self._consumers.values() for one in ones.values())

    def _findings(self, time_s: float) -> list[Finding]:
        """Return what a person should look at, the worst first."""
        found = [health_finding(self.health), *(row.finding for row in self._streams.values())]
        found += [row.finding for rows in self._consumers.values() for row in rows.values()]
        found += self._deaths(time_s)
        found += self._server_findings(time_s)
        if self._denials:
            streams = "1 stream" if len(self._denials) == 1 else f"{len(self._denials):,} streams"
            reason = next(iter(self._denials.values()))
            text = f"consumers of {streams} can't be listed: {reason}"
            advice = "Allow the user to publish to $JS.API.CONSUMER.LIST.*."
            found.append(Finding("warn", "denied", text, advice=advice))
        found += [
            Finding(
                "bad",
                "failed",
                f"pipeline {report.get('name') or report['id']} failed" + _reason(report),
                advice="The Pipelines page shows the whole reason. Start it again: it resumes where it stopped.",
            )
            for report in self._pipelines.values()
            if report.get("state") == "failed"
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
                "bad",
                "given up",
                f"{messages(number)} reached max_deliver",
                stream,
                consumer,
                advice="They are not delivered again; the Events page lists their sequences. Collect such messages:",
                command=command_line("pipeline", "dead-letters", stream, "--to", "DEAD"),
            )
            for (stream, consumer), number in numbers.items()
            if consumer in self._consumers.get(stream, {})
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
        times = self._ack_times.get((stream, name))
        return {**row.detail(listing.range, time_s), "ack_times": {} if times is None else percentiles_ms(times.ns)}


def _cut(text: str, most: int) -> str:
    """Return a text of at most `length` characters, the last of which is an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _title(event: _Advisory) -> str:
    """Return what happened, such as "stream created"."""
    kind = event.type.rpartition(".")[2]
    title = f"{kind.removesuffix('_action')} {_ACTIONS.get(event.action, event.action)}" if event.action else kind
    return title.replace("_", " ")


def _whole(value: Any) -> int:
    """Return a number of a report; 0 for anything else."""
    return value if isinstance(value, int) else 0


def _reason(report: dict[str, Any]) -> str:
    error = str(report.get("error") or "").strip()
    return f": {error.splitlines()[0][:200]}" if error else ""
