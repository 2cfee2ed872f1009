"""Every policy and choice of the JetStream API as an enum whose values are the words on the wire."""

from __future__ import annotations

from enum import StrEnum

__all__ = [
    "AckPolicy",
    "ActionKind",
    "Compression",
    "ConsumerAction",
    "DeliverPolicy",
    "DiscardPolicy",
    "PersistMode",
    "PriorityPolicy",
    "ReplayPolicy",
    "RetentionPolicy",
    "StorageType",
    "UnpinReason",
]


class RetentionPolicy(StrEnum):
    """When a stream removes a message; its limits apply in every case."""

    LIMITS = "limits"
    """Only its limits remove messages."""
    INTEREST = "interest"
    """Until every consumer that wants the message has acknowledged it."""
    WORKQUEUE = "workqueue"
    """Until the one consumer of its subject has acknowledged it."""


class StorageType(StrEnum):
    """Where messages live."""

    FILE = "file"
    MEMORY = "memory"


class DiscardPolicy(StrEnum):
    """What a full stream does."""

    OLD = "old"
    """Removes its oldest messages."""
    NEW = "new"
    """Refuses new messages."""


class Compression(StrEnum):
    """How stored blocks are compressed."""

    NONE = "none"
    S2 = "s2"


class PersistMode(StrEnum):
    """What a publish acknowledgement waits for."""

    DEFAULT = "default"
    """For the store's write."""
    ASYNC = "async"
    """For nothing: the message may still be in memory."""

    @classmethod
    def _missing_(cls, value: object) -> PersistMode | None:
        return cls.DEFAULT if value == "" else None


class DeliverPolicy(StrEnum):
    """Where in the stream a new consumer starts."""

    ALL = "all"
    LAST = "last"
    """The newest message (that matches the filters)."""
    NEW = "new"
    """What is published from now on."""
    BY_START_SEQUENCE = "by_start_sequence"
    """`opt_start_seq` and what follows."""
    BY_START_TIME = "by_start_time"
    """The first message stored at `opt_start_time` or later."""
    LAST_PER_SUBJECT = "last_per_subject"
    """The newest message of every subject that matches the filters, then everything newer."""

    @classmethod
    def _missing_(cls, value: object) -> DeliverPolicy | None:
        return cls.ALL if value == "undefined" else None  # what some clients send for a policy that was not chosen


class AckPolicy(StrEnum):
    """Which acknowledgements a consumer waits for."""

    NONE = "none"
    """None: delivered is done."""
    ALL = "all"
    """An acknowledgement covers all messages before it."""
    EXPLICIT = "explicit"
    """Every message has its own."""
    FLOW_CONTROL = "flow_control"
    """The answers to flow control acknowledge all messages before (push consumers of server 2.14 and later)."""


class ReplayPolicy(StrEnum):
    """How fast stored messages are delivered."""

    INSTANT = "instant"
    ORIGINAL = "original"
    """With the gaps of time in which they were stored."""


class PriorityPolicy(StrEnum):
    """How a pull consumer chooses among waiting clients of a priority group."""

    NONE = "none"
    OVERFLOW = "overflow"
    """A pull may ask to be served only when enough messages are pending."""
    PINNED_CLIENT = "pinned_client"
    """One client gets everything until it stops pulling."""
    PRIORITIZED = "prioritized"
    """Pulls carry a priority from 0 (first) to 9."""


class ConsumerAction(StrEnum):
    """What a consumer create request may do."""

    CREATE_OR_UPDATE = ""
    CREATE = "create"
    """Only create: a different existing consumer is an error (10148)."""
    UPDATE = "update"
    """Only update: a missing consumer is an error (10149)."""


class ActionKind(StrEnum):
    """What happened to a stream or consumer, in an advisory."""

    CREATE = "create"
    MODIFY = "modify"
    DELETE = "delete"


class UnpinReason(StrEnum):
    """Why a client lost its pin, in an advisory."""

    ADMIN = "admin"
    TIMEOUT = "timeout"
