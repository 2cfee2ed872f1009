"""Messages to rows and rows to messages."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from jetlake.client.tables.message_columns import MessageColumns
from jetlake.client.tables.rows import header_maps
from jetlake.errors import BadPayloadError, ConfigError, RowPublishError
from jetlake.protocol.headers import Headers
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.pipelines.replay_task import _renaming
from jetlake.spark.schema import COLUMNS, make_row_builder, schema_ddl
from jetlake.spark.sink.row_encoder import RowEncoder, RowIds
from jetlake.spark.sink.writer import _messages

HEADERS = t.MapType(t.StringType(), t.ArrayType(t.StringType()))
TYPES = {
    "stream": t.StringType(),
    "sequence": t.LongType(),
    "subject": t.StringType(),
    "timestamp": t.TimestampType(),
    "headers": HEADERS,
    "data": t.BinaryType(),
    "msg_id": t.StringType(),
    "size": t.LongType(),
    "headers_raw": t.BinaryType(),
    "value": t.StructType([t.StructField("id", t.LongType())]),
    "bad_data": t.BinaryType(),
    "bad_reason": t.StringType(),
}


def schema(*names, **changed):
    return t.StructType([t.StructField(name, {**TYPES, **changed}[name]) for name in names])


def messages(*payloads, header=b""):
    count = len(payloads)
    return MessageColumns(
        np.arange(11, 11 + count),
        np.arange(count) * 1000 + 1_500_000_000,
        pa.array([b"s.%d" % n for n in range(count)], pa.binary()),
        pa.array([header] * count, pa.binary()),
        pa.array(payloads, pa.binary()),
    )


def build(names, columns, options=None, **changed):
    source = SourceOptions.of({"stream": "S", **(options or {})})
    batch = make_row_builder(schema(*names, **changed), source, "S").build(columns)
    batch.validate(full=True)
    return batch.to_pylist()


def test_columns():
    block = Headers.build([("A", "1"), ("B", "2"), ("A", "3"), ("Nats-Msg-Id", "x")]).raw
    names = ["data", "stream", "size", "sequence", "subject", "timestamp", "headers", "msg_id", "headers_raw"]
    assert build(names, messages(b"hello", header=block)) == [
        {
            "data": b"hello",
            "stream": "S",
            "size": 5,
            "sequence": 11,
            "subject": "s.0",
            "timestamp": datetime.datetime(1970, 1, 1, 0, 0, 1, 500000, tzinfo=datetime.UTC),
            "headers": [("A", ["1", "3"]), ("B", ["2"]), ("Nats-Msg-Id", ["x"])],
            "msg_id": "x",
            "headers_raw": block,
        }
    ]


def test_the_schema_is_exactly_what_spark_expects():
    names = [name for name in COLUMNS if name not in ("value", "bad_data", "bad_reason")]
    wanted = schema(*names)
    builder = make_row_builder(wanted, SourceOptions.of({"stream": "S"}), "S")
    assert builder.build(messages(b"x")).schema.equals(to_arrow_schema(wanted, timezone="UTC"))


def test_headers_are_empty_and_never_null():
    blocks = pa.array([b"", Headers.build({"K": "v"}).raw, b"", b"garbage"], pa.binary())
    kind = to_arrow_schema(schema("headers"), timezone="UTC").field("headers").type
    maps = header_maps(blocks, kind)
    maps.validate(full=True)
    assert maps.null_count == 0
    assert maps.to_pylist() == [[], [("K", ["v"])], [], []]
    assert header_maps(blocks.slice(1, 2), kind).to_pylist() == [[("K", ["v"])], []]
    assert header_maps(pa.array([], pa.binary()), kind).to_pylist() == []


def test_headers_that_are_no_text_are_made_text():
    kind = to_arrow_schema(schema("headers"), timezone="UTC").field("headers").type
    maps = header_maps(pa.array([b"NATS/1.0\r\nK: \xff\xe4\r\n\r\n"], pa.binary()), kind)
    maps.validate(full=True)
    assert maps.to_pylist() == [[("K", ["\ufffd\ufffd"])]]


def test_data_as_text():
    assert build(["data"], messages(b"\xc3\xbc"), data=t.StringType()) == [{"data": "ü"}]
    with pytest.raises(BadPayloadError, match="not valid UTF-8"):
        build(["data"], messages(b"\xff"), data=t.StringType())


def test_decoded_payloads():
    options = {"payloadFormat": "json", "badRows": "column"}
    rows = build(["sequence", "value", "bad_data", "bad_reason"], messages(b'{"id": 5}', b"nope"), options)
    assert rows[0] == {"sequence": 11, "value": {"id": 5}, "bad_data": None, "bad_reason": None}
    assert rows[1]["value"] is None
    assert rows[1]["bad_data"] == b"nope"
    assert "JSON is malformed" in rows[1]["bad_reason"]
    with pytest.raises(BadPayloadError, match=r"message 12 of stream S cannot be decoded.*badRows=column"):
        build(["value"], messages(b'{"id": 5}', b"nope"), {"payloadFormat": "json"})


@pytest.mark.parametrize(
    ("names", "options", "changed", "reason"),
    [
        (["nothing"], {}, {"nothing": t.StringType()}, "column nothing does not exist"),
        (["sequence"], {}, {"sequence": t.IntegerType()}, "sequence is bigint, not int: cast it"),
        (["headers"], {}, {"headers": t.MapType(t.StringType(), t.StringType())}, "headers is map"),
        (["value"], {}, {}, "needs option payloadFormat"),
        (["bad_data"], {"payloadFormat": "json"}, {}, "needs a column value"),
    ],
)
def test_schemas_that_do_not_fit(names, options, changed, reason):
    with pytest.raises(ConfigError, match=reason):
        build(names, messages(b"x"), options, **changed)


def test_default_schemas():
    raw = "stream string, sequence bigint, subject string, timestamp timestamp, headers map<string,array<string>>"
    assert schema_ddl(SourceOptions.of({"stream": "S"})) == f"{raw}, data binary"
    options = {"stream": "S", "payloadFormat": "json", "payloadSchema": "id bigint", "badRows": "column"}
    assert (
        schema_ddl(SourceOptions.of(options)) == f"{raw}, value struct<id bigint>, bad_data binary, bad_reason string"
    )
    with pytest.raises(ConfigError, match="payloadSchema is missing"):
        schema_ddl(SourceOptions.of({"stream": "S", "payloadFormat": "json"}))


# The other way

BY_STRUCT = t.MapType(t.StructType().add("k", "integer"), t.LongType())
MONTHS = t.YearMonthIntervalType()


def encode(rows, names, options=None, first_row=0, **changed):
    kinds = schema(*names, **changed)
    batch = pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(kinds, timezone="UTC"))
    encoder = RowEncoder(kinds, SinkOptions.of(options or {}))
    return [
        portion[index]
        for portion in encoder.encode(batch, RowIds("q/7", 3), first_row)
        for index in range(len(portion))
    ]


def test_a_row_is_a_message():
    (message,) = encode(
        [{"subject": "a.b", "data": b"x", "headers": [("K", ["1", "2"])], "msg_id": "m"}],
        ["subject", "data", "headers", "msg_id"],
    )
    assert message.subject == b"a.b"
    assert message.payload == b"x"
    assert Headers(message.header).items() == [("Nats-Msg-Id", "m"), ("K", "1"), ("K", "2")]


def test_row_ids_name_query_batch_partition_row_and_content():
    rows = [{"subject": "a", "data": b"x"}, {"subject": "a", "data": b"y"}, {"subject": "b", "data": b"x"}]
    ids = [message.message_id.decode() for message in encode(rows, ["subject", "data"], first_row=10)]
    assert [single.rpartition("-")[0] for single in ids] == ["q/7/3/10", "q/7/3/11", "q/7/3/12"]
    assert len({single.rpartition("-")[2] for single in ids}) == 3
    assert ids == [message.message_id.decode() for message in encode(rows, ["subject", "data"], first_row=10)]


def test_subjects_that_may_be_requests_are_refused_unless_asked_for():
    rows = [{"subject": "a", "data": b""}, {"subject": "$JS.API.STREAM.PURGE.S", "data": b""}]
    with pytest.raises(RowPublishError, match=r"row 6 .*PURGE.*allowSystemSubjects=true"):
        encode(rows, ["subject", "data"], first_row=5)
    asked = {"allowSystemSubjects": "true"}
    assert [message.subject for message in encode(rows, ["subject", "data"], asked)][1].startswith(b"$JS")
    with pytest.raises(ConfigError, match="allowSystemSubjects=true"):
        SinkOptions.of({"subject": "$KV.bucket.key"})
    assert SinkOptions.of({"subject": "$KV.bucket.key", **asked}).subject == "$KV.bucket.key"


def test_a_replay_refuses_what_a_subject_becomes():
    maps = (("a.>", "$KV.b.>"), ("$KV.c.>", "c.>"))
    assert _renaming(maps, system=False)(b"$KV.c.x") == b"c.x"
    assert _renaming(maps, system=True)(b"a.x") == b"$KV.b.x"
    for subject, given in ((b"a.x", maps), (b"$JS.API.STREAM.PURGE.S", ())):
        with pytest.raises(RowPublishError, match="--allow-system-subjects"):
            _renaming(given, system=False)(subject)


def test_ids_of_the_source():
    """Two streams of one name, and a stream that was recreated, differ by the times of their messages."""
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)
    row = {"subject": "a", "data": b"x", "stream": "S", "sequence": 9, "timestamp": at}
    names = ["subject", "data", "stream", "sequence", "timestamp"]
    rows = [row, {**row, "timestamp": at + datetime.timedelta(microseconds=1)}]
    ids = [message.message_id for message in encode(rows, names, {"messageId": "source"})]
    assert ids == [b"S:9:1767323045000006", b"S:9:1767323045000007"]
    with pytest.raises(RowPublishError, match="timestamp is null"):
        encode([{**row, "timestamp": None}], names, {"messageId": "source"})


def test_without_ids_and_headers_there_is_no_header():
    (message,) = encode([{"subject": "a", "data": None}], ["subject", "data"], {"messageId": "none"})
    assert message == (b"a", b"", b"", b"")


def test_headers_of_another_publish_are_left_out():
    pairs = [
        ("Nats-Msg-Id", ["old"]),
        ("Nats-Expected-Last-Sequence", ["4"]),
        ("Nats-Stream-Source", ["x"]),
        ("K", ["v"]),
    ]
    (message,) = encode(
        [{"subject": "a", "data": b"", "headers": pairs, "msg_id": "new"}], ["subject", "data", "headers", "msg_id"]
    )
    assert Headers(message.header).items() == [("Nats-Msg-Id", "new"), ("K", "v")]


def test_a_header_only_where_there_is_something_to_say():
    rows = [{"subject": "a", "data": b"", "headers": pairs} for pairs in ([], [("K", ["v"])], None)]
    found = encode(rows, ["subject", "data", "headers"], {"messageId": "none"})
    assert [message.header for message in found] == [b"", b"NATS/1.0\r\nK: v\r\n\r\n", b""]


@pytest.mark.parametrize("size", [1, 3 << 20])
def test_portions_name_the_same_rows(size):
    """Many rows, and few that are large: ids count on from one portion to the next."""
    count = 10_000 if size == 1 else 5
    found = encode([{"subject": "a", "data": b"x" * size}] * count, ["subject", "data"], first_row=7)
    assert [int(message.message_id.split(b"/")[-1].split(b"-")[0]) for message in found] == list(range(7, 7 + count))


def test_expectations():
    names = ["subject", "data", "expected_last_sequence", "expected_last_subject_sequence"]
    kinds = {"expected_last_sequence": t.LongType(), "expected_last_subject_sequence": t.LongType()}
    rows = [{"subject": "a", "data": b"", "expected_last_sequence": 4, "expected_last_subject_sequence": None}]
    (message,) = encode(rows, names, {"messageId": "none", "stream": "S"}, **kinds)
    assert Headers(message.header).items() == [("Nats-Expected-Stream", "S"), ("Nats-Expected-Last-Sequence", "4")]


@pytest.mark.parametrize(
    ("row", "options", "reason"),
    [
        ({"subject": None, "data": b""}, {}, "row 5.*it is null"),
        ({"subject": "a b", "data": b""}, {}, "row 5.*not a subject to publish to"),
        ({"subject": "a\r\nPUB x 0", "data": b""}, {}, "not a subject to publish to"),
        ({"subject": "a", "data": b"", "headers": [("K:", ["v"])]}, {}, "holds a colon"),
        ({"subject": "a", "data": b"", "headers": [("K", ["v\r\nX: y"])]}, {}, "line break"),
        ({"subject": "a", "data": b"", "msg_id": None}, {"messageId": "column"}, "msg_id is null"),
        ({"subject": "a", "data": b"", "msg_id": "x\ny"}, {"messageId": "column"}, "line break"),
        ({"subject": "a", "data": b"", "msg_id": "  "}, {"messageId": "column"}, "msg_id is null or empty"),
        ({"subject": "a", "data": b"", "headers_raw": b"K: v\r\n"}, {}, "row 5.*headers_raw.*begins with NATS/1.0"),
    ],
)
def test_rows_that_are_no_messages(row, options, reason):
    with pytest.raises(RowPublishError, match=reason):
        encode([row], list(row), options, first_row=5)


def test_an_id_is_what_the_server_reads():
    """By the id that the stream stores a repeated task finds its rows again."""
    rows = [{"subject": "a", "data": b"", "msg_id": text} for text in ("  x", "y ", "z")]
    assert [message.message_id for message in encode(rows, list(rows[0]))] == [b"x", b"y ", b"z"]


@pytest.mark.parametrize("column", ["expected_last_sequence", "expected_last_subject_sequence"])
def test_a_negative_sequence_is_no_expectation(column):
    rows = [{"subject": f"a.{n}", "data": b"", column: value} for n, value in enumerate([None, 0, -1])]
    with pytest.raises(RowPublishError, match=rf"row 7 .* on 'a\.2': column {column} is -1") as caught:
        encode(rows, ["subject", "data", column], first_row=5, **{column: t.LongType()})
    assert caught.value.row == 7


def test_keys_of_maps_are_texts_in_json():
    by_decimal = t.MapType(t.DecimalType(4, 1), t.MapType(t.BooleanType(), t.LongType()))
    kinds = {"m": t.ArrayType(t.StructType().add("by", by_decimal)), "n": t.MapType(t.LongType(), t.LongType())}
    rows = [{"subject": "a", "m": [{"by": [(Decimal("1.5"), [(True, 1)]), (Decimal("-2.0"), None)]}], "n": [(7, 8)]}]
    (message,) = encode(rows, ["subject", "m", "n"], {"payloadFormat": "json"}, **kinds)
    assert json.loads(message.payload) == {"m": [{"by": {"1.5": {"true": 1}, "-2.0": None}}], "n": {"7": 8}}


@pytest.mark.parametrize("name", ["day", "time", "times"])
def test_a_date_that_no_payload_can_hold_is_named(name):
    kinds = {"day": t.DateType(), "time": t.TimestampType(), "times": t.ArrayType(t.TimestampType())}
    names = ["subject", "day", "time", "times"]
    far = {"day": 9_999_999, "time": 9_999_999 * 86_400 * 1_000_000}
    rows = [{"subject": f"a.{row}", "day": 0, "time": 0, "times": [0]} for row in range(3)]
    rows[2][name] = [far["time"]] if name == "times" else far[name]
    with pytest.raises(RowPublishError, match=rf"row 7 .* on 'a\.2': column {name}: a date or time outside"):
        encode(rows, names, {"payloadFormat": "json"}, first_row=5, **kinds)


@pytest.mark.parametrize(
    ("names", "options", "changed", "reason"),
    [
        (["subject"], {}, {}, "column data .* is missing, or use option payloadFormat=json"),
        (["data"], {}, {}, "column subject .* is missing, or give option subject"),
        (["subject", "data"], {}, {"data": t.LongType()}, "data is bigint, not binary or string"),
        (["subject", "data", "extra"], {}, {"extra": t.LongType()}, "column extra would be lost"),
        (["subject", "data", "headers"], {}, {"headers": t.StringType()}, "headers is string, not map"),
        (["subject"], {"payloadFormat": "json"}, {}, "no column to publish"),
        (["subject", "m"], {"payloadFormat": "json"}, {"m": BY_STRUCT}, "column m holds a map with struct<k:int> keys"),
        (["subject", "m"], {"payloadFormat": "json"}, {"m": t.ArrayType(MONTHS)}, "column m holds an interval of"),
        (["subject", "data"], {"messageId": "column"}, {}, "column msg_id"),
        (["subject", "data"], {"messageId": "source"}, {}, "column stream"),
        (["subject", "data", "stream", "sequence"], {"messageId": "source"}, {}, "column timestamp .* is missing"),
    ],
)
def test_schemas_that_cannot_be_published(names, options, changed, reason):
    with pytest.raises(ConfigError, match=reason):
        RowEncoder(schema(*names, **changed), SinkOptions.of(options))


@pytest.mark.parametrize(("value", "warnings"), [(None, 1), ([], 0)])
def test_null_maps_are_said_once(caplog, value, warnings):
    kinds = schema("subject", "data", "headers")
    rows = [{"subject": "a", "data": b"x", "headers": value}] * 600
    batch = pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(kinds, timezone="UTC"))
    encoder = RowEncoder(kinds, SinkOptions.of({}))
    assert sum(map(len, _messages(iter([batch] * 4), encoder, RowIds("q", 0)))) == 2400
    assert ["coalesce(headers, map())" in record.getMessage() for record in caplog.records] == [True] * warnings
