from __future__ import annotations

import base64
import os
import shutil
from dataclasses import replace

import deltalake
import pytest

from jetlake.errors import ConfigError, SparkError
from jetlake.spark.pipelines.archive import Archive
from jetlake.spark.pipelines.file_system import FileSystem
from jetlake.spark.pipelines.lake_lock import BEAT, LOCK, LakeLock, locked, this_writer
from jetlake.spark.pipelines.sql import SqlPipeline, SqlReset
from jetlake.spark.pipelines.sql_file import parse_sql_file

pytestmark = pytest.mark.spark

FILE = """\
name: {name}
sources:
  orders: {{stream: ORDERS, schema: "id bigint", bad_rows: "{bad}"}}
steps:
  - {{name: total, sql: "select count(*) as orders from orders"}}
sinks:
  - {{{sink}}}
"""


def sql(sink, name="own", bad="fail"):
    return SqlPipeline(parse_sql_file(f"{name}.yml", FILE.format(name=name, sink=sink, bad=bad)))


@pytest.fixture
def orders(server_of):
    """A server with ten orders."""
    server = server_of("embedded")
    server.admin().create_stream("ORDERS", subjects=["orders.>"], allow_msg_ttl=True, allow_rollup_hdrs=True)
    server.admin().publish([("orders.x", b'{"id": %d}' % number) for number in range(10)])
    return server


def test_a_folder_and_a_checkpoint_serve_one_pipeline(spark, orders, run_on, tmp_path):
    lake, check = str(tmp_path / "lake"), str(tmp_path / "check")

    def rows(folder):
        return spark.read.parquet(folder).count()

    run_on(orders, Archive("ORDERS", lake), checkpoint=check)
    # Batches of both have the same numbers: the second would replace files of the first.
    into_lake = sql(f'from: orders, to: "parquet:{lake}"')
    with pytest.raises(ConfigError, match="lake is written by archive ORDERS, not by sql own/orders-parquet"):
        run_on(orders, into_lake)
    with pytest.raises(ConfigError, match="is written by archive ORDERS"):
        run_on(orders, SqlReset(into_lake.spec, "orders-parquet"))
    assert rows(lake) == 10
    # At the end of another one's checkpoint there is nothing left to read.
    with pytest.raises(ConfigError, match=r"check belongs to archive ORDERS \w+, not to archive ORDERS \w+"):
        run_on(orders, Archive("ORDERS", str(tmp_path / "second")), checkpoint=check)
    run_on(orders, Archive("ORDERS", str(tmp_path / "second")))
    assert rows(str(tmp_path / "second")) == 10
    (tmp_path / "lake").rename(tmp_path / "moved")
    run_on(orders, Archive("ORDERS", str(tmp_path / "moved")), checkpoint=check)
    for name in ("first", "other"):
        into_stream = sql('from: orders, to: "stream:OUT", subject: OUT.x', name)
        if name == "first":
            run_on(orders, into_stream, checkpoint=check)
        else:
            with pytest.raises(ConfigError, match=r"-stream belongs to sql first/.* to stream:OUT, not to sql other/"):
                run_on(orders, into_stream, checkpoint=check)
    # A query of Spark's own that the pipeline knows nothing of.
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "metadata").write_text('{"id": "x"}')
    with pytest.raises(ConfigError, match="belongs to a query that is not a pipeline"):
        run_on(orders, Archive("ORDERS", str(tmp_path / "third")), checkpoint=str(tmp_path / "plain"))


def test_files_of_others_are_neither_joined_nor_removed(spark, orders, run_on, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "precious.csv").write_text("1")
    for mode in ("append", "complete"):
        table = "orders" if mode == "append" else "total"
        pipeline = sql(f'from: {table}, to: "parquet:{tmp_path}/data", mode: {mode}')
        with pytest.raises(ConfigError, match="data contains other files"):
            run_on(orders, pipeline)
        with pytest.raises(ConfigError, match="data contains other files"):
            run_on(orders, SqlReset(pipeline.spec, f"{table}-parquet"))
    assert (tmp_path / "data" / "precious.csv").read_text() == "1"
    totals = sql(f'from: total, to: "parquet:{tmp_path}/totals", mode: complete')
    run_on(orders, totals)
    for foreign in ("read.me", "batch-of-mine.txt", "batch-00000000-notes.parquet"):
        (tmp_path / "totals" / foreign).write_text("what this is")
    # Another pipeline's folder behind a link.
    beside = sql(f'from: orders, to: "parquet:{tmp_path}/beside"', "beside")
    run_on(orders, beside)
    (tmp_path / "totals" / "link").symlink_to(tmp_path / "beside")
    orders.admin().publish([("orders.x", b'{"id": 10}')])
    run_on(orders, totals)
    assert [row.orders for row in spark.read.parquet(f"{tmp_path}/totals/batch-*-00000.*").collect()] == [11]
    run_on(orders, SqlReset(totals.spec, "total-parquet"))
    left = sorted(path.name for path in (tmp_path / "totals").iterdir() if path.name[0] not in "._")
    assert left == ["batch-00000000-notes.parquet", "batch-of-mine.txt", "link", "read.me"]
    assert spark.read.parquet(f"{tmp_path}/beside").count() == 10


def test_no_folder_lies_inside_that_of_another_pipeline(orders, run_on, tmp_path):
    orders.admin().publish([("orders.x", b"no json")])
    totals = sql(f'from: total, to: "parquet:{tmp_path}/totals", mode: complete', bad=f"parquet:{tmp_path}/totals/bad")
    inside = rf"totals/bad lies inside .*{tmp_path.name}/totals, which is written by sql own/total-parquet"
    with pytest.raises(ConfigError, match=inside):
        run_on(orders, totals)


def test_a_reset_removes_no_folder_that_is_no_checkpoint(orders, run_on, tmp_path):
    check = tmp_path / "check"
    for sink in ("total-parquet", "total-console", "orders-stream"):
        (check / sink).mkdir(parents=True)
        (check / sink / "thesis.txt").write_text("precious")
    for sink in ('from: total, to: "parquet:{}", mode: complete', "from: total, to: console, mode: complete"):
        pipeline = sql(sink.format(tmp_path / "lake"))
        for action in (pipeline, SqlReset(pipeline.spec, pipeline.spec.sinks[0].name)):
            with pytest.raises(ConfigError, match="contains other files: a checkpoint needs an empty folder"):
                run_on(orders, action, checkpoint=str(check))
    own = sql('from: orders, to: "stream:OUT", subject: OUT.x')
    with pytest.raises(ConfigError, match="contains other files"):
        run_on(orders, SqlReset(own.spec, "orders-stream"), checkpoint=str(check))
    assert len(list(check.rglob("thesis.txt"))) == 3
    (check / "orders-stream" / "thesis.txt").unlink()
    run_on(orders, own, checkpoint=str(check))
    run_on(orders, SqlReset(own.spec, "orders-stream"), checkpoint=str(check))
    assert not (check / "orders-stream").exists()


def test_a_lock_that_was_torn_is_no_end(spark, orders, run_on, tmp_path):
    archive = Archive("ORDERS", str(tmp_path))
    run_on(orders, archive)
    FileSystem(spark, str(tmp_path)).overwrite_json(LOCK, {"token": "x" * 99})
    # Killed after the file and before its checksum was written.
    (tmp_path / LOCK).write_text('{"token"')
    with pytest.raises(ConfigError, match="is being written by a process that has just started"):
        run_on(orders, archive)
    os.utime(tmp_path / LOCK, (1, 1))
    orders.admin().publish([("orders.x", b"{}")])
    assert run_on(orders, archive).summary.rows == 1
    (tmp_path / "_jetlake/archive.json").write_text("{}")
    with pytest.raises(SparkError, match="json is damaged: its checksum does not match"):
        run_on(orders, archive)


def test_a_writer_killed_while_it_showed_that_it_lives_is_known_to_be_gone(spark, tmp_path):
    files = FileSystem(spark, str(tmp_path))
    LakeLock(files, replace(this_writer("archive A"), started="another process")).beat()
    (tmp_path / BEAT).write_text('{"tok')  # Half of it, which no checksum fits.
    with locked(files, "archive B") as lock:
        lock.beat()
        lock.require()
    assert not (tmp_path / LOCK).exists()
    assert not (tmp_path / BEAT).exists()


def test_bad_rows_leave_out_what_their_publish_told_the_server(orders, run_on, tmp_path):
    admin = orders.admin()
    told = (
        {"Nats-TTL": "1h"},
        {"Nats-Rollup": "sub"},
        {"Nats-Expected-Stream": "ORDERS"},
        {"Kind": "k", "Bad-Row-X": "y"},
    )
    admin.publish([(f"orders.{number}", b"no json", headers) for number, headers in enumerate(told)])
    run_on(orders, sql(f'from: orders, to: "parquet:{tmp_path}/good"', bad="stream:BAD"))
    bad = [base64.b64decode(message["hdrs"]).decode() for message in admin.messages("BAD")]
    assert [f"Bad-Row-Subject: orders.{number}\r\n" in header for number, header in enumerate(bad)] == [True] * 4
    assert not [header for header in bad if "TTL" in header or "Rollup" in header or "Bad-Row-X" in header]
    assert "Kind: k\r\n" in bad[3]


def test_a_delta_table_that_somebody_has_changed_is_not_begun_anew(orders, run_on, tmp_path):
    lake = str(tmp_path / "lake")
    archive = Archive("ORDERS", lake, "delta")

    def rows():
        return deltalake.DeltaTable(lake).to_pyarrow_table().num_rows

    run_on(orders, archive)
    orders.admin().publish([("orders.x", b"{}")])
    deltalake.DeltaTable(lake).alter.add_columns([deltalake.Field("extra", "string")])
    with pytest.raises(SparkError, match=r"lake no longer has the columns of its archive.* back to: stream string, "):
        run_on(orders, archive)
    assert rows() == 10
    shutil.move(f"{lake}/_delta_log", tmp_path / "log")
    with pytest.raises(SparkError, match="lake is gone: its log _delta_log was removed"):
        run_on(orders, archive)
    shutil.move(tmp_path / "log", f"{lake}/_delta_log")
    deltalake.DeltaTable(lake).restore(0)
    run_on(orders, archive)
    assert rows() == 11
    # Restored to an older version the table still says that it has every batch.
    newest = deltalake.DeltaTable(lake).version()
    deltalake.DeltaTable(lake).restore(0)
    for _ in range(2):
        with pytest.raises(
            SparkError, match=rf"was restored to an older version .* Restore version {newest} or a later"
        ):
            run_on(orders, archive)
        assert rows() == 10
        orders.admin().publish([("orders.x", b"{}")])
    deltalake.DeltaTable(lake).restore(newest)
    run_on(orders, archive)
    assert rows() == 13
    deltalake.write_deltalake(lake, deltalake.DeltaTable(lake).to_pyarrow_table().slice(0, 3), mode="overwrite")
    with pytest.raises(SparkError, match="was restored to an older version or overwritten"):
        run_on(orders, archive)
