"""Acknowledgements of published messages."""

from __future__ import annotations

import pytest

from jetlake.errors import DecodeError, WrongLastSequenceError, api_error
from jetlake.model.encoding.codec import encode
from jetlake.model.publish import DUPLICATE_SUFFIX, PubAck, decode_pub_ack, encode_pub_ack_error, pub_ack_prefix


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"stream":"S","seq":1}', PubAck(stream="S", seq=1)),
        (b'{"stream":"S","domain":"hub","seq":1}', PubAck(stream="S", domain="hub", seq=1)),
        (b'{"stream":"A","seq":1,"duplicate": true}', PubAck(stream="A", seq=1, duplicate=True)),
        (b'{"stream":"A","seq":1,"val":"5"}', PubAck(stream="A", seq=1, val="5")),
        (b'{"stream":"A","seq":9,"batch":"id","count":3}', PubAck(stream="A", seq=9, batch="id", count=3)),
    ],
)
def test_what_a_client_reads(data: bytes, expected: PubAck) -> None:
    assert decode_pub_ack(data) == expected
    assert encode(expected) == data.replace(b": ", b":")


def test_what_a_server_writes() -> None:
    assert pub_ack_prefix("S") + b"%d}" % 7 == b'{"stream":"S","seq":7}'
    assert pub_ack_prefix("S", "hub") + b"%d}" % 7 == b'{"stream":"S","domain":"hub","seq":7}'
    assert pub_ack_prefix("A") + b"1" + DUPLICATE_SUFFIX == b'{"stream":"A","seq":1,"duplicate": true}'


def test_a_refusal() -> None:
    data = encode_pub_ack_error("A", api_error(10071, seq=5))
    assert data == (
        b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 5"},"stream":"A","seq":0}'
    )
    with pytest.raises(WrongLastSequenceError) as caught:
        decode_pub_ack(data)
    assert caught.value.description == "wrong last sequence: 5"


@pytest.mark.parametrize("data", [b"", b"hello", b"{}", b'{"ok":true}', b'{"stream":"S","seq":"1"}', b"[1]"])
def test_answers_of_somebody_else(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_pub_ack(data)
