"""The bodies of acknowledgements."""

import pytest

from jetlake.server.engine.consumer.ack_handler import AckBody, AckKind, parse_ack_body


@pytest.mark.parametrize("payload", [b"", b"+ACK", b"+OK"])
def test_three_bodies_acknowledge(payload):
    assert parse_ack_body(payload) == AckBody(AckKind.ACK)


@pytest.mark.parametrize(
    ("payload", "delay_ns"),
    [
        (b"-NAK", None),
        (b"-NAK   ", None),
        (b'-NAK {"delay": 1500000000}', 1_500_000_000),
        (b'-NAK{"delay":7}', 7),
        (b"-NAK 300ms", 300_000_000),
        (b"-NAK 1h30m", 5_400_000_000_000),
        (b"-NAK -5s", 0),
        (b'-NAK {"delay":-1}', 0),
        (b"-NAK soon", None),
        (b"-NAK {oops", None),
        (b'-NAK {"delay":"1s"}', None),
        (b"-NAK \xff", None),
    ],
)
def test_nak_takes_a_delay_in_two_forms_and_shrugs_at_others(payload, delay_ns):
    assert parse_ack_body(payload) == AckBody(AckKind.NAK, delay_ns=delay_ns)


def test_progress():
    assert parse_ack_body(b"+WPI").kind is AckKind.PROGRESS


@pytest.mark.parametrize(
    ("payload", "reason"), [(b"+TERM", ""), (b"+TERM  poison  pill ", "poison  pill"), (b"+TERM \xff", "\ufffd")]
)
def test_term_trims_its_reason(payload, reason):
    assert parse_ack_body(payload) == AckBody(AckKind.TERM, reason=reason)


@pytest.mark.parametrize(("payload", "request_"), [(b"+NXT", b""), (b"+NXT 10", b" 10"), (b"+NXT {}", b" {}")])
def test_next_carries_a_pull_request(payload, request_):
    assert parse_ack_body(payload) == AckBody(AckKind.NEXT, request=request_)


@pytest.mark.parametrize("payload", [b"+ack", b"ACK", b"+WPI!", b" +ACK", b"\x00", b"hello"])
def test_anything_else_means_nothing(payload):
    assert parse_ack_body(payload).kind is AckKind.UNKNOWN
