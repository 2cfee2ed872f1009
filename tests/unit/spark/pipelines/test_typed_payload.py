from __future__ import annotations

import base64

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from jetlake.errors import ConfigError
from jetlake.spark.pipelines.archive import Archive
from jetlake.spark.pipelines.typed_payload import TypedPayload, _filled, breach, check_names, typed_payload

AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'


def struct(**fields):
    found = StructType()
    for name, kind in fields.items():
        found = found.add(name, kind)
    return found


@pytest.mark.parametrize(
    ("known", "wanted", "reason"),
    [
        (struct(a=IntegerType()), struct(a=LongType(), b=StringType()), ""),
        (struct(a=FloatType()), struct(b=StringType(), a=DoubleType()), ""),
        (struct(a=struct(b=IntegerType())), struct(a=struct(b=LongType(), c=StringType())), ""),
        (struct(a=ArrayType(IntegerType())), struct(a=ArrayType(LongType())), ""),
        (struct(a=DecimalType(10, 2)), struct(a=DecimalType(12, 2)), ""),
        (struct(a=DecimalType(10, 2)), struct(a=DecimalType(12, 3)), "value.a was decimal(10,2) and is decimal(12,3)"),
        (struct(a=LongType()), struct(a=IntegerType()), "value.a was bigint and is int"),
        (struct(a=LongType()), struct(a=DoubleType()), "value.a was bigint and is double"),
        (struct(a=LongType(), b=StringType()), struct(a=LongType()), "value.b is missing"),
        (struct(a=struct(b=LongType())), struct(a=StringType()), "value.a was struct<b:bigint> and is string"),
        (
            struct(a=MapType(StringType(), struct(b=LongType()))),
            struct(a=MapType(StringType(), struct(b=StringType()))),
            "value.a{}.b was bigint and is string",
        ),
    ],
)
def test_how_a_schema_may_grow(known, wanted, reason):
    assert breach(known, wanted) == reason


def test_a_schema_is_typed_or_in_a_file(tmp_path):
    assert typed_payload("json", "id int").ddl == "id int"
    (tmp_path / "order.avsc").write_text(AVRO)
    assert typed_payload("avro", str(tmp_path / "order.avsc")).ddl == "`id`: bigint"
    assert typed_payload("avro", AVRO).source_options() == {
        "payloadFormat": "avro",
        "badRows": "column",
        "avroSchema": AVRO,
    }
    (tmp_path / "order.pb").write_bytes(b"\xff")
    payload = typed_payload("protobuf", str(tmp_path / "order.pb"), "shop.Order")
    assert (base64.b64decode(payload.schema), payload.message) == (b"\xff", "shop.Order")
    with pytest.raises(ConfigError, match="not a descriptor set"):
        _ = payload.ddl
    for given in (("json", "orders.ddl"), ("avro", "orders.avsc"), ("protobuf", "orders.pb")):
        with pytest.raises(ConfigError, match=f"schema file {given[1]} not found"):
            typed_payload(*given)
    for given in (("json", "id:int"), ("json", "bucket:orders.>"), ("avro", '"long"'), ("protobuf", "Q2c/PQ==")):
        assert typed_payload(*given).schema == given[1]
    for given, complaint in ((("avro", ""), "needs --schema"), (("xml", "x"), "not a payload format")):
        with pytest.raises(ConfigError, match=complaint):
            TypedPayload(*given)


def test_the_columns_of_a_typed_archive():
    typed = Archive("A", "/lake", payload=TypedPayload("json", "id int"))
    kept = Archive("A", "/lake", payload=TypedPayload("json", "id int", keep_raw=True))
    value = "value struct<id int>, bad_data binary, bad_reason string"
    assert typed.columns.endswith(f"headers map<string,array<string>>, {value}")
    assert kept.columns.endswith(f"data binary, {value}")
    for options in ({"catalog": "x"}, {"table": "a.b"}):
        with pytest.raises(ConfigError, match="--format iceberg"):
            Archive("A", "/lake", **options)


@pytest.mark.parametrize(
    ("found", "columns"),
    [
        (pa.struct([("a", pa.int64()), ("b", pa.struct([]))]), pa.struct([("a", pa.int64())])),
        (
            pa.struct([("a", pa.list_(pa.struct([]))), ("b", pa.struct([("c", pa.struct([])), ("d", pa.string())]))]),
            pa.struct([("b", pa.struct([("d", pa.string())]))]),
        ),
        (pa.struct([("a", pa.struct([]))]), None),
    ],
)
def test_objects_without_fields_are_no_columns(found, columns):
    assert _filled(found) == columns


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (pa.struct([("id", pa.int64()), ("ID", pa.int64())]), "the fields id and ID"),
        (pa.struct([("a", pa.list_(pa.struct([("", pa.int64())])))]), "a field without a name"),
    ],
)
def test_names_that_are_no_columns(found, reason):
    with pytest.raises(ConfigError, match=f"payloads have {reason}"):
        check_names(found, "payloads")
