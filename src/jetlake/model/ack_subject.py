"""The reply subject of a delivered message: what it tells about the delivery, in both of its versions.

Version 1 has nine tokens, `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>`;
version 2 puts the domain (`_` when there is none) and a hash of the account after `$JS.ACK`, and more may follow.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from jetlake.errors import NotJetStreamMessageError

__all__ = [
    "DIGITS",
    "NO_DOMAIN",
    "WELL_FORMED",
    "AckSubject",
    "account_hash",
    "ack_prefix_v1",
    "ack_prefix_v2",
    "check_ack_subject",
    "check_ack_subjects",
    "consumer_sequence",
    "delivery_count",
    "parse_ack_subject",
]

NO_DOMAIN = "_"
"""The token that stands where version 2 has a domain and there is none."""

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_HASH_LENGTH = 8
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DIGITS_MAX = 5 * 20  # five numbers of 64 bits


class AckSubject(NamedTuple):
    """What the reply subject of a JetStream message says."""

    stream: str
    """Name of the stream."""
    consumer: str
    """Name of the consumer."""
    delivered: int
    """How often the message was delivered, this time included; 1 the first time."""
    stream_seq: int
    """Its sequence in the stream."""
    consumer_seq: int
    """Number of this delivery among all of the consumer."""
    timestamp_ns: int
    """When the message was stored, nanoseconds since 1970."""
    pending: int
    """Messages that the consumer had yet to deliver for the first time after this one."""
    domain: str | None = None
    """The JetStream domain; None when there is none or the subject is of version 1."""
    account_hash: str | None = None
    """Hash of the account's name; None in version 1."""

    @property
    def num_pending(self) -> int:
        """As `pending`, by the name that nats-py has for it."""
        return self.pending

    @property
    def num_delivered(self) -> int:
        """As `delivered`, by the name that nats-py has for it."""
        return self.delivered

    @property
    def timestamp(self) -> datetime:
        """When the message was stored, in UTC; microseconds, since a datetime holds no more."""
        return _EPOCH + timedelta(microseconds=self.timestamp_ns // 1000)


def parse_ack_subject(subject: bytes | str) -> AckSubject:
    """Read a reply subject of version 1 (9 tokens) or 2 (11 tokens or more; those after the 11th are left alone).

    Raises:
        NotJetStreamMessageError: another prefix, another number of tokens, an empty name, or a number that is none.
    """
    text = subject if isinstance(subject, str) else subject.decode("utf-8", "surrogateescape")
    tokens = text.split(".")
    count = len(tokens)
    if tokens[0] != "$JS" or count < 2 or tokens[1] != "ACK":
        raise NotJetStreamMessageError(text, "it does not start with $JS.ACK")
    domain = hash_ = None
    if count == 9:
        stream, consumer, delivered, stream_seq, consumer_seq, timestamp, pending = tokens[2:]
    elif count >= 11:
        domain, hash_, stream, consumer, delivered, stream_seq, consumer_seq, timestamp, pending = tokens[2:11]
        if not domain or not hash_:
            raise NotJetStreamMessageError(text, "a name in it is empty")
        if domain == NO_DOMAIN:
            domain = None
    else:
        raise NotJetStreamMessageError(text, f"it has {count} tokens instead of 9, or 11 and more")
    if not stream or not consumer:
        raise NotJetStreamMessageError(text, "a name in it is empty")
    # int() would also take signs, blanks, underscores and the digits of other scripts.
    digits = delivered + stream_seq + consumer_seq + timestamp + pending
    if not (digits.isdigit() and digits.isascii() and len(digits) <= _DIGITS_MAX):
        raise NotJetStreamMessageError(text, _not_a_number(delivered, stream_seq, consumer_seq, timestamp, pending))
    try:
        read = AckSubject(
            stream,
            consumer,
            int(delivered),
            int(stream_seq),
            int(consumer_seq),
            int(timestamp),
            int(pending),
            domain,
            hash_,
        )
    except ValueError:
        raise NotJetStreamMessageError(text, "'' is not a number") from None
    if max(read[2:7]) >> 64:
        raise NotJetStreamMessageError(text, f"{max(read[2:7])} has more than 64 bits")
    return read


_KNOWN_MAX = 256
_DOT = 46
DIGITS = b"0123456789"
WELL_FORMED: set[bytes] = set()
"""Well-formed subjects without their digits: all deliveries of a consumer look alike then."""


def check_ack_subject(subject: bytes) -> None:
    """Refuse to answer a reply subject that is malformed: another prefix, number of tokens, or type of a token.

    It is called for every acknowledgement, so it reads only the first subject of each consumer in full. A number of
    more than 64 bits is found by `parse_ack_subject` alone.

    Raises:
        NotJetStreamMessageError: it says what is wrong.
    """
    shape = subject.translate(None, DIGITS)
    # The same characters between the same dots, and digits elsewhere; only a missing token would not show.
    if shape not in WELL_FORMED or b".." in subject or subject[-1] == _DOT:
        parse_ack_subject(subject)
        if shape.count(b".") <= 10:  # Behind the 11th token anything may follow.
            if len(WELL_FORMED) >= _KNOWN_MAX:
                WELL_FORMED.clear()
            WELL_FORMED.add(shape)


def check_ack_subjects(subjects: list[bytes]) -> None:
    """Check many subjects as `check_ack_subject` does each.

    Raises:
        NotJetStreamMessageError: one is malformed.
    """
    check_ack_subject(subjects[0])
    joined = b"\n".join(subjects)
    shape = subjects[0].translate(None, DIGITS) + b"\n"
    is_alike = joined.translate(None, DIGITS) + b"\n" == shape * len(subjects)
    if not is_alike or b".." in joined or b".\n" in joined or joined.endswith(b"."):
        for subject in subjects:
            check_ack_subject(subject)


def _not_a_number(*tokens: str) -> str:
    bad = next((token for token in tokens if not (token.isascii() and token.isdigit()) or len(token) > 20), tokens[0])
    return f"{bad[:32]!r} is not a number"


def ack_prefix_v1(stream: str, consumer: str) -> bytes:
    """Return what starts every version 1 subject of a consumer; the whole is `prefix + b"%d.%d.%d.%d.%d" % numbers`."""
    return f"$JS.ACK.{stream}.{consumer}.".encode()


def ack_prefix_v2(stream: str, consumer: str, hash_: str, domain: str | None = None) -> bytes:
    """Return what starts every version 2 subject of a consumer; the whole is `prefix + b"%d.%d.%d.%d.%d" % numbers`."""
    return f"$JS.ACK.{domain or NO_DOMAIN}.{hash_}.{stream}.{consumer}.".encode()


def account_hash(account: str) -> str:
    """Return the eight characters that stand for an account's name in version 2."""
    from hashlib import sha256  # It loads OpenSSL, which takes a part of a start.

    digest = sha256(account.encode()).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:_HASH_LENGTH])


def consumer_sequence(reply: bytes) -> int:
    """Return the number of a delivery, from the reply subject in either version.

    Raises:
        NotJetStreamMessageError: it is not such a subject.
    """
    tokens = reply.split(b".")
    count = len(tokens)
    token = tokens[6] if count == 9 else tokens[8] if count >= 11 else b""
    if token.isdigit():
        return int(token)
    return parse_ack_subject(reply).consumer_seq


def delivery_count(reply: bytes) -> int:
    """Return how often the message was delivered, from the reply subject in either version.

    Raises:
        NotJetStreamMessageError: it is not such a subject.
    """
    tokens = reply.split(b".", 7)
    token = tokens[4] if reply.count(b".") == 8 else tokens[6] if len(tokens) > 7 else b""
    if token.isdigit():
        return int(token)
    return parse_ack_subject(reply).delivered
