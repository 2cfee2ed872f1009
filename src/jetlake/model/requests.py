"""The bodies of API requests. Strictly read ones refuse fields that are not listed here."""

from __future__ import annotations

from typing import Any

import msgspec

from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.fields import Int64, Nanoseconds, Sequence, Timestamp, Value, always
from jetlake.model.enums import ConsumerAction
from jetlake.model.stream import StreamConfig, StreamState

__all__ = [
    "ConsumerCreateRequest",
    "ConsumerListRequest",
    "ConsumerPauseRequest",
    "ConsumerResetRequest",
    "ConsumerUnpinRequest",
    "DirectGetRequest",
    "MessageDeleteRequest",
    "MessageGetRequest",
    "PullRequest",
    "StreamCreateRequest",
    "StreamInfoRequest",
    "StreamListRequest",
    "StreamPurgeRequest",
    "StreamRestoreRequest",
    "StreamSnapshotRequest",
]


class StreamCreateRequest(StreamConfig, frozen=True):
    """`STREAM.CREATE` and `STREAM.UPDATE`: the whole configuration; omitted fields get their defaults."""

    pedantic: bool = False
    """Refuse what would otherwise be corrected in silence. Default: false."""

    @property
    def config(self) -> StreamConfig:
        """The configuration without what is of the request only."""
        return StreamConfig(**{name: getattr(self, name) for name in StreamConfig.__struct_fields__})

    @classmethod
    def from_config(cls, config: StreamConfig, *, pedantic: bool = False) -> StreamCreateRequest:
        """Return the request for that configuration."""
        values: dict[str, Any] = {name: getattr(config, name) for name in StreamConfig.__struct_fields__}
        return cls(**values, pedantic=pedantic)


class StreamListRequest(Value, frozen=True):
    """`STREAM.NAMES` and `STREAM.LIST`."""

    offset: Int64 = 0
    """How many to skip; pages hold 1024 names or 256 infos."""
    subject: str = ""
    """Only streams whose subjects have something in common with this one. Default: all."""


class StreamInfoRequest(Value, frozen=True):
    """`STREAM.INFO`."""

    offset: Int64 = 0
    """How many subjects to skip; a page holds 100000."""
    deleted_details: bool = False
    """List the deleted sequences."""
    subjects_filter: str = ""
    """List the messages by subject for subjects that match. Default: do not."""


class StreamPurgeRequest(Value, frozen=True):
    """`STREAM.PURGE`: everything, or what these say; `seq` and `keep` exclude each other."""

    seq: Sequence = 0
    """Only messages before this sequence."""
    keep: Sequence = 0
    """All but this many of the newest."""
    filter: str = ""
    """Only messages whose subject matches."""


class DirectGetRequest(Value, frozen=True):
    """`DIRECT.GET`: one message or a batch, as messages instead of JSON."""

    seq: Sequence = 0
    """Its sequence, or where to begin."""
    last_by_subj: str = ""
    """The newest of the subject."""
    next_by_subj: str = ""
    """The first that matches, from `seq` or `start_time` on."""
    batch: Int64 = 0
    """Most messages to send. Default 0: one."""
    max_bytes: Int64 = 0
    """Most bytes to send. Default 0: unlimited."""
    start_time: Timestamp | None = None
    """Where to begin."""
    multi_last: tuple[str, ...] = ()
    """The newest of every subject that matches one of these."""
    up_to_seq: Sequence = 0
    """With `multi_last`: as of this sequence."""
    up_to_time: Timestamp | None = None
    """With `multi_last`: as of this time."""
    no_hdr: bool = False
    """Leave the headers out."""


class MessageGetRequest(DirectGetRequest, frozen=True):
    """`STREAM.MSG.GET`: one message by exactly one way to find it, never a batch."""


class MessageDeleteRequest(Value, frozen=True):
    """`STREAM.MSG.DELETE`."""

    seq: Sequence = always(0)
    """The message's sequence."""
    no_erase: bool = False
    """Mark it as deleted without overwriting it."""


class StreamSnapshotRequest(Value, frozen=True):
    """`STREAM.SNAPSHOT`: a backup, sent in chunks."""

    deliver_subject: str = always("")
    """Where to send the chunks."""
    no_consumers: bool = False
    """Leave the consumers out."""
    chunk_size: Int64 = 0
    """Bytes of a chunk. Default 128 KiB."""
    window_size: Int64 = 0
    """Bytes that may be unanswered. Default 8 MiB."""
    jsck: bool = False
    """Check all messages first."""


class StreamRestoreRequest(Value, frozen=True):
    """`STREAM.RESTORE`: what a backup's answer said."""

    config: StreamConfig = always(StreamConfig(name=""))
    """The stream's configuration; without a name it gets the one in the subject."""
    state: StreamState = always(StreamState())
    """What it holds."""


class ConsumerCreateRequest(Value, frozen=True):
    """`CONSUMER.CREATE` and `CONSUMER.DURABLE.CREATE`."""

    stream_name: str = always("")
    """Name of the stream, as in the subject."""
    config: ConsumerConfig = always(ConsumerConfig())
    """The configuration."""
    action: ConsumerAction = ConsumerAction.CREATE_OR_UPDATE
    """What may be done. Default: whichever is needed."""
    pedantic: bool = False
    """Refuse what would otherwise be corrected in silence. Default: false."""


class ConsumerListRequest(Value, frozen=True):
    """`CONSUMER.NAMES` and `CONSUMER.LIST`."""

    offset: Int64 = 0
    """How many to skip; pages hold 1024 names or 256 infos."""


class ConsumerPauseRequest(Value, frozen=True):
    """`CONSUMER.PAUSE`; without a time, or with one that is past, the consumer resumes."""

    pause_until: Timestamp | None = None
    """Deliver nothing before this time."""


class ConsumerResetRequest(Value, frozen=True):
    """`CONSUMER.RESET`."""

    seq: Sequence = 0
    """The next sequence to deliver. Default 0: the one after the ack floor."""


class ConsumerUnpinRequest(Value, frozen=True):
    """`CONSUMER.UNPIN`."""

    group: str = always("")
    """Name of the priority group."""


class PullRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """`CONSUMER.MSG.NEXT`: asks for messages. The body may also be empty or a bare number, which is the batch."""

    batch: Int64 = 0
    """Most messages to send. Default 1."""
    expires: Nanoseconds = 0
    """How long the request waits, nanoseconds. Default 0: until it is filled or its inbox has no interest."""
    no_wait: bool = False
    """Send what there is and end; with `expires`, wait for the first message."""
    max_bytes: Int64 = 0
    """Most bytes to send. Default 0: unlimited."""
    idle_heartbeat: Nanoseconds = 0
    """Send a sign of life after this much silence, nanoseconds; at most half of `expires`. Default 0: none."""
    group: str = ""
    """Name of the priority group."""
    min_pending: Int64 = 0
    """Overflow: only when at least this many messages are yet to be delivered."""
    min_ack_pending: Int64 = 0
    """Overflow: only when at least this many messages wait for acknowledgement."""
    id: str = ""
    """Pinned client: the pin."""
    priority: Int64 = 0
    """Prioritized: 0 (first) to 9."""
