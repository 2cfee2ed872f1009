from __future__ import annotations

import datetime
import json

import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet
import pytest

from jetlake.client.tables.row_messages import count_rows, file_rows, row_messages
from jetlake.errors import ConfigError, InvalidOptionError

ROWS = {"id": [1, 2], "country": ["de", "fr"], "price": [1.5, None]}


@pytest.mark.parametrize(
    "table",
    [
        pa.table(ROWS),
        pa.table(ROWS).to_batches()[0],
        polars.DataFrame(ROWS),
        polars.DataFrame(ROWS).lazy(),
        pandas.DataFrame({"id": [1, 2], "country": ["de", "fr"], "price": [1.5, float("nan")]}),
        duckdb.sql("select * from (values (1, 'de', 1.5::double), (2, 'fr', null)) t(id, country, price)"),
    ],
    ids=lambda table: f"{type(table).__module__}.{type(table).__name__}",
)
def test_the_rows_of_every_library_become_messages(table):
    taken = []
    found = list(row_messages(table, "orders.{country}.{id}", "id", taken.append))
    assert [(subject, json.loads(payload), options) for subject, payload, options in found] == [
        ("orders.de.1", {"id": 1, "country": "de", "price": 1.5}, {"msg_id": "1"}),
        ("orders.fr.2", {"id": 2, "country": "fr", "price": None}, {"msg_id": "2"}),
    ]
    assert sum(taken) == 2


def test_a_table_that_was_a_stream_keeps_payloads_and_headers():
    headers = pa.map_(pa.string(), pa.list_(pa.string()))
    rows = pa.table(
        {"subject": ["a.b", "a.c"], "headers": pa.array([[("N", ["1", "2"])], []], headers), "data": [b"\xff", b""]}
    )
    assert list(row_messages(rows)) == [("a.b", b"\xff", {"headers": {"N": ["1", "2"]}}), ("a.c", b"", {})]


def test_values_of_every_kind_are_json():
    rows = pa.table({"time": [datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)], "tags": [["x"]], "raw": [b"\x01"]})
    ((_, payload, _),) = row_messages(rows, lambda row: f"t.{row['tags'][0]}")
    assert json.loads(payload) == {"time": "2026-01-01T00:00:00Z", "tags": ["x"], "raw": "AQ=="}
    counts = pa.array([[("a", 1), ("b", 2)]], pa.map_(pa.string(), pa.int64()))
    ((_, payload, _),) = row_messages(pa.table({"counts": counts}), "t")
    assert json.loads(payload) == {"counts": {"a": 1, "b": 2}}


def test_times_with_nanoseconds_have_microseconds_in_json():
    """As pandas has them, and the times of messages."""
    time = pandas.Timestamp("2026-01-01T00:00:00.123456789Z")
    rows = pandas.DataFrame({"time": [time], "took": [pandas.Timedelta(1, "s")], "nested": [{"at": [time]}]})
    ((_, payload, _),) = row_messages(rows, "t")
    text = "2026-01-01T00:00:00.123456Z"
    assert json.loads(payload) == {"time": text, "took": "PT1S", "nested": {"at": [text]}}
    times = pa.array([time], pa.timestamp("ns", "UTC"))
    lists = [pa.array([[time]], kind(times.type)) for kind in (pa.large_list, lambda kind: pa.list_(kind, 1))]
    rows = pa.table([times.dictionary_encode(), *lists], ["coded", "large", "fixed"])
    ((_, payload, _),) = row_messages(rows, "t")
    assert json.loads(payload) == {"coded": text, "large": [text], "fixed": [text]}


@pytest.mark.parametrize(
    ("table", "arguments", "complaint"),
    [
        (pa.table({"x": [1]}), {}, "no column subject, .* it has x"),
        (pa.table({"x": [1]}), {"subject": "a.{y}"}, "no column y, which is its subject"),
        (pa.table({"x": [1]}), {"subject": "a", "key": "y"}, "no column y, which is its key"),
        (pa.table({"x": pa.array([1, None])}), {"subject": "a.{x}"}, "row 1 of the table has no subject"),
        (pa.table({"x": pa.array([1, None])}), {"subject": "a", "key": "x"}, "row 1 of the table has no x"),
        ([1, 2], {}, "list is not a table"),
        (pa.table([pa.array([1]), pa.array([2])], ["x", "x"]), {"subject": "a"}, "several columns x"),
        (
            pa.table({"x": pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))}),
            {"subject": "a"},
            "rows 0 to 0 of the table can't be messages: .*a",
        ),
        (
            pa.table({"x": pa.array([1 << 62], pa.timestamp("us"))}),
            {"subject": "a"},
            "rows 0 to 0 of the table can't be messages: date value out of range",
        ),
        (pa.table({"data": ["x"], "headers": ["a"]}), {"subject": "a"}, "row 0 of the table has headers that are no"),
        (pandas.DataFrame({"x": [{"y": 1}, 3]}), {"subject": "a"}, "a column that Arrow has no type for"),
    ],
)
def test_a_table_that_makes_no_messages(table, arguments, complaint):
    with pytest.raises(InvalidOptionError, match=complaint):
        list(row_messages(table, **arguments))


def test_files(tmp_path):
    pyarrow.parquet.write_table(pa.table(ROWS), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    (tmp_path / "c.csv").write_text("id,name\n1,x\n")
    (tmp_path / "d.parquet").write_text("no parquet")
    names = [str(tmp_path / name) for name in ("a.parquet", "b.jsonl", "c.csv")]
    assert [count_rows(file_rows(name), name) for name in names] == [2, 2, 1]
    for name, complaint in (("none.csv", "no file"), ("e.txt", "no known format"), ("d.parquet", "can't be read")):
        (tmp_path / "e.txt").write_text("")
        with pytest.raises(ConfigError, match=complaint):
            file_rows(str(tmp_path / name)).count_rows()


def test_a_file_that_breaks_off_is_told_with_what_was_read(tmp_path):
    file = tmp_path / "a.csv"
    # Types are found in the first block, and the wrong line is in a later one.
    file.write_text("id,name\n" + 200_000 * "1,long\n" + "one,x\n")
    with pytest.raises(InvalidOptionError, match=r"can't be read behind its first \d+ rows: .*invalid value 'one'"):
        list(row_messages(file_rows(str(file)), "t"))
    file.write_text("id,name\n" + 200_000 * "1,long\n" + "1,x,y\n")
    with pytest.raises(ConfigError, match=r"a.csv can't be read: .*Expected 2 columns, got 3"):
        count_rows(file_rows(str(file)), str(file))
