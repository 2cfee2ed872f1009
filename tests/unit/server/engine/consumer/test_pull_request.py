"""What the body of a pull request may say."""

import pytest

from jetlake.errors import ConfigError
from jetlake.server.engine.consumer.pull_queue import parse_pull_request

INBOX = b"_INBOX.1"


@pytest.mark.parametrize(
    ("body", "batch"),
    [(b"", 1), (b"  ", 1), (b"7", 7), (b" 12 ", 12), (b"+3", 3), (b"0", 0), (b"-4", -4), (b"hello", 1), (b"9" * 30, 1)],
)
def test_a_body_without_json_is_a_batch(body, batch):
    request = parse_pull_request(INBOX, body)
    assert (request.batch, request.reply) == (batch, INBOX)


def test_every_field_is_read():
    request = parse_pull_request(
        INBOX,
        b'{"batch":5,"expires":9000000000,"no_wait":true,"max_bytes":1024,"idle_heartbeat":1000000000,"group":"g",'
        b'"min_pending":3,"min_ack_pending":4,"id":"pin","priority":2,"whatever":1}',
    )
    assert (request.batch, request.expires_ns, request.no_wait, request.max_bytes) == (5, 9_000_000_000, True, 1024)
    assert (request.idle_heartbeat_ns, request.group, request.min_pending) == (1_000_000_000, "g", 3)
    assert (request.min_ack_pending, request.id, request.priority) == (4, "pin", 2)


def test_a_negative_expiry_is_none_as_adr_13_says():
    assert parse_pull_request(INBOX, b'{"batch":1,"expires":-1}').expires_ns == 0


@pytest.mark.parametrize(
    "body",
    [
        b'{"batch":1,"idle_heartbeat":1000}',
        b'{"batch":1,"expires":1999,"idle_heartbeat":1000}',
        b'{"batch":1,"expires":-1,"idle_heartbeat":1000}',
    ],
)
def test_a_heartbeat_needs_twice_its_time(body):
    with pytest.raises(ConfigError, match="heartbeat value too large"):
        parse_pull_request(INBOX, body)


@pytest.mark.parametrize("body", [b"{", b'{"batch":"x"}', b'{"batch":1e400}', b'{"batch":99999999999999999999}'])
def test_a_broken_object_is_an_error(body):
    with pytest.raises(ConfigError):
        parse_pull_request(INBOX, body)
