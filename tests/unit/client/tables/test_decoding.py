"""JSON payloads whose type is found in them, and types that only Arrow has."""

import json

import pyarrow as pa
import pytest

from jetlake.client.tables.decoding import AvroDecoder, JsonDecoder, avro_type, infer_json_type
from jetlake.errors import ConfigError


def payloads(*texts):
    return pa.array([text.encode() for text in texts], pa.binary())


def test_a_type_that_holds_all():
    kind = infer_json_type(payloads('{"a": 1, "b": null}', '{"a": 1.5, "c": {"d": [null]}}', "no json", "[1]"))
    assert kind == pa.struct(
        [("a", pa.float64()), ("b", pa.string()), ("c", pa.struct([("d", pa.list_(pa.string()))]))]
    )
    values, reasons = JsonDecoder(kind).decode(payloads('{"a": 2, "c": {"d": ["x"]}}', "no json"))
    assert values.to_pylist() == [{"a": 2.0, "b": None, "c": {"d": ["x"]}}, None]
    assert list(reasons) == [1]


@pytest.mark.parametrize("texts", [(), ("5", "[1]"), ("nothing",), ("{}",), ('{"a": 1}', '{"a": "x"}')])
def test_no_type_in_common(texts):
    with pytest.raises(ConfigError, match="schema"):
        infer_json_type(payloads(*texts))


def test_types_that_only_arrow_has():
    lists = pa.large_list(pa.int8())
    kind = pa.struct([("u", pa.uint8()), ("t", pa.large_string()), ("l", lists), ("h", pa.time64("us"))])
    values, reasons = JsonDecoder(kind).decode(
        payloads('{"u": 255, "t": "x", "l": [1], "h": "01:02:03"}', '{"u": 256}', '{"u": -1}')
    )
    assert list(reasons) == [1, 2]
    assert values[0].as_py()["u"] == 255


def test_a_payload_that_is_nested_too_deeply_is_told():
    with pytest.raises(ConfigError, match="nested too deeply"):
        infer_json_type(payloads('{"a":' * 600 + "1" + "}" * 600))


def test_a_number_beyond_all_types_that_are_found():
    with pytest.raises(ConfigError, match="uint64 or double"):
        infer_json_type(payloads('{"a": 1}', '{"a": 9223372036854775808}'))


BEYOND = [
    (pa.timestamp("ns", "UTC"), '"0001-01-01T00:00:00Z"', '"2026-01-01T00:00:00Z"'),
    (pa.timestamp("ns", "UTC"), '"9999-12-31T00:00:00Z"', '"1677-09-21T00:12:43.145225Z"'),
    (pa.timestamp("ns"), '"2262-04-11T23:47:16.854776Z"', '"2262-04-11T23:47:16.854775Z"'),
    (pa.timestamp("us"), '"0001-01-01T00:00:00+14:00"', '"0001-01-01T00:00:00-14:00"'),
    (pa.timestamp("us", "UTC"), '"9999-12-31T23:59:59-10:00"', '"9999-12-31T23:59:59+10:00"'),
    (pa.decimal128(38, 2), '"NaN"', "1.5"),
    (pa.decimal128(38, 2), '"-Infinity"', "null"),
    (pa.uint64(), "18446744073709551616", "18446744073709551615"),
    (pa.list_(pa.uint64()), "[18446744073709551616]", "[18446744073709551615]"),
]


@pytest.mark.parametrize(("kind", "bad", "good"), BEYOND)
def test_a_value_beyond_its_type_makes_its_row_a_bad_one(kind, bad, good):
    values, reasons = JsonDecoder(pa.struct([("a", kind)])).decode(payloads(f'{{"a": {bad}}}', f'{{"a": {good}}}'))
    assert list(reasons) == [0]
    assert values.is_valid().to_pylist() == [False, True]
    assert values.field("a")[1].is_valid == (good != "null")
    values.validate(full=True)


def test_a_null_where_none_is_allowed_makes_the_row_a_bad_one():
    inner = pa.struct([pa.field("b", pa.int64(), nullable=False)])
    kind = pa.struct(
        [
            pa.field("s", inner),
            pa.field("a", pa.int64(), nullable=False),
            pa.field("l", pa.list_(pa.field("e", pa.int32(), nullable=False))),
        ]
    )
    good = payloads('{"a": 1}', '{"a": 2, "s": {"b": 3}, "l": [4]}')
    assert JsonDecoder(kind).decode(good)[1] == {}
    bad = payloads("{}", '{"a": null}', '{"a": 1, "s": {}}', '{"a": 1, "l": [null]}')
    values, reasons = JsonDecoder(kind).decode(bad)
    assert values.null_count == len(reasons) == 4
    assert "missing required field `a`" in reasons[0]


def test_a_number_that_would_become_infinite():
    values, reasons = JsonDecoder(pa.struct([("a", pa.float32())])).decode(payloads('{"a": 3.4e38}', '{"a": -3.5e38}'))
    assert values[0].as_py()["a"] > 3e38
    assert list(reasons) == [1]


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb"])
def test_names_that_json_would_escape_are_refused(name):
    with pytest.raises(ConfigError, match=r"fields of value\.s cannot be read"):
        JsonDecoder(pa.struct([("s", pa.struct([(name, pa.int64())]))]))


def test_what_is_wrong_with_a_record_of_avro():
    kind = {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}
    fields = [{"name": "a", "type": "double"}, {"name": "k", "type": ["null", kind]}]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    number = bytes(8)
    ends = [b"\x02", b"\x02\x08", b"\x08", b"\x00x", b"\x02\x02"]
    bodies = [b"", *(number + end for end in ends)]
    values, reasons = AvroDecoder(schema, avro_type(schema)).decode(pa.array(bodies, pa.binary()))
    assert values.to_pylist() == [None] * 5 + [{"a": 0.0, "k": "OLD"}]
    none = "the payload names a symbol of an enum, or a branch of a union, that is none"
    short = "the payload ends before the record: it has {} bytes"
    assert list(reasons.values()) == [short.format(0), short.format(9), none, none, "1 bytes follow the record"]
