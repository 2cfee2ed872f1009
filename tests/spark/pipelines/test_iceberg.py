from __future__ import annotations

import datetime
import json
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.utils.config import Config

import jetlake.blocking
from jetlake.errors import ConfigError, SparkError
from jetlake.lake.catalogs import open_catalog
from jetlake.lake.iceberg import IcebergTable
from jetlake.spark.pipelines import archive as archive_module
from jetlake.spark.pipelines.archive import Archive, Partitioning
from jetlake.spark.pipelines.iceberg_sink import IcebergSink
from jetlake.spark.pipelines.replay import Replay
from jetlake.spark.pipelines.typed_payload import TypedPayload
from jetlake.spark.pipelines.verify import Verify

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def planner(monkeypatch):
    """Polars warns of a planner that is not installed."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


def table_of(lake, name="lake.orders"):
    return open_catalog(lake.parent / "catalog.db").load_table(name)


def broken(*_):
    raise OSError("broken off")


def test_an_iceberg_table_holds_every_message_once(spark, own_server, run_on, tmp_path):
    import polars

    admin = own_server.admin()
    admin.create_stream("ORDERS", subjects=["orders.>"])
    admin.publish([(f"orders.{number % 3}.x", b"%d" % number, {"N": str(number)}) for number in range(900)])
    lake = tmp_path / "lake" / "orders"
    archive = Archive("ORDERS", str(lake), "iceberg", Partitioning(("date", "subject_root"), 2))
    run_on(own_server, archive, batch_messages=300, stop_after=1)
    run_on(own_server, archive, batch_messages=300)
    table = table_of(lake)
    assert [field.name for field in table.spec().fields] == ["date", "subject_root"]
    assert [field.source_id for field in table.sort_order().fields] == [table.schema().find_field("sequence").field_id]
    rows = table.scan().to_arrow().sort_by("sequence").to_pylist()
    assert [row["sequence"] for row in rows] == list(range(1, 901))
    assert rows[7]["data"] == b"7"
    assert rows[7]["headers"] == [("N", ["7"])]
    assert rows[7]["subject_root"] == "orders.1"
    assert polars.scan_iceberg(table).filter(polars.col("sequence") > 890).collect().height == 10
    assert dict(run_on(own_server, Verify("ORDERS", str(lake))).summary.facts) == {"the same": 900}


def test_a_batch_is_committed_once_whatever_breaks_off(spark, server_of, run_on, tmp_path, monkeypatch):
    server = server_of("embedded")
    admin = server.admin()
    admin.create_stream("A")
    admin.fill("A", 30)
    lake = tmp_path / "lake" / "a"
    archive = Archive("A", str(lake), "iceberg", Partitioning(()))
    # Files were written and noted, and nothing was committed.
    with monkeypatch.context() as patched:
        patched.setattr(IcebergTable, "append", broken)
        with pytest.raises(SparkError, match="broken off"):
            run_on(server, archive)
    # The stream loses them; they are aside, and are committed.
    admin.api("STREAM.PURGE.A", {"seq": 11})
    # Committed, and Spark does not know it: another writer commits before the batch is repeated.
    committed = IcebergSink._append

    def commit_and_break(self, note, batch):
        committed(self, note, batch)
        other = self.table.require()
        other.append(other.scan().to_arrow().slice(0, 1).set_column(0, "stream", pa.array(["FOREIGN"])))
        raise OSError("broken off")

    with monkeypatch.context() as patched:
        patched.setattr(IcebergSink, "_append", commit_and_break)
        with pytest.raises(SparkError, match="broken off"):
            run_on(server, archive)
    run_on(server, archive)
    table = table_of(lake, "lake.a")
    rows = table.scan(row_filter="stream = 'A'").to_arrow()
    assert sorted(rows["sequence"].to_pylist()) == list(range(1, 31))
    assert table.scan().count() == 31
    with pytest.raises(SparkError, match="1 never archived"):
        run_on(server, Verify("A", str(lake)))


def test_files_of_a_broken_attempt_are_found_and_deleted(spark, server_of, run_on, tmp_path):
    server = server_of("embedded")
    admin = server.admin()
    admin.create_stream("A")
    admin.fill("A", 10)
    lake = tmp_path / "lake" / "a"
    archive = Archive("A", str(lake), "iceberg", Partitioning(()))
    run_on(server, archive)
    (ours,) = lake.glob("data/*/00000000/*.parquet")
    left = ours.with_name("left.parquet")
    left.write_bytes(ours.read_bytes())
    foreign = lake / "data" / "foreign.parquet"
    foreign.write_bytes(ours.read_bytes())
    assert dict(run_on(server, Verify("A", str(lake))).summary.facts) == {
        "orphan files": "1 (--repair deletes them)",
        "the same": 10,
    }
    assert run_on(server, Verify("A", str(lake), repair=True)).summary.facts[0] == ("orphan files", "1 deleted")
    assert (ours.exists(), left.exists(), foreign.exists()) == (True, False, True)


def test_a_table_that_is_not_as_it_was_is_refused(spark, server_of, run_on, tmp_path):
    server = server_of("embedded")
    admin = server.admin()
    admin.create_stream("A")
    admin.fill("A", 10)
    lake = tmp_path / "lake" / "a"
    archive = Archive("A", str(lake), "iceberg", Partitioning(()))
    run_on(server, archive)
    first = table_of(lake, "lake.a").current_snapshot().snapshot_id
    admin.fill("A", 10)
    run_on(server, archive)
    table = table_of(lake, "lake.a")
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    admin.fill("A", 10)
    with pytest.raises(SparkError, match="rolled back"):
        run_on(server, archive)
    # Files of the batches that it lacks are no orphans: with them it can be brought back.
    held = set((lake / "data").rglob("*.parquet"))
    with pytest.raises(SparkError, match="would delete the files of these batches"):
        run_on(server, Verify("A", str(lake), repair=True))
    assert set((lake / "data").rglob("*.parquet")) == held
    catalog = open_catalog(lake.parent / "catalog.db")
    catalog.drop_table("lake.a")
    with pytest.raises(SparkError, match="gone from its catalog"):
        run_on(server, archive)
    catalog.create_table("lake.mine", pa.schema([("x", pa.int64())]))
    with pytest.raises(ConfigError, match="not created by an archive"):
        run_on(server, Archive("A", str(lake.with_name("other")), "iceberg", table="lake.mine"))


def test_two_streams_share_a_table(spark, server_of, run_on, tmp_path, monkeypatch):
    server = server_of("embedded")
    admin = server.admin()
    monkeypatch.setenv("PYICEBERG_CATALOG__SHARED__URI", f"sqlite:///{tmp_path}/shared.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__SHARED__WAREHOUSE", f"file://{tmp_path}")
    # Read when pyiceberg is imported, which another test may have done.
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    archives = []
    for stream in ("A", "B"):
        admin.create_stream(stream)
        admin.fill(stream, 20)
        lake = str(tmp_path / stream)
        archives.append(Archive(stream, lake, "iceberg", Partitioning(()), catalog="shared", table="lake.both"))
    for archive in archives:
        run_on(server, archive)
    for archive in archives:
        assert dict(run_on(server, Verify(archive.stream, archive.target)).summary.facts) == {"the same": 20}
    with pytest.raises(ConfigError, match=r"partitioned by nothing, not by date"):
        other = Archive(
            "A", str(tmp_path / "C"), "iceberg", Partitioning(("date",)), catalog="shared", table="lake.both"
        )
        run_on(server, other)
    with pytest.raises(ConfigError, match="'nowhere' can't be opened"):
        run_on(server, Archive("A", str(tmp_path / "D"), "iceberg", catalog="nowhere"))


def order(number, **more):
    return json.dumps({"id": number, "price": number / 4, **more}).encode()


@pytest.mark.parametrize("format_name", ["iceberg", "delta", "parquet"])
def test_payloads_become_columns_that_grow_and_what_does_not_fit_is_kept(
    spark, server_of, run_on, tmp_path, monkeypatch, format_name
):
    server = server_of("embedded")
    admin = server.admin()
    admin.create_stream("A")
    admin.publish([("A.x", order(number)) for number in range(20)] + [("A.x", b"{broken"), ("A.x", b'{"id": "text"}')])
    lake = tmp_path / "lake" / "a"
    options = {"format": format_name, "partitioning": Partitioning(("date",))}

    def archive(schema, **more):
        return Archive("A", str(lake), payload=TypedPayload("json", schema, **more), **options)

    first = "id int, price float"
    begun = run_on(server, archive(first), batch_messages=15)
    assert dict(begun.summary.facts) == {"rejected": f"messages whose payloads do not fit are in {lake}_rejects"}
    assert (begun.summary.batches, begun.summary.rows) == (2, 22)
    with pytest.raises(ConfigError, match=r"cannot continue with another schema: value\.id was \w*int and is string"):
        run_on(server, archive("id string, price float"))
    with pytest.raises(ConfigError, match="archive with keep_raw"):
        run_on(server, archive(first, keep_raw=True))
    admin.publish([("A.x", order(1 << 40, tags=["new"], at="2026-01-01T02:00:00+02:00"))])
    last = archive("tags array<string>, id bigint, price double, at timestamp")
    # It breaks off behind the table's change, and the batch is written with the schema before: nothing is narrower.
    with monkeypatch.context() as patched:
        patched.setattr(Archive, "_note_schema", broken)
        with pytest.raises(OSError, match="broken off"):
            run_on(server, last)
    with pytest.raises(ConfigError, match=r"value\.price was float and is string"):
        run_on(server, archive("id int, price string"))
    run_on(server, last)
    # Files of the old schema and of the new one become one; those of the last batch are left.
    admin.publish([("A.x", order(7, tags=["late"]))])
    compacted = dict(run_on(server, replace(last, compact_bytes=1 << 20)).summary.facts)["compacted"]
    assert compacted == {"iceberg": "4 files to 1"}.get(format_name, "3 files to 1")
    orphans = {}
    if format_name == "iceberg":
        # What a killed attempt leaves behind, in the table of the rejects too.
        for folder in (lake, lake.with_name("a_rejects")):
            (archived,) = (folder / "data").iterdir()
            (archived / "orphan.parquet").write_bytes(b"left behind")
        orphans = {"orphan files": "2 deleted"}
    verified = dict(run_on(server, Verify("A", str(lake), repair=bool(orphans))).summary.facts)
    assert verified == {**orphans, "the same": 24}
    if format_name == "iceberg":
        catalog = open_catalog(lake.parent / "catalog.db")
        rows = catalog.load_table("lake.a").scan().to_arrow().sort_by("sequence").to_pylist()
        rejects = catalog.load_table("lake.a_rejects").scan().to_arrow().sort_by("sequence").to_pylist()
    else:
        reads = {"delta": lambda path: DeltaTable(path).to_pyarrow_table(), "parquet": merged(spark)}
        rows, rejects = (reads[format_name](str(path)).to_pylist() for path in (lake, f"{lake}_rejects"))
    rows.sort(key=lambda row: row["sequence"])
    rejects.sort(key=lambda row: row["sequence"])
    assert rows[3]["value"] == {"id": 3, "price": 0.75, "tags": None, "at": None}
    at = datetime.datetime(2026, 1, 1, tzinfo=None if format_name == "parquet" else datetime.UTC)
    assert rows[-2]["value"] == {"id": 1 << 40, "price": (1 << 40) / 4, "tags": ["new"], "at": at}
    assert rows[-1]["value"] == {"id": 7, "price": 1.75, "tags": ["late"], "at": None}
    assert len(rows) == 22
    assert "data" not in rows[0]
    assert [(row["sequence"], row["data"]) for row in rejects] == [(21, b"{broken"), (22, b'{"id": "text"}')]
    assert "Expected `int | null`, got `str`" in rejects[1]["reason"]
    with pytest.raises(ConfigError, match="not their bytes"):
        run_on(server, Replay(str(lake), "A", force=True))


@pytest.mark.parametrize("format_name", ["parquet", "delta"])
def test_messages_that_do_not_fit_are_published_once_whatever_breaks_off(
    spark, server_of, run_on, tmp_path, monkeypatch, format_name
):
    server = server_of("embedded")
    admin = server.admin()
    admin.create_stream("A")
    lake = tmp_path / "lake" / "a"
    payload = TypedPayload("json", "id bigint")
    archive = Archive("A", str(lake), format_name, Partitioning(()), payload=payload, rejects_to="DEAD")

    def lost(call, *, patched_name, target):
        """The run breaks off there, and the stream loses what it had."""
        with monkeypatch.context() as patched:
            patched.setattr(target, patched_name, call)
            with pytest.raises(SparkError, match="broken off"):
                run_on(server, archive)
        admin.api("STREAM.PURGE.A")

    bad = ("A.y", b"{broken", {"Trace": "t1", "Nats-Other": "x"})
    admin.publish([("A.x", b'{"id": 1}'), bad, ("A.x", b'{"id": 3}')])
    lost(broken, patched_name="add_to_record", target=archive_module)
    run_on(server, archive)
    admin.publish([("A.z", b'{"id": "text"}'), ("A.x", b'{"id": 5}')])
    lost(broken, patched_name="_publish_refused", target=Archive)
    run_on(server, archive)
    admin.publish([("A.x", b'{"id": 6}')])
    run_on(server, archive)
    with jetlake.blocking.connect(server.url) as client:
        rows = client.jetstream().stream("DEAD").to_arrow().to_pylist()
    headers = [{key: values[0] for key, values in row["headers"]} for row in rows]
    assert [(row["subject"], row["data"]) for row in rows] == [("DEAD.A", b"{broken"), ("DEAD.A", b'{"id": "text"}')]
    assert [one["Bad-Row-Sequence"] for one in headers] == ["2", "4"]
    assert (headers[0]["Trace"], headers[0]["Bad-Row-Stream"], headers[0]["Bad-Row-Subject"]) == ("t1", "A", "A.y")
    assert "Nats-Other" not in headers[0]
    assert "Expected `int | null`, got `str`" in headers[1]["Bad-Row-Reason"]


def test_where_rejected_messages_cannot_go(tmp_path):
    for options, reason in (
        ({"rejects_to": "DEAD"}, "add --payload"),
        ({"rejects_to": "A", "payload": TypedPayload("json", "id bigint")}, "name another stream"),
    ):
        with pytest.raises(ConfigError, match=reason):
            Archive("A", str(tmp_path), **options)


def merged(spark):
    def read(path):
        frame = spark.read.parquet(path)
        if "value" in frame.columns:
            value = "id bigint, price double, tags array<string>, at timestamp_ntz"
            schema = f"sequence bigint, stream string, value struct<{value}>"
            return spark.read.schema(schema).parquet(path).toArrow()
        return frame.toArrow()

    return read


def test_fields_are_found_in_the_messages(spark, server_of, run_on, tmp_path):
    server = server_of("embedded")
    admin = server.admin()
    admin.create_stream("A")
    admin.publish([("A.x", order(number, customer={"name": "n"})) for number in range(5)])
    lake = tmp_path / "lake" / "a"
    archive = Archive("A", str(lake), "iceberg", Partitioning(()), payload=TypedPayload("json", keep_raw=True))
    found = dict(run_on(server, archive).summary.facts)
    assert found == {"fields of value": "`id`: bigint, `price`: double, `customer`: struct<`name`: string>"}
    admin.publish([("A.x", order(6, more=True))])
    # The archive's own fields count from then on.
    assert dict(run_on(server, archive).summary.facts) == found
    rows = table_of(lake, "lake.a").scan(row_filter="sequence = 6").to_arrow().to_pylist()
    assert rows[0]["value"] == {"id": 6, "price": 1.5, "customer": None}
    assert rows[0]["data"] == order(6, more=True)


def test_fields_that_no_payload_or_file_can_have(spark, server_of, run_on, tmp_path):
    server = server_of("embedded")
    server.admin().create_stream("A")
    for schema, complaint in (
        ("id nonsense", "'id nonsense' is not a list of fields .*NONSENSE"),
        ("id int, ", "is not a list of fields"),
        ("id int, a struct<x: int, X: int>", "fields x and X, whose columns would have one name"),
        ("id interval day", "value.id is duration.*, which cannot be read from JSON"),
        ("id map<int, string>", "value.id is map.*, which cannot be read from JSON"),
        ("id time", "can't be stored in an Iceberg table: Column 'id' has an unsupported type"),
    ):
        archive = Archive("A", str(tmp_path / "lake" / "a"), "iceberg", payload=TypedPayload("json", schema))
        with pytest.raises(ConfigError, match=complaint):
            run_on(server, archive)
