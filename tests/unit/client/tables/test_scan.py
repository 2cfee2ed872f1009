from __future__ import annotations

import datetime

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from polars import col

from jetlake.client.tables.bounds import Bounds, bounds_of
from jetlake.client.tables.scan import ScanDataset, arrow_conditions, polars_conditions, polars_scan

NOON = datetime.datetime(2026, 11, 18, 12, tzinfo=datetime.UTC)
NOON_US = 1_795_003_200_000_000
SCHEMA = pa.schema(
    [
        ("sequence", pa.int64()),
        ("subject", pa.string()),
        ("timestamp", pa.timestamp("ns", "UTC")),
        ("data", pa.binary()),
    ]
)


class Reads:
    """A table of which every part that is asked for is kept."""

    def __init__(self, count=10):
        self.rows = pa.Table.from_pylist(
            [
                {
                    "sequence": number,
                    "subject": f"orders.{number % 3}",
                    "timestamp": NOON + datetime.timedelta(seconds=number),
                    "data": b"",
                }
                for number in range(1, count + 1)
            ],
            SCHEMA,
        )
        self.asked = []

    def __call__(self, schema, columns, bounds):
        self.asked.append((columns, bounds))
        return (self.rows if columns is None else self.rows.select(columns)).to_reader()


@pytest.mark.parametrize(
    ("predicate", "bounds"),
    [
        (col("sequence") > 5, Bounds(first=6)),
        (polars.lit(5) > col("sequence"), Bounds(end=5)),
        (col("sequence").is_between(5, 10), Bounds(5, 11)),
        (col("sequence").is_between(5, 10, closed="none"), Bounds(6, 10)),
        (col("sequence").is_in([7, 3]), Bounds(3, 8)),
        ((col("subject") == "a.b") & (col("sequence") <= 3), Bounds(end=4, subjects=("a.b",))),
        (col("subject").str.starts_with("a.b."), Bounds(subjects=("a.b.>",))),
        (col("subject").is_in(["a", "b"]), Bounds(subjects=("a", "b"))),
        (col("timestamp") >= NOON, Bounds(first_us=NOON_US)),
        # Within the microsecond of a bound there may be messages on both sides of it.
        (col("timestamp") > NOON, Bounds(first_us=NOON_US)),
        (col("timestamp") < NOON, Bounds(end_us=NOON_US + 1)),
        # What cannot narrow, does not.
        ((col("sequence") > 5) | (col("subject") == "a"), Bounds()),
        (~(col("subject") == "a"), Bounds()),
        (col("sequence") * 2 > 5, Bounds()),
        (col("sequence") > col("other"), Bounds()),
        ((col("sequence") > 5) & (col("data").bin.size() > 3), Bounds(first=6)),
        # U+FFFD stands for bytes that are not UTF-8, and no server takes NUL in a filter.
        (col("subject") == "a.\ufffd", Bounds()),
        (col("subject").is_in(["a", "b.\0"]), Bounds()),
        (col("subject").str.starts_with("a.\ufffd."), Bounds()),
    ],
    ids=str,
)
def test_what_a_polars_predicate_allows_to_skip(predicate, bounds):
    schema = {"sequence": polars.Int64, "other": polars.Int64, "subject": polars.String, "data": polars.Binary}
    schema["timestamp"] = polars.Datetime("ns", "UTC")
    seen = []

    def source(with_columns, pushed, n_rows, batch_size):
        seen.extend([] if pushed is None else polars_conditions(pushed))
        yield polars.DataFrame(schema=schema)

    from polars.io.plugins import register_io_source

    register_io_source(source, schema=schema).filter(predicate).collect()
    assert bounds_of(seen) == bounds


@pytest.mark.parametrize(
    ("expression", "bounds"),
    [
        ((pc.field("sequence") > 5) & (pc.field("sequence") <= 9), Bounds(6, 10)),
        ((pc.field("subject") >= "a.") & (pc.field("subject") < "a/"), Bounds(subjects=("a.>",))),
        ((pc.field("subject") >= "a.") & (pc.field("subject") < "b"), Bounds()),
        (pc.field("subject") == "a.b", Bounds(subjects=("a.b",))),
        (pc.field("timestamp") >= pa.scalar(NOON, pa.timestamp("ns", "UTC")), Bounds(first_us=NOON_US)),
        ((pc.field("sequence") > 5) | (pc.field("sequence") < 3), Bounds()),
        (~(pc.field("sequence") > 5), Bounds()),
        ((pc.field("sequence") > 5) & pc.field("subject").isin(["a", "and"]), Bounds()),
        (pc.field("subject") == 'a" and sequence > 5', Bounds()),
        (pc.field("sequence") > 5.5, Bounds()),
    ],
    ids=str,
)
def test_what_an_arrow_filter_allows_to_skip(expression, bounds):
    assert bounds_of(arrow_conditions(str(expression))) == bounds


def test_polars_gets_the_columns_and_rows_that_it_asks_for():
    reads = Reads()
    lazy = polars_scan(SCHEMA, reads, polars)
    assert reads.asked == []
    found = lazy.filter(col("sequence") > 7).select("subject").collect()
    assert found["subject"].to_list() == ["orders.2", "orders.0", "orders.1"]
    assert reads.asked == [(["sequence", "subject"], Bounds(first=8))]
    assert lazy.head(3).collect()["sequence"].to_list() == [1, 2, 3]
    assert lazy.select(polars.len()).collect().item() == 10


def test_duckdb_gets_the_columns_and_rows_that_it_asks_for():
    reads = Reads()
    connection = duckdb.connect()
    connection.register("orders", ScanDataset(SCHEMA, reads))
    query = "select subject from orders where sequence between 8 and 9 and subject like 'orders.%' order by all"
    assert connection.sql(query).fetchall() == [("orders.0",), ("orders.2",)]
    assert reads.asked == [(["sequence", "subject"], Bounds(8, 10, subjects=("orders.>",)))]
    assert connection.sql("select count(*) from orders").fetchall() == [(10,)]
    assert connection.sql("select max(sequence) from orders where subject = 'orders.1' or sequence = 2").fetchall() == [
        (10,)
    ]
