"""Subjects, payloads and headers of callers, before they are sent."""

import pytest

from jetlake.client.settings.wire_values import (
    header_bytes,
    payload_bytes,
    publish_subject,
    queue_bytes,
    subscribe_subject,
)
from jetlake.errors import BadHeaderError, BadSubjectError, InvalidOptionError
from jetlake.protocol.headers import Headers


def test_subjects():
    assert publish_subject("a.b") == b"a.b"
    assert publish_subject("a.b") is publish_subject("a.b")
    assert subscribe_subject("a.*.>") == b"a.*.>"
    assert publish_subject("ä.b") == "ä.b".encode()


@pytest.mark.parametrize("subject", ["", "a..b", ".a", "a.", "a b", "a\r\nPUB x 0", "a.*", "a.>", ">"])
def test_nobody_publishes_there(subject):
    with pytest.raises(BadSubjectError):
        publish_subject(subject)


@pytest.mark.parametrize("subject", ["", "a..b", "a.>.b", "a b", "a\tb"])
def test_nobody_subscribes_there(subject):
    with pytest.raises(BadSubjectError):
        subscribe_subject(subject)


@pytest.mark.parametrize("subject", [None, 1, b"a"])
def test_a_subject_is_text(subject):
    with pytest.raises(InvalidOptionError, match="subject must be a str"):
        publish_subject(subject)
    with pytest.raises(InvalidOptionError, match="subject must be a str"):
        subscribe_subject(subject)


def test_the_memory_of_subjects_is_bounded():
    from jetlake.client.settings import wire_values

    for number in range(wire_values._KNOWN_MAX + 10):
        publish_subject(f"many.{number}")
    assert len(wire_values._known) <= wire_values._KNOWN_MAX


def test_payloads():
    assert payload_bytes(b"x") == payload_bytes(bytearray(b"x")) == payload_bytes(memoryview(b"x")) == b"x"
    with pytest.raises(InvalidOptionError, match="encode the text first"):
        payload_bytes("x")
    with pytest.raises(InvalidOptionError, match="not int"):
        payload_bytes(1)


def test_queues():
    assert queue_bytes("") == b""
    assert queue_bytes("q") == b"q"
    with pytest.raises(InvalidOptionError, match="queue"):
        queue_bytes("a b")


def test_headers():
    assert header_bytes(None) == header_bytes({}) == b""
    assert header_bytes({"A": ["1", "2"]}) == b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n"
    assert header_bytes(Headers(b"NATS/1.0\r\nX: y\r\n\r\n")) == b"NATS/1.0\r\nX: y\r\n\r\n"
    with pytest.raises(BadHeaderError):
        header_bytes({"A": "x\r\nB: y"})
