from __future__ import annotations

import datetime
import decimal
import io
import json

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.variant_utils import VariantUtils

from jetlake.client.tables.decoding import AvroDecoder, JsonDecoder
from jetlake.errors import ConfigError
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.schema import VariantDecoder, avro_struct_ddl, make_decoder

UTC = datetime.UTC


def struct(**fields):
    return t.StructType([t.StructField(name, kind) for name, kind in fields.items()])


def arrow(kind):
    return to_arrow_type(kind, timezone="UTC")


def decode(kind, *payloads):
    values, reasons = JsonDecoder(arrow(kind)).decode(pa.array(payloads, pa.binary()))
    return values.to_pylist(), reasons


EVERYTHING = struct(
    long=t.LongType(),
    byte=t.ByteType(),
    text=t.StringType(),
    flag=t.BooleanType(),
    real=t.DoubleType(),
    raw=t.BinaryType(),
    day=t.DateType(),
    at=t.TimestampType(),
    local=t.TimestampNTZType(),
    price=t.DecimalType(6, 2),
    list=t.ArrayType(t.TimestampType()),
    map=t.MapType(t.StringType(), struct(a=t.LongType())),
    inner=struct(**{"odd name!": t.StringType()}),
)


def test_every_type():
    payload = {
        "long": 1,
        "byte": -128,
        "text": "ü",
        "flag": True,
        "real": 2,
        "raw": "AP8=",
        "day": "2026-01-02",
        "at": "2026-01-02T03:04:05+01:00",
        "local": "2026-01-02T03:04:05Z",
        "price": 12.5,
        "list": ["2026-01-02T03:04:05", None],
        "map": {"k": {"a": 1, "other": 2}},
        "inner": {"odd name!": "x"},
        "unknown": [1],
    }
    (value,), reasons = decode(EVERYTHING, json.dumps(payload).encode())
    assert not reasons
    assert value == {
        "long": 1,
        "byte": -128,
        "text": "ü",
        "flag": True,
        "real": 2.0,
        "raw": b"\x00\xff",
        "day": datetime.date(2026, 1, 2),
        "at": datetime.datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC),
        "local": datetime.datetime(2026, 1, 2, 3, 4, 5),
        "price": decimal.Decimal("12.50"),
        "list": [datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), None],
        "map": [("k", {"a": 1})],
        "inner": {"odd name!": "x"},
    }


def test_what_is_missing_is_null():
    values, reasons = decode(EVERYTHING, b"{}", b'{"long": null}')
    assert not reasons
    assert all(value == dict.fromkeys(EVERYTHING.fieldNames()) for value in values)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "truncated"),
        (b"[1]", "Expected `object`"),
        (b'{"long": "1"}', "Expected `int | null`, got `str` - at `$.long`"),
        (b'{"byte": 128}', "<= 127"),
        (b'{"price": 1.234}', "does not fit decimal(6,2)"),
        (b'{"price": 99999}', "does not fit decimal(6,2)"),
        (b'{"day": "soon"}', "Invalid RFC3339"),
        (b'{"text": "\xff"}', "utf-8"),
        (b"{" * 5000, ""),
    ],
)
def test_bad_rows_say_why_and_leave_the_others_alone(payload, reason):
    values, reasons = decode(EVERYTHING, b'{"long": 1}', payload, b'{"long": 3}')
    assert list(reasons) == [1]
    assert reason.lower() in reasons[1].lower()
    assert values[1] is None
    assert (values[0]["long"], values[2]["long"]) == (1, 3)


def test_no_rows():
    assert decode(EVERYTHING) == ([], {})


def test_types_that_json_has_not():
    with pytest.raises(ConfigError, match=r"value\.x is duration"):
        JsonDecoder(arrow(struct(x=t.DayTimeIntervalType())))
    with pytest.raises(ConfigError, match=r"value\.x\[\] is map"):
        JsonDecoder(arrow(struct(x=t.ArrayType(t.MapType(t.LongType(), t.LongType())))))


AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"]},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
            {"name": "other", "type": "Kind"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
            {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
            {"name": "list", "type": {"type": "array", "items": "int"}},
            {"name": "map", "type": {"type": "map", "values": "double"}},
            {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        ],
    }
)
ORDER = {
    "id": 7,
    "note": None,
    "kind": "A",
    "other": "B",
    "at": datetime.datetime(2026, 1, 2, tzinfo=UTC),
    "price": decimal.Decimal("1.25"),
    "key": "00000000-0000-0000-0000-000000000001",
    "list": [1, 2],
    "map": {"k": 1.0},
    "hash": b"ab",
}


def avro(record):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(AVRO)), record)
    return out.getvalue()


def test_avro():
    assert avro_struct_ddl(AVRO) == (
        "struct<`id`: bigint, `note`: string, `kind`: string, `other`: string, `at`: timestamp, "
        "`price`: decimal(6,2), `key`: string, `list`: array<int>, `map`: map<string, double>, `hash`: binary>"
    )
    kind = struct(
        id=t.LongType(),
        note=t.StringType(),
        at=t.TimestampType(),
        price=t.DecimalType(6, 2),
        key=t.StringType(),
        map=t.MapType(t.StringType(), t.DoubleType()),
    )
    good = avro(ORDER)
    values, reasons = AvroDecoder(AVRO, arrow(kind)).decode(pa.array([good, good + b"x", good[:3], b""], pa.binary()))
    assert values[0].as_py() == {
        "id": 7,
        "note": None,
        "at": ORDER["at"],
        "price": decimal.Decimal("1.25"),
        "key": ORDER["key"],
        "map": [("k", 1.0)],
    }
    assert list(reasons) == [1, 2, 3]
    assert reasons[1] == "1 bytes follow the record"


def test_avro_by_a_reader_schema():
    newer = json.dumps(
        {
            "type": "record",
            "name": "Order",
            "fields": [
                {"name": "number", "aliases": ["id"], "type": "long"},
                {"name": "added", "type": "string", "default": "none"},
            ],
        }
    )
    older = json.dumps(
        {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}, {"name": "gone", "type": "int"}]}
    )
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(older)), {"id": 7, "gone": 1})
    assert avro_struct_ddl(newer) == "struct<`number`: bigint, `added`: string>"
    kind = struct(number=t.LongType(), added=t.StringType())
    values, reasons = AvroDecoder(older, arrow(kind), newer).decode(pa.array([out.getvalue()], pa.binary()))
    assert (values.to_pylist(), reasons) == ([{"number": 7, "added": "none"}], {})


def test_variants():
    values, reasons = VariantDecoder().decode(pa.array([b'{"a": [1, null]}', b"{", b"\xff", b"7"], pa.binary()))
    assert list(reasons) == [1, 2]
    read = [VariantUtils.to_json(row["value"], row["metadata"]) for row in values.to_pylist() if row is not None]
    assert read == ['{"a":[1,null]}', "7"]


def record(fields):
    return f'{{"type": "record", "name": "R", "namespace": "shop", "fields": [{fields}]}}'


def test_avro_names_are_found_by_their_full_name_too():
    inner = '{"type": "record", "name": "I", "fields": [{"name": "n", "type": "int"}]}'
    fields = f'{{"name": "a", "type": {inner}}}, {{"name": "b", "type": "I"}}, {{"name": "c", "type": "shop.I"}}'
    kind = "struct<`n`: int>"
    assert avro_struct_ddl(record(fields)) == f"struct<`a`: {kind}, `b`: {kind}, `c`: {kind}>"


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "not valid JSON"),
        ('"long"', "must describe a record"),
        ('{"type": "record", "name": "R", "fields": []}', "the record of value has no fields"),
        (record('{"name": "x", "type": ["int", "string"]}'), "union"),
        (record('{"name": "x", "type": "R"}'), "recursive"),
        (record('{"name": "x", "type": "null"}'), "value.x is always null"),
        (record('{"name": "x", "type": ["null"]}'), "value.x is always null"),
        (record('{"name": "x", "type": "int"}, {"name": "x", "type": "int"}'), "two fields of one name"),
        (record('{"name": "x", "type": {"type": "record", "name": "I", "fields": []}}'), "value.x has no fields"),
        (record('{"name": "x", "type": {"type": "bytes", "logicalType": "decimal"}}'), "with no digits"),
        (record('{"name": "x", "type": {"type": "bytes", "logicalType": "decimal", "precision": 39}}'), "39 digits"),
    ],
)
def test_avro_schemas_that_spark_has_no_type_for(schema, reason):
    with pytest.raises(ConfigError, match=reason):
        avro_struct_ddl(schema)


def test_avro_values_that_the_asked_for_type_does_not_hold():
    """One such record is a bad row, and none of the others with it."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "long"]}]}
    payloads = []
    for value in (1, 1 << 40, None, 2):
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, {"a": value})
        payloads.append(stream.getvalue())
    kind = pa.struct([pa.field("a", pa.int32(), nullable=False)])
    values, reasons = AvroDecoder(json.dumps(schema), kind).decode(pa.array(payloads, pa.binary()))
    assert values.to_pylist() == [{"a": 1}, None, None, {"a": 2}]
    assert "a is no int32" in reasons[1]
    assert "a is null" in reasons[2]


@pytest.mark.parametrize("wrap", [lambda kind: kind, t.ArrayType, lambda kind: t.MapType(t.StringType(), kind)])
def test_a_variant_inside_of_the_value_is_refused(wrap):
    options = SourceOptions.of({"stream": "S", "payloadFormat": "json"})
    with pytest.raises(ConfigError, match="a VARIANT inside of it can't be read"):
        make_decoder(options, struct(a=wrap(t.VariantType())))
