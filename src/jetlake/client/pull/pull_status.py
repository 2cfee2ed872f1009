"""The statuses that a server sends to a pull's inbox, and their meanings, as one table."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from jetlake.client.messages.message import Message
from jetlake.protocol.headers import Headers


class PullOutcome(Enum):
    """The meaning of a status."""

    HEARTBEAT = "heartbeat"
    """The server lives; nothing else changes."""
    ENDED = "ended"
    """A pull is over; its headers have the count that was not served."""
    REFUSED = "refused"
    """A pull was refused; the same one may be accepted later."""
    LOST = "lost"
    """The server that held the pulls is gone, and the pulls with it."""
    UNPINNED = "unpinned"
    """Another client has the pin."""
    UNAVAILABLE = "unavailable"
    """No server answers for the consumer: it was deleted, or JetStream is not ready."""
    DELETED = "deleted"
    """The consumer is gone."""
    TERMINAL = "terminal"
    """The pull can never succeed."""


class PullStatus(Struct, frozen=True):
    """A parsed status message."""

    status: int
    description: str
    pending_messages: int | None = None
    """Of the pull that ended, the messages that were not sent; None when the server does not say."""
    pending_bytes: int | None = None
    """Of the pull that ended, the bytes that were not used; None when the server does not say."""
    last_consumer_seq: int | None = None
    """Of a heartbeat, the number of the consumer's last delivery."""


# By number and by text in lower case; the first row that matches counts, and an empty text matches all.
_TABLE: tuple[tuple[int, str, PullOutcome], ...] = (
    (100, "", PullOutcome.HEARTBEAT),
    (404, "", PullOutcome.ENDED),
    (408, "", PullOutcome.ENDED),
    (409, "message size exceeds maxbytes", PullOutcome.ENDED),
    (409, "batch completed", PullOutcome.ENDED),
    (409, "server shutdown", PullOutcome.ENDED),
    (409, "leadership change", PullOutcome.LOST),
    (409, "exceeded maxwaiting", PullOutcome.REFUSED),
    (409, "consumer deleted", PullOutcome.DELETED),
    (409, "consumer is push based", PullOutcome.TERMINAL),
    (409, "exceeded maxrequest", PullOutcome.TERMINAL),
    (423, "", PullOutcome.UNPINNED),
    (400, "", PullOutcome.TERMINAL),
    (412, "", PullOutcome.TERMINAL),
    (503, "", PullOutcome.UNAVAILABLE),
)


def classify(status: PullStatus) -> PullOutcome:
    """Return the meaning of a status; an unknown one ends its pull if it has pending headers, else the read."""
    words = status.description.lower()
    for number, text, outcome in _TABLE:
        if number == status.status and text in words:
            return outcome
    return PullOutcome.TERMINAL if status.pending_messages is None else PullOutcome.ENDED


def read_status(message: Message) -> PullStatus:
    """Return the status that a message without a reply subject carries.

    Raises:
        BadHeaderError: its header block is broken.
    """
    headers = Headers(message.raw_header)
    return PullStatus(
        headers.status or 0,
        headers.description,
        _number(headers.get("Nats-Pending-Messages")),
        _number(headers.get("Nats-Pending-Bytes")),
        _number(headers.get("Nats-Last-Consumer")),
    )


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return max(0, int(text))  # A negative count would add to what is outstanding.
    except ValueError:
        return None
