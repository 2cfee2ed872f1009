"""Schemas of the bucket in source, sink and archive: named by a subject, and used to check rows."""

from __future__ import annotations

import io
import json

import fastavro
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException

import jetlake.blocking
from jetlake.errors import ConfigError
from jetlake.spark.pipelines.archive import Archive, Partitioning
from jetlake.spark.pipelines.runner import run_pipeline
from jetlake.spark.pipelines.settings import PipelineSettings
from jetlake.spark.pipelines.sql import SqlPipeline
from jetlake.spark.pipelines.sql_file import read_sql_file
from jetlake.spark.pipelines.typed_payload import TypedPayload
from tests.unit.client.payloads.test_schemas import F, message

pytestmark = pytest.mark.spark
ORDER = {"type": "object", "properties": {"id": {"type": "integer"}, "at": {"type": "string", "format": "date-time"}}}
AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


@pytest.mark.parametrize("server", ["embedded"], indirect=True)
def test_source_sink_and_archive_use_the_schemas_of_subjects(spark, server, stream, tmp_path):
    with jetlake.blocking.connect(server.url) as client:
        js = client.jetstream()
        js.create_stream(stream, subjects=[f"{stream}.>"])
        schemas = js.schemas()
        schemas.add(stream, f"{stream}.json", json.dumps(ORDER))
        schemas.add(stream, f"{stream}.avro", json.dumps(AVRO), format="avro")
        schemas.add(stream, f"{stream}.pb", message(("id", 1, F.TYPE_INT64)), format="protobuf")
        rows = spark.sql("SELECT 7L AS id")

        def write(kind, frame=rows, **options):
            given = {"servers": server.url, "subject": f"{stream}.{kind}", "validate": "true", **options}
            frame.write.format("jetstream").options(**given).mode("append").save()

        write("json", payloadFormat="json")
        write("avro", payloadFormat="avro", avroSchema=f"bucket:{stream}.avro")
        write("pb", payloadFormat="protobuf", protobufSchema=f"bucket:{stream}.pb")
        for kind, misfit in (("json", "is not of type 'integer'"), ("none", "has no schema")):
            with pytest.raises(PySparkException, match=misfit):
                write(kind, spark.sql("SELECT 'x' AS id"), payloadFormat="json")
        with pytest.raises(PySparkException, match="column more would be lost"):
            frame = rows.selectExpr("id", "1 as more")
            write("pb", frame, payloadFormat="protobuf", protobufSchema=f"bucket:{stream}.pb")
        stored = [js.stream(stream).get(number).payload for number in (1, 2, 3)]
        record = io.BytesIO()
        fastavro.schemaless_writer(record, AVRO, {"id": 7})
        assert stored == [b'{"id":7}', record.getvalue(), b"\x08\x07"]

        def read(kind, form, option):
            named = {"subjects": f"{stream}.{kind}", "payloadFormat": form, option: f"bucket:{stream}.{kind}"}
            return spark.read.format("jetstream").options(servers=server.url, stream=stream, **named).load()

        found = read("json", "json", "payloadSchema")
        assert found.schema["value"].dataType.simpleString() == "struct<id:bigint,at:timestamp>"
        assert found.first().value.id == 7
        assert read("avro", "avro", "avroSchema").first().value.id == 7
        assert read("pb", "protobuf", "protobufSchema").first().value.id == 7
        with pytest.raises(PySparkException, match="is json, not avro"):
            read("json", "avro", "avroSchema").first()

        js.create_stream("COPY", subjects=["copy.>"])
        (tmp_path / "copy.yaml").write_text(
            f"""
sources:
  orders: {{stream: {stream}, subjects: {stream}.pb, payload: protobuf, schema: "bucket:{stream}.pb"}}
steps:
  - {{name: copied, sql: "SELECT id + 1 AS id FROM orders"}}
sinks:
  - {{from: copied, to: "stream:COPY", subject: copy.pb, payload: avro, schema: "bucket:{stream}.avro"}}
"""
        )
        settings = PipelineSettings(connection={"servers": server.url}, checkpoint=str(tmp_path / "checkpoint"))
        run_pipeline(SqlPipeline(read_sql_file(str(tmp_path / "copy.yaml"))), spark, settings, ())
        assert js.stream("COPY").get(1).payload == b"\x10"
        lake = tmp_path / "lake"
        payload = TypedPayload("json", f"bucket:{stream}.json")
        archive = Archive(stream, str(lake), "delta", Partitioning(()), (f"{stream}.json",), payload=payload)
        run_pipeline(archive, spark, PipelineSettings(connection={"servers": server.url}), ())
        assert DeltaTable(lake).to_pyarrow_table()["value"].to_pylist() == [{"id": 7, "at": None}]
        with pytest.raises(ConfigError, match="has no schema of other"):
            missing = Archive(
                stream, str(lake), "delta", Partitioning(()), payload=TypedPayload("json", "bucket:other")
            )
            missing.check(PipelineSettings(connection={"servers": server.url}))
