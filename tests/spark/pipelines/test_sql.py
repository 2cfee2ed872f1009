from __future__ import annotations

import base64
import gzip
import json

import pytest

from jetlake.errors import ConfigError, SparkError
from jetlake.spark.pipelines.file_system import FileSystem
from jetlake.spark.pipelines.progress import LATE
from jetlake.spark.pipelines.sql import SqlPipeline, SqlReset
from jetlake.spark.pipelines.sql_file import parse_sql_file

pytestmark = pytest.mark.spark

FILE = """\
name: revenue
sources:
  orders:
    stream: ORDERS
    schema: id bigint, country string, cents bigint
    watermark: 0 seconds
steps:
  - name: large
    sql: SELECT * FROM orders WHERE cents >= 10
  - name: totals
    sql: |
      SELECT country, count(*) AS orders, sum(cents) AS cents
      FROM large
      GROUP BY country
  - name: ticks
    sql: |
      SELECT window.start AS at, count(*) AS orders FROM orders
      GROUP BY window(timestamp, '50 milliseconds')
sinks:
  - from: totals
    to: stream:TOTALS
    subject: TOTALS.{{country}}
    mode: update
  - from: ticks
    to: parquet:{folder}/ticks
"""


def order(number):
    return json.dumps({"id": number, "country": "defr"[number % 2 * 2 :][:2], "cents": number % 20}).encode()


def test_results_are_right_after_a_stop_and_a_killed_server(spark, server_of, run_on, tmp_path):
    own_server = server_of("embedded")
    admin = own_server.admin()
    admin.create_stream("ORDERS", subjects=["orders.>"])
    admin.publish([("orders.x", order(number)) for number in range(400)])
    text = FILE.format(folder=tmp_path)
    pipeline = SqlPipeline(parse_sql_file("revenue.yml", text))
    first = run_on(own_server, pipeline, checkpoint=str(tmp_path / "check"), batch_messages=150, stop_after=2)
    assert first.summary.state == "stopped"
    own_server.kill()
    own_server.start()
    admin = own_server.admin()
    admin.publish([("orders.x", order(number)) for number in range(400, 500)])
    run_on(own_server, pipeline, checkpoint=str(tmp_path / "check"))

    large = [number for number in range(500) if number % 20 >= 10]
    expected = {
        country: (len(numbers), sum(number % 20 for number in numbers))
        for country, numbers in (("de", [n for n in large if n % 2 == 0]), ("fr", [n for n in large if n % 2]))
    }
    last = {}
    for message in admin.messages("TOTALS"):
        body = json.loads(base64.b64decode(message["data"]))
        assert message["subject"] == f"TOTALS.{body['country']}"
        last[body["country"]] = (body["orders"], body["cents"])
    assert last == expected
    # Every window but the open one is written, once.
    times = (
        spark.read.format("jetstream")
        .option("servers", own_server.url)
        .load("ORDERS")
        .selectExpr("window(timestamp, '50 milliseconds').start as at")
    )
    counted = {row.at: row["count"] for row in times.groupBy("at").count().collect()}
    del counted[max(counted)]
    ticks = spark.read.parquet(str(tmp_path / "ticks")).collect()
    assert len(ticks) == len(counted)
    assert {row.at: row.orders for row in ticks} == counted


PLAIN = """\
name: plain
sources:
  events:
    stream: EVENTS
sinks:
  - {{from: events, to: "json:{folder}"}}
"""


def test_rows_that_were_written_aside_come_to_their_place_though_the_stream_has_lost_them(
    server_of, run_on, tmp_path, monkeypatch
):
    server = server_of("embedded")
    admin = server.admin()
    admin.create_stream("EVENTS")
    pipeline = SqlPipeline(parse_sql_file("plain.yml", PLAIN.format(folder=tmp_path)))

    def run():
        run_on(server, pipeline, source={"failOnDataLoss": "false"})

    def rows():
        texts = [gzip.decompress(file.read_bytes()).decode() for file in tmp_path.glob("batch-*")]
        return sorted(json.loads(line)["sequence"] for text in texts for line in text.splitlines())

    admin.fill("EVENTS", 3)
    run()
    real_move = FileSystem.move

    def failing_move(files, source, target):
        if target.startswith("batch-00000001"):
            raise OSError("the power is gone")
        real_move(files, source, target)

    admin.fill("EVENTS", 4)
    monkeypatch.setattr(FileSystem, "move", failing_move)
    with pytest.raises(SparkError, match="power"):
        run()
    monkeypatch.undo()
    assert rows() == [1, 2, 3]
    admin.api("STREAM.PURGE.EVENTS")
    run()
    assert rows() == [1, 2, 3, 4, 5, 6, 7]
    # One note is left, whatever batches came without rows in between.
    admin.fill("EVENTS", 1)
    run()
    assert len(list((tmp_path / "_jetlake" / "batches").glob("*.json"))) == 1


ODD = """\
name: odd
sources:
  events:
    stream: EVENTS
    schema: at timestamp, kind string, number bigint
    bad_rows: {bad}
    watermark: {{column: at, delay: 1 minute}}
steps:
  - name: hours
    sql: |
      SELECT window.start AS hour, count(*) AS events, {figure} AS figure
      FROM events GROUP BY window(at, '1 hour')
sinks:
  - {{from: hours, to: "parquet:{folder}/hours"}}
"""


def test_bad_and_late_rows_are_kept_or_counted_and_a_sink_begins_anew(spark, server_of, run_on, tmp_path):
    server = server_of("nats-server")
    admin = server.admin()
    admin.create_stream("EVENTS", subjects=["events.>"])

    def event(hour, number=1):
        body = {"at": f"2026-01-31T{hour:02}:30:00Z", "kind": "a", "number": number}
        return ("events.x", json.dumps(body).encode())

    def file(bad="stream:BAD", figure="max(number)"):
        return SqlPipeline(parse_sql_file("odd.yml", ODD.format(bad=bad, figure=figure, folder=tmp_path)))

    def hours():
        rows = spark.read.parquet(str(tmp_path / "hours")).selectExpr("hour(hour) as hour", "events").collect()
        return sorted((row.hour, row.events) for row in rows)

    admin.publish([event(1), event(1), ("events.bad", b"no JSON", {"K": "v"}), event(5)])
    run_on(server, file())
    (bad,) = admin.messages("BAD")
    header = base64.b64decode(bad["hdrs"]).decode()
    assert (bad["subject"], base64.b64decode(bad["data"])) == ("BAD.EVENTS", b"no JSON")
    for line in (
        "K: v",
        "Bad-Row-Stream: EVENTS",
        "Bad-Row-Sequence: 3",
        "Bad-Row-Subject: events.bad",
        "Bad-Row-Reason: ",
    ):
        assert line in header
    # The watermark has passed the first hour, and a row of it comes now.
    admin.publish([event(2), event(3), event(9)])
    assert dict(run_on(server, file()).summary.facts)[LATE] == 2
    assert hours() == [(1, 2), (5, 1)]

    admin.publish([event(9, 0)])
    changed = file(figure="min(kind)")
    with pytest.raises(
        SparkError,
        match=r"odd.yml:14: sink hours-parquet cannot continue .*/hours/_jetlake/checkpoint .*--reset hours-parquet",
    ):
        run_on(server, changed)
    with pytest.raises(ConfigError, match="no sink hours; there are hours-parquet, events-bad"):
        run_on(server, SqlReset(changed.spec, "hours"))
    reset = dict(run_on(server, SqlReset(changed.spec, "hours-parquet")).summary.facts)
    assert reset["files removed"] >= 1
    assert not (tmp_path / "hours" / "_jetlake" / "checkpoint").exists()
    bad_to_folder = file(bad=f"json:{tmp_path}/bad", figure="min(kind)")
    run_on(server, bad_to_folder)
    assert hours() == [(1, 2), (2, 1), (3, 1), (5, 1)]
    (row,) = spark.read.json(str(tmp_path / "bad")).collect()
    assert (row.sequence, base64.b64decode(row.data), bool(row.reason)) == (3, b"no JSON", True)
    # An error of the first row names its place.
    run_on(server, SqlReset(changed.spec, "hours-parquet"))
    with pytest.raises(
        SparkError, match=r"odd.yml:11: sink hours-parquet in step hours: .*DIVIDE_BY_ZERO.*of EVENTS\)"
    ):
        run_on(server, file(figure="max(1 / number)"))


UNADDRESSED = """\
sources:
  orders: {{stream: ORDERS, schema: "id bigint, country string", bad_rows: {bad}}}
steps:
  - {{name: large, sql: "SELECT id, country FROM orders WHERE id > 0"}}
sinks:
  - {{from: large, to: stream:OUT, subject: "OUT.{{country}}"{own}}}
"""


def test_rows_without_a_subject_go_to_the_bad_rows(spark, server_of, run_on, tmp_path):
    server = server_of("nats-server")
    admin = server.admin()
    admin.create_stream("ORDERS", subjects=["orders.>"])
    countries = ["de", None, "new york", "", "a..b", "*", "a.>", "x*y", "fr"]
    orders = [json.dumps({"id": number + 1, "country": name}).encode() for number, name in enumerate(countries)]
    admin.publish([("orders.x", order) for order in orders] + [("orders.x", b"no JSON")])

    def file(bad, own=""):
        return SqlPipeline(parse_sql_file("f.yml", UNADDRESSED.format(bad=bad, own=own)))

    run_on(server, file("stream:BAD"), checkpoint=str(tmp_path / "first"))
    assert [message["subject"] for message in admin.messages("OUT")] == ["OUT.de", "OUT.x*y", "OUT.fr"]
    bad = [message for message in admin.messages("BAD") if message["subject"] == "BAD.large-stream"]
    rows = {json.loads(base64.b64decode(m["data"]))["id"]: base64.b64decode(m["hdrs"]).decode() for m in bad}
    assert sorted(rows) == [2, 3, 4, 5, 6, 7]
    assert "Bad-Row-Sink: large-stream\r\n" in rows[2]
    assert "Bad-Row-Reason: the subject OUT.{country} is null, for a column in it is\r\n" in rows[2]
    assert "Bad-Row-Reason: no subject to publish to: OUT.new york\r\n" in rows[3]
    assert [message["subject"] for message in admin.messages("BAD")].count("BAD.ORDERS") == 1
    # To a folder of its own, whatever the source does.
    with pytest.raises(SparkError, match="column subject: it is null"):
        run_on(server, file("drop", ", bad_rows: fail"), checkpoint=str(tmp_path / "second"))
    run_on(server, file("drop", f', bad_rows: "json:{tmp_path}/bad"'), checkpoint=str(tmp_path / "third"))
    found = spark.read.json(str(tmp_path / "bad")).collect()
    assert sorted(json.loads(row.row)["id"] for row in found) == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("server", ["nats-server"], indirect=True)
@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("FROM large", "FROM lagre", r"revenue.yml:13: The table or view `lagre` cannot be found"),
        ("sum(cents)", "sum(cetns)", r"revenue.yml:12: .*`cetns` cannot be resolved"),
        ("GROUP BY country", "GRUP BY country", r"revenue.yml:14: Syntax error"),
        ("stream: ORDERS", "stream: NOPE", r"revenue.yml:4: there is no stream NOPE"),
        ("id bigint", "id bgint", r"(?i)revenue.yml:5: .*bgint"),
        ("{country}", "{town}", r"revenue.yml:20: .*`town`"),
        ("to: stream:TOTALS", "to: stream:ORDERS", r"revenue.yml:20: stream ORDERS does not capture TOTALS"),
        ("mode: update", "mode: append", r"revenue.yml:20: Invalid streaming output mode: append"),
        ("/ticks", "/ticks\n    partition_by: [year]", r"revenue.yml:24: partition_by names year"),
        (
            "watermark: 0 seconds",
            "watermark: {column: id, delay: 1s}",
            r"revenue.yml:6: .*id is bigint, not a timestamp",
        ),
    ],
)
def test_mistakes_are_found_before_anything_starts(spark, server, admin, run_on, tmp_path, old, new, complaint):
    if admin.request("$JS.API.STREAM.INFO.ORDERS").get("error"):
        admin.create_stream("ORDERS", subjects=["orders.>"])
    text = FILE.format(folder=tmp_path)
    assert old in text
    pipeline = SqlPipeline(parse_sql_file("revenue.yml", text.replace(old, new)))
    with pytest.raises(ConfigError, match=complaint):
        run_on(server, pipeline, checkpoint=str(tmp_path / "check"))
    assert not (tmp_path / "check").exists()
