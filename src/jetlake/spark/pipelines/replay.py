"""The replay: an archive published into a stream again, in order, at a chosen pace, each message once.

A message's id is the stream and sequence that it came from. A target that keeps its messages is asked which ids it
holds; for a target that removes messages by itself, a note says up to which sequence it acknowledged everything, and
counts only for that very stream. So a replay that is run again adds nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sql

from jetlake.client.tables.archived import NOTES
from jetlake.client.tables.stream_api import ask
from jetlake.errors import ConfigError, SparkError
from jetlake.model.stream import StreamInfo
from jetlake.model.transforms import compile_transform
from jetlake.protocol.subjects import is_valid_config
from jetlake.spark.options.connection_options import ConnectionOptions
from jetlake.spark.pipelines.archive import ARCHIVE_FORMATS, read_archive
from jetlake.spark.pipelines.file_system import FileSystem
from jetlake.spark.pipelines.replay_task import REPLAY_RESULT, Pace, ReplayTask, renamed
from jetlake.spark.pipelines.runner import Run, explain
from jetlake.spark.pipelines.settings import PipelineSettings, require_stream
from jetlake.spark.sink.stored_rows import keeps_all

_SLICE_ROWS_MAX = 100_000
_SLICE_ROWS_MIN = 500
# A paced slice is so long that starting it does not matter, and so short that little is repeated after a stop.
_SLICE_S = 30.0
_NOTE = "replay.json"
_SUBJECTS_SHOWN = 10
# The errors of a task when the target does not take a subject: no stream does, or another one (10060).
_WRONG_SUBJECT = ("no stream has this subject", "expected stream does not match", "no subject map")


class _Extent(NamedTuple):
    """The messages to replay, in figures."""

    rows: int
    first: int
    last: int
    first_time_s: float
    last_time_s: float


class _Place(NamedTuple):
    """Where a replay writes down how far it is."""

    files: FileSystem
    target: ReplayTarget
    fingerprint: str
    kept: Mapping[str, Any]

    def write(self, next_sequence: int) -> None:
        """Note that everything below a sequence is acknowledged by the target."""
        self.files.write_json(_NOTE, self.target.note(self.kept, self.fingerprint, next_sequence))


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
                raise ConfigError(f"{subject!r} is not a valid subject or pattern")

    @property
    def has_times(self) -> bool:
        """Whether the messages' times decide."""
        return self.from_time is not None or self.to_time is not None

    def conditions(self) -> list[str]:
        """Return the limits in SQL."""
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
        """Return the messages that are meant."""
        for condition in self.conditions():
            frame = frame.where(condition)
        return frame


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
        restart: forget how far an earlier run came; what the target holds is still left out.
        dry_run: say what would be published, and publish nothing.
        allow_system_subjects: publish to subjects that begin with `$` too, as the subjects of a bucket do.
    """

    source: str
    target: str
    format: str = ""
    selection: Selection = Selection()
    subject_map: tuple[tuple[str, str], ...] = ()
    pace: Pace = Pace()  # noqa: RUF009 - a frozen value
    unordered: bool = False
    force: bool = False
    restart: bool = False
    dry_run: bool = False
    allow_system_subjects: bool = False

    def __post_init__(self) -> None:
        for pattern, becomes in self.subject_map:
            try:
                compile_transform(pattern, becomes)
            except ConfigError as error:
                raise ConfigError(f"subject map {pattern}:{becomes} can't be used: {error}") from None
        if self.unordered and not self.pace.is_instant:
            raise ConfigError("--unordered cannot be combined with --rate, --original or --speed")
        if self.format and self.format not in ARCHIVE_FORMATS:
            raise ConfigError(
                f"{self.format!r} is not a format of archives; the formats are {', '.join(ARCHIVE_FORMATS)}"
            )

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
        """Return where the checkpoint is kept until the replay is done."""
        return settings.checkpoint or f"{self.source.rstrip('/')}/{NOTES}/replays/{self.fingerprint()}"

    def fingerprint(self) -> str:
        """Return the same for the same replay, whatever its pace."""
        parts = [self.target, list(self.selection.conditions()), list(self.subject_map)]
        return f"{self.target}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:10]}"

    def check(self, settings: PipelineSettings) -> None:
        """Find out whether there is no stream to take the messages."""
        advice = f"make it for the subjects of the archive: jetlake stream add {self.target} --subjects …"
        require_stream(settings.connection_options, self.target, advice)

    def run(self, run: Run) -> None:
        """Replay slice by slice, in the order of the sequences."""
        has_times = self.selection.has_times or bool(self.pace.speed)
        messages = self.selection.of(read_archive(run.spark, self.source, self.format, has_times=has_times))
        stream = self._one_stream(messages)
        target = find_target(run.settings.connection_options, self.target)
        held = self._held(run, stream, target)
        place = FileSystem(run.spark, self.checkpoint(run.settings))
        kept = self._kept(place)
        resumption = target.resume(kept)
        if resumption.reason:
            run.facts["begun anew"] = resumption.reason
        fresh = messages.where(sql.col("sequence") >= resumption.next_sequence)
        left = fresh.join(held, "sequence", "left_anti") if held is not None else fresh
        extent, bounds = self._plan(left, run.settings.batch_messages)
        if self.dry_run:
            self._tell_plan(run, left, extent)
        else:
            left = left.withColumn("msg_id", sql.expr(_id_expression(target.id_suffix())))
            self._replay(run, left, extent, bounds, _Place(place, target, self.fingerprint(), kept))
        run.facts["there already"] = run.facts.get("there already", 0) + self._count_held(fresh, held)
        if resumption.next_sequence:
            # Such a stream removes messages by itself, and does not show that it had them.
            done = messages.where(sql.col("sequence") < resumption.next_sequence).count()
            run.facts["noted as replayed before"] = f"{done} (--restart publishes them again)"

    def _replay(self, run: Run, left: DataFrame, extent: _Extent, bounds: list[tuple[int, int]], place: _Place) -> None:
        published = duplicates = 0
        began_s = None
        for batch, (first, last) in enumerate(bounds):
            if run.stopping.is_set():
                break
            slice_began_s = time.monotonic()
            rows = left.where(sql.col("sequence").between(first, last))
            task = ReplayTask(
                schema=rows.schema,
                options=tuple(self._sink_options(run.settings).items()),
                subject_map=self.subject_map,
                pace=self.pace,
                began_s=began_s,
                first_time_s=extent.first_time_s,
                rows_before=published,
                after=find_target(run.settings.connection_options, self.target).last_sequence,
                alone=not self.unordered,
            )
            try:
                results = self._publish(run, self._ordered(rows), task)
            except PySparkException as error:
                if run.stopping.is_set():
                    break
                raise SparkError(self._advised(explain(error), place.target)) from None
            done = sum(row["rows"] for row in results)
            duplicates += sum(row["duplicates"] for row in results)
            published += done
            began_s = max((row["began_s"] for row in results if row["began_s"] is not None), default=began_s)
            place.write(last + 1)
            run.batch_done("", batch, done, time.monotonic() - slice_began_s, max(extent.rows - published, 0))
        run.facts["published"] = published - duplicates
        run.facts["there already"] = duplicates

    def _advised(self, reason: str, target: ReplayTarget) -> str:
        """Return the reason of a refused message, with what to do when the stream does not take its subject."""
        if not any(words in reason for words in _WRONG_SUBJECT):
            return reason
        takes = ", ".join(target.subjects)
        return f"{reason}; stream {self.target} takes {takes}: rename subjects by --subject-map 'FROM:TO'"

    def _kept(self, place: FileSystem) -> Mapping[str, Any]:
        """Return what an earlier run of the same replay has written down."""
        if self.restart:
            if not self.dry_run:
                place.delete(_NOTE)
            return {}
        kept: Mapping[str, Any] = place.read_json(_NOTE) or {}
        if kept and kept.get("fingerprint") != self.fingerprint():
            raise ConfigError(f"checkpoint {place.root} belongs to another replay: choose one with --checkpoint")
        return kept

    def _tell_plan(self, run: Run, left: DataFrame, extent: _Extent) -> None:
        """Say what would be published, and change nothing."""
        run.facts["would publish"] = extent.rows
        if not extent.rows:
            return
        run.facts["sequences"] = f"{extent.first} to {extent.last}"
        names = renamed(*self.subject_map)("subject") if self.subject_map else sql.col("subject")
        counted = left.select(sql.col("subject"), names.alias("becomes")).groupBy("subject", "becomes").count()
        shown = counted.orderBy(sql.desc("count"), "subject").limit(_SUBJECTS_SHOWN).collect()
        run.facts["subjects"] = "; ".join(f"{row['subject']} -> {row['becomes']} ({row['count']})" for row in shown)

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
        system = {"allowSystemSubjects": "true"} if self.allow_system_subjects else {}
        return {**settings.connection, "stream": self.target, "messageId": "column", "ledger": "none", **system}

    def _one_stream(self, messages: DataFrame) -> str:
        """Return the stream whose messages these are.

        Raises:
            ConfigError: they are of several, or some of them lack what every message has.
        """
        needed = ["sequence", "subject", *(["timestamp"] if self.pace.speed else [])]
        lacking = [sql.expr(f"count_if({name} is null)").alias(name) for name in needed]
        streams_of = sql.expr("slice(sort_array(collect_set(coalesce(stream, ''))), 1, 10)").alias("streams")
        found = messages.select(streams_of, *lacking).collect()[0]
        for name in needed:
            if found[name]:
                raise ConfigError(
                    f"{found[name]} rows of {self.source} have no {name}: they are not messages, or can't be read"
                )
        streams = found["streams"]
        if len(streams) > 1:
            raise ConfigError(
                f"{self.source} holds messages of {', '.join(streams)}: choose one with --from-stream, because "
                "their sequences have no common order"
            )
        return streams[0] if streams else ""

    def _held(self, run: Run, stream: str, target: ReplayTarget) -> DataFrame | None:
        """Return the sequences that the target holds from an earlier replay of the stream; None when there are none.

        Raises:
            ConfigError: the target is the archived stream itself and still holds the archived messages.
        """
        if not target.messages or not stream:
            return None
        prefix = f"{stream}:"
        ids = run.spark.read.format("jetstream").schema("msg_id string").options(**run.settings.connection)
        numbers = ids.load(self.target).where(sql.col("msg_id").startswith(prefix))
        digits = f"regexp_extract(substring(msg_id, {len(prefix) + 1}), '{HELD_ID}', 1)"
        held = numbers.select(sql.expr(f"try_cast({digits} as bigint)").alias("sequence"))
        held = held.where("sequence is not null").distinct().persist()
        if stream == self.target and not self.force and held.count() < target.messages:
            raise ConfigError(
                f"stream {stream} still holds archived messages, which a replay would store a second time: "
                "purge it, replay into another stream, or add --force"
            )
        return held

    @staticmethod
    def _count_held(messages: DataFrame, held: DataFrame | None) -> int:
        return 0 if held is None else messages.join(held, "sequence", "left_semi").count()

    def _plan(self, messages: DataFrame, rows_max: int) -> tuple[_Extent, list[tuple[int, int]]]:
        """Return what there is to do, and in which slices of sequences."""
        figures = messages.select(
            sql.count("*").alias("rows"),
            sql.min("sequence").alias("first"),
            sql.max("sequence").alias("last"),
            sql.expr("coalesce(min(unix_micros(timestamp)), 0)").alias("first_time"),
            sql.expr("coalesce(max(unix_micros(timestamp)), 0)").alias("last_time"),
        ).collect()[0]
        if not figures["rows"]:
            return _Extent(0, 0, 0, 0.0, 0.0), []
        extent = _Extent(
            figures["rows"], figures["first"], figures["last"], figures["first_time"] / 1e6, figures["last_time"] / 1e6
        )
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


def _id_expression(suffix: str) -> str:
    return f"concat(stream, ':', cast(sequence as string), '{suffix}')"


def parse_subject_map(texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Read `orders.>:again.orders.>`.

    Raises:
        ConfigError: the colon is missing.
    """
    pairs = []
    for text in texts:
        source, found, target = text.partition(":")
        if not found or not source or not target:
            raise ConfigError(f"{text!r} is not a subject map: write it like 'orders.>:again.orders.>'")
        pairs.append((source, target))
    return tuple(pairs)


def _text(value: str) -> str:
    return "r'" + value.replace("'", "\\x27") + "'"


def _timestamp(time_ns: int) -> str:
    return f"timestamp_micros({time_ns // 1000})"


def subject_pattern(subject: str) -> str:
    """Return a subject pattern as a regular expression of Java: `*` is one token, `>` the rest."""
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


HELD_ID = "^([0-9]+)(#[0-9]+)?$"
"""What follows the stream's name and a colon in the ids of replayed messages: the sequence, and perhaps a suffix."""
_TARGETS_MAX = 8


class Resumption(NamedTuple):
    """Where a replay resumes: the sequence below which nothing is published again, or why it starts over."""

    next_sequence: int
    reason: str = ""


@dataclass(frozen=True)
class ReplayTarget:
    """A stream as it was when the replay looked.

    Attributes:
        created: when it was made; another stream of the same name, here or on another server, has another time.
        removed: how many of its messages are gone. keeps_all: whether messages stay until they are removed by request:
        then the stream itself shows which messages were replayed.
    """

    name: str
    created: str
    messages: int
    last_sequence: int
    subjects: tuple[str, ...]
    keeps_all: bool

    @classmethod
    def of(cls, info: StreamInfo) -> ReplayTarget:
        """Return the target that a server describes."""
        return cls(
            name=info.config.name,
            created=info.created,
            messages=info.state.messages,
            last_sequence=info.state.last_seq,
            subjects=info.config.subjects,
            keeps_all=keeps_all(info.config),
        )

    @property
    def removed(self) -> int:
        """How many sequences hold no message any more."""
        return self.last_sequence - self.messages

    def id_suffix(self) -> str:
        """Return what message ids end with, so that the stream does not know again what it no longer holds.

        A stream remembers an id for its duplicate window even when the message was purged, and would drop the message
        that is to replace it. The same suffix as long as nothing is removed, so that a repeated publish is known.
        """
        return f"#{self.removed}" if self.keeps_all and self.removed else ""

    def note(self, kept: Mapping[str, Any], fingerprint: str, next_sequence: int) -> dict[str, Any]:
        """Return what is saved when all messages below a sequence are acknowledged, beside what is known of others."""
        others = {made: place for made, place in _targets(kept).items() if made != self.created}
        newest = dict(list(others.items())[-_TARGETS_MAX + 1 :])
        own = {"next": next_sequence, "last_sequence": self.last_sequence}
        return {"fingerprint": fingerprint, "targets": {**newest, self.created: own}}

    def resume(self, kept: Mapping[str, Any]) -> Resumption:
        """Return where to resume, by the note of an earlier run of the same replay.

        A stream that keeps its messages is asked itself what it holds. The note counts only for one that removes
        messages on its own, and only when it is about this very stream.
        """
        targets = _targets(kept)
        if self.keeps_all or not targets:
            return Resumption(0)
        noted = targets.get(self.created)
        if noted is None:
            return Resumption(0, f"stream {self.name} is not the one that was replayed to before")
        if self.last_sequence < int(noted["last_sequence"]):
            return Resumption(0, f"stream {self.name} was put back to an earlier state")
        return Resumption(int(noted["next"]))


def _targets(kept: Mapping[str, Any]) -> Mapping[str, Mapping[str, int]]:
    """Return the notes about target streams, by their creation time."""
    targets = kept.get("targets", {})
    return targets if isinstance(targets, Mapping) else {}


def find_target(options: ConnectionOptions, name: str) -> ReplayTarget:
    """Ask the server about the stream."""
    return ReplayTarget.of(ask(options, lambda api: api.stream_info(name)))
