"""Rows as payloads: JSON with VARIANT columns, and Avro records."""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.variant_utils import VariantUtils

from jetlake.client.tables.protobuf import ProtobufDecoder, protobuf_type
from jetlake.errors import ConfigError
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.sink.row_encoder import make_row_encoder
from tests.unit.client.tables.test_protobuf import descriptor_set

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
    }
)


def struct(**fields):
    return t.StructType([t.StructField(name, kind) for name, kind in fields.items()])


def encoder(options, **fields):
    return make_row_encoder(struct(**fields), SinkOptions.of(options))


def variant(text):
    value, metadata = VariantUtils.parse_json(text)
    return {"value": value, "metadata": metadata}


def test_a_variant_is_the_json_that_it_stands_for():
    encode = encoder({"payloadFormat": "json"}, id=t.LongType(), value=t.VariantType(), other=t.VariantType())
    text = '{"a":[1,2.5,"x",null],"b":{"c":true}}'
    assert encode({"id": 1, "value": variant(text), "other": None}) == b'{"id":1,"value":%b}' % text.encode()


def test_avro_records():
    encode = encoder({"payloadFormat": "avro", "avroSchema": AVRO}, subject=t.StringType(), id=t.LongType())
    read = fastavro.schemaless_reader(io.BytesIO(encode({"id": 7})), json.loads(AVRO), None)
    assert read == {"id": 7, "note": None}
    with pytest.raises(ValueError, match="does not fit option avroSchema"):
        encode({"id": "seven"})


def test_protobuf_messages():
    """What is written is what the source reads, in every type that a column can have."""
    schema = base64.b64encode(descriptor_set()).decode()
    options = {"payloadFormat": "protobuf", "protobufSchema": schema, "protobufMessage": "shop.Order"}
    kind = protobuf_type(schema, "shop.Order")
    encode = make_row_encoder(from_arrow_schema(pa.schema(list(kind))), SinkOptions.of(options))
    row = {
        "id": decimal.Decimal(1 << 63),
        "price": 1.5,
        "raw": b"\x00",
        "kind": "OLD",
        "tags": ["a", "b"],
        "customer": {"name": "Ann"},
        "at": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        "notes": {"x": 1},
    }
    values, reasons = ProtobufDecoder(schema, kind, "shop.Order").decode(pa.array([encode(row)]))
    assert not reasons
    assert values.to_pylist() == [{**row, "notes": [("x", 1)]}]
    assert encode(dict.fromkeys(row)) == b""
    for misfit in ({"id": "seven"}, {"kind": "NEVER"}, {"id": decimal.Decimal(-1)}, {"customer": {"age": 1}}):
        with pytest.raises(ValueError, match=r"does not fit shop\.Order"):
            encode(misfit)
    with pytest.raises(ConfigError, match="column more would be lost"):
        encoder(options, more=t.LongType())


@pytest.mark.parametrize(
    ("options", "fields", "reason"),
    [
        ({"payloadFormat": "avro"}, {"id": t.LongType()}, "avroSchema is missing"),
        ({"payloadFormat": "avro", "avroSchema": AVRO}, {"more": t.LongType()}, "column more would be lost"),
        ({"payloadFormat": "avro", "avroSchema": AVRO}, {"id": t.VariantType()}, "Avro has no type"),
        ({"payloadFormat": "avro", "avroSchema": '"long"'}, {"id": t.LongType()}, "must describe a record"),
        ({"payloadFormat": "avro", "avroSchema": '{"type": "x"}'}, {"id": t.LongType()}, "not a valid Avro schema"),
        ({"payloadFormat": "json"}, {"list": t.ArrayType(t.VariantType())}, "a VARIANT inside"),
    ],
)
def test_what_cannot_be_written_is_refused(options, fields, reason):
    with pytest.raises(ConfigError, match=reason):
        encoder(options, **fields)
