from __future__ import annotations

import pytest

from jetlake.errors import ConfigError
from jetlake.spark.pipelines.sinks import Target
from jetlake.spark.pipelines.sql import subject_expression, wildcard_subject
from jetlake.spark.pipelines.sql_file import Watermark, field_names, parse_sql_file, read_sql_file

GOOD = """\
name: revenue
sources:
  orders:
    stream: ORDERS
    subjects: [orders.>]
    schema: id bigint
    start: -10 minutes
    bad_rows: drop
    watermark: 10 seconds
  raw:
    stream: RAW
steps:
  - name: totals
    sql: |
      SELECT count(*)
      FROM orders
    watermark:
      column: at
      delay: 1 minute
sinks:
  - from: totals
    to: stream:TOTALS
    subject: totals.{country}
    mode: update
  - from: raw
    to: parquet:/lake/raw
    partition_by: stream
  - name: shown
    from: raw
    to: console
"""


def test_a_file_is_read_with_its_lines():
    spec = parse_sql_file("f.yml", GOOD)
    orders, raw = spec.sources
    assert (orders.name, orders.line, orders.stream, orders.subjects) == ("orders", 3, "ORDERS", ("orders.>",))
    assert (orders.schema, orders.schema.line, orders.start, orders.bad_rows) == ("id bigint", 6, "-10 minutes", "drop")
    assert orders.watermark == Watermark("timestamp", "10 seconds", 9)
    assert (raw.schema, raw.start, raw.watermark) == ("", "earliest", None)
    (step,) = spec.steps
    assert (step.sql, step.sql.line, step.watermark) == (
        "SELECT count(*)\nFROM orders\n",
        15,
        Watermark("at", "1 minute", 17),
    )
    assert [(sink.name, sink.table, sink.target, sink.mode) for sink in spec.sinks] == [
        ("totals-stream", "totals", Target("stream", "TOTALS"), "update"),
        ("raw-parquet", "raw", Target("parquet", "/lake/raw"), "append"),
        ("shown", "raw", Target("console"), "append"),
    ]
    assert spec.sinks[1].partition_by == ("stream",)


@pytest.mark.parametrize(
    ("written", "subjects"),
    [
        ("a.>, b", ("a.>", "b")),
        ("['a,b.>', c]", ("a,b.>", "c")),
        ("""'["a,b.>", "c"]'""", ("a,b.>", "c")),
    ],
)
def test_subjects_that_hold_commas(written, subjects):
    text = GOOD.replace("[orders.>]", written)
    assert parse_sql_file("f.yml", text).sources[0].subjects == subjects


def test_bad_rows_have_a_place():
    source = parse_sql_file("f.yml", GOOD.replace("bad_rows: drop", "bad_rows: stream:BAD")).sources[0]
    assert (source.bad_rows, source.bad_target) == ("drop", Target("stream", "BAD"))


SINKS = """\
sources:
  a: {{stream: A, schema: id bigint, bad_rows: "{bad}"}}
  b: {{stream: B, schema: id bigint}}
steps:
  - {{name: of_a, sql: "SELECT * FROM A"}}
  - {{name: joined, sql: "SELECT * FROM b JOIN Of_A USING (id)"}}
  - {{name: of_b, sql: "SELECT id AS analysis FROM b"}}
sinks:
  - {{from: a, to: "stream:X"}}
  - {{from: joined, to: "stream:X"}}
  - {{from: of_b, to: "stream:X"}}
  - {{from: of_a, to: "stream:X", bad_rows: fail}}
  - {{from: of_b, to: "stream:X", bad_rows: "json:/bad", name: own}}
"""


@pytest.mark.parametrize(
    ("bad", "inherited"),
    [
        ("fail", ("fail", None)),
        ("drop", ("drop", None)),
        ("stream:BAD", ("drop", Target("stream", "BAD"))),
        ("console", ("drop", Target("console"))),
    ],
)
def test_a_sink_does_with_bad_rows_as_its_sources_do(bad, inherited):
    spec = parse_sql_file("f.yml", SINKS.format(bad=bad))
    found = [spec.bad_rows_of(sink) for sink in spec.sinks]
    own = ("drop", Target("json", "/bad"))
    assert found == [inherited, inherited, ("fail", None), ("fail", None), own]


def test_a_folder_of_bad_rows_has_one_writer():
    spec = parse_sql_file("f.yml", SINKS.format(bad="parquet:/bad/"))
    assert spec.bad_rows_of(spec.sinks[1]) == ("drop", Target("parquet", "/bad-joined-stream"))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("stream: RAW", "stream: RAW\n    bad_rows: drop", "f.yml:12: bad_rows needs a schema"),
        ("stream: ORDERS", "straem: ORDERS", "f.yml:3: stream is missing"),
        ("bad_rows: drop", "badrows: drop", "f.yml:8: badrows is unknown; did you mean bad_rows?"),
        ("bad_rows: drop", "bad_rows: no", "f.yml:8: bad_rows is 'no', but must be one of fail, drop"),
        ("start: -10 minutes", "start: yesterday", "f.yml:7: start 'yesterday' can't be used"),
        ("watermark: 10 seconds", "watermark: soon", "f.yml:9: watermark 'soon' can't be used"),
        ("      column: at\n", "", "f.yml:17: column is missing"),
        (
            "watermark:\n      column: at\n      delay: 1 minute",
            "watermark: 1 minute",
            "f.yml:17: the watermark of a step",
        ),
        ("name: totals", "name: orders", "f.yml:13: there is a table orders already, on line 3"),
        ("name: totals", "name: to-tals", "f.yml:13: 'to-tals' can't be a table's name"),
        ("from: totals", "from: totels", "f.yml:21: there is no table totels; there are orders, raw, totals"),
        ("stream:TOTALS", "kafka:TOTALS", "f.yml:22: 'kafka:TOTALS' is not a target"),
        ("mode: update", "mode: complete", "f.yml:24: a stream can only be appended to"),
        ("partition_by: stream", "mode: update", "f.yml:27: a folder can't change rows"),
        ("partition_by: stream", "subject: x", "f.yml:27: subject has no effect on parquet"),
        ("name: shown", "name: raw-parquet", "f.yml:28: there is a sink raw-parquet already, on line 25"),
        ("subjects: [orders.>]", "subjects: {a: b}", "f.yml:5: subjects must be a list of strings"),
        (
            "subjects: [orders.>]",
            "subjects: a,,b",
            "f.yml:5: subjects 'a,,b' can't be used: it is empty, or has an empty name",
        ),
        ("sources:\n", "sources: 3\nx:\n", "f.yml:2: sources must hold names and values"),
        ("steps:\n", "steps: {}\nx:\n", "f.yml:12: steps must be a list"),
        ("name: revenue", "name: [", "this is not valid YAML"),
        ("    schema: id bigint", "    stream: TWICE", "f.yml:6: stream appears twice"),
    ],
)
def test_every_mistake_is_named_with_its_line(old, new, complaint):
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        parse_sql_file("f.yml", GOOD.replace(old, new, 1))
    assert complaint in str(caught.value)


@pytest.mark.parametrize("content", ["", "- a", "3", "name: x", "sources: {}\n", "sources: {a: {stream: A}}"])
def test_a_file_that_says_too_little_is_refused(content):
    with pytest.raises(ConfigError, match=r"f\.yml:"):
        parse_sql_file("f.yml", content)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yml: No such file"):
        read_sql_file(str(tmp_path / "none.yml"))


def test_the_fields_of_a_schema_are_known_by_name():
    assert field_names("id bigint, `ab` string,t:map<string,struct<x:int,y:int>>, d decimal(12,2)") == (
        "id",
        "ab",
        "t",
        "d",
    )


def test_subjects_are_made_of_columns():
    assert subject_expression("revenue.{country}.x") == "concat('revenue.', cast(`country` as string), '.x')"
    assert wildcard_subject("revenue.{country}-{town}.x") == "revenue.*.x"
