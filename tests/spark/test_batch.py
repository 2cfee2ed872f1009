"""Batch reads through Spark."""

from __future__ import annotations

import datetime
import io
import json
import time

import fastavro
import pytest
from pyspark.errors import PySparkException

pytestmark = pytest.mark.spark

# What happens here does not depend on the server: tests without Spark ask both of them the same.
on_one_server = pytest.mark.parametrize("server", ["nats-server"], indirect=True)


@pytest.fixture
def read(spark, server):
    def read(stream, schema=None, **options):
        reader = spark.read.format("jetstream").option("servers", server.url).options(**options)
        return (reader.schema(schema) if schema else reader).load(stream)

    return read


def test_every_column(read, admin, stream):
    admin.create_stream(stream)
    before = datetime.datetime.now(datetime.UTC).replace(tzinfo=None) - datetime.timedelta(seconds=1)
    admin.publish([(f"{stream}.a", b"one"), (f"{stream}.b", b"\x00\xff", {"K": "v", "Nats-Msg-Id": "m"})])
    rows = read(stream).orderBy("sequence").collect()
    assert [(row.stream, row.sequence, row.subject, bytes(row.data), row.headers) for row in rows] == [
        (stream, 1, f"{stream}.a", b"one", {}),
        (stream, 2, f"{stream}.b", b"\x00\xff", {"K": ["v"], "Nats-Msg-Id": ["m"]}),
    ]
    assert before <= rows[0].timestamp <= rows[1].timestamp <= before + datetime.timedelta(minutes=1)
    (row,) = (
        read(stream, "msg_id string, size bigint, subject string", startingPosition="seq:2")
        .select("msg_id", "size", "subject")
        .collect()
    )
    assert tuple(row) == ("m", 2, f"{stream}.b")


def test_empty_streams_and_filters_that_match_nothing(read, admin, stream):
    admin.create_stream(stream)
    assert read(stream).count() == 0
    admin.fill(stream, 10)
    assert read(stream, subjects="no.such.subject").count() == 0
    assert read(stream, startingPosition="latest").count() == 0


@pytest.mark.parametrize("reader", ["consumer", "direct", "leader"])
def test_ranges_are_cut_and_nothing_is_lost(read, admin, stream, reader):
    admin.create_stream(stream)
    admin.fill(stream, 1000)
    frame = read(stream, reader=reader, messagesPerPartition=300, subjects=f"{stream}.0,{stream}.2")
    assert frame.rdd.getNumPartitions() == 4
    assert sorted(int(row.data) for row in frame.collect()) == [n for n in range(1000) if n % 3 != 1]


def test_positions(read, admin, stream):
    admin.create_stream(stream)
    admin.fill(stream, 5)
    time.sleep(0.01)
    middle = datetime.datetime.now(datetime.UTC).isoformat()
    time.sleep(0.01)
    admin.fill(stream, 5)

    def sequences(**options):
        return sorted(row.sequence for row in read(stream, "sequence bigint", **options).collect())

    assert sequences(startingPosition="seq:3", endingPosition="seq:6") == [3, 4, 5, 6]
    assert sequences(startingPosition=f"time:{middle}") == [6, 7, 8, 9, 10]
    assert sequences(endingPosition=f"time:{middle}") == [1, 2, 3, 4, 5]
    assert sequences(startingPosition="-10 minutes") == [*range(1, 11)]
    assert sequences(startingPosition="last:2") == [9, 10]
    assert sequences(startingPosition="seq:50") == []


@on_one_server
def test_variants_are_read_and_written(spark, read, server, admin, stream):
    admin.create_stream(stream)
    admin.publish(
        [(f"{stream}.a", b'{"id": 7, "tags": ["x", "y"]}'), (f"{stream}.a", b"oops"), (f"{stream}.a", b"[1.5]")]
    )
    rows = read(stream, payloadFormat="variant", badRows="column")
    found = rows.selectExpr(
        "sequence", "variant_get(value, '$.id', 'int') id", "try_variant_get(value, '$[0]', 'double') first", "bad_data"
    ).orderBy("sequence")
    assert [tuple(row) for row in found.collect()] == [
        (1, 7, None, None),
        (2, None, None, b"oops"),
        (3, None, 1.5, None),
    ]
    writer = rows.where("sequence = 1").select("subject", "value").write.format("jetstream").mode("append")
    writer.option("servers", server.url).option("payloadFormat", "json").save()
    (written,) = read(stream, "data string", startingPosition="seq:4").collect()
    assert json.loads(written.data) == {"value": {"id": 7, "tags": ["x", "y"]}}


def test_several_streams(read, admin, stream):
    for name in (stream + "A", stream + "B"):
        admin.create_stream(name)
        admin.fill(name, 20)
    frame = read(f"{stream}A,{stream}B")
    assert {row.stream: row["count"] for row in frame.groupBy("stream").count().collect()} == {
        stream + "A": 20,
        stream + "B": 20,
    }


def test_reading_a_work_queue_takes_nothing(read, admin, stream):
    admin.create_stream(stream, retention="workqueue")
    admin.fill(stream, 10)
    assert read(stream).count() == 10
    assert read(stream).count() == 10
    assert admin.state(stream)["consumer_count"] == 0


@on_one_server
def test_sql(spark, server, admin, stream):
    admin.create_stream(stream)
    admin.fill(stream, 7)
    spark.sql(
        f"create or replace temporary view messages using jetstream options (servers '{server.url}', stream '{stream}')"
    )
    assert spark.sql("select max(sequence) from messages").first()[0] == 7


CONDITIONS = [
    "sequence between 3 and 6",
    "sequence in (2, 9)",
    "subject = '{s}.1'",
    "subject in ('{s}.1', '{s}.2') and sequence > 4",
    "subject like '{s}.%'",
    "subject = '{s}.nothing'",
    "subject = 'a.*'",
    "stream = '{s}'",
    "stream = 'other'",
    "timestamp > timestamp'2020-01-01'",
    "timestamp < timestamp'2020-01-01'",
    "data = binary('5')",
    "sequence > 3 or subject = '{s}.1'",
    "not (sequence > 3)",
]


@on_one_server
def test_filters_mean_the_same_with_and_without_push_down(spark, read, admin, stream):
    admin.create_stream(stream)
    admin.fill(stream, 12)

    def results():
        return [
            sorted(row.sequence for row in read(stream).where(condition.format(s=stream)).collect())
            for condition in CONDITIONS
        ]

    without = results()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert results() == without
        frame = read(stream).where(f"subject = '{stream}.1' and sequence > 4")
        assert sum(1 for _ in frame.rdd.glom().collect()) == 1
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert without[0] == [3, 4, 5, 6]
    assert without[2] == [2, 5, 8, 11]


@on_one_server
def test_json_payloads(read, admin, stream):
    admin.create_stream(stream)
    admin.publish(
        [(f"{stream}.x", b'{"id": 1, "tags": ["a"]}'), (f"{stream}.x", b"oops"), (f"{stream}.x", b'{"id": 3}')]
    )
    options = {"payloadFormat": "json", "payloadSchema": "id bigint, tags array<string>"}
    rows = (
        read(stream, badRows="column", **options)
        .orderBy("sequence")
        .select("value.*", "bad_data", "bad_reason")
        .collect()
    )
    assert [(row.id, row.tags, row.bad_data and bytes(row.bad_data)) for row in rows] == [
        (1, ["a"], None),
        (None, None, b"oops"),
        (3, None, None),
    ]
    assert "malformed" in rows[1].bad_reason
    with pytest.raises(PySparkException, match=rf"message 2 of stream {stream} cannot be decoded"):
        read(stream, **options).collect()
    narrow = read(stream, "value struct<id: bigint>", payloadFormat="json", endingPosition="seq:1")
    assert narrow.first().value.id == 1


@on_one_server
def test_avro_payloads(read, admin, stream):
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "id", "type": "long"}, {"name": "n", "type": "string"}],
    }
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {"id": 5, "n": "x"})
    admin.create_stream(stream)
    admin.publish([(f"{stream}.x", out.getvalue())])
    row = read(stream, payloadFormat="avro", avroSchema=json.dumps(schema)).first()
    assert row.value.asDict() == {"id": 5, "n": "x"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"maxMesagesPerTrigger": "5"}, "did you mean maxMessagesPerTrigger"),
        ({"startingPosition": "yesterday"}, "is not a position"),
        ({"reader": "direct"}, "set allow_direct on the stream"),
    ],
)
def test_errors_say_what_to_do(read, admin, stream, options, reason):
    admin.create_stream(stream, allow_direct=False)
    with pytest.raises(PySparkException, match=reason):
        read(stream, **options).collect()


def test_a_missing_stream(read, stream):
    with pytest.raises(PySparkException, match=f"stream {stream} does not exist"):
        read(stream).collect()


def test_credentials_do_not_show(spark, start_server, stream):
    server = start_server("--user", "me", "--pass", "hunter2")
    server.admin(user="me", **{"pass": "hunter2"}).create_stream(stream)
    options = {"servers": server.url, "auth.user": "me", "auth.password": "hunter2"}
    frame = spark.read.format("jetstream").options(**options).load(stream)
    assert frame.count() == 0
    plan = frame._jdf.queryExecution()
    assert "hunter2" not in plan.toString() + plan.executedPlan().toJSON() + plan.logical().toString()
    with pytest.raises(PySparkException) as caught:
        spark.read.format("jetstream").options(**{**options, "auth.password": "hunter3"}).load(stream).count()
    assert "Authorization Violation" in str(caught.value)
    assert "hunter3" not in str(caught.value)
