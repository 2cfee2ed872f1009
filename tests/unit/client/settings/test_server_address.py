"""Server addresses: every way people write them, and what is refused."""

import pytest

from jetlake.client.settings.server_address import ServerAddress, parse_address, parse_addresses
from jetlake.errors import InvalidOptionError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nats://localhost:4222", ServerAddress("localhost", 4222)),
        ("localhost", ServerAddress("localhost", 4222)),
        ("localhost:5", ServerAddress("localhost", 5)),
        ("127.0.0.1:4223/", ServerAddress("127.0.0.1", 4223)),
        ("NATS://Host", ServerAddress("Host", 4222)),
        ("tls://h", ServerAddress("h", 4222, tls=True)),
        ("ws://h", ServerAddress("h", 80, websocket=True)),
        ("wss://h", ServerAddress("h", 443, tls=True, websocket=True)),
        ("ws://u:p@h:8080/", ServerAddress("h", 8080, user="u", password="p", websocket=True)),
        ("[::1]:4222", ServerAddress("::1", 4222)),
        ("nats://[fe80::1]", ServerAddress("fe80::1", 4222)),
        ("nats://u:p@h:1", ServerAddress("h", 1, user="u", password="p")),
        ("nats://secret@h", ServerAddress("h", 4222, token="secret")),
        ("nats://u:p%40ss%3A@h", ServerAddress("h", 4222, user="u", password="p@ss:")),
        ("  h  ", ServerAddress("h", 4222)),
    ],
)
def test_is_read(text, expected):
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "http://h", "nats://", "nats://:4222", "h:0", "h:00", "h:65536", "h:x", "h:" + "9" * 5000, "h:\u0661"),
        *("nats://a b", "nats://h/path", "wsx://h", 7, "nats://\udc80", "nats://a%40\udc80:b@h", "nats://a:\ud800@h"),
    ],
)
def test_is_refused(text):
    with pytest.raises(InvalidOptionError):
        parse_address(text)


@pytest.mark.parametrize(
    "text",
    [
        "nats://user:hunter2@host:99999",
        "user:hunter2@",
        "nats://user:hunter2",
        "http://hunter2@h",
        "nats://u:hunter2,x@h",
        "nats://u:hunter2\udc80@h",
    ],
)
def test_secrets_stay_out_of_errors(text):
    with pytest.raises(InvalidOptionError) as caught:
        parse_addresses(text)
    assert "hunter2" not in str(caught.value)


def test_an_address_prints_without_its_login():
    assert str(parse_address("nats://u:p@h")) == "nats://h:4222"
    assert "hunter2" not in repr(parse_address("nats://u:hunter2@h"))
    assert str(parse_address("tls://[::1]:5")) == "tls://[::1]:5"
    assert str(parse_address("wss://h")) == "wss://h:443"


def test_lists_and_commas():
    assert parse_addresses("a, b:1,a") == (ServerAddress("a"), ServerAddress("b", 1))
    assert parse_addresses(["a", "b"]) == (ServerAddress("a"), ServerAddress("b"))
    with pytest.raises(InvalidOptionError, match="servers is empty"):
        parse_addresses([])
