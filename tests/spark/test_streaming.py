from __future__ import annotations

import pytest

pytestmark = pytest.mark.spark


def test_a_query_goes_on_from_its_checkpoint(spark, admin, stream, run, tmp_path):
    admin.create_stream(stream)
    admin.fill(stream, 1000)
    query = run(spark, tmp_path / "check", tmp_path / "out", stream=stream, maxMessagesPerTrigger=300)
    sizes = [progress["numInputRows"] for progress in query.recentProgress]
    assert [size for size in sizes if size] == [300, 300, 300, 100]
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
