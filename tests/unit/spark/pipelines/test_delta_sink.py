from __future__ import annotations

import datetime

import pyarrow as pa
import pyarrow.parquet
import pytest

from jetlake.spark.pipelines.delta_sink import held_versions, widest
from jetlake.spark.pipelines.folder_sink import STAGING
from jetlake.spark.pipelines.table_sink import staged_rows

KNOWN = {"version": 3, "timestamp": 1000, "operation": "WRITE", "operationParameters": {"mode": "Append"}}


def history(*operations):
    """The table's history from version 3 on."""
    entries = [
        {"version": 4 + number, "timestamp": 2000 + 1000 * number, "operation": name, "operationParameters": given}
        for number, (name, given) in enumerate(operations)
    ]
    return [KNOWN, *entries]


APPEND = ("WRITE", {"mode": "Append"})
OPTIMIZE = ("OPTIMIZE", {})


@pytest.mark.parametrize(
    ("operations", "held"),
    [
        ([], {3}),
        ([APPEND, OPTIMIZE, ("DELETE", {"predicate": "x"})], {3, 4, 5, 6}),
        ([APPEND, ("RESTORE", {"version": "3"})], {3, 5}),
        ([APPEND, ("RESTORE", {"version": "2"})], {5}),
        ([APPEND, ("RESTORE", {"version": "2", "timestamp": None}), ("RESTORE", {"version": "4"})], {3, 4, 6}),
        # By a time, in milliseconds, or in a form that is not known here.
        ([APPEND, ("RESTORE", {"datetime": "1500"})], {3, 5}),
        ([APPEND, ("RESTORE", {"datetime": "2000"})], {3, 4, 5}),
        ([APPEND, ("RESTORE", {"datetime": "999"})], {5}),
        ([APPEND, ("RESTORE", {"version": None, "timestamp": "2026-01-01"})], {5}),
        ([APPEND, ("WRITE", {"mode": "Overwrite"})], {5}),
        ([APPEND, ("WRITE", {"mode": "Overwrite", "predicate": "date = '2026-01-01'"})], {3, 4, 5}),
    ],
)
def test_which_versions_are_a_part_of_the_table(operations, held):
    assert held_versions(3, history(*operations)) == held


def test_a_table_that_was_rewritten_with_wider_types_has_all_its_versions():
    history_of_both = history(APPEND, ("WRITE", {"mode": "Overwrite"}), APPEND)
    history_of_both[2]["jetlake.widened"] = "true"
    assert held_versions(3, history_of_both) == {3, 4, 5, 6}


NARROW = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.struct([("c", pa.float32())]))), ("kept", pa.string())])
WIDE = pa.struct(
    [("new", pa.string()), ("b", pa.list_(pa.struct([("c", pa.float64()), ("d", pa.bool_())]))), ("a", pa.int64())]
)


def test_which_types_become_wider():
    assert widest(NARROW, NARROW) == NARROW
    assert widest(NARROW, WIDE) == pa.struct(
        [("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.float64())]))), ("kept", pa.string())]
    )
    assert widest(NARROW, WIDE, grows=True) == pa.struct(
        [
            ("a", pa.int64()),
            ("b", pa.list_(pa.struct([("c", pa.float64()), ("d", pa.bool_())]))),
            ("kept", pa.string()),
            ("new", pa.string()),
        ]
    )
    # Never narrower, whichever is asked for.
    assert widest(WIDE, NARROW) == WIDE
    maps = [pa.map_(pa.string(), pa.decimal128(precision, 2)) for precision in (5, 7)]
    assert widest(*maps) == maps[1] == widest(*reversed(maps))


@pytest.mark.parametrize(("of_spark", "zone"), [(True, "UTC"), (False, None)])
def test_times_are_in_utc_at_any_depth_unless_they_have_no_zone(tmp_path, of_spark, zone):
    """Spark writes `timestamp` as INT96, which says nothing of a zone, and `timestamp_ntz` as INT64."""

    def value_type(time):
        inside = [("name", pa.string()), ("at", time), ("all", pa.list_(time)), ("by", pa.map_(pa.string(), time))]
        return pa.struct(inside)

    time = datetime.datetime(1, 1, 1)
    value = {"name": "n", "at": time, "all": [time, None], "by": [("k", time)]}
    rows = pa.table({"time": pa.array([time]), "value": pa.array([value], value_type(pa.timestamp("us")))})
    (tmp_path / STAGING).mkdir(parents=True)
    pyarrow.parquet.write_table(rows, tmp_path / STAGING / "a.parquet", use_deprecated_int96_timestamps=of_spark)
    found = staged_rows(str(tmp_path), {"files": {f"{STAGING}/a.parquet": 0}}).read_all()
    kind = pa.timestamp("us", zone)
    assert [field.type for field in found.schema] == [kind, value_type(kind)]
    told = time.replace(tzinfo=datetime.UTC) if zone else time
    wanted = {"name": "n", "at": told, "all": [told, None], "by": [("k", told)]}
    assert found.to_pylist() == [{"time": told, "value": wanted}]
