from __future__ import annotations

import base64
import datetime
import decimal

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from jetlake.client.tables.protobuf import ProtobufDecoder, message_class, protobuf_type
from jetlake.errors import ConfigError

F = descriptor_pb2.FieldDescriptorProto


def descriptor_set(*, recursive=False):
    """What `protoc --include_imports --descriptor_set_out` writes for the messages `shop.Customer` and `shop.Order`."""
    files = descriptor_pb2.FileDescriptorSet()
    files.file.add().ParseFromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    file = files.file.add(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NEW", number=0)
    kind.value.add(name="OLD", number=1)
    customer = file.message_type.add(name="Customer")
    customer.field.add(name="name", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="NotesEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    for number, (name, type_, label, of) in enumerate(
        [
            ("id", F.TYPE_UINT64, F.LABEL_OPTIONAL, ""),
            ("price", F.TYPE_DOUBLE, F.LABEL_OPTIONAL, ""),
            ("raw", F.TYPE_BYTES, F.LABEL_OPTIONAL, ""),
            ("kind", F.TYPE_ENUM, F.LABEL_OPTIONAL, ".shop.Kind"),
            ("tags", F.TYPE_STRING, F.LABEL_REPEATED, ""),
            ("customer", F.TYPE_MESSAGE, F.LABEL_OPTIONAL, ".shop.Customer"),
            ("at", F.TYPE_MESSAGE, F.LABEL_OPTIONAL, ".google.protobuf.Timestamp"),
            ("notes", F.TYPE_MESSAGE, F.LABEL_REPEATED, ".shop.Order.NotesEntry"),
            *([("inner", F.TYPE_MESSAGE, F.LABEL_OPTIONAL, ".shop.Order")] if recursive else []),
        ],
        1,
    ):
        order.field.add(name=name, number=number, type=type_, label=label, type_name=of or None)
    return files.SerializeToString()


def test_messages_become_columns():
    schema = descriptor_set()
    kind = protobuf_type(schema)
    assert kind == pa.struct(
        [
            ("id", pa.decimal128(20, 0)),
            ("price", pa.float64()),
            ("raw", pa.binary()),
            ("kind", pa.string()),
            ("tags", pa.list_(pa.string())),
            ("customer", pa.struct([("name", pa.string())])),
            ("at", pa.timestamp("us", tz="UTC")),
            ("notes", pa.map_(pa.string(), pa.int32())),
        ]
    )
    order = message_class(schema, "shop.Order")(id=2**64 - 1, price=1.5, raw=b"\xff", kind=1, tags=["a", "b"])
    order.customer.name = "Ada"
    order.at.FromDatetime(datetime.datetime(2026, 11, 18))
    order.notes["x"] = 7
    payloads = pa.array([order.SerializeToString(), b"", b"\xff\xff broken"], pa.binary())
    values, reasons = ProtobufDecoder(base64.b64encode(schema).decode(), kind).decode(payloads)
    assert values.to_pylist() == [
        {
            "id": decimal.Decimal(2**64 - 1),
            "price": 1.5,
            "raw": b"\xff",
            "kind": "OLD",
            "tags": ["a", "b"],
            "customer": {"name": "Ada"},
            "at": datetime.datetime(2026, 11, 18, tzinfo=datetime.UTC),
            "notes": [("x", 7)],
        },
        {
            "id": 0,
            "price": 0.0,
            "raw": b"",
            "kind": "NEW",
            "tags": [],
            "customer": None,
            "at": None,
            "notes": [],
        },
        None,
    ]
    assert list(reasons) == [2]


@pytest.mark.parametrize(
    ("schema", "name", "complaint"),
    [
        (b"\xff", "", "not a descriptor set"),
        ("not base64!", "", "not a descriptor set"),
        (b"", "", "not a descriptor set"),
        (descriptor_set(), "shop.Nothing", "no message shop.Nothing, but .*shop.Order"),
        (descriptor_set(recursive=True), "", "holds itself"),
    ],
)
def test_what_is_no_schema(schema, name, complaint):
    with pytest.raises(ConfigError, match=complaint):
        protobuf_type(schema, name)


def test_a_text_of_proto2_that_is_no_text_makes_its_row_a_bad_one():
    files = descriptor_pb2.FileDescriptorSet()
    note = files.file.add(name="note.proto", syntax="proto2").message_type.add(name="Note")
    note.field.add(name="text", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    schema = files.SerializeToString()
    decoder = ProtobufDecoder(schema, protobuf_type(schema))
    values, reasons = decoder.decode(pa.array([b"\x0a\x01\xff", b"\x0a\x01x"], pa.binary()))
    assert values.to_pylist() == [None, {"text": "x"}]
    assert reasons == {0: "text text is not UTF-8"}
