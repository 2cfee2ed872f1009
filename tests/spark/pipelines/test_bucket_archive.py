"""Buckets as tables that are kept up to date, on both servers and in both kinds of tables."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable

import jetlake.blocking
from jetlake.errors import ConfigError, SparkError
from jetlake.lake.catalogs import open_catalog
from jetlake.lake.iceberg import IcebergTable
from jetlake.spark.pipelines.archive import Partitioning
from jetlake.spark.pipelines.bucket_archive import BucketArchive
from jetlake.spark.pipelines.delta_sink import DeltaUpsertSink
from jetlake.spark.pipelines.iceberg_sink import IcebergUpsertSink
from jetlake.spark.pipelines.typed_payload import TypedPayload
from jetlake.spark.pipelines.verify import Verify

pytestmark = pytest.mark.spark


def kept(lake, **more):
    kind = lake.name.partition("-")[0]
    return BucketArchive("KV_PRICES", str(lake), kind, Partitioning(()), **more)


def rows_of(lake):
    if lake.name.startswith("delta"):
        rows = DeltaTable(lake).to_pyarrow_table()
    else:
        name = "lake." + lake.name.replace("-", "_")
        rows = open_catalog(lake.parent / "catalog.db").load_table(name).scan().to_arrow()
    return {row["key"]: row["value"] for row in rows.sort_by("revision").to_pylist()}


def newest(bucket):
    return {entry["key"]: entry["value"] for entry in bucket.to_arrow().to_pylist()}


@pytest.fixture(params=["delta", "iceberg"])
def lake(request, tmp_path):
    return tmp_path / "lake" / f"{request.param}-prices"


@pytest.fixture
def prices(own_server):
    with jetlake.blocking.connect(own_server.url) as client:
        yield client.jetstream().create_key_value("PRICES", history=3)


def test_a_table_has_the_newest_value_of_each_key(spark, own_server, prices, run_on, lake):
    for number in range(40):
        prices.put(f"tea.{number % 10}", b"%d" % number)
    prices.delete("tea.3")
    prices.purge("tea.4")
    assert dict(run_on(own_server, kept(lake), batch_messages=15).summary.facts)["keys"] == 8
    assert rows_of(lake) == newest(prices)
    prices.put("tea.3", b"again")
    prices.put("tea.0", b"new")
    prices.delete("tea.1")
    prices.put("brief", b"1")
    prices.delete("brief")
    run_on(own_server, kept(lake))
    assert rows_of(lake) == newest(prices)
    # A marker that is purged before the table has seen it.
    prices.delete("tea.5")
    prices.purge_deletes(older_than=0)
    assert dict(run_on(own_server, kept(lake)).summary.facts)["keys gone without a marker"] == 1
    assert rows_of(lake) == newest(prices)
    with pytest.raises(ConfigError, match="newest values"):
        run_on(own_server, Verify("KV_PRICES", str(lake)))
    if lake.name.startswith("iceberg"):
        (orphan,) = (folder / "orphan.parquet" for folder in (lake / "data").iterdir())
        orphan.write_bytes(b"left behind")
        repaired = dict(run_on(own_server, Verify("KV_PRICES", str(lake), repair=True)).summary.facts)
        assert repaired == {"orphan files": "1 deleted"}
        assert not orphan.exists()
        assert rows_of(lake) == newest(prices)


@pytest.mark.parametrize("kind", ["embedded"], indirect=True)
def test_batches_that_break_off_are_applied_once(spark, own_server, prices, run_on, lake, monkeypatch):
    """A batch is repeated after a crash on either side of its commit, while newer values are there already."""
    for number in range(20):
        prices.put(f"k{number}", b"old")
    sink = DeltaUpsertSink if lake.name.startswith("delta") else IcebergUpsertSink
    append = sink._append

    def broken(self, note, batch):
        raise OSError("broken off")

    def commit_and_break(self, note, batch):
        append(self, note, batch)
        raise OSError("broken off")

    for how, change in ((broken, "delete"), (commit_and_break, "put"), (broken, "put")):
        with monkeypatch.context() as patched:
            patched.setattr(sink, "_append", how)
            with pytest.raises(SparkError, match="broken off"):
                run_on(own_server, kept(lake))
        for number in range(0, 20, 3):
            prices.delete(f"k{number}") if change == "delete" else prices.put(f"k{number}", how.__name__.encode())
    run_on(own_server, kept(lake), batch_messages=4)
    assert rows_of(lake) == newest(prices)


@pytest.mark.parametrize("kind", ["embedded"], indirect=True)
def test_typed_values_grow_and_misfits_stay_in_the_table(spark, own_server, prices, run_on, lake):
    prices.put("a", b'{"cents": 1}')
    prices.put("b", b"none")
    run_on(own_server, kept(lake, payload=TypedPayload("json", "cents int")))
    assert rows_of(lake) == {"a": {"cents": 1}, "b": None}
    prices.put("b", b'{"cents": 5000000000, "unit": "cup"}')
    run_on(own_server, kept(lake, payload=TypedPayload("json", "cents bigint, unit string")))
    assert rows_of(lake) == {"a": {"cents": 1, "unit": None}, "b": {"cents": 5_000_000_000, "unit": "cup"}}


@pytest.mark.parametrize("kind", ["embedded"], indirect=True)
def test_another_writer_meets_no_lost_row(spark, own_server, prices, run_on, tmp_path, monkeypatch):
    lake = tmp_path / "lake" / "iceberg-prices"
    for number in range(5):
        prices.put(f"k{number}", b"1")
    run_on(own_server, kept(lake))
    prices.put("k0", b"2")
    build = IcebergTable.require
    written = []

    def with_another_writer(self):
        table = build(self)
        if not written and self.archive and prices.get("k0").value == b"2" and table.scan().count() == 5:
            written.append(1)
            foreign = table.scan(row_filter="key = 'k1'").to_arrow()
            table.append(foreign.set_column(0, foreign.schema.field(0), [["foreign"]]))
        return table

    monkeypatch.setattr(IcebergTable, "require", with_another_writer)
    run_on(own_server, kept(lake))
    # The comparison of keys takes rows away that the bucket does not have: the table is the bucket's.
    assert written
    assert rows_of(lake) == newest(prices)


def test_what_cannot_be_kept_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="not parquet"):
        BucketArchive("KV_A", str(tmp_path), "parquet", Partitioning(()))
    with pytest.raises(ConfigError, match="leave out --by"):
        BucketArchive("KV_A", str(tmp_path), "delta")
