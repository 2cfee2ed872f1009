"""What a connection can be told, and what is refused before anything is sent."""

from datetime import timedelta

import pytest

from jetlake.client.settings.options import build_options, duration_s
from jetlake.errors import ConfigError, InvalidOptionError


def test_defaults():
    options = build_options()
    assert [str(one) for one in options.servers] == ["nats://127.0.0.1:4222"]
    assert options.reconnect
    assert options.reconnect_attempts_max is None
    assert options.pending_bytes_max == 8 * 1024 * 1024


def test_durations_are_seconds_or_timedeltas():
    options = build_options(connect_timeout=timedelta(milliseconds=1500), ping_interval=3)
    assert options.connect_timeout_s == 1.5
    assert options.ping_interval_s == 3


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"connect_timeout": 0}, "connect_timeout must be more than 0"),
        ({"request_timeout": -1}, "request_timeout"),
        ({"drain_timeout": float("nan")}, "drain_timeout"),
        ({"ping_interval": "1"}, "ping_interval"),
        ({"connect_timeout": True}, "connect_timeout"),
        ({"pings_outstanding_max": 0}, "pings_outstanding_max"),
        ({"pending_bytes_max": -1}, "pending_bytes_max"),
        ({"reconnect_attempts_max": 0}, "reconnect_attempts_max"),
        ({"reconnect_wait": 5, "reconnect_wait_max": 1}, "reconnect_wait"),
        ({"reconnect_jitter": 2}, "reconnect_jitter"),
        ({"inbox_prefix": "a.*"}, "inbox_prefix"),
        ({"inbox_prefix": ""}, "inbox_prefix"),
        ({"token": "t", "user": "u"}, "one way to log in"),
        ({"password": "p"}, "password needs user"),
        ({"tls": False, "tls_handshake_first": True}, "tls_handshake_first"),
        ({"nkey_seed": "SUXXX", "credentials": "x"}, "one way to log in"),
        ({"servers": "http://x"}, "scheme"),
        ({"bogus": 1}, "bogus"),
    ],
)
def test_what_cannot_work_is_refused_with_its_name(given, words):
    with pytest.raises(InvalidOptionError, match=words):
        build_options(**given)


def test_an_invalid_option_is_a_config_error_and_a_value_error():
    assert issubclass(InvalidOptionError, ConfigError)
    assert issubclass(InvalidOptionError, ValueError)


@pytest.mark.parametrize("value", [None, "1", True, float("inf"), object()])
def test_no_duration(value):
    with pytest.raises(InvalidOptionError, match="thing"):
        duration_s("thing", value)


def test_tls_is_a_context_and_not_a_path():
    with pytest.raises(InvalidOptionError, match=r"not 'ca\.pem'; make one by ssl\.create_default_context"):
        build_options(None, tls="ca.pem")


@pytest.mark.parametrize("value", [0, -1, "1s"])
async def test_a_call_waits_for_more_than_nothing(fake, value):
    client = await fake.connect()
    js = client.jetstream()
    for call in (
        lambda: client.request("a", timeout=value),
        lambda: client.flush(timeout=value),
        lambda: client.drain(timeout=value),
        lambda: js.publish("a", timeout=value),
    ):
        with pytest.raises(InvalidOptionError, match="timeout must be"):
            await call()
    assert not client.is_closed
    assert fake.published("a") == []
