"""Streams as tables of Spark's catalog, by SQL alone."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

pytestmark = pytest.mark.spark

# What happens here does not depend on the server: tests without Spark ask both of them the same.
on_one_server = pytest.mark.parametrize("server", ["embedded"], indirect=True)


@on_one_server
def test_a_table_is_created_written_read_and_followed(spark, server, admin, stream, tmp_path):
    admin.create_stream(stream)
    spark.sql(
        f"CREATE TABLE {stream} USING jetstream OPTIONS (servers '{server.url}', stream '{stream}', messageId 'none') "
        "COMMENT 'it''s ours' TBLPROPERTIES ('owner_team' = 'x')"
    )
    spark.sql(f"INSERT INTO {stream} (subject, data) VALUES ('{stream}.a', X'31'), ('{stream}.b', X'32')")
    spark.sql(
        f"INSERT INTO {stream} (subject, data) SELECT subject, binary('3') FROM {stream} WHERE subject LIKE '%.b'"
    )
    rows = spark.sql(f"SELECT sequence, subject, string(data), stream FROM {stream} ORDER BY sequence").collect()
    assert sorted((row.subject, row.data) for row in rows) == [
        (f"{stream}.a", "1"),
        (f"{stream}.b", "2"),
        (f"{stream}.b", "3"),
    ]
    assert [(row.sequence, row.stream) for row in rows] == [(number, stream) for number in (1, 2, 3)]
    later = spark.sql(f"SELECT * FROM {stream} WITH (startingPosition = 'seq:3')")
    assert [row.sequence for row in later.collect()] == [3]
    query = (
        spark.readStream.table(stream)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "rows"))
    )
    query.awaitTermination(60)
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 3
    # A write of rows that come from a table goes where its own options say.
    spark.table(stream).write.format("jetstream").option("servers", server.url).mode("append").save()
    assert admin.state(stream)["messages"] == 6
    spark.sql(f"DROP TABLE {stream}")
    assert admin.state(stream)["messages"] == 6


@pytest.mark.parametrize("columns", ["(subject string, data binary)", "AS SELECT 'x.1' AS subject, binary('') AS data"])
def test_a_table_without_its_options_is_not_written_to_the_default_server(spark, server, stream, columns):
    before, after = (columns, "") if columns.startswith("(") else ("", columns)
    options = f"(servers '{server.url}', stream '{stream}')"
    with pytest.raises(Exception, match="options servers, stream and subject are all missing"):
        try:
            spark.sql(f"CREATE TABLE {stream} {before} USING jetstream OPTIONS {options} {after}")
            spark.sql(f"INSERT INTO {stream} VALUES ('x.1', binary(''))")
        finally:
            spark.sql(f"DROP TABLE IF EXISTS {stream}")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("stream 'S', `auth.password` 'hunter2', `auth.user` 'me'", "is not allowed in a table"),
        ("stream 'S', startingPositon 'latest'", "did you mean startingPosition"),
        ("subjects 'a'", "option stream is missing"),
    ],
)
def test_a_table_that_could_not_be_read_is_not_created(spark, options, reason):
    with pytest.raises(PySparkException, match=reason) as caught:
        spark.sql(f"CREATE TABLE never USING jetstream OPTIONS ({options})")
    assert "hunter2" not in str(caught.value)
