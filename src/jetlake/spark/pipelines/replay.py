"""The replay: an archive published into a stream again, in order, as fast or as slowly as asked, each message once."""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from jetlake.errors import ConfigError
from jetlake.model.transforms import compile_transform
from jetlake.protocol.subjects import is_valid_config
from jetlake.spark.connection import retrying
from jetlake.spark.pipelines.archive import ARCHIVE_COLUMNS, ARCHIVE_FORMATS, archive_facts
from jetlake.spark.pipelines.checks import require_stream
from jetlake.spark.pipelines.delta_sink import read_delta
from jetlake.spark.pipelines.file_system import FileSystem
from jetlake.spark.pipelines.folder_sink import NOTES
from jetlake.spark.pipelines.pacing import Pace
from jetlake.spark.pipelines.replay_task import REPLAY_RESULT, ReplayTask
from jetlake.spark.pipelines.runner import Run
from jetlake.spark.pipelines.settings import PipelineSettings
from jetlake.spark.stream_api import StreamApi

__all__ = ["Replay", "Selection", "parse_subject_map", "subject_pattern"]

_SLICE_ROWS_MAX = 100_000
_SLICE_ROWS_MIN = 500
# A paced slice is so long that starting it does not matter, and so short that little is repeated after a stop.
_SLICE_S = 10.0


@dataclass(frozen=True)
class Selection:
    """Which messages of the archive: all, or those within all the limits that are given.

    Attributes:
        from_time, to_time: when they were stored, nanoseconds since 1970; the end is exclusive.
        from_sequence, to_sequence: both inclusive.
        subjects: patterns, of which one must match.
        stream: the stream that was archived, when a folder holds several.
    """

    from_time: int | None = None
    to_time: int | None = None
    from_sequence: int | None = None
    to_sequence: int | None = None
    subjects: tuple[str, ...] = ()
    stream: str = ""

    def __post_init__(self) -> None:
        for subject in self.subjects:
            if not is_valid_config(subject.encode()):
                raise ConfigError(f"{subject!r} is no valid subject or pattern")

    def conditions(self) -> list[str]:
        """The limits in SQL."""
        found = []
        if self.stream:
            found.append(f"stream = {_text(self.stream)}")
        if self.from_time is not None:
            found.append(f"timestamp >= {_timestamp(self.from_time)}")
        if self.to_time is not None:
            found.append(f"timestamp < {_timestamp(self.to_time)}")
        if self.from_sequence is not None:
            found.append(f"sequence >= {self.from_sequence}")
        if self.to_sequence is not None:
            found.append(f"sequence <= {self.to_sequence}")
        if self.subjects:
            found.append(f"subject rlike {_text('|'.join(subject_pattern(subject) for subject in self.subjects))}")
        return found

    def of(self, frame: DataFrame) -> DataFrame:
        """The messages that are meant."""
        for condition in self.conditions():
            frame = frame.where(condition)
        return frame


def _text(value: str) -> str:
    return "r'" + value.replace("'", "\\x27") + "'"


def _timestamp(time_ns: int) -> str:
    return f"timestamp_micros({time_ns // 1000})"


def subject_pattern(subject: str) -> str:
    """A subject pattern as a regular expression of Java: `*` is one token, `>` the rest."""
    special = "\\^$.|?*+()[]{}-"
    pieces = []
    for token in subject.split("."):
        if token == "*":
            pieces.append("[^.]+")
        elif token == ">":
            pieces.append(".+")
        else:
            pieces.append("".join(f"\\{letter}" if letter in special else letter for letter in token))
    return "^" + "\\.".join(pieces) + "$"


class _Extent(NamedTuple):
    """What is to be replayed, in figures."""

    rows: int
    first_time_s: float
    last_time_s: float


@dataclass(frozen=True)
class Replay:
    """Publishes an archive into a stream.

    A message's id is the stream and sequence that it came from, and what the target holds under such an id already is
    left out: so a replay that is run again adds nothing, however much later.

    Attributes:
        source: the folder of the archive.
        target: the stream that must take the messages.
        format: of the files; empty when the archive says it.
        subject_map: pairs of a pattern and what it becomes; a message that none matches is an error.
        unordered: publish from several tasks at once, without an order.
        force: into the stream that was archived, though it holds messages that the replay did not bring.
    """

    source: str
    target: str
    format: str = ""
    selection: Selection = Selection()
    subject_map: tuple[tuple[str, str], ...] = ()
    pace: Pace = Pace()  # noqa: RUF009 - a frozen value
    unordered: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        for pattern, becomes in self.subject_map:
            try:
                compile_transform(pattern, becomes)
            except ConfigError as error:
                raise ConfigError(f"subject map {pattern}:{becomes} can't be used: {error}") from None
        if self.unordered and not self.pace.is_instant:
            raise ConfigError("a replay without an order has no timing either: leave one of them out")
        if self.format and self.format not in ARCHIVE_FORMATS:
            raise ConfigError(f"{self.format!r} is no format of an archive; there are {', '.join(ARCHIVE_FORMATS)}")

    @property
    def name(self) -> str:
        """What reports call it."""
        return f"replay to {self.target}"

    @property
    def prints(self) -> bool:
        """Rows go elsewhere."""
        return False

    def facts(self, settings: PipelineSettings) -> Mapping[str, Any]:
        """From where to where."""
        return {"source": self.source, "stream": self.target, "checkpoint": self.checkpoint(settings)}

    def checkpoint(self, settings: PipelineSettings) -> str:
        """Where its place is kept until it is done."""
        return settings.checkpoint or f"{self.source.rstrip('/')}/{NOTES}/replays/{self.fingerprint()}"

    def fingerprint(self) -> str:
        """The same for the same replay, whatever its pace."""
        parts = [self.target, list(self.selection.conditions()), list(self.subject_map)]
        return f"{self.target}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:10]}"

    def check(self, settings: PipelineSettings) -> None:
        """Find out whether there is no stream to take the messages."""
        advice = f"make it for the subjects of the archive: jetlake stream add {self.target} --subjects …"
        require_stream(settings.connection_options, self.target, advice)

    def run(self, run: Run) -> None:
        """Replay slice by slice, in the order of the sequences."""
        messages = self._messages(run)
        stream = self._one_stream(messages)
        held = self._held(run, stream)
        place = FileSystem(run.spark, self.checkpoint(run.settings))
        kept = place.read_json("replay.json") or {}
        if kept and kept.get("fingerprint") != self.fingerprint():
            raise ConfigError(f"checkpoint {place.root} is of another replay: choose another one with --checkpoint")
        messages = messages.where(sql.col("sequence") >= kept.get("next", 0))
        left = messages.join(held, "sequence", "left_anti") if held is not None else messages
        extent, bounds = self._plan(left, run.settings.batch_messages)
        published = duplicates = 0
        began_s = time.time()
        for batch, (first, last) in enumerate(bounds):
            if run.stopping.is_set():
                break
            slice_began_s = time.monotonic()
            task = ReplayTask(
                schema=_schema(),
                options=tuple(self._sink_options(run.settings).items()),
                subject_map=self.subject_map,
                pace=self.pace,
                began_s=began_s,
                first_time_s=extent.first_time_s,
                rows_before=published,
            )
            rows = left.where(sql.col("sequence").between(first, last)).select(*_schema().fieldNames())
            try:
                results = self._publish(run, self._ordered(rows), task)
            except PySparkException:
                if run.stopping.is_set():
                    break
                raise
            done = sum(row["rows"] for row in results)
            duplicates += sum(row["duplicates"] for row in results)
            published += done
            place.write_json("replay.json", {"fingerprint": self.fingerprint(), "next": last + 1})
            run.batch_done("", batch, done, time.monotonic() - slice_began_s, max(extent.rows - published, 0))
        else:
            # It is done: the next run looks at the target, not at a place that may no longer be true.
            place.delete("replay.json")
        run.facts["published"] = published - duplicates
        run.facts["there already"] = duplicates + self._count_held(messages, held)

    @staticmethod
    def _publish(run: Run, rows: DataFrame, task: ReplayTask) -> list[Row]:
        """Run one slice's tasks; a paced one, which may sleep for hours, is cut off when the run is to stop."""
        done = threading.Event()

        def cut_off() -> None:
            while not done.wait(0.2):
                if run.stopping.is_set():
                    run.spark.sparkContext.cancelAllJobs()

        watcher = threading.Thread(target=cut_off, daemon=True)
        if not task.pace.is_instant:
            watcher.start()
        try:
            return rows.mapInArrow(task, REPLAY_RESULT).collect()
        finally:
            done.set()
            if watcher.ident is not None:
                watcher.join()

    def _sink_options(self, settings: PipelineSettings) -> dict[str, str]:
        return {**settings.connection, "stream": self.target, "messageId": "source", "ledger": "none"}

    def _messages(self, run: Run) -> DataFrame:
        """The archive's messages that are meant."""
        files = FileSystem(run.spark, self.source)
        if not files.exists():
            raise ConfigError(f"there is no folder {self.source}")
        described = archive_facts(files)
        format_name = self.format or (described or {}).get("format", "")
        if not format_name:
            raise ConfigError(
                f"folder {self.source} holds no archive of ours: name the format of its files by --format"
            )
        if format_name == "delta":
            frame = read_delta(run.spark, self.source, ARCHIVE_COLUMNS)
        else:
            frame = run.spark.read.format(format_name).schema(ARCHIVE_COLUMNS).load(files.root)
        return self.selection.of(frame.select(*_schema().fieldNames()))

    def _one_stream(self, messages: DataFrame) -> str:
        streams = [row["stream"] for row in messages.select("stream").distinct().limit(10).collect()]
        if len(streams) > 1:
            raise ConfigError(
                f"{self.source} holds messages of {', '.join(sorted(streams))}: choose one with --stream, for their "
                "sequences have no common order"
            )
        return streams[0] if streams else ""

    def _held(self, run: Run, stream: str) -> DataFrame | None:
        """The sequences that the target holds from an earlier replay of the same stream; None when there are none.

        Raises:
            ConfigError: the target is the archived stream itself and still holds what was archived.
        """
        options = run.settings.connection_options
        info = retrying(
            options, lambda link: StreamApi(link, options.domain, options.request_timeout_s).stream_info(self.target)
        )
        if not info.state.messages or not stream:
            return None
        prefix = f"{stream}:"
        ids = run.spark.read.format("jetstream").schema("msg_id string").options(**run.settings.connection)
        numbers = ids.load(self.target).where(sql.col("msg_id").startswith(prefix))
        held = numbers.select(sql.expr(f"try_cast(substring(msg_id, {len(prefix) + 1}) as bigint)").alias("sequence"))
        held = held.where("sequence is not null").distinct().persist()
        if stream == self.target and not self.force and held.count() < info.state.messages:
            raise ConfigError(
                f"stream {stream} still holds messages of its own, which a replay into it would store a second time: "
                "purge it, replay into another stream, or add --force"
            )
        return held

    @staticmethod
    def _count_held(messages: DataFrame, held: DataFrame | None) -> int:
        return 0 if held is None else messages.join(held, "sequence", "left_semi").count()

    def _plan(self, messages: DataFrame, rows_max: int) -> tuple[_Extent, list[tuple[int, int]]]:
        """What there is to do, and in which slices of sequences."""
        figures = messages.select(
            sql.count("*").alias("rows"),
            sql.min("sequence").alias("first"),
            sql.max("sequence").alias("last"),
            sql.min("timestamp").alias("first_time"),
            sql.max("timestamp").alias("last_time"),
        ).collect()[0]
        if not figures["rows"]:
            return _Extent(0, 0.0, 0.0), []
        extent = _Extent(figures["rows"], _seconds(figures["first_time"]), _seconds(figures["last_time"]))
        count = math.ceil(extent.rows / min(self._slice_rows(extent), rows_max))
        shares = [number / count for number in range(1, count)]
        ends = messages.approxQuantile("sequence", shares, 0.1 / count) if shares else []
        edges = [figures["first"] - 1, *sorted({int(end) for end in ends}), figures["last"]]
        return extent, [(before + 1, end) for before, end in pairwise(edges) if end > before]

    def _slice_rows(self, extent: _Extent) -> int:
        rate = self.pace.rate
        if self.pace.speed:
            rate = extent.rows / max((extent.last_time_s - extent.first_time_s) / self.pace.speed, 0.001)
        if not rate:
            return _SLICE_ROWS_MAX
        return round(min(max(rate * _SLICE_S, _SLICE_ROWS_MIN), _SLICE_ROWS_MAX))

    def _ordered(self, rows: DataFrame) -> DataFrame:
        return rows if self.unordered else rows.repartition(1).sortWithinPartitions("sequence")


def _schema() -> StructType:
    schema = StructType.fromDDL(ARCHIVE_COLUMNS)
    assert isinstance(schema, StructType)
    return schema


def _seconds(value: datetime) -> float:
    # Spark gives local times without a zone.
    return value.timestamp() if value.tzinfo else value.astimezone().astimezone(UTC).timestamp()


def parse_subject_map(texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Read `orders.>:again.orders.>`.

    Raises:
        ConfigError: the colon is missing.
    """
    pairs = []
    for text in texts:
        source, found, target = text.partition(":")
        if not found or not source or not target:
            raise ConfigError(f"{text!r} is no subject map: write it like 'orders.>:again.orders.>'")
        pairs.append((source, target))
    return tuple(pairs)
