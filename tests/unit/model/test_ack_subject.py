"""Reply subjects of delivered messages, version 1 and 2."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.errors import NotJetStreamMessageError
from jetlake.model.ack_subject import (
    AckSubject,
    account_hash,
    ack_prefix_v1,
    ack_prefix_v2,
    parse_ack_subject,
)

SAMPLE = AckSubject("S", "d", 1, 2, 3, 1_794_723_450_773_196_438, 4)


def format_v1(ack: AckSubject) -> bytes:
    return ack_prefix_v1(ack.stream, ack.consumer) + numbers(ack)


def format_v2(ack: AckSubject) -> bytes:
    return ack_prefix_v2(ack.stream, ack.consumer, ack.account_hash, ack.domain) + numbers(ack)


def numbers(ack: AckSubject) -> bytes:
    return b"%d.%d.%d.%d.%d" % (ack.delivered, ack.stream_seq, ack.consumer_seq, ack.timestamp_ns, ack.pending)


def test_version_1() -> None:
    subject = b"$JS.ACK.S.d.1.2.3.1794723450773196438.4"
    assert parse_ack_subject(subject) == parse_ack_subject(subject.decode()) == SAMPLE
    assert format_v1(SAMPLE) == subject
    assert SAMPLE.timestamp == datetime(2026, 11, 15, 6, 17, 30, 773196, UTC)
    assert (SAMPLE.num_delivered, SAMPLE.num_pending) == (SAMPLE.delivered, SAMPLE.pending)


@pytest.mark.parametrize("more", [b"", b".token", b".x.y.z"])
def test_version_2_with_and_without_tokens_of_the_future(more: bytes) -> None:
    subject = b"$JS.ACK.hub.szMpdrwD.S.d.1.2.3.1794723450773196438.4"
    expected = SAMPLE._replace(domain="hub", account_hash="szMpdrwD")
    assert parse_ack_subject(subject + more) == expected
    assert format_v2(expected) == subject


def test_an_underscore_is_no_domain() -> None:
    subject = b"$JS.ACK._.szMpdrwD.S.d.1.2.3.1794723450773196438.4"
    ack = parse_ack_subject(subject)
    assert ack.domain is None
    assert format_v2(ack) == subject
    assert subject.startswith(ack_prefix_v2("S", "d", "szMpdrwD"))


def test_the_account_hash() -> None:
    assert account_hash("$G") == "szMpdrwD"


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        (b"", "does not start with $JS.ACK"),
        (b"_INBOX.abc", "does not start with $JS.ACK"),
        (b"$JS", "does not start with $JS.ACK"),
        (b"$JS.NAK.S.d.1.2.3.4.5", "does not start with $JS.ACK"),
        (b"$JS.ACKS.S.d.1.2.3.4.5", "does not start with $JS.ACK"),
        (b"$JS.ACK", "2 tokens"),
        (b"$JS.ACK.S.d.1.2.3.4", "8 tokens"),
        (b"$JS.ACK.x.S.d.1.2.3.4.5", "10 tokens"),
        (b"$JS.ACK.S.d.x.2.3.4.5", "'x' is not a number"),
        (b"$JS.ACK.S.d.1.-2.3.4.5", "'-2' is not a number"),
        (b"$JS.ACK.S.d.1.2.+3.4.5", "'+3' is not a number"),
        (b"$JS.ACK.S.d.1.2.3. 4.5", "' 4' is not a number"),
        (b"$JS.ACK.S.d.1.2.3.4_4.5", "'4_4' is not a number"),
        (b"$JS.ACK.S.d.1.2.3.4.", "'' is not a number"),
        ("$JS.ACK.S.d.1.2.3.4.\u0665".encode(), "is not a number"),
        (b"$JS.ACK.S.d.1.2.3.4." + b"9" * 5000, "is not a number"),
        (b"$JS.ACK.S.d.1.2.3.4.18446744073709551616", "18446744073709551616 has more than 64 bits"),
        (b"$JS.ACK._.hash.S.d.1.2.3.4.\xff", "is not a number"),
        (b"$JS.ACK..d.1.2.3.4.5", "a name in it is empty"),
        (b"$JS.ACK._..S.d.1.2.3.4.5", "a name in it is empty"),
    ],
)
def test_what_is_no_ack_subject(subject: bytes, reason: str) -> None:
    with pytest.raises(NotJetStreamMessageError) as caught:
        parse_ack_subject(subject)
    assert reason in str(caught.value)


NAMES = st.text(st.characters(exclude_characters=". *>", exclude_categories=("Cs", "Cc", "Z")), min_size=1)
NUMBERS = st.integers(0, 2**63 - 1)


@given(NAMES, NAMES, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.none() | NAMES.filter(lambda name: name != "_"))
def test_both_versions_come_back(
    stream, consumer, delivered, stream_seq, consumer_seq, time_ns, pending, domain
) -> None:
    ack = AckSubject(stream, consumer, delivered, stream_seq, consumer_seq, time_ns, pending, domain, "hash")
    assert parse_ack_subject(format_v2(ack)) == ack
    assert parse_ack_subject(format_v1(ack)) == ack._replace(domain=None, account_hash=None)


@given(st.binary(max_size=60) | st.builds(lambda tail: b"$JS.ACK." + tail, st.binary(max_size=60)))
def test_any_bytes_give_an_ack_or_the_one_error(subject: bytes) -> None:
    try:
        assert isinstance(parse_ack_subject(subject), AckSubject)
    except NotJetStreamMessageError:
        pass
