from __future__ import annotations

import pytest
import yaml

from jetlake.errors import ConfigError
from jetlake.spark.pipelines.archive import Archive, Partitioning
from jetlake.spark.pipelines.dead_letters import DeadLetters
from jetlake.spark.pipelines.declarative import definitions, write_project
from jetlake.spark.pipelines.health import Health
from jetlake.spark.pipelines.replay import Replay
from jetlake.spark.pipelines.replay_task import Pace
from jetlake.spark.pipelines.settings import PipelineSettings
from jetlake.spark.pipelines.sinks import Target
from jetlake.spark.pipelines.sql import SqlPipeline
from jetlake.spark.pipelines.sql_file import parse_sql_file
from jetlake.spark.pipelines.typed_payload import TypedPayload

SETTINGS = PipelineSettings(
    connection={"servers": "nats://a:4222", "auth.user": "me", "auth.password": "hush", "auth.credsSecret": "SECRET"}
)
SQL = """\
sources:
  orders: {stream: ORDERS, schema: "id bigint", watermark: 10 seconds}
steps:
  - {name: totals, sql: "SELECT count(*) AS n FROM orders"}
sinks:
  - {from: totals, to: "stream:TOTALS", subject: TOTALS.all}
  - {from: orders, to: "parquet:/lake/orders"}
"""

PIPELINES = [
    Archive("ORDERS", "/lake/orders", partitioning=Partitioning(())),
    Replay("/lake/orders", "COPY", subject_map=(("a.>", "b.>"),)),
    Health(Target("parquet", "/lake/health")),
    Health(Target("stream", "HEALTH"), ("ORDERS",)),
    DeadLetters(("ORDERS",), Target("stream", "DEAD")),
    DeadLetters(("ORDERS",), Target("orc", "/lake/dead")),
    SqlPipeline(parse_sql_file("f.yml", SQL)),
]


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda pipeline: pipeline.name)
def test_every_pipeline_becomes_python_without_secrets(pipeline):
    text = definitions(pipeline, SETTINGS)
    compile(text, "pipeline.py", "exec")
    assert "hush" not in text
    assert "SECRET" not in text.replace("credsSecret", "")
    assert "os.environ" in text
    assert "nats://a:4222" in text


def test_a_subject_that_holds_a_comma_is_one():
    sql = SQL.replace("stream: ORDERS,", "stream: ORDERS, subjects: ['a,b.>', c],")
    archive = Archive("ORDERS", "/lake/orders", partitioning=Partitioning(()), subjects=("a,b.>", "c"))
    for pipeline in (archive, SqlPipeline(parse_sql_file("f.yml", sql))):
        assert """'subjects': '["a,b.>", "c"]'""" in definitions(pipeline, SETTINGS)


def test_a_project_is_written_once(tmp_path):
    spec, module = write_project(PIPELINES[0], SETTINGS, tmp_path / "project")
    read = yaml.safe_load(spec.read_text())
    assert read["name"] == "archive_ORDERS"
    assert read["libraries"] == [{"glob": {"include": "transformations/**"}}]
    assert read["storage"].startswith("file:///")
    assert module == tmp_path / "project" / "transformations" / "pipeline.py"
    with pytest.raises(ConfigError, match="holds a project already"):
        write_project(PIPELINES[0], SETTINGS, tmp_path / "project")


def test_files_go_where_they_were_asked_for_and_never_beside_an_archive_of_ours(tmp_path):
    archive = Archive("ORDERS", str(tmp_path / "lake"), "json", partitioning=Partitioning(()))
    text = definitions(archive, SETTINGS)
    assert f"'path': '{tmp_path}/lake'" in text
    assert "dp.table" not in text
    assert "'timeZone': 'UTC'" in text
    (tmp_path / "lake" / "_jetlake").mkdir(parents=True)
    with pytest.raises(ConfigError, match="every row a second time"):
        definitions(archive, SETTINGS)


@pytest.mark.parametrize(
    ("pipeline", "complaint"),
    [
        (Archive("ORDERS", "/lake", "delta"), "Delta"),
        (Archive("ORDERS", "/lake", "iceberg"), "Iceberg"),
        (Archive("ORDERS", "/lake", payload=TypedPayload("json", "id int")), "leave out --payload"),
        (Archive("ORDERS", "/lake"), "by date,subject:1: add --by none"),
        (
            SqlPipeline(parse_sql_file("f.yml", SQL.replace('/lake/orders"}', '/lake/orders", partition_by: id}'))),
            "f.yml:7: .*leave out partition_by",
        ),
        (
            SqlPipeline(parse_sql_file("f.yml", SQL.replace("watermark:", "bad_rows: stream:BAD, watermark:"))),
            "f.yml:2: .*cannot store bad rows",
        ),
        (
            SqlPipeline(parse_sql_file("f.yml", SQL.replace("subject:", "bad_rows: stream:BAD, subject:"))),
            "f.yml:6: .*cannot store bad rows",
        ),
        (Replay("/lake", "COPY", pace=Pace(rate=1)), "neither a rate"),
        (Health(Target("console")), "console"),
        (
            SqlPipeline(parse_sql_file("f.yml", SQL.replace("subject:", "mode: update, subject:"))),
            "f.yml:6: .*only appends",
        ),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_what_cannot_be_declared_is_said(pipeline, complaint):
    with pytest.raises(ConfigError, match=complaint):
        definitions(pipeline, SETTINGS)
