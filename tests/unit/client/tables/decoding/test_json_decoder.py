"""JSON payloads whose type is found in them, and types that only Arrow has."""

import pyarrow as pa
import pytest

from jetlake.client.tables.decoding.json_decoder import JsonDecoder, infer_json_type
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
