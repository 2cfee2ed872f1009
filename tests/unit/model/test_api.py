"""The table of API subjects, and refusals."""

from __future__ import annotations

import json

import pytest

from jetlake.errors import DecodeError, StreamNotFoundError, api_error
from jetlake.model import api, replies, requests
from jetlake.model.api import Body
from jetlake.model.encoding import codec


@pytest.mark.parametrize(
    ("subject", "verb", "stream", "consumer", "rest"),
    [
        ("INFO", "INFO", "", "", ""),
        ("STREAM.NAMES", "STREAM.NAMES", "", "", ""),
        ("STREAM.CREATE.S", "STREAM.CREATE", "S", "", ""),
        ("STREAM.MSG.GET.S", "STREAM.MSG.GET", "S", "", ""),
        ("STREAM.LEADER.STEPDOWN.S", "STREAM.LEADER.STEPDOWN", "S", "", ""),
        ("CONSUMER.CREATE.S", "CONSUMER.CREATE", "S", "", ""),
        ("CONSUMER.CREATE.S.c", "CONSUMER.CREATE", "S", "c", ""),
        ("CONSUMER.CREATE.S.c.orders.*.>", "CONSUMER.CREATE", "S", "c", "orders.*.>"),
        ("CONSUMER.DURABLE.CREATE.S.c", "CONSUMER.DURABLE.CREATE", "S", "c", ""),
        ("CONSUMER.MSG.NEXT.S.c", "CONSUMER.MSG.NEXT", "S", "c", ""),
        ("CONSUMER.UNPIN.S.c", "CONSUMER.UNPIN", "S", "c", ""),
        ("CONSUMER.UNPIN.S.c.g", "CONSUMER.UNPIN", "S", "c", "g"),
        ("DIRECT.GET.S", "DIRECT.GET", "S", "", ""),
        ("DIRECT.GET.S.$KV.b.k", "DIRECT.GET", "S", "", "$KV.b.k"),
        ("STREAM.INFO.NAMES", "STREAM.INFO", "NAMES", "", ""),
    ],
)
def test_a_subject_is_taken_apart_in_any_domain(subject: str, verb: str, stream: str, consumer: str, rest: str) -> None:
    for prefix, domain in (("$JS.API.", ""), ("$JS.hub.API.", "hub")):
        found = api.match((prefix + subject).encode())
        assert found is not None
        assert found == api.match(prefix + subject)
        assert found[1:] == (stream, consumer, rest, domain)
        assert found.route.verb == verb


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "$JS",
        "$JS.API",
        "$JS.API.",
        "$JS.API.STREAM",
        "$JS.API.STREAM.BOGUS.S",
        "$JS.API.STREAM.INFO",
        "$JS.API.STREAM.INFO.S.x",
        "$JS.API.STREAM.NAMES.S",
        "$JS.API.CONSUMER.INFO.S",
        "$JS.API.CONSUMER.DURABLE.CREATE.S",
        "$JS.API.CONSUMER.DURABLE.CREATE.S.c.x",
        "$JS.API.CONSUMER.CREATE.S..x",
        "$JS.hub.STREAM.INFO.S",
        "$JS.a.b.API.INFO",
        "$KV.API.INFO",
        "$JS.API.info",
    ],
)
def test_other_subjects_are_not_in_the_table(subject: str) -> None:
    assert api.match(subject) is None


def test_any_bytes_at_all_can_be_asked() -> None:
    assert api.match(b"$JS.API.STREAM.INFO.\xff") is not None
    assert api.match(b"\xff") is None


def test_subjects_are_made_from_the_table() -> None:
    assert api.ROUTES["STREAM.INFO"].subject("S") == "$JS.API.STREAM.INFO.S"
    assert api.ROUTES["CONSUMER.CREATE"].subject("S", "c", "a.b") == "$JS.API.CONSUMER.CREATE.S.c.a.b"
    assert api.ROUTES["INFO"].subject(prefix=api.api_prefix("hub")) == "$JS.hub.API.INFO"
    assert api.api_prefix() == api.API_PREFIX


def test_every_row_can_be_found_by_its_own_subject() -> None:
    for route in api.ROUTES.values():
        found = api.match(route.subject(*route.names))
        assert found is not None
        assert found.route is route


def test_strictness_is_as_the_server_has_it() -> None:
    lenient = {verb for verb, route in api.ROUTES.items() if route.body is Body.LENIENT}
    assert lenient == {"CONSUMER.MSG.NEXT", "CONSUMER.RESET", "CONSUMER.UNPIN", "DIRECT.GET"}
    empty = {verb for verb, route in api.ROUTES.items() if route.body is Body.EMPTY}
    assert empty - {"CONSUMER.PENDING"} == {"STREAM.DELETE", "CONSUMER.INFO", "CONSUMER.DELETE"}
    assert api.ROUTES["STREAM.CREATE"].request is requests.StreamCreateRequest


def test_a_refusal_raises_its_class_and_keeps_its_shape() -> None:
    data = api.encode_error(replies.StreamInfoReply, api_error(10059))
    assert json.loads(data) == {
        "type": "io.nats.jetstream.api.v1.stream_info_response",
        "error": {"code": 404, "err_code": 10059, "description": "stream not found"},
        "total": 0,
        "offset": 0,
        "limit": 0,
    }
    with pytest.raises(StreamNotFoundError):
        api.decode_reply(replies.StreamInfoReply, data)


def test_a_reply_of_another_type_is_an_error() -> None:
    data = b'{"type":"io.nats.jetstream.api.v1.stream_delete_response","success":true}'
    assert api.decode_reply(replies.StreamDeleteReply, data).success
    with pytest.raises(DecodeError, match="type"):
        api.decode_reply(replies.ConsumerDeleteReply, data)


def test_an_info_becomes_a_reply() -> None:
    info = replies.StreamInfo(config=replies.StreamConfig(name="S"), created="2026-01-01T00:00:00Z")
    reply = replies.reply_of(replies.StreamCreateReply, info, did_create=True)
    assert reply.config == info.config
    assert reply.created == info.created
    assert reply.did_create


def test_requests_that_were_prepared_for_need_nothing_built_when_they_come() -> None:
    codec._struct_fields.cache_clear()
    for _ in api.prepare_requests():
        pass
    built = codec._struct_fields.cache_info().misses
    assert built > 20
    codec.decode_strict(
        requests.StreamCreateRequest, b'{"name":"S","sources":[{"name":"T","external":{"api":"x"}}],"placement":{}}'
    )
    codec.decode_strict(requests.ConsumerCreateRequest, b'{"stream_name":"S","config":{"name":"c","backoff":[1]}}')
    assert codec._struct_fields.cache_info().misses == built
