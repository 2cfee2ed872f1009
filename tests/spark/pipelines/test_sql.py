from __future__ import annotations

import base64
import json

import pytest

from jetlake.errors import ConfigError
from jetlake.spark.pipelines.sql import SqlPipeline
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


def test_results_are_right_after_a_stop_and_a_killed_server(spark, own_server, run_on, tmp_path):
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


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("FROM large", "FROM lagre", r"revenue.yml:13: The table or view `lagre` cannot be found"),
        ("sum(cents)", "sum(cetns)", r"revenue.yml:12: .*`cetns` cannot be resolved"),
        ("GROUP BY country", "GRUP BY country", r"revenue.yml:14: Syntax error"),
        ("stream: ORDERS", "stream: NOPE", r"revenue.yml:4: there is no stream NOPE"),
        ("id bigint", "id bgint", r"(?i)revenue.yml:5: .*bgint"),
        ("{country}", "{town}", r"revenue.yml:20: .*`town`"),
        ("to: stream:TOTALS", "to: stream:ORDERS", r"revenue.yml:20: stream ORDERS does not take TOTALS"),
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
