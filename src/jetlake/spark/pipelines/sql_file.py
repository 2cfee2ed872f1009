"""The file of an SQL pipeline: sources, steps and sinks, read from YAML whose every error names its line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import yaml  # type: ignore[import-untyped, unused-ignore]

from jetlake.client.tables.option_values import duration_s, names
from jetlake.client.tables.positions import parse_position
from jetlake.errors import ConfigError
from jetlake.spark.pipelines.sinks import Target, parse_target

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
    """A stream as a table: its messages' columns and, with a schema, the fields of its payload.

    Attributes:
        schema: the payload's fields as DDL for JSON, a file with an Avro schema or a Protobuf descriptor set, or
            `bucket:` and a subject; empty for the raw column `data`.
        payload: `json`, `avro` or `protobuf`.
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
    payload: str = "json"


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
        schema: for Avro and Protobuf: a file, or `bucket:` and a subject.
        validate: check payloads against the schemas of their subjects.
        subject: of the messages, with columns in braces; empty when the table has a column `subject`.
        bad_rows: `fail`, or `drop` for rows without a subject to publish to; empty to do as the sources do.
        bad_target: where dropped rows go with their reasons; None for nowhere.
    """

    name: str
    line: int
    table: Text
    target: Target
    mode: str
    subject: str
    payload: str
    partition_by: tuple[str, ...]
    bad_rows: str = ""
    bad_target: Target | None = None
    schema: Text | str = ""
    validate: bool = False

    @property
    def payload_options(self) -> dict[str, str]:
        """The options of the sink that make payloads of rows.

        Raises:
            ConfigError: the schema's file can't be read.
        """
        options = {"payloadFormat": self.payload, **({"validate": "true"} if self.validate else {})}
        if self.payload not in ("avro", "protobuf"):
            return options
        from jetlake.spark.pipelines.typed_payload import typed_payload  # loads Spark's types

        given = typed_payload(self.payload, str(self.schema)).source_options()
        return options | {name: value for name, value in given.items() if value and name != "badRows"}


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

    def bad_rows_of(self, sink: SqlSink) -> tuple[str, Target | None]:
        """Return what becomes of a sink's rows that have no subject to publish to, and where they go.

        A sink that does not say so does as the first source of its rows that does not fail on bad ones. A folder has
        one writer, so the sink's rows go to one beside it.
        """
        if sink.bad_rows:
            return sink.bad_rows, sink.bad_target
        for source in self._sources_of(sink):
            target = source.bad_target
            if target is not None and target.is_folder:
                target = replace(target, value=f"{target.value.rstrip('/')}-{sink.name}")
            if source.bad_rows != "fail":
                return source.bad_rows, target
        return "fail", None

    def _sources_of(self, sink: SqlSink) -> list[SqlSource]:
        """Return the sources that the sink's table is made of, by the names in the queries."""
        tables = {sink.table.lower()}
        for step in reversed(self.steps):
            if step.name.lower() in tables:
                tables.update(_NAME.findall(step.sql.lower()))
        return [source for source in self.sources if source.name.lower() in tables]


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
    bad_rows, bad_target = _bad_rows(section, "fail")
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
        payload=section.choice("payload", ("json", "avro", "protobuf"), "json"),
    )
    if source.payload != "json" and not source.schema:
        section.fail(f"payload {source.payload} needs a schema: a file, or bucket:SUBJECT", section.line_of("payload"))
    if bad_rows != "fail" and not source.schema:
        section.fail("bad_rows needs a schema", section.line_of("bad_rows"))
    section.finish()
    return source


def _bad_rows(section: Section, default: str) -> tuple[str, Target | None]:
    """`bad_rows: fail`, `drop`, or a place where they go."""
    wanted = str(section.text("bad_rows", default))
    if wanted in ("fail", "drop", default):
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
    bad_rows, bad_target = _bad_rows(section, "")
    sink = SqlSink(
        name=name,
        line=section.line,
        table=table,
        target=target,
        mode=mode,
        subject=str(section.text("subject", "")),
        payload=section.choice("payload", ("json", "raw", "avro", "protobuf"), "json"),
        partition_by=tuple(str(column) for column in section.texts("partition_by")),
        bad_rows=bad_rows,
        bad_target=bad_target,
        schema=section.text("schema", ""),
        validate=section.choice("validate", ("true", "false"), "false") == "true",
    )
    if bool(sink.schema) != (sink.payload in ("avro", "protobuf")):
        line = section.line_of("schema" if sink.schema else "payload")
        section.fail("payload avro or protobuf and a schema, a file or bucket:SUBJECT, go together", line)
    for key, is_wanted in (
        ("subject", target.kind == "stream"),
        ("payload", target.kind == "stream"),
        ("schema", target.kind == "stream"),
        ("validate", target.kind == "stream"),
        ("bad_rows", target.kind == "stream"),
        ("partition_by", target.is_folder),
    ):
        if key in section and not is_wanted:
            section.fail(f"{key} has no effect on {target.kind}", section.line_of(key))
    section.finish()
    return sink


class Text(str):
    """A text that knows where it stands: `line` is the file's line on which its own first line is."""

    line: int

    def __new__(cls, value: str, line: int) -> Text:
        text = super().__new__(cls, value)
        text.line = line
        return text


class Section:
    """A mapping of a file; requested keys are checked, and keys that were never requested are refused by `finish`."""

    def __init__(self, file: str, node: yaml.MappingNode, line: int) -> None:
        self.file = file
        self.line = line
        self._entries: dict[str, tuple[int, yaml.Node]] = {}
        self._asked: list[str] = []
        for key, value in node.value:
            name = str(key.value)
            at = key.start_mark.line + 1
            if name in self._entries:
                self.fail(f"{name} appears twice", at)
            self._entries[name] = (at, value)

    def fail(self, text: str, line: int | None = None) -> NoReturn:
        """Complain.

        Raises:
            ConfigError: always, with file and line.
        """
        raise ConfigError(f"{self.file}:{self.line if line is None else line}: {text}")

    def line_of(self, key: str) -> int:
        """Return the line of a key, or of the section when it is not there."""
        return self._entries[key][0] if key in self._entries else self.line

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def _take(self, key: str) -> yaml.Node | None:
        self._asked.append(key)
        return self._entries[key][1] if key in self._entries else None

    def text(self, key: str, default: str | None = None) -> Text:
        """Return a text; required without a default."""
        node = self._take(key)
        if node is None:
            if default is None:
                self.fail(f"{key} is missing")
            return Text(default, self.line)
        if not isinstance(node, yaml.ScalarNode) or node.value == "":
            self.fail(f"{key} must be a string", self.line_of(key))
        return _text(node)

    def choice(self, key: str, words: tuple[str, ...], default: str) -> str:
        """Return one of these words."""
        value = self.text(key, default)
        if value not in words:
            self.fail(f"{key} is {value!r}, but must be one of {', '.join(words)}", self.line_of(key))
        return str(value)

    def texts(self, key: str) -> tuple[Text, ...]:
        """Return a list of texts, or one text alone; none when it is not there."""
        node = self._take(key)
        if node is None:
            return ()
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for item in nodes:
            if not isinstance(item, yaml.ScalarNode) or item.value == "":
                self.fail(f"{key} must be a list of strings", item.start_mark.line + 1)
        return tuple(_text(item) for item in nodes)

    def names(self, key: str) -> tuple[str, ...]:
        """Return a list of names; in one text alone commas separate them, as in an option."""
        items = tuple(str(item) for item in self.texts(key))
        if not isinstance(self._take(key), yaml.ScalarNode):
            return items
        try:
            return names(items[0])
        except ValueError as error:
            self.fail(f"{key} {items[0]!r} can't be used: {error}", self.line_of(key))

    def section(self, key: str) -> Section | None:
        """Return a mapping inside; None when it is not there."""
        node = self._take(key)
        if node is None:
            return None
        if not isinstance(node, yaml.MappingNode):
            self.fail(f"{key} must hold names and values", self.line_of(key))
        return Section(self.file, node, self.line_of(key))

    def sections(self, key: str) -> list[Section]:
        """Return a list of mappings; empty when it is not there."""
        node = self._take(key)
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode):
            self.fail(f"{key} must be a list, with a dash before each entry", self.line_of(key))
        found = []
        for item in node.value:
            at = item.start_mark.line + 1
            if not isinstance(item, yaml.MappingNode):
                self.fail(f"an entry of {key} must hold names and values", at)
            found.append(Section(self.file, item, at))
        return found

    def named_sections(self) -> Iterator[tuple[Text, Section]]:
        """Yield all entries of this mapping as sections, with their names."""
        for name, (line, node) in self._entries.items():
            self._asked.append(name)
            if not isinstance(node, yaml.MappingNode):
                self.fail(f"{name} must hold names and values", line)
            yield Text(name, line), Section(self.file, node, line)

    def finish(self) -> None:
        """Refuse keys that were never requested.

        Raises:
            ConfigError: an unknown key, with the one that may be meant.
        """
        for key, (line, _) in self._entries.items():
            if key not in self._asked:
                near = difflib.get_close_matches(key, self._asked, 1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(set(self._asked)))}"
                self.fail(f"{key} is unknown; {hint}", line)


def _text(node: yaml.ScalarNode) -> Text:
    # A block begins below the line with its | or >.
    return Text(node.value, node.start_mark.line + (2 if node.style in ("|", ">") else 1))


def read_yaml(file: str, content: str) -> Section:
    """Return the file's outermost mapping.

    Raises:
        ConfigError: it is no YAML, or no mapping.
    """
    try:
        node: Any = yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        raise ConfigError(f"{file}:{line}: this is not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}:1: this is not valid YAML: {error}") from None
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{file}:1: the file must hold names and values (name, sources, steps, sinks)")
    return Section(file, node, 1)
