"""The headers that a publisher's options stand for."""

import pytest

from jetlake.client.publish.outgoing_message import publish_header
from jetlake.errors import BadHeaderError, InvalidOptionError
from jetlake.protocol.headers import Headers


def header(headers=None, **options):
    return Headers(publish_header(headers=headers, **options)).items()


def test_what_publishers_may_expect():
    assert header(
        msg_id="m",
        expected_stream="S",
        expected_last_sequence=0,
        expected_last_subject_sequence=5,
        expected_last_msg_id="l",
        ttl=1.5,
    ) == [
        ("Nats-Msg-Id", "m"),
        ("Nats-Expected-Stream", "S"),
        ("Nats-Expected-Last-Sequence", "0"),
        ("Nats-Expected-Last-Subject-Sequence", "5"),
        ("Nats-Expected-Last-Msg-Id", "l"),
        ("Nats-TTL", "1.5s"),
    ]
    assert header({"A": "1"}, msg_id="m", ttl="never") == [("A", "1"), ("Nats-Msg-Id", "m"), ("Nats-TTL", "never")]


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"msg_id": ""}, InvalidOptionError),
        ({"msg_id": "a\r\nb"}, BadHeaderError),
        ({"expected_last_sequence": -1}, InvalidOptionError),
        ({"expected_last_sequence": "5"}, InvalidOptionError),
        ({"expected_last_subject_sequence": True}, InvalidOptionError),
    ],
)
def test_what_they_may_not(options, kind):
    with pytest.raises(kind):
        header({"A": "1"}, **options)
