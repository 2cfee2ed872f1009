"""Writes a pipeline down as a project for Spark declarative pipelines (`spark-pipelines run`)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jetlake.client.tables.archived import NOTES
from jetlake.client.tables.option_values import names_text
from jetlake.client.tables.stored_schemas import is_stored
from jetlake.errors import ConfigError
from jetlake.spark.pipelines.archive import ARCHIVE_COLUMNS, Archive
from jetlake.spark.pipelines.dead_letters import DeadLetters
from jetlake.spark.pipelines.folder_sink import writer_options
from jetlake.spark.pipelines.health import Health
from jetlake.spark.pipelines.replay import Replay
from jetlake.spark.pipelines.runner import Pipeline
from jetlake.spark.pipelines.settings import PipelineSettings
from jetlake.spark.pipelines.sinks import Target
from jetlake.spark.pipelines.sql import HAS_SUBJECT, SqlPipeline, subject_expression
from jetlake.spark.pipelines.sql_file import SqlSink, SqlSource, SqlStep, Watermark, field_names

__all__ = ["definitions", "write_project"]

# Secrets are read where the project runs, never written into it. A path is read there, anything else is the secret.
_SECRETS = {
    "auth.password": 'os.environ["JETLAKE_PASSWORD"]',
    "auth.token": 'os.environ["JETLAKE_TOKEN"]',
    "auth.credsSecret": 'Path(os.environ["JETLAKE_CREDS"]).read_text()',
    "auth.nkeySecret": 'Path(os.environ["JETLAKE_NKEY"]).read_text().strip()',
    "tls.keySecret": 'Path(os.environ["JETLAKE_KEY"]).read_text()',
}

_SPEC = """\
# Run it with:  spark-pipelines run --spec {spec}
name: {name}
storage: {storage}
configuration:
  spark.sql.session.timeZone: UTC
  spark.sql.shuffle.partitions: "4"
libraries:
  - glob:
      include: transformations/**
"""

_HEAD = '''\
"""{title}, as written by `jetlake pipeline … --spec-out`. Every run takes what is new and ends."""

import os
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

spark = SparkSession.active()

SERVER = {server}
'''


def write_project(pipeline: Pipeline, settings: PipelineSettings, folder: Path) -> list[Path]:
    """Write the project into a folder, and return its files.

    Raises:
        ConfigError: the pipeline does something that declarative pipelines can't, or the folder holds another project.
    """
    body = definitions(pipeline, settings)
    spec, module = folder / "spark-pipeline.yml", folder / "transformations" / "pipeline.py"
    if spec.exists() or module.exists():
        raise ConfigError(f"{folder} holds a project already: choose another folder, or remove it")
    module.parent.mkdir(parents=True, exist_ok=True)
    spec.write_text(
        _SPEC.format(
            spec=spec,
            name=json.dumps(re.sub(r"[^A-Za-z0-9_]+", "_", pipeline.name)),
            storage=json.dumps((folder / "storage").resolve().as_uri()),
        )
    )
    module.write_text(body)
    return [spec, module]


def definitions(pipeline: Pipeline, settings: PipelineSettings) -> str:
    """Return the project's Python file.

    Raises:
        ConfigError: the pipeline does something that declarative pipelines can't.
    """
    for kind, write in _WRITERS.items():
        if isinstance(pipeline, kind):
            title = pipeline.name[:1].upper() + pipeline.name[1:]
            return _HEAD.format(title=title, server=_server(settings.connection)) + write(pipeline, settings)
    raise ConfigError(f"{pipeline.name} can't be written as a declarative pipeline")


def _server(connection: Mapping[str, str]) -> str:
    lines = [f"    {key!r}: {_SECRETS.get(key, repr(value))}," for key, value in connection.items()]
    return "\n".join(["{", *lines, "}"])


def _source(settings: PipelineSettings, **options: Any) -> str:
    """Return a streaming read; the server's options come from SERVER."""
    bare = PipelineSettings(batch_messages=settings.batch_messages, source=settings.source)
    return f"spark.readStream.format('jetstream').options(**SERVER, **{bare.source_options(**options)!r})"


def _identifier(text: str) -> str:
    name = re.sub(r"[^a-z0-9_]+", "_", text.lower()).strip("_")
    return name if name and not name[0].isdigit() else f"t_{name}"


def _sink(name: str, format_name: str, options: str) -> str:
    """Declare a sink that a function writes to; not a table, which would be in the catalog's own folder."""
    flow = f"@dp.append_flow(target={name!r}, name={name + '_flow'!r})"
    return f"dp.create_sink({name!r}, {format_name!r}, {options})\n\n\n{flow}\n"


def _stream_sink(name: str, stream: str, options: Mapping[str, str]) -> str:
    return _sink(name, "jetstream", f"{{**SERVER, 'stream': {stream!r}, **{dict(options)!r}}}")


def _folder_sink(name: str, format_name: str, folder: str) -> str:
    path = folder if "://" in folder else str(Path(folder).resolve())
    if (Path(path) / NOTES).exists():
        raise ConfigError(
            f"folder {folder} is written by `jetlake pipeline`, whose progress a declarative pipeline does not "
            "know: it would add every row a second time. Choose another folder"
        )
    return _sink(name, format_name, repr({"path": path, **writer_options(format_name)}))


def _place(target: Target, name: str, options: Mapping[str, str]) -> str:
    """Return the sink that brings rows to their target."""
    if target.kind == "console":
        raise ConfigError("a declarative pipeline writes files and streams, not to the console: choose another target")
    if target.kind == "stream":
        return _stream_sink(name, target.value, options)
    return _folder_sink(name, target.kind, target.value)


_TABLES = {"delta": "Delta", "iceberg": "Iceberg"}


def _archive(pipeline: Any, settings: PipelineSettings) -> str:
    if pipeline.format in _TABLES:
        raise ConfigError(
            f"a declarative pipeline writes {_TABLES[pipeline.format]} tables only with Spark's own "
            f"{_TABLES[pipeline.format]}: choose another format"
        )
    if pipeline.payload is not None:
        raise ConfigError(
            "a declarative pipeline cannot store messages whose payloads do not fit: leave out --payload, and "
            "decode column data in a separate step"
        )
    if pipeline.partitioning.columns:
        raise ConfigError(f"a declarative pipeline can't partition its files by {pipeline.partitioning}: add --by none")
    read = _source(
        settings, stream=pipeline.stream, subjects=names_text(pipeline.subjects), startingPosition=pipeline.start
    )
    return (
        f"\n\n{_folder_sink('archive', pipeline.format, pipeline.target)}def messages():\n"
        f"    return {read}.schema({pipeline.columns!r}).load()\n"
    )


def _replay(pipeline: Any, settings: PipelineSettings) -> str:
    if not pipeline.pace.is_instant:
        raise ConfigError("a declarative pipeline supports neither a rate nor the original timing: leave them out")
    format_name = pipeline.format or "parquet"
    if format_name in _TABLES:
        raise ConfigError(
            f"a declarative pipeline reads {_TABLES[format_name]} tables only with Spark's own "
            f"{_TABLES[format_name]}: choose another format"
        )
    conditions = "".join(
        f"\n    messages = messages.where({condition!r})" for condition in pipeline.selection.conditions()
    )
    rename = (
        f"\n    messages = messages.withColumn('subject', renamed(*{pipeline.subject_map!r})('subject'))"
        if pipeline.subject_map
        else ""
    )
    options = {"messageId": "source", "ledger": "none"}
    if pipeline.allow_system_subjects:
        options["allowSystemSubjects"] = "true"
    return (
        "\nfrom jetlake.spark.pipelines.replay_task import renamed\n\n\n"
        f"{_stream_sink('replayed', pipeline.target, options)}def replay():\n"
        f"    reader = spark.readStream.format({format_name!r}).schema({ARCHIVE_COLUMNS!r})\n"
        f"    messages = reader.load({pipeline.source!r})"
        "\n    messages = messages.select('stream', 'sequence', 'subject', 'timestamp', 'headers', 'data')"
        f"{conditions}{rename}\n    return messages\n"
    )


def _health(pipeline: Any, settings: PipelineSettings) -> str:
    read = _source(settings, **pipeline.source_options(), startingPosition=pipeline.start)
    options = {"subject": pipeline.publish_subject(), "payloadFormat": "json"}
    return (
        "\nfrom jetlake.spark.pipelines.health import health_table\n\n\n"
        f"{_place(pipeline.target, 'health', options)}def consumer_health():\n"
        f"    return health_table({read}.load(), {pipeline.window!r}, {pipeline.late!r})\n"
    )


def _dead_letters(pipeline: Any, settings: PipelineSettings) -> str:
    read = _source(settings, **pipeline.source_options(), startingPosition=pipeline.start)
    result = "letters.drop('incarnation')"
    if pipeline.target.kind == "stream":
        result = f"letters_as_messages(letters, {pipeline.publish_subject!r})"
    return (
        "\nfrom jetlake.spark.pipelines.dead_letters import dead_letters, letters_as_messages\n\n\n"
        f"{_place(pipeline.target, 'dead_letters', {})}def letters():\n"
        f"    letters = dead_letters({read}.load(), SERVER, {pipeline.remember!r})\n    return {result}\n"
    )


def _sql(pipeline: Any, settings: PipelineSettings) -> str:
    spec = pipeline.spec
    tables = [table.name for table in (*spec.sources, *spec.steps)]
    pieces = ["\nfrom jetlake.spark.pipelines.sql import with_payload\n"]
    for source in spec.sources:
        if source.bad_target is not None:
            raise spec.fail(source.line, "a declarative pipeline cannot store bad rows: use bad_rows drop or fail")
    pieces += [_sql_source(source, settings) for source in spec.sources]
    pieces += [_sql_step(step, tables) for step in spec.steps]
    for sink in spec.sinks:
        if sink.mode != "append":
            raise spec.fail(sink.line, f"a declarative pipeline only appends: mode {sink.mode} can't be written as one")
        if sink.partition_by:
            raise spec.fail(sink.line, "a declarative pipeline can't partition its files: leave out partition_by")
        if sink.bad_target is not None:
            raise spec.fail(sink.line, "a declarative pipeline cannot store bad rows: use bad_rows drop or fail")
        pieces.append(_sql_sink(sink, drops_bad=spec.bad_rows_of(sink)[0] == "drop"))
    return "".join(pieces)


def _watermark(watermark: Watermark | None) -> str:
    return f".withWatermark({watermark.column!r}, {watermark.delay!r})" if watermark is not None else ""


def _view(name: str, rows: str) -> str:
    return f"\n\n@dp.temporary_view(name={name!r})\ndef {name}():\n    return {rows}\n"


def _sql_source(source: SqlSource, settings: PipelineSettings) -> str:
    options = {"stream": str(source.stream), "subjects": names_text(source.subjects), "startingPosition": source.start}
    if source.payload != "json" or is_stored(source.schema):
        raise ConfigError(f"source {source.name}: a declarative project takes JSON payloads with the fields as DDL")
    if source.schema:
        options |= {"payloadFormat": "json", "payloadSchema": str(source.schema)}
        options |= {"badRows": "column"} if source.bad_rows == "drop" else {}
    read = f"{_source(settings, **options)}.load()"
    rows = (
        f"with_payload({read}, {field_names(source.schema)!r}, {source.bad_rows == 'drop'!r})"
        if source.schema
        else read
    )
    return _view(source.name, f"{rows}{_watermark(source.watermark)}")


def _sql_step(step: SqlStep, tables: list[str]) -> str:
    query = f"spark.sql({_as_stream(step.sql, tables)!r})"
    return _view(step.name, f"{query}{_watermark(step.watermark)}")


def _as_stream(query: str, tables: list[str]) -> str:
    """Give the query with the project's own tables read as streams; otherwise they would be read as they are, once."""
    names = "|".join(re.escape(name) for name in tables)
    return re.sub(rf"(?i)\b(from|join)\s+({names})\b", r"\1 STREAM \2", query)


def _sql_sink(sink: SqlSink, *, drops_bad: bool) -> str:
    name = _identifier(sink.name)
    good = f".where({HAS_SUBJECT!r})" if drops_bad and sink.target.kind == "stream" else ""
    subject = f".withColumn('subject', sql.expr({subject_expression(sink.subject)!r}))" if sink.subject else ""
    place = _place(sink.target, name, sink.payload_options)
    return f"\n\n{place}def write_{name}():\n    return spark.readStream.table({str(sink.table)!r}){subject}{good}\n"


_WRITERS: dict[type, Callable[[Any, PipelineSettings], str]] = {
    Archive: _archive,
    Replay: _replay,
    Health: _health,
    DeadLetters: _dead_letters,
    SqlPipeline: _sql,
}
