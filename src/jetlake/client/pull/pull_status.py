"""The statuses that a server sends on a pull's inbox, and what each means for the pull, as one table."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from jetlake.client.messages.message import Message
from jetlake.protocol.headers import Headers

__all__ = ["PullOutcome", "PullStatus", "classify", "read_status"]


class PullOutcome(Enum):
    """What a status means."""

    HEARTBEAT = "heartbeat"
    """The server lives; nothing else changes."""
    ENDED = "ended"
    """A pull is over; its headers say how much of it was not served."""
    REFUSED = "refused"
    """A pull was not taken; the same one may be taken later."""
    LOST = "lost"
    """The server that held the pulls is gone, and the pulls with it."""
    UNPINNED = "unpinned"
    """Another client has the pin."""
    UNAVAILABLE = "unavailable"
    """Nobody answers for the consumer: it is gone, or JetStream is not there yet."""
    DELETED = "deleted"
    """The consumer is gone."""
    TERMINAL = "terminal"
    """Asking again gives the same answer."""


class PullStatus(Struct, frozen=True):
    """A status message, read."""

    status: int
    description: str
    pending_messages: int | None = None
    """Of the pull that ended, the messages that were not sent; None when the server does not say."""
    pending_bytes: int | None = None
    """Of the pull that ended, the bytes that were not used; None when the server does not say."""
    last_consumer_seq: int | None = None
    """Of a heartbeat, the number of the consumer's last delivery."""


# By number and by words in lower case; the first row that fits counts, and an empty text fits all.
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
    """Return what the status means; an unknown one ends its pull if it has pending headers, else everything."""
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
