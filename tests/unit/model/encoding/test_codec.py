"""The codec: what is left out, what is always there, and what bad input says."""

from __future__ import annotations

import pytest

from jetlake.errors import DecodeError
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding import codec
from jetlake.model.enums import AckPolicy, DeliverPolicy, PersistMode, RetentionPolicy
from jetlake.model.requests import ConsumerCreateRequest, PullRequest, StreamCreateRequest
from jetlake.model.stream import ConsumerLimits, StreamConfig


def test_defaults_are_left_out_but_for_those_that_a_server_always_writes() -> None:
    assert codec.encode(StreamConfig(name="S")) == (
        b'{"name":"S","retention":"limits","max_consumers":0,"max_msgs":0,"max_bytes":0,"max_age":0,'
        b'"max_msgs_per_subject":0,"discard":"old","storage":"file","num_replicas":0,"compression":"none",'
        b'"allow_direct":false,"mirror_direct":false,"sealed":false,"deny_delete":false,"deny_purge":false,'
        b'"allow_rollup_hdrs":false,"consumer_limits":{},"allow_msg_ttl":false}'
    )
    assert codec.encode(ConsumerConfig()) == (
        b'{"deliver_policy":"all","ack_policy":"none","replay_policy":"instant","num_replicas":0}'
    )
    assert codec.encode(PullRequest(batch=5)) == b'{"batch":5}'


@pytest.mark.parametrize(
    ("escaped", "read"),
    [
        (rb"\ud800", "\ufffd"),
        (rb"x\uDC00y", "x\ufffdy"),
        (rb"\ud800\u0041", "\ufffdA"),
        (rb"\ud800\ud83d\ude00", "\ufffd\U0001f600"),
        (rb"\ud83d\ude00\n", "\U0001f600\n"),
        (rb"\\ud800\udc00", "\\ud800\ufffd"),
    ],
)
def test_half_a_surrogate_pair_is_replaced(escaped: bytes, read: str) -> None:
    body = b'{"name":"S","description":"%b"}' % escaped
    assert codec.decode(StreamCreateRequest, body).description == read
    assert codec.decode_strict(StreamCreateRequest, body).description == read


@pytest.mark.parametrize(
    ("body", "reason"), [(rb'{"name":"\ud800', "truncated"), (rb'{"name":"\ud8zz"}', "malformed|truncated")]
)
def test_a_surrogate_explains_no_other_damage(body: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        codec.decode(StreamCreateRequest, body)


def test_unknown_fields_are_skipped() -> None:
    assert codec.decode(PullRequest, b'{"batch":5,"bogus":{"deep":[1]}}') == PullRequest(batch=5)


@pytest.mark.parametrize(
    ("kind", "data", "name"),
    [
        (StreamCreateRequest, b'{"name":"S","bogus":1}', "bogus"),
        (StreamCreateRequest, b'{"name":"S","consumer_limits":{"bogus":1}}', "bogus"),
        (StreamCreateRequest, b'{"name":"S","mirror":{"name":"M","external":{"apix":""}}}', "apix"),
        (StreamCreateRequest, b'{"name":"S","sources":[{"name":"A"},{"nome":"B"}]}', "nome"),
        (StreamCreateRequest, b'{"first":1,"second":2}', "first"),
        (ConsumerCreateRequest, b'{"stream_name":"S","config":{"ack":"x"}}', "ack"),
        (ConsumerCreateRequest, b'{"stream_name":"S","bogus":null}', "bogus"),
    ],
)
def test_strict_reading_names_the_unknown_field_as_the_server_does(kind: type, data: bytes, name: str) -> None:
    with pytest.raises(DecodeError) as caught:
        codec.decode_strict(kind, data)
    assert str(caught.value) == f'json: unknown field "{name}"'


def test_strict_reading_takes_all_known_fields_and_any_metadata() -> None:
    data = b'{"name":"S","metadata":{"anything":"goes"},"consumer_limits":{"max_ack_pending":5},"pedantic":true}'
    request = codec.decode_strict(StreamCreateRequest, data)
    assert request.pedantic
    assert request.config == StreamConfig(
        name="S", metadata={"anything": "goes"}, consumer_limits=ConsumerLimits(max_ack_pending=5)
    )
    assert StreamCreateRequest.from_config(request.config, pedantic=True) == request


@pytest.mark.parametrize("read", [codec.decode, codec.decode_strict])
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated"),
        (b"nope", "malformed"),
        (b'{"name":', "truncated"),
        (b'{"name":"S"} x', "trailing"),
        (b"[]", "Expected `object`, got `array`"),
        (b"null", "Expected `object`, got `null`"),
        (b'{"max_msgs":"5"}', "`$.max_msgs`"),
        (b'{"max_msgs":1.5}', "`$.max_msgs`"),
        (b'{"max_msgs":9223372036854775808}', "`$.max_msgs`"),
        (b'{"first_seq":-1}', "`$.first_seq`"),
        (b'{"retention":"never"}', "Invalid enum value 'never' - at `$.retention`"),
        (b'{"subjects":"s"}', "`$.subjects`"),
        (b'{"subjects":[null]}', "`$.subjects[0]`"),
        (b'{"mirror":{"name":"M","opt_start_time":"yesterday"}}', "opt_start_time"),
        (b'{"name":"\xff"}', "utf-8"),
        (b'{"x":' * 100_000 + b"1" + b"}" * 100_000, "exceeded max depth"),
        (b"[" * 100_000, ""),
    ],
)
def test_bad_input_says_what_is_wrong(read, data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError) as caught:
        read(StreamConfig, data)
    assert reason.lower() in str(caught.value).lower()


def test_input_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "INPUT_BYTES_MAX", 20)
    for read in (codec.decode, codec.decode_strict):
        assert read(StreamConfig, b'{"name":"S"}').name == "S"
        with pytest.raises(DecodeError, match="21 bytes are more than the 20"):
            read(StreamConfig, b'{"name":"SSSSSSSSSS"}')


def test_null_means_not_there() -> None:
    data = b'{"name":"S","max_age":null,"subjects":null,"metadata":null,"mirror":null,"consumer_limits":null}'
    assert codec.decode(StreamConfig, data) == codec.decode_strict(StreamConfig, data) == StreamConfig(name="S")


def test_words_of_enums_that_mean_a_default() -> None:
    assert codec.decode(ConsumerConfig, b'{"deliver_policy":"undefined"}').deliver_policy is DeliverPolicy.ALL
    assert codec.decode(StreamConfig, b'{"persist_mode":""}').persist_mode is PersistMode.DEFAULT
    assert codec.decode(StreamConfig, b'{"retention":"workqueue"}').retention is RetentionPolicy.WORKQUEUE
    assert codec.decode(ConsumerConfig, b'{"ack_policy":"flow_control"}').ack_policy is AckPolicy.FLOW_CONTROL
