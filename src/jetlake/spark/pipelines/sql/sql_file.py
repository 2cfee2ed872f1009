"""The file of an SQL pipeline: sources, steps and sinks, each with its line for what may be wrong with it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from jetlake.client.tables.options.option_values import duration_s
from jetlake.client.tables.options.positions import parse_position
from jetlake.errors import ConfigError
from jetlake.spark.pipelines.sql.yaml_lines import Section, Text, read_yaml
from jetlake.spark.pipelines.target import Target, parse_target

__all__ = ["SqlFile", "SqlSink", "SqlSource", "SqlStep", "Watermark", "field_names", "parse_sql_file", "read_sql_file"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MODES = ("append", "update", "complete")


@dataclass(frozen=True)
class Watermark:
    """How late rows may come, by which column."""

    column: str
    delay: str
    line: int


@dataclass(frozen=True)
class SqlSource:
    """A stream as a table: its messages' columns and, with a schema, the fields of its JSON payload.

    Attributes:
        schema: the payload's fields as DDL; empty for the raw column `data`.
        bad_rows: `fail`, or `drop` for payloads that are not what the schema says.
        bad_target: where dropped payloads go with their reasons; None for nowhere.
    """

    name: str
    line: int
    stream: Text
    subjects: tuple[str, ...]
    schema: Text
    start: str
    bad_rows: str
    watermark: Watermark | None
    bad_target: Target | None = None


@dataclass(frozen=True)
class SqlStep:
    """A query whose result is a table for the steps and sinks after it."""

    name: str
    line: int
    sql: Text
    watermark: Watermark | None


@dataclass(frozen=True)
class SqlSink:
    """Where the rows of a table go.

    Attributes:
        subject: of the messages, with columns in braces; empty when the table has a column `subject`.
    """

    name: str
    line: int
    table: Text
    target: Target
    mode: str
    subject: str
    payload: str
    partition_by: tuple[str, ...]


@dataclass(frozen=True)
class SqlFile:
    """A whole file."""

    file: str
    name: str
    sources: tuple[SqlSource, ...]
    steps: tuple[SqlStep, ...]
    sinks: tuple[SqlSink, ...]

    def fail(self, line: int, text: str) -> ConfigError:
        """Return the error for something wrong on that line."""
        return ConfigError(f"{self.file}:{line}: {text}")


def field_names(ddl: str) -> tuple[str, ...]:
    """Return the names of the outermost fields of `id bigint, tags map<string,string>`."""
    names = []
    depth = 0
    field = ""
    for letter in ddl + ",":
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            words = re.split(r"[\s:]+", field.strip(), maxsplit=1)
            names.append(words[0].strip("`"))
            field = ""
        else:
            field += letter
    return tuple(name for name in names if name)


def read_sql_file(file: str) -> SqlFile:
    """Read and check a file.

    Raises:
        ConfigError: it can't be read, or something in it is wrong; names the line.
    """
    try:
        content = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error.strerror if isinstance(error, OSError) else error}") from None
    return parse_sql_file(file, content)


def parse_sql_file(file: str, content: str) -> SqlFile:
    """As `read_sql_file`, of a content that is at hand."""
    top = read_yaml(file, content)
    name = str(top.text("name", Path(file).stem))
    sources = top.section("sources")
    if sources is None:
        top.fail("sources is missing: name the streams to read")
    tables: dict[str, int] = {}
    read = tuple(_source(key, section, tables) for key, section in sources.named_sections())
    if not read:
        top.fail("sources names no stream", top.line_of("sources"))
    steps = tuple(_step(section, tables) for section in top.sections("steps"))
    written = top.sections("sinks")
    if not written:
        top.fail("sinks is missing: say where the rows go", top.line_of("sinks"))
    names: dict[str, int] = {}
    sinks = tuple(_sink(section, tables, names) for section in written)
    top.finish()
    return SqlFile(file, name, read, steps, sinks)


def _table_name(section: Section, name: Text, tables: dict[str, int]) -> str:
    if not _NAME.fullmatch(name):
        section.fail(f"{str(name)!r} can't be a table's name: use letters, digits and underscores", name.line)
    if name.lower() in tables:
        section.fail(f"there is a table {name} already, on line {tables[name.lower()]}", name.line)
    tables[name.lower()] = name.line
    return str(name)


def _source(key: Text, section: Section, tables: dict[str, int]) -> SqlSource:
    name = _table_name(section, key, tables)
    start = section.text("start", "earliest")
    try:
        parse_position(start)
    except ValueError as error:
        section.fail(f"start {str(start)!r} can't be used: {error}", section.line_of("start"))
    bad_rows, bad_target = _bad_rows(section)
    source = SqlSource(
        name=name,
        line=section.line,
        stream=section.text("stream"),
        subjects=section.names("subjects"),
        schema=section.text("schema", ""),
        start=str(start),
        bad_rows=bad_rows,
        watermark=_watermark(section, "timestamp"),
        bad_target=bad_target,
    )
    if bad_rows != "fail" and not source.schema:
        section.fail("bad_rows means nothing without a schema", section.line_of("bad_rows"))
    section.finish()
    return source


def _bad_rows(section: Section) -> tuple[str, Target | None]:
    """`bad_rows: fail`, `drop`, or a place where they go."""
    wanted = str(section.text("bad_rows", "fail"))
    if wanted in ("fail", "drop"):
        return wanted, None
    try:
        return "drop", parse_target(wanted)
    except ConfigError:
        section.fail(
            f"bad_rows is {wanted!r}, but must be one of fail, drop, or a place for them: stream:NAME, parquet:DIR, "
            "orc:DIR, json:DIR or console",
            section.line_of("bad_rows"),
        )


def _step(section: Section, tables: dict[str, int]) -> SqlStep:
    step_sql = section.text("sql")
    watermark = _watermark(section, None)
    step = SqlStep(_table_name(section, section.text("name"), tables), section.line, step_sql, watermark)
    section.finish()
    return step


def _watermark(section: Section, column: str | None) -> Watermark | None:
    """`watermark: 10 seconds`, or with `column` and `delay`."""
    if "watermark" not in section:
        section.text("watermark", "")
        return None
    line = section.line_of("watermark")
    try:
        inner = section.section("watermark")
    except ConfigError:
        inner = None
    if inner is not None:
        column, delay = str(inner.text("column", column)), inner.text("delay")
        inner.finish()
    else:
        delay = section.text("watermark")
    if column is None:
        section.fail("the watermark of a step names its column: {column: …, delay: …}", line)
    try:
        duration_s(delay)
    except ValueError as error:
        section.fail(f"watermark {str(delay)!r} can't be used: {error}", line)
    return Watermark(column, str(delay), line)


def _sink(section: Section, tables: dict[str, int], names: dict[str, int]) -> SqlSink:
    table = section.text("from")
    if table.lower() not in tables:
        section.fail(f"there is no table {table}; there are {', '.join(tables)}", table.line)
    try:
        target = parse_target(section.text("to"))
    except ConfigError as error:
        section.fail(str(error), section.line_of("to"))
    name = str(section.text("name", f"{table}-{target.kind}"))
    if name in names:
        section.fail(f"there is a sink {name} already, on line {names[name]}: give this one another name")
    names[name] = section.line
    mode = section.choice("mode", MODES, "append")
    if target.is_folder and mode == "update":
        section.fail(
            "a folder can't change rows: use mode append with a watermark, or complete", section.line_of("mode")
        )
    if target.kind == "stream" and mode == "complete":
        section.fail("a stream can only be appended to: use mode update, or append", section.line_of("mode"))
    sink = SqlSink(
        name=name,
        line=section.line,
        table=table,
        target=target,
        mode=mode,
        subject=str(section.text("subject", "")),
        payload=section.choice("payload", ("json", "raw"), "json"),
        partition_by=tuple(str(column) for column in section.texts("partition_by")),
    )
    for key, is_wanted in (
        ("subject", target.kind == "stream"),
        ("payload", target.kind == "stream"),
        ("partition_by", target.is_folder),
    ):
        if key in section and not is_wanted:
            section.fail(f"{key} means nothing for {target.kind}", section.line_of(key))
    section.finish()
    return sink
