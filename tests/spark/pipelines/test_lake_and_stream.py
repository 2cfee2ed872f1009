"""One DataFrame of a stream's archive and of the stream itself."""

from __future__ import annotations

import datetime
import itertools
import time

import pytest
from pyspark.errors import PySparkException

from jetlake.spark.pipelines.archive import Archive

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
