"""Streams as values: what they are configured to do, what they hold, and what the server says about both."""

from __future__ import annotations

from typing import Any, Self

from jetlake.model.encoding.build import build
from jetlake.model.encoding.fields import (
    Count,
    Int32,
    Int64,
    Nanoseconds,
    Sequence,
    StartTime,
    Timestamp,
    Value,
    always,
)
from jetlake.model.encoding.times import ZERO_TIME
from jetlake.model.enums import Compression, DiscardPolicy, PersistMode, RetentionPolicy, StorageType

__all__ = [
    "ClusterInfo",
    "ConsumerLimits",
    "ErrorBody",
    "ExternalStream",
    "LostData",
    "PeerInfo",
    "Placement",
    "Republish",
    "SourceConsumer",
    "StreamAlternate",
    "StreamConfig",
    "StreamInfo",
    "StreamSource",
    "StreamSourceInfo",
    "StreamState",
    "SubjectTransform",
]


class ErrorBody(Value, frozen=True):
    """The `error` of a reply or of a source that cannot be reached."""

    code: int = always(0)
    """The HTTP-like status."""
    err_code: int = 0
    """The number in the error table."""
    description: str = ""
    """The sentence for people."""


class Placement(Value, frozen=True):
    """Where in a cluster a stream should live; one server keeps it and does nothing with it."""

    cluster: str = ""
    """Name of the cluster. Default: any."""
    tags: tuple[str, ...] = ()
    """Tags that the servers must have. Default: none."""
    preferred: str = ""
    """The server that should lead; not permitted in a stream's configuration."""


class ExternalStream(Value, frozen=True):
    """Access to a stream of another account or domain."""

    api: str = always("")
    """Subject prefix of its API, such as `$JS.hub.API`."""
    deliver: str = always("")
    """Subject prefix for what it delivers. Default: none."""


class SubjectTransform(Value, frozen=True):
    """Renames subjects: what matches `src` becomes `dest`, with `{{wildcard(1)}}` or `$1` for the first `*`."""

    src: str = always("")
    """The pattern; empty means `>`."""
    dest: str = always("")
    """The subject to write."""


class SourceConsumer(Value, frozen=True):
    """A durable consumer on the origin that a mirror or source reads through."""

    name: str = ""
    """Its name."""
    deliver_subject: str = ""
    """The subject it delivers to."""


class StreamSource(Value, frozen=True):
    """Another stream from which this one copies messages, as its mirror or one of its sources."""

    name: str = always("")
    """Name of the origin."""
    opt_start_seq: Sequence = 0
    """First sequence to copy. Default 0: from the first."""
    opt_start_time: StartTime | None = None
    """Time of the first message to copy. Default: from the first."""
    filter_subject: str = ""
    """Copy only what matches. Default: all."""
    subject_transforms: tuple[SubjectTransform, ...] = ()
    """Copy what matches a `src`, under the subject of its `dest`. Default: none."""
    external: ExternalStream | None = None
    """Where the origin is when it is of another account or domain. Default: here."""
    consumer: SourceConsumer | None = None
    """The durable consumer on the origin to read through. Default: one made for the purpose."""


class Republish(Value, frozen=True):
    """Publishes again, under another subject, what the stream has stored."""

    src: str = ""
    """Which stored subjects; empty becomes `>`."""
    dest: str = always("")
    """The subject to publish under, with the places of a transform."""
    headers_only: bool = False
    """Leave the payload out and say its size in `Nats-Msg-Size`."""


class ConsumerLimits(Value, frozen=True):
    """What a stream allows its consumers; each is also their default."""

    inactive_threshold: Nanoseconds = 0
    """Longest `inactive_threshold`, nanoseconds. Default 0: no limit."""
    max_ack_pending: Int64 = 0
    """Highest `max_ack_pending`. Default 0: no limit."""


class StreamConfig(Value, frozen=True):
    """What a stream captures, how long it keeps it, and what publishers and readers may do.

    The zeros are what a request that leaves a field out means; `jetlake.model.rules.stream_rules` turns them into
    what a server stores (most limits become -1, unlimited).
    """

    name: str = always("")
    """Name, 1 to 255 characters without blanks, dots, wildcards and slashes. Required."""
    description: str = ""
    """Free text, up to 4096 bytes."""
    subjects: tuple[str, ...] = ()
    """Patterns of the subjects to capture. Default: the name, unless the stream is a mirror or has sources."""
    retention: RetentionPolicy = always(RetentionPolicy.LIMITS)
    """When a message may go. Default: limits."""
    max_consumers: Int64 = always(0)
    """Most consumers. Default -1: as many as the server allows by itself, 1000."""
    max_msgs: Int64 = always(0)
    """Maximum messages. Default -1: unlimited."""
    max_bytes: Int64 = always(0)
    """Maximum bytes in the store. Default -1: unlimited."""
    max_age: Nanoseconds = always(0)
    """Maximum age of a message, nanoseconds, at least 100 ms. Default 0: unlimited."""
    max_msgs_per_subject: Int64 = always(0)
    """Maximum messages per subject. Default -1: unlimited."""
    max_msg_size: Int32 = 0
    """Largest message, bytes of headers and payload. Default -1: unlimited."""
    discard: DiscardPolicy = always(DiscardPolicy.OLD)
    """What goes when the stream is full. Default: old."""
    storage: StorageType = always(StorageType.FILE)
    """Where messages are kept; fixed at creation. Default: file."""
    num_replicas: Int64 = always(0)
    """Copies in a cluster. Default 1, and 1 is all that a single server has."""
    no_ack: bool = False
    """Do not answer publishers. Default: false."""
    duplicate_window: Nanoseconds = 0
    """How long message ids are remembered, nanoseconds, at least 100 ms and no longer than `max_age`.
    Default: 2 minutes or `max_age` if that is shorter; 0 for mirrors and streams with sources."""
    placement: Placement | None = None
    """Where in a cluster. Default: anywhere."""
    mirror: StreamSource | None = None
    """The stream of which this is an exact copy. Default: none."""
    sources: tuple[StreamSource, ...] = ()
    """Streams from which this one copies. Default: none."""
    compression: Compression = always(Compression.NONE)
    """How stored blocks are compressed. Default: none."""
    first_seq: Sequence = 0
    """Sequence of the first message; read at creation only. Default 0: 1."""
    subject_transform: SubjectTransform | None = None
    """Renames subjects before anything else. Default: none."""
    republish: Republish | None = None
    """Publishes stored messages again. Default: none."""
    allow_direct: bool = always(False)
    """Answer `DIRECT.GET`. Default: false."""
    mirror_direct: bool = always(False)
    """Let a mirror answer `DIRECT.GET` for its origin. Default: false."""
    discard_new_per_subject: bool = False
    """With discard new and a per-subject limit: refuse messages of a full subject. Default: false."""
    sealed: bool = always(False)
    """Nothing goes in or out any more; never at creation, never undone. Default: false."""
    deny_delete: bool = always(False)
    """Messages cannot be deleted through the API; never undone. Default: false."""
    deny_purge: bool = always(False)
    """The stream cannot be purged through the API; never undone. Default: false."""
    allow_rollup_hdrs: bool = always(False)
    """A message may replace older ones by its `Nats-Rollup` header. Default: false."""
    consumer_limits: ConsumerLimits = always(ConsumerLimits())
    """Limits and defaults for consumers. Default: none."""
    allow_msg_ttl: bool = always(False)
    """A message may set its own life by its `Nats-TTL` header; never undone. Default: false."""
    subject_delete_marker_ttl: Nanoseconds = 0
    """Life of the marker left when a subject's last message expires, nanoseconds, at least 1 s. Default 0: none."""
    allow_msg_counter: bool = False
    """Messages are increments of counters; fixed at creation. Default: false."""
    allow_atomic: bool = False
    """Batches may be published all or nothing. Default: false."""
    allow_msg_schedules: bool = False
    """Messages may be schedules of other messages; never undone. Default: false."""
    persist_mode: PersistMode = PersistMode.DEFAULT
    """What a publish acknowledgement waits for; fixed at creation. Default: the store's write."""
    allow_batched: bool = False
    """Batches may be published fast. Default: false."""
    metadata: dict[str, str] = {}
    """Free keys and values, up to 128 KiB; keys that start with `_nats.` are the server's."""

    @classmethod
    def of(cls, name: str, **options: Any) -> Self:
        """Return the configuration from what people write: durations in seconds, enums by their words, lists, dicts.

        Raises:
            ConfigError: a field that does not exist or a value that does not fit.
        """
        return build(cls, {"name": name, **options})


class LostData(Value, frozen=True):
    """What recovery could not save."""

    msgs: tuple[Sequence, ...] | None = always(None)
    """Sequences of the lost messages, as far as they are known."""
    bytes: Count = always(0)
    """Bytes of the lost records."""


class StreamState(Value, frozen=True):
    """What a stream holds."""

    messages: Count = always(0)
    """Number of messages."""
    bytes: Count = always(0)
    """Bytes of their records."""
    first_seq: Sequence = always(0)
    """Sequence of the oldest message; last_seq + 1 when empty after use, 0 when never used."""
    first_ts: Timestamp = always(ZERO_TIME)
    """When the oldest message was stored."""
    last_seq: Sequence = always(0)
    """The highest sequence ever given."""
    last_ts: Timestamp = always(ZERO_TIME)
    """When the newest message was stored."""
    num_subjects: Count = 0
    """Number of subjects that have messages."""
    subjects: dict[str, Count] = {}
    """Messages by subject, when they were asked for."""
    num_deleted: Count = 0
    """Sequences between first and last that hold no message."""
    deleted: tuple[Sequence, ...] = ()
    """Those sequences, when they were asked for."""
    lost: LostData | None = None
    """What recovery could not save."""
    consumer_count: Count = always(0)
    """Number of consumers."""


class PeerInfo(Value, frozen=True):
    """Another server that holds a copy."""

    name: str = always("")
    """Name of the server."""
    current: bool = always(False)
    """Whether it is up to date."""
    offline: bool = False
    """Whether it is unreachable."""
    active: Nanoseconds = always(0)
    """Time since it was heard of, nanoseconds."""
    lag: Count = 0
    """Operations it has yet to do."""
    peer: str = always("")
    """Its id in the group."""


class ClusterInfo(Value, frozen=True):
    """Which servers hold a stream or consumer."""

    name: str = ""
    """Name of the cluster."""
    raft_group: str = ""
    """Name of the group that agrees on it."""
    leader: str = ""
    """Name of the server that leads; a single server leads itself."""
    leader_since: Timestamp | None = None
    """Since when."""
    system_account: bool = False
    """Whether the group's traffic is in the system account."""
    traffic_account: str = ""
    """The account of the group's traffic."""
    replicas: tuple[PeerInfo, ...] = ()
    """The others."""


class StreamSourceInfo(Value, frozen=True):
    """How a mirror or source is doing."""

    name: str = always("")
    """Name of the origin."""
    external: ExternalStream | None = None
    """Where the origin is."""
    lag: Count = always(0)
    """Messages of the origin yet to be copied."""
    seq: Sequence = 0
    """The origin's sequence that was copied last."""
    active: Nanoseconds = always(0)
    """Time since the origin was heard of, nanoseconds; -1 never."""
    error: ErrorBody | None = None
    """Why copying does not work."""
    filter_subject: str = ""
    """What is copied."""
    subject_transforms: tuple[SubjectTransform, ...] = ()
    """What is copied, under which subjects."""


class StreamAlternate(Value, frozen=True):
    """Another stream that holds the same messages."""

    name: str = always("")
    """Its name."""
    domain: str = ""
    """Its domain."""
    cluster: str = always("")
    """Its cluster."""


class StreamInfo(Value, frozen=True):
    """A stream as the server describes it."""

    config: StreamConfig
    """The configuration with all defaults filled in."""
    created: Timestamp = always(ZERO_TIME)
    """When the stream was created."""
    state: StreamState = always(StreamState())
    """What it holds."""
    domain: str = ""
    """The JetStream domain it is in."""
    cluster: ClusterInfo | None = None
    """Which servers hold it."""
    mirror: StreamSourceInfo | None = None
    """How its mirror is doing."""
    sources: tuple[StreamSourceInfo, ...] = ()
    """How its sources are doing."""
    alternates: tuple[StreamAlternate, ...] = ()
    """Other streams with the same messages."""
    ts: Timestamp = always(ZERO_TIME)
    """When this was written."""
