"""How far a pipeline is: what Spark says of a batch as one small value, shown to people, scripts and the dashboard."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

from jetlake.client.connection.socket_connection import SocketConnection
from jetlake.errors import JetlakeError
from jetlake.protocol.nuid import next_nuid
from jetlake.spark.options.connection_options import ConnectionOptions, open_connection

__all__ = [
    "LATE",
    "PROGRESS_SUBJECT",
    "BatchDone",
    "JsonLines",
    "Reporter",
    "ServerReports",
    "Summary",
    "TerminalLines",
    "lag_of",
    "late_of",
    "reporter_for",
]

PROGRESS_SUBJECT = "jetlake.pipeline.progress."
"""Where reports go, followed by the run's id; the dashboard listens there."""

LATE = "rows that came too late"
"""What a summary calls rows that were dropped for they came after their window was closed."""

_RETRY_S = 5.0
_REASON_MAX = 4000


@dataclass(frozen=True)
class BatchDone:
    """One finished batch.

    Attributes:
        query: which of the pipeline's queries, for pipelines with several.
        lag: messages that are there and not done yet; None where that is unknown.
        rows_total: rows of this run so far, this batch included.
        late: rows that came after their window was closed, and were dropped.
    """

    query: str
    batch: int
    rows: int
    rows_total: int
    rows_per_second: float
    lag: int | None
    duration_s: float
    late: int = 0

    @property
    def left_s(self) -> float | None:
        """The time until the lag is processed at this rate; None when that is unknown."""
        if self.lag is None or (self.lag and self.rows_per_second <= 0):
            return None
        return self.lag / self.rows_per_second if self.lag else 0.0


@dataclass(frozen=True)
class Summary:
    """How a run ended: `finished`, `stopped` (by its user) or `failed`."""

    state: str
    batches: int
    rows: int
    duration_s: float
    facts: tuple[tuple[str, Any], ...] = ()
    error: str = ""


class Reporter(Protocol):
    """The contract of a reporter, which tells people how a run goes."""

    def began(self, name: str, facts: Mapping[str, Any]) -> None:
        """Report that a run begins."""

    def batch(self, done: BatchDone) -> None:
        """Report a finished batch."""

    def note(self, text: str) -> None:
        """Report the current activity, until the next report."""

    def outage(self, away_s: float | None, limit_s: float) -> None:
        """Report that the server has not answered for so long, or is back (None); at the limit the run fails."""

    def ended(self, summary: Summary) -> None:
        """Report the end of the run."""


def lag_of(sources: list[Mapping[str, Any]]) -> int | None:
    """Messages between what a batch ended with and where the streams end, over all jetstream sources of a query."""
    lag = None
    for source in sources:
        end, latest = _streams(source.get("endOffset")), _streams(source.get("latestOffset"))
        for name, place in latest.items():
            behind = int(place["next"]) - int(end.get(name, {}).get("next", place["next"]))
            lag = (lag or 0) + max(behind, 0)
    return lag


def late_of(operators: list[Mapping[str, Any]]) -> int:
    """Rows that came after the watermark, and were dropped, over all operators of a query."""
    return sum(int(operator.get("numRowsDroppedByWatermark", 0)) for operator in operators)


def _streams(offset: Any) -> Mapping[str, Any]:
    """Return the streams of an offset as Spark shows it: JSON text, an object, or nothing."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    streams = offset.get("streams") if isinstance(offset, dict) else None
    return streams if isinstance(streams, dict) else {}


def time_left(seconds: float | None) -> str:
    """Return a time to wait, as people say it."""
    if seconds is None:
        return "?"
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


class TerminalLines:
    """One line that every batch overwrites, and a few words at the beginning and the end."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._shown = ""

    def began(self, name: str, facts: Mapping[str, Any]) -> None:
        self._line("")
        self._out.write("\r" + f"{name}\n" + "".join(f"  {key}: {value}\n" for key, value in facts.items()))
        self._out.flush()

    def batch(self, done: BatchDone) -> None:
        lag = "?" if done.lag is None else f"{done.lag:,}"
        query = f"{done.query}: " if done.query else ""
        self._line(
            f"{query}batch {done.batch}, {done.rows_total:,} rows, {done.rows_per_second:,.0f} rows/s, "
            f"lag {lag}, left {time_left(done.left_s)}"
        )

    def note(self, text: str) -> None:
        self._line(text)

    def outage(self, away_s: float | None, limit_s: float) -> None:
        if away_s is None:
            self._line("the server is back")
        else:
            self._line(f"the server is away for {time_left(away_s)}, waiting for it (at most {time_left(limit_s)})")

    def ended(self, summary: Summary) -> None:
        self._line("")
        rate = summary.rows / summary.duration_s if summary.duration_s > 0 else 0.0
        batches = f"{summary.batches:,} batch" + ("" if summary.batches == 1 else "es")
        figures = f"{summary.rows:,} rows in {batches}, {time_left(summary.duration_s)}, {rate:,.0f} rows/s"
        nothing = summary.state == "finished" and not summary.batches
        self._out.write(f"\r{summary.state}: {'there was nothing to do' if nothing else figures}\n")
        self._out.write("".join(f"  {key}: {value}\n" for key, value in summary.facts))
        self._out.flush()

    def _line(self, text: str) -> None:
        """Write over the line; a text that does not fit the terminal is cut, for a second line would stay."""
        room = _columns(self._out) - 1
        if len(text) > room:
            text = text[: room - 1] + "…"
        if text != self._shown:
            self._out.write("\r" + text.ljust(len(self._shown)))
            self._out.flush()
            self._shown = text


def _columns(out: TextIO) -> int:
    try:
        return os.get_terminal_size(out.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


class JsonLines:
    """One JSON object a line: the beginning, every batch, the end."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._name = ""
        self._is_away = False

    def began(self, name: str, facts: Mapping[str, Any]) -> None:
        self._name = name
        self._write({"event": "began", "pipeline": name, **facts})

    def batch(self, done: BatchDone) -> None:
        self._write(
            {
                "event": "batch",
                "pipeline": self._name,
                "query": done.query,
                "batch": done.batch,
                "rows": done.rows,
                "rows_total": done.rows_total,
                "rows_per_second": round(done.rows_per_second, 1),
                "lag": done.lag,
                "left_s": None if done.left_s is None else round(done.left_s, 1),
                "duration_s": round(done.duration_s, 3),
                **({"late": done.late} if done.late else {}),
            }
        )

    def note(self, text: str) -> None:
        """Scripts wait for batches."""

    def outage(self, away_s: float | None, limit_s: float) -> None:
        if away_s is None or not self._is_away:
            event = "back" if away_s is None else "away"
            self._write({"event": event, "pipeline": self._name, "waits_s": round(limit_s)})
        self._is_away = away_s is not None

    def ended(self, summary: Summary) -> None:
        self._write(
            {
                "event": "ended",
                "pipeline": self._name,
                "state": summary.state,
                "batches": summary.batches,
                "rows": summary.rows,
                "duration_s": round(summary.duration_s, 3),
                **dict(summary.facts),
                **({"error": summary.error} if summary.error else {}),
            }
        )

    def _write(self, value: dict[str, Any]) -> None:
        self._out.write(json.dumps(value, default=str) + "\n")
        self._out.flush()


class ServerReports:
    """Reports on the server for the dashboard. They are a courtesy: what can't be sent is left out."""

    def __init__(self, options: ConnectionOptions, now_s: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._now_s = now_s
        self._id = next_nuid()
        self._name = ""
        self._rows_total = 0
        self._connection: SocketConnection | None = None
        self._silent_until_s = 0.0

    def began(self, name: str, facts: Mapping[str, Any]) -> None:
        self._name = name
        self._send("running", batch=None, rows_per_second=0.0, lag=None)

    def batch(self, done: BatchDone) -> None:
        self._rows_total = done.rows_total
        self._send("running", batch=done.batch, rows_per_second=done.rows_per_second, lag=done.lag)

    def note(self, text: str) -> None:
        """Publish nothing: the last report still holds."""

    def outage(self, away_s: float | None, limit_s: float) -> None:
        """Publish nothing: the server is away."""

    def ended(self, summary: Summary) -> None:
        self._rows_total = summary.rows
        state = "failed" if summary.state == "failed" else "finished"
        self._send(state, batch=None, rows_per_second=0.0, lag=None, error=summary.error[:_REASON_MAX] or None)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, state: str, **figures: Any) -> None:
        if self._now_s() < self._silent_until_s:
            return
        report = {"id": self._id, "name": self._name, "state": state, "rows_total": self._rows_total, **figures}
        known = {key: value for key, value in report.items() if value is not None}
        try:
            if self._connection is None:
                self._connection = open_connection(self._options)
            self._connection.publish((PROGRESS_SUBJECT + self._id).encode(), json.dumps(known).encode())
            self._connection.flush()
        except (JetlakeError, OSError):
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._silent_until_s = self._now_s() + _RETRY_S


def reporter_for(out: TextIO | None = None) -> TerminalLines | JsonLines:
    """Lines for a person on a terminal, JSON lines for anything else."""
    out = out if out is not None else sys.stdout
    return TerminalLines(out) if out.isatty() else JsonLines(out)
