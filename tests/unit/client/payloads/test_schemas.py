"""Schemas of payloads: what fits them, which may follow which, and which one a subject has."""

from __future__ import annotations

import io
import json

import fastavro
import pytest
from google.protobuf import descriptor_pb2

from jetlake.client.payloads.avro import avro_breach
from jetlake.client.payloads.json_schema import json_breach
from jetlake.client.payloads.protobuf import message_class, protobuf_breach
from jetlake.client.payloads.schema import PayloadSchema, SchemaSet, schema_key, schema_text, shown_value
from jetlake.client.tables.stored_schemas import json_schema_type
from jetlake.errors import ConfigError, SchemaError, SchemaMismatchError

F = descriptor_pb2.FieldDescriptorProto
ORDER = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


def entry(subject="orders.>", schema=None, format="json", stream="ORDERS", **more):
    text = schema if isinstance(schema, str) else json.dumps(schema or ORDER)
    return PayloadSchema(stream=stream, subject=subject, version=1, format=format, schema=text, **more)


def changed(**more):
    return {**ORDER, **more}


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (ORDER, ""),
        (changed(title="Order"), ""),
        (changed(properties={"id": {"type": "number"}}), ""),
        (changed(properties={"id": {"type": ["integer", "null"]}}), ""),
        (changed(properties={"id": {"type": "integer"}, "note": {"type": "string"}}), ""),
        (changed(properties={}), ""),
        (changed(required=[]), ""),
        (True, ""),
        (False, "$ takes nothing"),
        (changed(properties={"id": {"type": "string"}}), "$.id was integer and is string"),
        (changed(required=["id", "note"]), "$.note is required"),
        (changed(properties={"id": {"type": "integer", "minimum": 1}}), "$.id has a minimum of 1"),
        (changed(properties={"id": {"enum": [1, 2]}}), "$.id takes listed values only"),
        (changed(additionalProperties=False), "$.* takes nothing"),
        (changed(patternProperties={"x": {}}), "$ has another patternProperties"),
        (changed(properties={"id": {"type": "integer", "multipleOf": 2}}), "$.id has another multipleOf"),
    ],
)
def test_json_schemas_that_may_follow(new, reason):
    assert json_breach(ORDER, new) == reason


def test_json_schemas_by_reference():
    def tree(kind):
        node = {"type": "object", "properties": {"value": {"type": kind}, "next": {"$ref": "#/$defs/node"}}}
        return {"$defs": {"node": node}, "$ref": "#/$defs/node"}

    assert json_breach(tree("integer"), tree("number")) == ""
    assert json_breach(tree("number"), tree("integer")) == "$.value was number and is integer"
    with pytest.raises(ConfigError, match="leads to no part"):
        json_breach({}, {"$ref": "https://example.com/order"})


def record(*fields):
    return json.dumps({"type": "record", "name": "Order", "fields": list(fields)})


ID = {"name": "id", "type": "int"}


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (record({"name": "id", "type": "long"}), ""),
        (record({"name": "id", "type": ["null", "int"]}), ""),
        (record(ID, {"name": "note", "type": "string", "default": ""}), ""),
        (record({"name": "number", "aliases": ["id"], "type": "int"}), ""),
        (record(), ""),
        (record(ID, {"name": "note", "type": "string"}), "value.note is new and has no default"),
        (record({"name": "id", "type": "string"}), "value.id was int and is string"),
        (record({"name": "id", "type": {"type": "int", "logicalType": "date"}}), "value.id was int and is date"),
    ],
)
def test_avro_schemas_that_may_follow(new, reason):
    assert avro_breach(record(ID), new) == reason


def test_avro_resolution_is_the_one_of_fastavro():
    """What is called compatible is read by the library, and what is not, is not."""
    types = ["int", "long", "double", "string", "bytes", ["null", "int"], {"type": "array", "items": "int"}]
    samples = [1, 2, 1.5, "a", b"a", 3, [1]]
    for kind, sample in zip(types, samples, strict=True):
        for other in types:
            old, new = record({"name": "id", "type": kind}), record({"name": "id", "type": other})
            stream = io.BytesIO()
            fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(old)), {"id": sample})
            stream.seek(0)
            try:
                fastavro.schemaless_reader(stream, json.loads(old), json.loads(new))
                is_read = True
            except Exception:
                is_read = False
            # A union is judged by all of its branches, of which the sample is one.
            if not avro_breach(old, new):
                assert is_read, (kind, other)
            elif not isinstance(kind, list):
                assert not is_read, (kind, other)


def message(*fields):
    files = descriptor_pb2.FileDescriptorSet()
    order = files.file.add(name="shop.proto", package="shop", syntax="proto3").message_type.add(name="Order")
    for name, number, kind in fields:
        order.field.add(name=name, number=number, type=kind, label=F.LABEL_OPTIONAL)
    return files.SerializeToString()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([("id", 1, F.TYPE_INT64)], ""),
        ([("id", 1, F.TYPE_INT32), ("note", 2, F.TYPE_STRING)], ""),
        ([("note", 2, F.TYPE_STRING)], ""),
        ([("id", 1, F.TYPE_STRING)], "value.id has another type"),
        ([("number", 1, F.TYPE_INT32)], "value.number has the number 1 of id"),
        ([("id", 2, F.TYPE_INT32)], "value.id had the number 1 and has 2"),
    ],
)
def test_protobuf_messages_that_may_follow(fields, reason):
    old, new = message_class(message(("id", 1, F.TYPE_INT32))), message_class(message(*fields))
    assert protobuf_breach(old, new) == reason


def test_the_rule_of_the_version_before_counts():
    wider = entry(schema=changed(properties={"id": {"type": "number"}}))
    for rule, refused in (("backward", False), ("forward", True), ("full", True), ("none", False)):
        before = entry(compatibility=rule)
        if refused:
            with pytest.raises(SchemaError, match=f"compatibility is {rule}: read by the version before"):
                before.check_successor(wider)
        else:
            before.check_successor(wider)
    with pytest.raises(SchemaError, match="does not allow avro"):
        entry().check_successor(entry(schema=record(ID), format="avro"))
    entry(compatibility="none").check_successor(entry(schema=record(ID), format="avro"))


def test_payloads_are_checked_and_shown():
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(record(ID))), {"id": 7})
    schema = schema_text("protobuf", message(("id", 1, F.TYPE_INT32)))
    for one, good, bad in (
        (entry(), b'{"id": 7}', b'{"id": "7"}'),
        (entry(), b'{"id": 7}', b"\xff"),
        (entry(), b'{"id": 7}', b"[" * 5000),
        (entry(schema=record(ID), format="avro"), stream.getvalue(), stream.getvalue() + b"more"),
        (entry(schema=record(ID), format="avro"), stream.getvalue(), b""),
        (entry(schema=schema, format="protobuf"), b"\x08\x07", b"\x08"),
        (entry(schema=schema, format="protobuf"), b"\x08\x07", b"\x10\x07"),
    ):
        known = SchemaSet([one])
        known.check("orders.new", good)
        assert json.loads(shown_value(known.read(one, good))) == {"id": 7}
        with pytest.raises(SchemaMismatchError, match="version 1 of its schema") as refused:
            known.check("orders.new", bad)
        assert (refused.value.subject, refused.value.version) == ("orders.new", 1)
    with pytest.raises(SchemaError, match="has no schema"):
        known.check("other", b"")


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (entry(schema="{"), "not valid JSON"),
        (entry(schema="7"), "an object"),
        (entry(schema={"type": "order"}), "not valid at"),
        (entry(schema="{}", format="avro"), "not a valid Avro schema"),
        (entry(schema="AAAA", format="protobuf"), "not a descriptor set"),
        (entry(schema="{}", format="xml"), "json, avro, protobuf"),
        (entry(subject="a..b"), "not a valid subject"),
    ],
)
def test_broken_schemas_are_refused(one, reason):
    with pytest.raises(ConfigError, match=reason):
        one.check_schema()


def test_the_most_specific_pattern_counts():
    known = SchemaSet([entry(">"), entry("orders.>"), entry("orders.*"), entry("orders.new"), entry("a", stream="B")])
    for subject, found in (
        ("orders.new", "orders.new"),
        ("orders.old", "orders.*"),
        ("orders.a.b", "orders.>"),
        ("x", ">"),
    ):
        assert known.find(subject).subject == found
    assert known.find("orders.>").subject == "orders.>"
    assert known.find("a", "ORDERS").subject == ">"
    assert SchemaSet().find("a") is None


def test_keys_are_keys_of_buckets():
    assert schema_key("ORDERS", "orders.>") == "ORDERS.orders.=rest"
    assert schema_key("ORDERS", "orders.*.new") == "ORDERS.orders.=any.new"
    assert schema_key("ORDERS", "o=r:ä") == "ORDERS.o=3Dr=3A=C3=A4"


def test_json_schemas_become_columns():
    schema = {
        "$defs": {"name": {"type": "string"}},
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "price": {"type": ["number", "null"]},
            "at": {"type": "string", "format": "date-time"},
            "day": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
            "raw": {"type": "string", "contentEncoding": "base64"},
            "kind": {"enum": ["a", "b"]},
            "names": {"type": "array", "items": {"$ref": "#/$defs/name"}},
            "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
            "inner": {"type": "object", "properties": {"is": {"type": "boolean"}}},
        },
    }
    assert str(json_schema_type(json.dumps(schema))) == (
        "struct<id: int64, price: double, at: timestamp[us, tz=UTC], day: date32[day], raw: binary, kind: string, "
        "names: list<item: string>, counts: map<string, int64>, inner: struct<is: bool>>"
    )


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "string"}, "must describe an object"),
        ({"type": "object"}, "has no properties"),
        ({"type": "object", "properties": {"a": {}}}, "value.a has no type"),
        ({"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}, "value.a has no type"),
        ({"type": "object", "properties": {"a": True}}, "value.a may be anything"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, "value.a holds itself"),
    ],
)
def test_json_schemas_that_are_no_columns(schema, reason):
    with pytest.raises(ConfigError, match=reason):
        json_schema_type(json.dumps(schema))
