"""The Spark programs among the examples, each run whole in the session that the tests share."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[2] / "examples"

PRINTED = {
    "spark_sessions": "ann: 2 from 09:00 to 09:20\nbob: 2 from 09:05 to 09:10\nann: 1 from 11:00 to 11:00\n",
    "spark_join": (
        "order 1 of 09:00: paid at 09:30\norder 2 of 09:10: not paid within an hour\n"
        "order 3 of 09:20: paid at 09:25\norder 4 of 13:00: paid at 13:01\n"
    ),
}

# The examples name their streams as people would, so each has a server to itself.
one_server = pytest.mark.parametrize("start_server", ["embedded"], indirect=True)


def test_every_spark_example_runs_here():
    assert sorted(path.stem for path in EXAMPLES.glob("spark_*.py")) == sorted(PRINTED)


@one_server
@pytest.mark.parametrize("name", sorted(PRINTED))
def test_example(spark, start_server, name, capsys):
    server = start_server()
    # A session of its own has settings of its own.
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name=name)["main"](spark.newSession(), server.url)
    assert capsys.readouterr().out == PRINTED[name]


@one_server
def test_sql_alone(spark, start_server):
    server = start_server()
    admin = server.admin()
    admin.create_stream("ORDERS", subjects=["orders.>"])
    admin.create_stream("TOTALS", subjects=["totals.>"])
    orders = [("eu", 10), ("us", 5), ("eu", 2.5), ("asia", 7)]
    admin.publish([(f"orders.{place}", b'{"id": 1, "amount": %a}' % amount) for place, amount in orders])
    text = (EXAMPLES / "spark_tables.sql").read_text().replace("nats://127.0.0.1:4222", server.url)
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    results = [spark.sql(statement).collect() for statement in "\n".join(lines).split(";") if statement.strip()]
    assert [tuple(row) for row in results[4]] == [("totals.eu", "12.5"), ("totals.us", "5.0")]
