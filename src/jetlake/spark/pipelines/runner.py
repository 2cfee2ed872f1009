"""Runs a pipeline to its end: watches its queries and the server, reports progress, and stops cleanly when asked."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jetlake.client.connection.socket_connection import SocketConnection
from jetlake.errors import JetlakeError, SparkError
from jetlake.spark.options.connection_options import ConnectionOptions, open_connection
from jetlake.spark.pipelines.progress import LATE, BatchDone, Reporter, Summary, lag_of, late_of
from jetlake.spark.pipelines.settings import PipelineSettings

_LOOK_EVERY_S = 0.2
_FINISH_BATCH_S = 30.0
_CAUSES = (
    re.compile(r"jetlake\.errors\.\w+: (.+)"),
    # A Python error inside Spark comes as its whole traceback; the last line says what happened. That Java was called
    # and something is wrong there says nothing yet.
    re.compile(r"^(?:\w+\.)*(?!Py4JJavaError)(\w*(?:Error|Exception): .+)", re.MULTILINE),
    # One of Java's comes with its stack, the deepest cause last.
    re.compile(r"^(?:Caused by)?: (?:[\w$]+\.)*[\w$]+: (.+)", re.MULTILINE),
)
# What systems, Java and the deltalake package say of a full disk; none of them says which.
_FULL = re.compile(r"No space left on device(?: \(os error 28\))?|Disk quota exceeded(?: \(os error 122\))?")
_FULL_BELOW_BYTES = 16 << 20
# The file that could not be read, which its deepest cause need not name.
_FILE = re.compile(r"Encountered error while reading file (?:file://)?(\S+?)\.?(?:\s|$)")


class Pipeline(Protocol):
    """Something that can be run."""

    @property
    def name(self) -> str:
        """What reports call it."""

    @property
    def prints(self) -> bool:
        """Whether it writes rows to standard output, where progress would mix with them."""

    def facts(self, settings: PipelineSettings) -> Mapping[str, Any]:
        """Return what a person wants to read at the beginning: from where to where, and where the checkpoint is."""

    def check(self, settings: PipelineSettings) -> None:
        """Find what is wrong with the options and streams, as far as that can be seen without Spark.

        Raises:
            ConfigError: the first mistake.
        """

    def run(self, run: Run) -> None:
        """Do it, after `check`, and return when it is done or `run.stopping` is set."""


@dataclass
class Run:
    """One run of a pipeline: what it works with, what it has done so far, and what is closed at its end.

    Attributes:
        folders: where it writes, for errors that do not say it.
        counted: the rows of a batch by its number, where Spark's own count would be wrong.
    """

    spark: SparkSession
    settings: PipelineSettings
    reporters: tuple[Reporter, ...]
    stopping: threading.Event = field(default_factory=threading.Event)
    batches: int = 0
    rows: int = 0
    away: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    counted: dict[int, int] = field(default_factory=dict)
    closing: ExitStack = field(default_factory=ExitStack)

    def batch_done(self, query: str, batch: int, rows: int, duration_s: float, lag: int | None, late: int = 0) -> None:
        """Count a batch and tell everybody."""
        self.batches += 1
        self.rows += rows
        rate = rows / duration_s if duration_s > 0 else 0.0
        done = BatchDone(query, batch, rows, self.rows, rate, lag, duration_s, late)
        for reporter in self.reporters:
            reporter.batch(done)

    def note(self, text: str) -> None:
        """Report the current activity."""
        for reporter in self.reporters:
            reporter.note(text)

    def watch(
        self, queries: list[StreamingQuery], told: Callable[[str, BaseException], str] = lambda _, error: explain(error)
    ) -> None:
        """Follow streaming queries until all have ended; one that fails ends the others.

        Args:
            told: the error text for a failed query of that name, without Spark's own words around it.

        Raises:
            SparkError: a query failed.
        """
        self.note("the first batch is under way")
        outages = OutageWatch(self.settings.connection_options)
        self.closing.callback(outages.close)
        seen = {query.id: -1 for query in queries}
        names = {query.id: query.name if len(queries) > 1 else "" for query in queries}
        try:
            while any(query.isActive for query in queries) and not self.stopping.is_set():
                # Looked at first: what an idle query has done is in its progress then.
                is_idle = self.settings.follow and all(_is_idle(query) for query in queries)
                fresh = [self._report(query, names[query.id], seen) for query in queries]
                is_away = self._tell_outage(outages.away_s() if self.settings.follow else None)
                if is_idle and not is_away and not any(fresh):
                    self.note("waiting for messages" + (f", {self.rows:,} rows so far" if self.rows else ""))
                if any(not query.isActive and query.exception() is not None for query in queries):
                    break
                self.stopping.wait(_LOOK_EVERY_S)
            if self.stopping.is_set():
                self.note("stopping after the current batch; press Ctrl-C again to stop at once")
        finally:
            for query in queries:
                _stop(query)
            for query in queries:
                self._report(query, names[query.id], seen)
        for query in queries:
            error = query.exception()
            if error is not None:
                raise SparkError(name_full_disk(told(query.name, error), self.folders)) from None

    def _tell_outage(self, away_s: float | None) -> bool:
        """Say that the server is away, or is back; says whether it is away."""
        if away_s is not None or self.away:
            for reporter in self.reporters:
                reporter.outage(away_s, self.settings.connection_options.retry_for_s)
        self.away = away_s is not None
        return self.away

    def _report(self, query: StreamingQuery, name: str, seen: dict[str, int]) -> bool:
        """Report the batches since the last look."""
        fresh = [progress for progress in query.recentProgress if progress["batchId"] > seen[query.id]]
        for progress in fresh:
            seen[query.id] = progress["batchId"]
            late = late_of(progress["stateOperators"])
            if late:
                self.facts[LATE] = self.facts.get(LATE, 0) + late
            # A batch without rows closes windows or moves the position past other subjects: nothing to report.
            rows = self.counted.pop(progress["batchId"], progress["numInputRows"])
            if rows:
                duration_s = progress["durationMs"].get("triggerExecution", 0) / 1000
                lag = lag_of(progress["sources"])
                self.batch_done(name, progress["batchId"], rows, duration_s, lag, late)
        return bool(fresh)


def _is_idle(query: StreamingQuery) -> bool:
    # The words are Spark's own. Before its first trigger a query is not idle, but being prepared.
    return str(query.status["message"]).startswith("Waiting for")


def _stop(query: StreamingQuery) -> None:
    """Let the batch under way finish, within limits, and stop: a batch that is cut off would only be done again."""
    deadline_s = time.monotonic() + _FINISH_BATCH_S
    before = _last_batch(query)
    while query.isActive and query.status["isTriggerActive"] and query.status["isDataAvailable"]:
        if _last_batch(query) != before or time.monotonic() > deadline_s:
            break
        time.sleep(0.05)
    query.stop()


def _last_batch(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def run_pipeline(
    pipeline: Pipeline,
    spark: SparkSession,
    settings: PipelineSettings,
    reporters: tuple[Reporter, ...] = (),
    *,
    stopping: threading.Event | None = None,
    now_s: Callable[[], float] = time.monotonic,
) -> Summary:
    """Run it to the end.

    Raises:
        SparkError, JetlakeError: it failed; the reporters have reported it.
    """
    run = Run(spark, settings, reporters, stopping or threading.Event())
    began_s = now_s()
    for reporter in reporters:
        reporter.began(pipeline.name, pipeline.facts(settings))
    try:
        pipeline.check(settings)
        run.note("preparing")
        with run.closing:
            pipeline.run(run)
    except BaseException as error:
        reason = str(error) if isinstance(error, JetlakeError) else explain(error)
        text = name_full_disk(reason, run.folders)
        if run.stopping.is_set() and isinstance(error, (SparkError, PySparkException, Py4JError)):
            # Who stops a whole service ends Spark's Python processes too, and with them the batch: it is repeated.
            run.facts["abandoned"] = f"the work under way, which the next run does again: {text}"
            return _ended(run, "stopped", now_s() - began_s)
        _ended(run, "failed", now_s() - began_s, text)
        if isinstance(error, (PySparkException, Py4JError)) or text != reason:
            raise SparkError(text) from None
        raise
    return _ended(run, "stopped" if run.stopping.is_set() else "finished", now_s() - began_s)


def _ended(run: Run, state: str, duration_s: float, error: str = "") -> Summary:
    summary = Summary(state, run.batches, run.rows, duration_s, tuple(run.facts.items()), error)
    for reporter in run.reporters:
        reporter.ended(summary)
    return summary


def explain(error: BaseException) -> str:
    """Return the reason that a user can act on: what our own code said, or the first line of what Spark says."""
    text = str(error)
    reason = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    for cause in _CAUSES:
        found = cause.findall(text)
        if found:
            reason = str(found[-1]).strip()
            break
    file = _FILE.search(text)
    return reason if file is None else f"file {file[1]} can't be read: {reason}"


def name_full_disk(text: str, folders: Sequence[str]) -> str:
    """Return the text with the folders whose disk is full, where it says only that one is.

    Args:
        folders: where the pipeline writes. When none of their disks is full any more, all of them are named, and the
            folder for Spark's temporary files.
    """
    if not _FULL.search(text):
        return text
    inside = tuple(f"{folder.rstrip('/')}/" for folder in folders)
    outermost = [folder for folder in folders if not folder.startswith(inside)]
    candidates = list(dict.fromkeys([*outermost, tempfile.gettempdir()]))
    named = [folder for folder in candidates if _is_full(folder)] or candidates
    told = f"no space is left on the disk of {' or '.join(named)}"
    return f"{_FULL.sub(lambda _: told, text)}. Free some and run it again: it resumes with the batch that failed"


def _is_full(folder: str) -> bool:
    """Return whether the disk of a local folder, or of the nearest one above that exists, has hardly any space."""
    if "://" in folder:
        return False
    path = Path(folder.removeprefix("file:")).absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free < _FULL_BELOW_BYTES


@contextmanager
def leave_on_signals(exit_codes: Mapping[int, int]) -> Iterator[None]:
    """End the process on these signals while the block runs, for a time in which nothing is under way yet.

    At once, without an exception: the bridge to Java would not let one through before it has written its stack to the
    terminal. Java ends by itself when this process is gone.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        sys.stdout.flush()
        sys.stderr.write("\n")
        sys.stderr.flush()
        os._exit(exit_codes[number])

    with _handling(dict.fromkeys(exit_codes, leave)):
        yield


@contextmanager
def _handling(handlers: Mapping[int, Callable[[int, FrameType | None], None]]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stop_on_signals(stopping: threading.Event) -> Iterator[list[int]]:
    """Set the event on Ctrl-C and SIGTERM while the block runs; a second one is not held back.

    Gives a list in which the signal is found afterwards.
    """
    received: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if received:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        received.append(number)
        stopping.set()

    with _handling({signal.SIGINT: ask, signal.SIGTERM: ask}):
        yield received


_PING_EVERY_S = 2.0
_PING_TIMEOUT_S = 1.0


class OutageWatch:
    """Asks the server now and then whether it is there, over a connection of its own."""

    def __init__(
        self,
        options: ConnectionOptions,
        now_s: Callable[[], float] = time.monotonic,
        connect: Callable[[ConnectionOptions], SocketConnection] = open_connection,
    ) -> None:
        self._options = replace(options, connect_timeout_s=_PING_TIMEOUT_S, request_timeout_s=_PING_TIMEOUT_S)
        self._now_s = now_s
        self._connect = connect
        self._connection: SocketConnection | None = None
        self._next_look_s = now_s()
        self._answered_s = now_s()
        self._is_away = False

    def away_s(self) -> float | None:
        """For how long the server has not answered; None while it does."""
        now_s = self._now_s()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _PING_EVERY_S
            self._is_away = not self._answers()
        if not self._is_away:
            self._answered_s = now_s
            return None
        return now_s - self._answered_s

    def _answers(self) -> bool:
        try:
            if self._connection is None:
                self._connection = self._connect(self._options)
            self._connection.flush()
        except (JetlakeError, OSError):
            self.close()
            return False
        return True

    def close(self) -> None:
        """Let the connection go."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
