from __future__ import annotations

import base64
import json

import pytest
from pyspark.errors import PySparkException

pytestmark = pytest.mark.spark

# What happens here does not depend on the server: tests without Spark ask both of them the same.
on_one_server = pytest.mark.parametrize("server", ["embedded"], indirect=True)


def payloads(admin, stream):
    return [base64.b64decode(message.get("data", "")) for message in admin.messages(stream)]


def headers(message):
    return base64.b64decode(message.get("hdrs", "")).decode()


def test_rows_become_messages(spark, server, admin, stream):
    admin.create_stream(stream)
    frame = spark.range(1000).selectExpr(
        f"concat('{stream}.', id % 3) as subject",
        "cast(id as string) as data",
        "map('Kind', array('a', 'b')) as headers",
    )
    frame.repartition(2).write.format("jetstream").mode("append").option("servers", server.url).save()
    messages = admin.messages(stream)
    assert sorted(int(base64.b64decode(message["data"])) for message in messages) == list(range(1000))
    assert all("Kind: a\r\nKind: b\r\n" in headers(message) for message in messages)


@on_one_server
def test_all_columns_as_json(spark, server, admin, stream):
    admin.create_stream(stream)
    frame = spark.sql(
        "select 7 as id, 'x' as name, cast(1.50 as decimal(10,2)) as price, timestamp'2026-01-02 03:04:05' as at, "
        "array(1, 2) as list, map('k', 1) as map, named_struct('a', 1) as struct, cast(null as int) as nothing"
    )
    options = {"servers": server.url, "payloadFormat": "json"}
    frame.write.format("jetstream").mode("append").options(**options).save(f"{stream}.all")
    assert [json.loads(payload) for payload in payloads(admin, stream)] == [
        {
            "id": 7,
            "name": "x",
            "price": 1.50,
            "at": "2026-01-02T03:04:05Z",
            "list": [1, 2],
            "map": {"k": 1},
            "struct": {"a": 1},
        }
    ]


@on_one_server
def test_a_copied_stream_is_the_same(spark, server, admin, stream, tmp_path):
    admin.create_stream(stream)
    admin.create_stream(stream + "C")
    admin.publish([(f"{stream}.{n % 5}", b"%d" % n, {"Nats-Msg-Id": f"id{n}", "X": "y"}) for n in range(400)])
    source = spark.readStream.format("jetstream").option("servers", server.url).option("maxMessagesPerTrigger", 150)
    copied = source.load(stream).selectExpr(
        f"replace(subject, '{stream}.', '{stream}C.') as subject", "stream", "sequence", "timestamp", "headers", "data"
    )
    query = (
        copied.writeStream.format("jetstream")
        .options(servers=server.url, messageId="source")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    messages = admin.messages(stream + "C")
    assert sorted(int(base64.b64decode(message["data"])) for message in messages) == list(range(400))
    assert "X: y" in headers(messages[0])
    assert headers(messages[0]).count("Nats-Msg-Id") == 1
    assert f"Nats-Msg-Id: {stream}:" in headers(messages[0])


def test_a_refused_row_is_named(spark, server, admin, stream):
    admin.create_stream(stream, max_msgs=10, discard="new")
    frame = spark.range(0, 20, 1, 1).selectExpr(f"'{stream}.x' as subject", "cast(id as string) as data")
    with pytest.raises(
        PySparkException, match=r"row 10 of the partition could not be published.*maximum messages.*10077"
    ):
        frame.write.format("jetstream").mode("append").option("servers", server.url).save()
