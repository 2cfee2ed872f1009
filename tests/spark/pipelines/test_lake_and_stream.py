"""One DataFrame of a stream's archive and of the stream itself."""

from __future__ import annotations

import datetime
import itertools
import time

import polars
import pytest
from pyspark.errors import PySparkException

import jetlake.blocking
from jetlake.errors import ConfigError
from jetlake.spark.pipelines.archive import Archive
from jetlake.spark.pipelines.typed_payload import TypedPayload

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("kind", "format_name"),
    [("embedded", "parquet"), ("nats-server", "delta"), ("embedded", "iceberg")],
    indirect=["kind"],
)
def test_every_sequence_comes_once_from_lake_or_stream(spark, own_server, run_on, tmp_path, format_name):
    admin = own_server.admin()
    admin.create_stream("ORDERS")
    numbers = range(1, 301)
    admin.publish([(f"ORDERS.{n % 3}", b"%d" % n, {"N": str(n)} if n % 2 else {}) for n in numbers])
    lake = tmp_path / "lake"
    run_on(own_server, Archive("ORDERS", str(lake), format_name), batch_messages=100)
    admin.api("STREAM.PURGE.ORDERS", {"seq": 151})
    time.sleep(0.01)
    later = datetime.datetime.now(datetime.UTC).isoformat()
    admin.publish([(f"ORDERS.{n % 3}", b"%d" % n, {"N": str(n)} if n % 2 else {}) for n in range(301, 361)])

    def read(**options):
        reader = spark.read.format("jetstream").option("servers", own_server.url).option("archive", str(lake))
        return reader.options(**options).load("ORDERS")

    def sequences(**options):
        return sorted(row.sequence for row in read(**options).select("sequence").collect())

    rows = sorted(read(messagesPerPartition=50).collect(), key=lambda row: row.sequence)
    assert [row.sequence for row in rows] == list(range(1, 361))
    for n, row in enumerate(rows, start=1):
        assert (row.subject, bytes(row.data)) == (f"ORDERS.{n % 3}", b"%d" % n)
        assert row.headers == ({"N": [str(n)]} if n % 2 else {})
    assert all(one.timestamp <= other.timestamp for one, other in itertools.pairwise(rows))
    assert sequences(startingPosition="seq:140", endingPosition="seq:145") == list(range(140, 146))
    assert sequences(startingPosition="seq:299", subjects="ORDERS.0,ORDERS.1") == [
        n for n in range(299, 361) if n % 3 < 2
    ]
    assert sequences(startingPosition="-10 minutes", endingPosition=f"time:{later}") == list(range(1, 301))
    assert sequences(startingPosition=f"time:{later}") == list(range(301, 361))
    assert sequences(startingPosition="last:70") == list(range(291, 361))
    # The time of an archived message, to the nanosecond, begins with the message and ends before it.
    stored = admin.api("STREAM.MSG.GET.ORDERS", {"seq": 201})["message"]["time"]
    assert 201 in sequences(startingPosition=f"time:{stored}")
    assert 201 not in sequences(endingPosition=f"time:{stored}")

    with jetlake.blocking.connect(own_server.url) as client:
        table = client.jetstream().stream("ORDERS").table(archive=lake)
        whole = table.to_arrow().sort_by("sequence").to_pylist()
        assert [row["sequence"] for row in whole] == list(range(1, 361))
        for n, row in enumerate(whole, start=1):
            assert (row["subject"], row["data"]) == (f"ORDERS.{n % 3}", b"%d" % n)
            assert row["headers"] == ([("N", [str(n)])] if n % 2 else [])
        seen = polars.col("sequence").is_between(295, 305) & (polars.col("subject") == "ORDERS.1")
        assert table.scan().filter(seen).collect()["data"].sort().to_list() == [b"295", b"298", b"301", b"304"]
        recent = client.jetstream().stream("ORDERS").table(archive=lake, start=f"time:{later}").to_arrow()
        assert sorted(recent["sequence"].to_pylist()) == list(range(301, 361))

    # A batch that is written but not in the commit log is not counted on: the stream has it still.
    commits = lake / "_jetlake" / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for path in (commits / str(last), commits / f".{last}.crc"):
        path.unlink(missing_ok=True)
    assert sequences() == list(range(1, 361))
    assert read().where("sequence < 201").count() == 200

    admin.api("STREAM.PURGE.ORDERS", {"seq": 331})
    with pytest.raises(PySparkException, match="DataLossError"):
        sequences()
    assert sequences(failOnDataLoss="false") == [*range(1, 201), *range(331, 361)]
    assert sequences(endingPosition="seq:200") == list(range(1, 201))
    admin.api("STREAM.DELETE.ORDERS")
    admin.create_stream("ORDERS")
    with pytest.raises(PySparkException, match="recreated"):
        sequences()


@pytest.mark.parametrize(
    ("format_name", "keep_raw"), [("parquet", False), ("delta", True), ("delta", False), ("iceberg", False)]
)
def test_typed_archives_are_read_together_with_the_stream(spark, server_of, run_on, tmp_path, format_name, keep_raw):
    """Archived values and payloads of the stream make one column, and what does not fit is found on both sides."""
    server = server_of("embedded")
    admin = server.admin()
    admin.create_stream("ORDERS")
    lake = str(tmp_path / "lake" / "orders")

    def publish(first, end):
        bodies = [
            b"{broken" if n % 10 == 0 else b'{"id": %d, "buyer": {"name": "n%d"}}' % (n, n) for n in range(first, end)
        ]
        admin.publish([(f"ORDERS.{n % 3}", body, {}) for n, body in enumerate(bodies, first)])

    def archive(fields):
        run_on(server, Archive("ORDERS", lake, format_name, payload=TypedPayload("json", fields, keep_raw=keep_raw)))

    publish(1, 21)
    archive("id bigint, buyer struct<name: string>")
    admin.api("STREAM.PURGE.ORDERS", {"seq": 15})
    publish(21, 31)
    fields = "id bigint, note string, buyer struct<name: string, vip: boolean>"
    expected = {n: n for n in range(1, 31) if n % 10} | dict.fromkeys((10, 20, 30))

    options = {"servers": server.url, "archive": lake, "payloadFormat": "json", "badRows": "column"}
    columns = f"sequence bigint, value struct<{fields}>, bad_data binary, bad_reason string"
    rows = spark.read.format("jetstream").options(**options).schema(columns).load("ORDERS").collect()
    assert len(rows) == 30
    assert {row.sequence: row.value.id if row.value is not None else None for row in rows} == expected
    for row in rows:
        if row.value is not None:
            assert (row.value.note, row.value.buyer.name, row.value.buyer.vip) == (None, f"n{row.sequence}", None)
        else:
            assert (bytes(row.bad_data), bool(row.bad_reason)) == (b"{broken", True)

    with jetlake.blocking.connect(server.url) as client:
        stream = client.jetstream().stream("ORDERS")
        # Without a schema the archive's type is the table's.
        found = stream.scan(payload="json", archive=lake, bad_rows="column").collect()
        assert {row["sequence"]: (row["value"] or {}).get("id") for row in found.to_dicts()} == expected
        assert set(found.filter(polars.col("bad_reason").is_not_null())["sequence"]) == {10, 20, 30}
        few = stream.scan(payload="json", archive=lake, bad_rows="column").filter(polars.col("sequence") == 7)
        assert few.select(polars.col("value").struct.field("buyer")).collect().to_dicts() == [{"buyer": {"name": "n7"}}]
        if keep_raw:
            assert stream.to_arrow(archive=lake)["data"].to_pylist().count(b"{broken") == 3
        else:
            with pytest.raises(ConfigError, match="has not kept their bytes"):
                stream.to_arrow(archive=lake)
            with pytest.raises(ConfigError, match="decoded as json, not as avro"):
                stream.to_arrow(archive=lake, payload="avro", avro_schema={"type": "record", "name": "A", "fields": []})


def test_what_cannot_be_read_together_is_refused(spark, server_of, run_on, tmp_path):
    server = server_of("embedded")
    admin = server.admin()
    for name in ("A", "B"):
        admin.create_stream(name)
        admin.fill(name, 3)
    lakes = {
        "json": Archive("A", str(tmp_path / "json"), "json"),
        "late": Archive("A", str(tmp_path / "l"), start="seq:2"),
    }
    for archive in lakes.values():
        run_on(server, archive)
    for stream, lake, options, reason in (
        ("A", str(tmp_path), {}, "no archive here"),
        ("A", lakes["json"].target, {}, "its format is json"),
        ("A", lakes["late"].target, {}, "it begins at seq:2"),
        ("B", lakes["late"].target, {}, "it holds stream A"),
        ("A,B", lakes["late"].target, {}, "one stream"),
    ):
        with pytest.raises(PySparkException, match=reason):
            spark.read.format("jetstream").options(servers=server.url, archive=lake, **options).load(stream).count()
