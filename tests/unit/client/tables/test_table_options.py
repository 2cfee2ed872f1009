"""What a table can be told, and what is refused before anything is sent."""

import datetime

import pyarrow as pa
import pytest

from jetlake.client.tables.positions import Position
from jetlake.client.tables.table_options import table_options
from jetlake.errors import InvalidOptionError

AT = datetime.datetime(2026, 11, 16, 12, tzinfo=datetime.UTC)


def test_places():
    assert table_options(start=7, end=9).start == Position("sequence", 7)
    assert table_options(start=AT).start == Position("time", 1_794_830_400_000_000_000)
    assert table_options(start=datetime.timedelta(minutes=10)).start == table_options(start="-10 minutes").start
    assert table_options(start="last:5", end="time:2026-11-16T12:00:00Z").end == table_options(end=AT).end


def test_filters_that_others_cover_are_left_out():
    assert table_options(subjects="a.>").subjects == ("a.>",)
    assert table_options(subjects=["a.1", "a.>", "b"]).subjects == ("a.>", "b")


def test_columns_and_types():
    names = table_options().row_schema(None).names
    assert names == ["sequence", "subject", "timestamp", "headers", "data"]
    options = table_options(payload="json", bad_rows="column", schema={"id": pa.int64()})
    assert options.value_type == pa.struct([("id", pa.int64())])
    assert options.row_schema(options.value_type).names[-3:] == ["value", "bad_data", "bad_reason"]
    assert table_options(columns=["size", "subject"]).row_schema(None).names == ["size", "subject"]
    schema = pa.schema([("id", pa.int32())])
    assert table_options(payload="json", schema=schema).value_type == pa.struct([("id", pa.int32())])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"start": 0}, "count from 1"),
        ({"start": "soon"}, "not a position"),
        ({"start": None}, "start=None is not a position: pass a sequence"),
        ({"end": 1.5}, "end=1.5 is not a position"),
        ({"start": datetime.date(2026, 1, 31)}, r"a date is not a point in time.*datetime\(2026, 1, 31, tzinfo"),
        ({"end": datetime.datetime(2026, 1, 1)}, "time zone"),
        ({"subjects": "a..b"}, "not a valid subject"),
        ({"subjects": 5}, "subjects"),
        ({"columns": ["nobody"]}, "nobody"),
        ({"columns": []}, "columns"),
        ({"columns": ["value"]}, "column value needs payload"),
        ({"payload": "xml"}, "raw, json, avro"),
        ({"payload": "avro"}, "go together"),
        ({"avro_schema": "{}"}, "go together"),
        ({"schema": {"a": pa.int64()}}, "schema is for"),
        ({"payload": "json", "schema": 5}, "schema is a pyarrow schema"),
        ({"payload": "json", "schema": {"a": "nonsense"}}, "schema is a pyarrow schema"),
        ({"bad_rows": "skip"}, "fail, column"),
        ({"reader": "fast"}, "reader"),
        ({"batch_rows": 0}, "batch_rows"),
    ],
)
def test_what_cannot_work_is_refused(given, words):
    with pytest.raises(InvalidOptionError, match=words):
        table_options(**given)
