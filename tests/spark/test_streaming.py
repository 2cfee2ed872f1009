"""Streaming reads and writes through Spark."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from jetlake.spark import lag, lost, metrics

pytestmark = pytest.mark.spark

# What happens here does not depend on the server: tests without Spark ask both of them the same.
on_one_server = pytest.mark.parametrize("server", ["nats-server"], indirect=True)

RESOURCES = Path(__file__).parent / "resources"


def numbers(admin, stream):
    return sorted(int(base64.b64decode(message["data"])) for message in admin.messages(stream))


def test_a_query_goes_on_from_its_checkpoint(spark, admin, stream, run, tmp_path):
    admin.create_stream(stream)
    admin.fill(stream, 1000)
    query = run(spark, tmp_path / "check", tmp_path / "out", stream=stream, maxMessagesPerTrigger=300)
    reports = [report for report in query.recentProgress if report["numInputRows"]]
    assert [report["numInputRows"] for report in reports] == [300, 300, 300, 100]
    assert [lag(report)[stream] for report in reports] == [700, 400, 100, 0]
    assert lost(reports[-1]) == {stream: 0}
    figures = metrics(reports[0])[stream]
    assert (figures.lag, figures.behind, figures.lost, bool(figures.server)) == (700, 700, 0, True)
    admin.fill(stream, 50, start=1000)
    run(spark, tmp_path / "check", tmp_path / "out", stream=stream)
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("sequence").collect()
    assert [row.sequence for row in rows] == list(range(1, 1051))
    assert [bytes(row.data) for row in rows] == [b"%d" % number for number in range(1050)]


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_a_queue_is_empty_when_the_query_is_done(spark, admin, stream, run, tmp_path, retention):
    admin.create_stream(stream, retention=retention)
    if retention == "interest":
        # The first run makes the durable consumer that holds the messages.
        run(spark, tmp_path / "check", tmp_path / "out", stream=stream)
    admin.fill(stream, 500)
    run(spark, tmp_path / "check", tmp_path / "out", stream=stream, maxMessagesPerTrigger=200)
    assert admin.state(stream)["messages"] == 0
    admin.fill(stream, 100, start=500)
    run(spark, tmp_path / "check", tmp_path / "out", stream=stream)
    assert admin.state(stream)["messages"] == 0
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("sequence").collect()
    assert [bytes(row.data) for row in rows] == [b"%d" % number for number in range(600)]


@on_one_server
def test_a_continuous_query_takes_what_comes(spark, server, admin, stream, tmp_path):
    admin.create_stream(stream)
    frame = spark.readStream.format("jetstream").options(servers=server.url, startingPosition="latest").load(stream)
    admin.fill(stream, 10)
    query = frame.select("sequence").writeStream.format("memory").queryName(stream).start()
    try:
        query.processAllAvailable()
        for _ in range(2):
            admin.fill(stream, 5)
            query.processAllAvailable()
        assert sorted(row.sequence for row in spark.table(stream).collect()) == list(range(11, 21))
    finally:
        query.stop()


@on_one_server
def test_lost_messages_fail_the_query_with_advice(spark, admin, stream, run, tmp_path):
    admin.create_stream(stream)
    admin.fill(stream, 10)
    run(spark, tmp_path / "check", tmp_path / "out", stream=stream)
    admin.fill(stream, 10)
    admin.api(f"STREAM.PURGE.{stream}", {"seq": 15})
    with pytest.raises(StreamingQueryException, match=r"messages 11 to 14 .* failOnDataLoss=false"):
        run(spark, tmp_path / "check", tmp_path / "out", stream=stream)
    query = run(spark, tmp_path / "check", tmp_path / "out", stream=stream, failOnDataLoss="false")
    assert lost(query.lastProgress) == {stream: 4}
    sequences = sorted(row.sequence for row in spark.read.parquet(str(tmp_path / "out")).collect())
    assert sequences == [*range(1, 11), *range(15, 21)]


@on_one_server
def test_a_checkpoint_of_the_first_release(spark, server, admin, stream, tmp_path):
    """The checkpoint is of two streams, read up to 30 and 10; its last batch is not committed and comes again."""
    names = {"ORDERS": stream + "ORDERS", "AUDIT": stream + "AUDIT", "COPY": stream + "COPY"}
    created = {}
    for name in names.values():
        created[name] = admin.create_stream(name)["created"]
    admin.fill(names["ORDERS"], 40)
    admin.fill(names["AUDIT"], 15, start=100)
    shutil.copytree(RESOURCES / "checkpoint-v1", tmp_path / "check")
    (tmp_path / "check" / "commits" / "1").unlink()
    for file in (tmp_path / "check" / "offsets").iterdir():
        text = file.read_text()
        text = text.replace("2026-11-15T09:57:09.546409332Z", created[names["ORDERS"]])
        text = text.replace("2026-11-15T09:57:09.547836558Z", created[names["AUDIT"]])
        for old, new in names.items():
            text = text.replace(f'"{old}"', f'"{new}"')
        file.write_text(text)
    frame = spark.readStream.format("jetstream").option("servers", server.url)
    frame = frame.load(f"{names['ORDERS']},{names['AUDIT']}").selectExpr(f"'{names['COPY']}.x' as subject", "data")
    query = (
        frame.writeStream.format("jetstream")
        .option("servers", server.url)
        .option("checkpointLocation", str(tmp_path / "check"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    # Batch 1 held ORDERS 16 to 30 and AUDIT 6 to 10; batch 2 is what is new.
    assert numbers(admin, names["COPY"]) == [*range(15, 40), *range(105, 115)]
    assert str(query.id) == "643c6bb6-d3bf-494e-83bc-a30625d6529d"


@on_one_server
def test_the_ledger_skips_a_batch_that_was_written(spark, server, admin, stream, tmp_path):
    """Spark lost its commit log, the stream has forgotten the ids: the batch still is not written again."""
    admin.create_stream(stream)
    admin.create_stream(stream + "OUT", duplicate_window=100_000_000)
    admin.fill(stream, 100)

    def copy(**options):
        query = (
            spark.readStream.format("jetstream")
            .options(servers=server.url)
            .load(stream)
            .selectExpr(f"'{stream}OUT.x' as subject", "data")
            .writeStream.format("jetstream")
            .options(servers=server.url, ledger="tests_ledger", **options)
            .option("checkpointLocation", str(tmp_path / "check"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)

    copy()
    (tmp_path / "check" / "commits" / "0").unlink()
    (tmp_path / "check" / "commits" / ".0.crc").unlink()
    copy()
    assert numbers(admin, stream + "OUT") == list(range(100))
    info = admin.api("STREAM.INFO.KV_tests_ledger")
    assert info["config"]["max_msgs_per_subject"] == 1
