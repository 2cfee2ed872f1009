"""SQL from streams to streams, files or the console: a file is checked as a whole, and then started."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

from jetlake.client.tables.archived import NOTES
from jetlake.client.tables.option_values import names_text
from jetlake.client.tables.stored_schemas import is_stored
from jetlake.client.tables.stream_api import ask
from jetlake.errors import ConfigError, JetlakeError, NotFoundError
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.pipelines.console import collect_shown, print_rows
from jetlake.spark.pipelines.file_system import FileSystem
from jetlake.spark.pipelines.folder_sink import BATCHES, own_files
from jetlake.spark.pipelines.lake_lock import claim_checkpoint, claim_folder, locked, remove_checkpoint
from jetlake.spark.pipelines.runner import Run, explain
from jetlake.spark.pipelines.settings import PipelineSettings, default_checkpoint
from jetlake.spark.pipelines.sinks import (
    BAD_ROW,
    Target,
    ensure_stream,
    folder_owner,
    refused_messages,
    start_folder,
    start_stream,
    stream_owner,
)
from jetlake.spark.pipelines.sql_file import SqlFile, SqlSink, SqlSource, Text, Watermark, field_names
from jetlake.spark.pipelines.typed_payload import TypedPayload, typed_payload
from jetlake.spark.sink.row_encoder import RowEncoder

T = TypeVar("T")
HAS_SUBJECT = r"subject is not null and not subject rlike '(^|[.])[*>]?([.]|$)|[ \\t\\r\\n\\f]'"
"""Whether a row can be published: its subject is there, and no token is empty, a wildcard, or holds a blank."""
_SOURCES_S = 30.0
# What Spark calls the time before a query's first trigger.
_STARTING = "Initializing"
_PLACE = re.compile(r"\(?line (\d+),? pos (\d+)\)?")
_COLUMN = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True)
class SqlPipeline:
    """Runs the file: one streaming query a sink."""

    spec: SqlFile

    @property
    def name(self) -> str:
        """What reports call it."""
        return f"sql {self.spec.name}"

    @property
    def prints(self) -> bool:
        """Whether rows go to the console."""
        return any(sink.target.kind == "console" for sink in self.spec.sinks)

    def facts(self, settings: PipelineSettings) -> Mapping[str, Any]:
        """From where to where."""
        return {
            "file": self.spec.file,
            "sources": ", ".join(source.stream for source in self.spec.sources),
            "sinks": ", ".join(str(sink.target) for sink in self.spec.sinks),
        }

    def checkpoint(self, sink: SqlSink, settings: PipelineSettings) -> str:
        """Return where a sink's checkpoint is kept: inside its folder, or in a folder of the user's own."""
        if settings.checkpoint:
            return f"{settings.checkpoint.rstrip('/')}/{sink.name}"
        if sink.target.is_folder:
            return f"{sink.target.value.rstrip('/')}/{NOTES}/checkpoint"
        servers = settings.connection.get("servers", "")
        return default_checkpoint("sql", sink.name, servers, str(Path(self.spec.file).resolve()), str(sink.target))

    def check(self, settings: PipelineSettings) -> None:
        """Nothing yet: its queries are checked by Spark, and its streams with them, each mistake with its line."""

    def run(self, run: Run) -> None:
        """Check everything, start every sink, and follow them."""
        tables = checked_tables(run.spark, self.spec, run.settings)
        frames = {sink.name: self._checked(run, sink, tables[sink.table.lower()]) for sink in self.spec.sinks}
        refusing = _refusing_sinks(self.spec)
        for sink, origin in refusing.items():
            refused = (
                _refused_rows(run.spark, origin, run.settings)
                if isinstance(origin, SqlSource)
                else _located(
                    self.spec, sink.line, partial(_unaddressed_rows, frames[origin.name], origin, sink.target)
                )
            )
            frames[sink.name] = self._checked(run, sink, refused)
        for sink in self.spec.sinks:
            if sink.target.kind == "stream" and self.spec.bad_rows_of(sink)[0] == "drop":
                frames[sink.name] = frames[sink.name].where(HAS_SUBJECT)
        sinks = (*self.spec.sinks, *refusing)
        queries: list[StreamingQuery] = []
        try:
            for sink in sinks:
                start = partial(self._start, run, sink, frames[sink.name])
                queries += [_located(self.spec, sink.line, start)]
                _await_sources(queries[-1])
        except BaseException:
            for query in queries:
                query.stop()
            raise
        finally:
            for name in tables:
                run.spark.catalog.dropTempView(name)
        by_query = {f"{self.spec.name}/{sink.name}": sink for sink in sinks}

        def told(query: str, error: BaseException) -> str:
            sink = by_query[query]
            place = self.checkpoint(sink, run.settings)
            return explain_failure(self.spec, sink, place, explain(error), str(error))

        run.watch(queries, told)

    def _checked(self, run: Run, sink: SqlSink, table: DataFrame) -> DataFrame:
        """Return the rows as the sink takes them.

        Raises:
            ConfigError: they do not fit; names the line.
        """
        frame = table
        if sink.subject:
            frame = _located(
                self.spec, sink.line, lambda: table.withColumn("subject", sql.expr(subject_expression(sink.subject)))
            )
            frame.schema  # noqa: B018 - analysed here, so that a wrong column is found here
        for column in sink.partition_by:
            if column not in frame.columns:
                raise self.spec.fail(sink.line, f"partition_by names {column}, which {sink.table} does not have")
        if sink.target.kind == "stream":
            payload = _located(self.spec, sink.line, lambda: sink.payload_options)
            options = {**run.settings.connection, "stream": sink.target.value, **payload}
            _located(
                self.spec,
                sink.line,
                lambda: RowEncoder(frame.schema, SinkOptions.of(options).with_stored_schema()),
            )
            if sink.subject:
                example = wildcard_subject(sink.subject)
                made = _located(
                    self.spec,
                    sink.line,
                    lambda: ensure_stream(run.settings.connection_options, sink.target.value, example),
                )
                if made:
                    run.facts[f"made for {sink.name}"] = made
        _located(self.spec, sink.line, lambda: _check_mode(run.spark, frame, sink.mode))
        return frame

    def _start(self, run: Run, sink: SqlSink, frame: DataFrame) -> StreamingQuery:
        name = f"{self.spec.name}/{sink.name}"
        owner = _owner(self.spec, sink)
        checkpoint = self.checkpoint(sink, run.settings)
        if sink.target.kind == "stream":
            return start_stream(
                run,
                frame,
                sink.target,
                name=name,
                owner=owner,
                checkpoint=checkpoint,
                mode=sink.mode,
                **sink.payload_options,
            )
        if sink.target.is_folder:
            return start_folder(
                run,
                frame,
                sink.target,
                name=name,
                owner=owner,
                checkpoint=checkpoint,
                mode=sink.mode,
                partition_by=sink.partition_by,
            )
        claim_checkpoint(FileSystem(run.spark, checkpoint), owner)
        writer = run.settings.triggered(frame, name, checkpoint).outputMode(sink.mode)
        return writer.foreachBatch(lambda rows, batch: print_rows(collect_shown(rows))).start()


@dataclass(frozen=True)
class SqlReset:
    """Resets one sink of a file: removes its checkpoint, and its files if it writes to a folder."""

    spec: SqlFile
    sink: str

    @property
    def name(self) -> str:
        """What reports call it."""
        return f"reset {self.sink}"

    @property
    def prints(self) -> bool:
        """Rows go nowhere."""
        return False

    def _chosen(self) -> SqlSink:
        sinks = [*self.spec.sinks, *_refusing_sinks(self.spec)]
        for sink in sinks:
            if sink.name == self.sink:
                return sink
        known = ", ".join(sink.name for sink in sinks)
        raise ConfigError(f"{self.spec.file} has no sink {self.sink}; there are {known}")

    def facts(self, settings: PipelineSettings) -> Mapping[str, Any]:
        """Return where the sink writes, and where its place is kept."""
        sink = self._chosen()
        return {"target": str(sink.target), "checkpoint": SqlPipeline(self.spec).checkpoint(sink, settings)}

    def check(self, settings: PipelineSettings) -> None:
        """Find out whether there is no such sink."""
        self._chosen()

    def run(self, run: Run) -> None:
        """Remove the checkpoint, and a folder's files before it: a reset that is cut off is done again."""
        sink = self._chosen()
        checkpoint = FileSystem(run.spark, SqlPipeline(self.spec).checkpoint(sink, run.settings))
        owner = _owner(self.spec, sink)
        if sink.target.is_folder:
            files = FileSystem(run.spark, sink.target.value)
            run.closing.enter_context(locked(files, self.name))
            claim_checkpoint(checkpoint, folder_owner(owner, claim_folder(files, owner)))
            written = own_files(files)
            for path in written:
                files.delete(path)
            files.delete(BATCHES)
            run.facts["files removed"] = len(written)
        else:
            claim_checkpoint(checkpoint, stream_owner(owner, sink.target) if sink.target.kind == "stream" else owner)
        remove_checkpoint(checkpoint)
        if sink.target.kind == "stream":
            run.facts["left alone"] = f"the messages in stream {sink.target.value}: purge it to have every row once"


def _owner(spec: SqlFile, sink: SqlSink) -> str:
    """Return what a sink's folder and checkpoint call the sink."""
    return f"sql {spec.name}/{sink.name}"


def _refusing_sinks(spec: SqlFile) -> dict[SqlSink, SqlSource | SqlSink]:
    """Return the sinks of bad rows, each with the source or the sink whose rows they are."""
    found: dict[SqlSink, SqlSource | SqlSink] = {}
    for source in spec.sources:
        if source.bad_target is not None:
            found[_refusing(f"{source.name}-bad", source.line, source.bad_target, "append", "{stream}")] = source
    for sink in spec.sinks:
        _, target = spec.bad_rows_of(sink)
        if sink.target.kind == "stream" and target is not None:
            token = re.sub(r"[^A-Za-z0-9_-]", "_", sink.name)
            found[_refusing(f"{sink.name}-bad-rows", sink.line, target, sink.mode, token)] = sink
    return found


def _refusing(name: str, line: int, target: Target, mode: str, token: str) -> SqlSink:
    """Return a sink of bad rows, under that token of the stream if it is one."""
    return SqlSink(
        name=name,
        line=line,
        table=Text(name, line),
        target=target,
        mode=mode,
        subject=f"{target.value}.{token}" if target.kind == "stream" else "",
        payload="raw",
        partition_by=(),
        bad_rows="fail",
    )


def _unaddressed_rows(frame: DataFrame, sink: SqlSink, target: Target) -> DataFrame:
    """Return the rows of a sink that have no subject to publish to, as JSON, with the reason."""
    template = sink.subject.replace("\\", "\\\\").replace("'", "\\'") or "subject"
    reason = (
        f"case when subject is null then 'the subject {template} is null, for a column in it is' "
        "else concat('no subject to publish to: ', subject) end"
    )
    row = sql.to_json(sql.struct(*(frame[f"`{name}`"] for name in frame.columns if name != "subject")))
    bad = frame.where(f"not ({HAS_SUBJECT})").select(
        sql.lit(sink.name).alias("sink"), row.alias("row"), sql.expr(reason).alias("reason")
    )
    if target.kind != "stream":
        return bad
    # A line break would end the header.
    headers = f"map('{BAD_ROW}Sink', sink, '{BAD_ROW}Reason', translate(reason, '\\r\\n', '  '))"
    return bad.selectExpr(f"{headers} as headers", "row as data")


def _refused_rows(spark: SparkSession, source: SqlSource, settings: PipelineSettings) -> DataFrame:
    """Messages whose payloads are not what the schema says, with the reason."""
    bad = _read_payloads(spark, source, settings).where("bad_reason is not null")
    columns = ("stream", "sequence", "subject", "timestamp", "headers", "bad_data as data", "bad_reason as reason")
    assert source.bad_target is not None
    refused = bad.selectExpr(*columns)
    return refused_messages(refused) if source.bad_target.kind == "stream" else refused


def _await_sources(query: StreamingQuery) -> None:
    """Wait until a query's source process runs. Java waits ten seconds for each to come up, and several that start at
    once on a busy machine may need more.
    """
    deadline_s = time.monotonic() + _SOURCES_S
    while query.isActive and query.status["message"].startswith(_STARTING) and time.monotonic() < deadline_s:
        time.sleep(0.02)


def checked_tables(spark: SparkSession, spec: SqlFile, settings: PipelineSettings) -> dict[str, DataFrame]:
    """Return all tables of the file by their names in small letters, registered as views for each other.

    Raises:
        ConfigError: a stream is missing, a schema or a query is wrong; names the line.
    """
    tables: dict[str, DataFrame] = {}
    for source in spec.sources:
        _located(spec, source.stream.line, partial(_check_stream, source.stream, settings))
        line = source.schema.line if source.schema else source.line
        frame = _located(spec, line, partial(_read, spark, source, settings))
        tables[source.name.lower()] = _marked(spec, frame, source.watermark)
        tables[source.name.lower()].createOrReplaceTempView(source.name)
    for step in spec.steps:
        frame = _located(spec, step.sql.line, partial(spark.sql, step.sql), in_sql=True)
        tables[step.name.lower()] = _marked(spec, frame, step.watermark)
        tables[step.name.lower()].createOrReplaceTempView(step.name)
    return tables


def _read_payloads(spark: SparkSession, source: SqlSource, settings: PipelineSettings) -> DataFrame:
    options = settings.source_options(
        stream=source.stream, subjects=names_text(source.subjects), startingPosition=source.start
    )
    if source.schema:
        payload = _payload(source, settings)
        if payload.schema == source.schema:  # typed as DDL
            _check_schema(spark, payload.ddl)
        options |= payload.source_options()
        options["badRows"] = "column" if source.bad_rows == "drop" else "fail"
        if payload.format == "json":
            options["payloadSchema"] = payload.ddl
    return spark.readStream.format("jetstream").options(**options).load()


def _payload(source: SqlSource, settings: PipelineSettings) -> TypedPayload:
    """Return the decoding of a source with a schema, as the file or the bucket has it now."""
    if source.payload == "json" and not is_stored(source.schema):
        return TypedPayload("json", str(source.schema))
    payload = typed_payload(source.payload, str(source.schema))
    return payload.from_bucket(settings.connection_options, source.stream) if payload.is_stored else payload


def _read(spark: SparkSession, source: SqlSource, settings: PipelineSettings) -> DataFrame:
    frame = _read_payloads(spark, source, settings)
    if not source.schema:
        return frame
    return with_payload(frame, field_names(_payload(source, settings).ddl), source.bad_rows == "drop")


def with_payload(frame: DataFrame, fields: Sequence[str], drop_bad: bool) -> DataFrame:
    """Return the payload's fields beside the message's own columns; of two with one name the payload's counts."""
    if drop_bad:
        frame = frame.where("bad_reason is null")
    taken = {field.lower() for field in fields}
    own = [name for name in ("stream", "sequence", "subject", "timestamp", "headers") if name not in taken]
    return frame.select(*own, "value.*")


def _check_stream(stream: str, settings: PipelineSettings) -> None:
    options = settings.connection_options
    try:
        ask(options, lambda api: api.stream_info(stream))
    except NotFoundError:
        raise ConfigError(f"there is no stream {stream}") from None


def _check_schema(spark: SparkSession, ddl: str) -> None:
    """Let Spark read the fields by themselves: inside the source's schema its complaint would name another place."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm.org.apache.spark.sql.types.StructType.fromDDL(ddl)


def _marked(spec: SqlFile, frame: DataFrame, watermark: Watermark | None) -> DataFrame:
    if watermark is None:
        return frame
    if watermark.column not in frame.columns:
        columns = ", ".join(frame.columns)
        raise spec.fail(
            watermark.line, f"the watermark's column {watermark.column} does not exist; there are {columns}"
        )
    kind = frame.schema[watermark.column].dataType.simpleString()
    if kind not in ("timestamp", "timestamp_ntz"):
        raise spec.fail(watermark.line, f"the watermark's column {watermark.column} is {kind}, not a timestamp")
    return frame.withWatermark(watermark.column, watermark.delay)


def _located(spec: SqlFile, line: int, action: Callable[[], T], *, in_sql: bool = False) -> T:
    """Run it; an error names the line, which SQL itself may know better."""
    try:
        return action()
    except (AnalysisException, ParseException) as error:
        text = str(error)
        place = _PLACE.search(text)
        if in_sql and place is not None:
            line += int(place[1]) - 1
        raise spec.fail(line, _sentence(text)) from None
    except PySparkException as error:
        raise spec.fail(line, explain(error)) from None
    except JetlakeError as error:
        raise spec.fail(line, str(error)) from None


def _sentence(text: str) -> str:
    """Return the first line of Spark's complaint, without its class, its state and the place in the text."""
    first = explain(Exception(text)) if "jetlake.errors." in text else text.strip().splitlines()[0]
    first = re.sub(r"^\[[A-Z0-9_.]+\]\s*", "", _PLACE.sub("", first))
    return re.sub(r"[.;\s]*SQLSTATE: \w+.*$", "", first).strip()


def _check_mode(spark: SparkSession, frame: DataFrame, mode: str) -> None:
    """Let Spark say now, and not when other sinks run already, whether it can write this in that mode."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    output_mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, mode.capitalize())()
    plan = frame._jdf.queryExecution().analyzed()
    jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, output_mode)


def subject_expression(template: str) -> str:
    """`revenue.{country}` as SQL."""
    pieces = []
    for index, piece in enumerate(_COLUMN.split(template)):
        if index % 2:
            pieces.append(f"cast(`{piece.strip()}` as string)")
        elif piece:
            pieces.append("'" + piece.replace("\\", "\\\\").replace("'", "\\'") + "'")
    return f"concat({', '.join(pieces)})"


def wildcard_subject(template: str) -> str:
    """`revenue.{country}` as the pattern of the subjects it makes: a token with a column in it may be anything."""
    tokens = _COLUMN.sub("\0", template).split(".")
    return ".".join("*" if "\0" in token else token for token in tokens)


# Spark shows the piece of SQL that failed, and where in its text that is.
_FRAGMENT = re.compile(r"== SQL \(line (\d+), position \d+\) ==\n(.*)\n")
_AVAILABLE = re.compile(r"^Current Available Offsets: \{.*?: (\{\"v\".*)\}$", re.MULTILINE)
_CHANGED = re.compile(
    r"STATE_STORE_\w*SCHEMA_NOT_COMPATIBLE|STATE_STORE_KEY_SCHEMA|STREAMING_STATEFUL_OPERATOR_NOT_MATCH|"
    r"Multiple stateful operators|number of stateful operators"
)


def explain_failure(spec: SqlFile, sink: SqlSink, checkpoint: str, reason: str, text: str) -> str:
    """Return the failure of a sink's query in one sentence for the author of the file.

    Args:
        reason: what went wrong, in short.
        text: all that Spark says of it.
    """
    reason = re.sub(r"[.;\s]*SQLSTATE: \w+\.?$", "", reason)
    if _CHANGED.search(text):
        return (
            f"{spec.file}:{sink.line}: sink {sink.name} cannot continue with its earlier results: its query, or "
            f"one before it, was changed, and its checkpoint {checkpoint} is of the old one ({reason}). Put the query "
            f"back, give the sink another name and place, or restart it: jetlake pipeline sql {spec.file} "
            f"--reset {sink.name}"
        )
    step, line = _step(spec, text)
    where = f" in step {step}" if step else ""
    among = _messages(text)
    return f"{spec.file}:{line or sink.line}: sink {sink.name}{where}: {reason}{among}"


def _step(spec: SqlFile, text: str) -> tuple[str, int]:
    """Return the step whose SQL holds the piece that failed, and its line in the file."""
    for found in _FRAGMENT.finditer(text):
        number, fragment = int(found[1]), found[2].strip()
        for step in spec.steps:
            lines = step.sql.splitlines()
            if number <= len(lines) and fragment.strip(".") in lines[number - 1]:
                return step.name, step.sql.line + number - 1
    return "", 0


def _messages(text: str) -> str:
    """Return the messages of the batch that failed."""
    ranges = []
    for found in _AVAILABLE.finditer(text):
        try:
            streams = json.JSONDecoder().raw_decode(found[1])[0]["streams"]
            ranges += [(name, place["batch"]["from"], place["next"] - 1) for name, place in streams.items()]
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    told = [f"{first} to {last} of {name}" for name, first, last in ranges if first <= last]
    return f" (among messages {', '.join(told)})" if told else ""
