"""What an archive holds, whatever its format: the stream's range, its consumers, its messages."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.fields import Count, Int64, Sequence, Value, always

__all__ = [
    "ArchivedConsumer",
    "ArchivedMessage",
    "ArchivedState",
    "ConsumerEntry",
    "ConsumerPosition",
    "Item",
    "PendingMessage",
    "SequencePair",
    "SkippedSequence",
]


class ArchivedState(NamedTuple):
    """The range of the stream's sequences, and when the stream was created, as far as the archive tells."""

    first_sequence: int | None
    """Of the first message; None for whatever the first one has."""
    last_sequence: int
    """The highest one that is known to have been used."""
    created_ns: int = 0
    """When the stream was created; 0 where the archive does not tell."""
    messages: int = 0
    """How many messages the stream had when the backup began; some may have been removed before they were read."""


class ArchivedMessage(NamedTuple):
    """One message."""

    subject: bytes
    time_ns: int
    sequence: int
    header: bytes
    payload: bytes


class SkippedSequence(NamedTuple):
    """A sequence whose message was removed; the message may have come before."""

    sequence: int


class SequencePair(Value, frozen=True):
    """A position: the consumer's sequence and the stream's."""

    consumer_seq: Sequence = always(0)
    """Of the consumer's deliveries."""
    stream_seq: Sequence = always(0)
    """Of the stream's messages."""


class PendingMessage(Value, frozen=True, rename="pascal"):
    """A delivered message that is not acknowledged."""

    sequence: Sequence = always(0)
    """Consumer sequence of its first delivery."""
    timestamp: Int64 = always(0)
    """Since when its ack wait counts, nanoseconds since 1970."""


class ConsumerPosition(Value, frozen=True):
    """Where a consumer stands."""

    delivered: SequencePair = always(SequencePair())
    """The last delivery."""
    ack_floor: SequencePair = always(SequencePair())
    """Everything up to here is acknowledged."""
    pending: dict[Sequence, PendingMessage] = {}
    """Delivered and not acknowledged, by stream sequence."""
    redelivered: dict[Sequence, Count] = {}
    """How often messages were delivered again, by stream sequence."""


class ConsumerEntry(Value, frozen=True):
    """The JSON of a consumer's entry."""

    config: ConsumerConfig = always(ConsumerConfig())
    """The configuration."""
    state: ConsumerPosition = always(ConsumerPosition())
    """Where it stands."""


class ArchivedConsumer(msgspec.Struct, frozen=True):
    """A consumer with its position."""

    name: str
    config: ConsumerConfig
    position: ConsumerPosition
    created_ns: int = 0
    """When it was created; 0 where the archive does not tell."""


Item = ArchivedState | ArchivedConsumer | ArchivedMessage | SkippedSequence
