"""The bodies of API replies. Each class carries its `type`; refusals are made by `jetlake.model.api.encode_error`."""

from __future__ import annotations

from typing import Any, TypeVar

from jetlake.model.account import AccountInfo
from jetlake.model.consumer import ConsumerInfo
from jetlake.model.encoding.fields import Count, Nanoseconds, Sequence, Timestamp, Value, always
from jetlake.model.encoding.times import ZERO_TIME
from jetlake.model.stream import StreamConfig, StreamInfo, StreamState

__all__ = [
    "AccountInfoReply",
    "ConsumerCreateReply",
    "ConsumerDeleteReply",
    "ConsumerEvacuatePeerReply",
    "ConsumerInfoReply",
    "ConsumerLeaderStepdownReply",
    "ConsumerListReply",
    "ConsumerNamesReply",
    "ConsumerPauseReply",
    "ConsumerRemovePeerReply",
    "ConsumerResetReply",
    "ConsumerUnpinReply",
    "MessageDeleteReply",
    "MessageGetReply",
    "StoredMessage",
    "StreamCancelMoveReply",
    "StreamCreateReply",
    "StreamDeleteReply",
    "StreamEvacuatePeerReply",
    "StreamInfoReply",
    "StreamLeaderStepdownReply",
    "StreamListReply",
    "StreamNamesReply",
    "StreamPurgeReply",
    "StreamRemovePeerReply",
    "StreamRestoreReply",
    "StreamSnapshotReply",
    "StreamUpdateReply",
    "reply_of",
]

_API = "io.nats.jetstream.api.v1."

ReplyT = TypeVar("ReplyT", bound=Value)


def reply_of(kind: type[ReplyT], info: Value, **more: Any) -> ReplyT:
    """Return the reply with the fields of the info, and more: `reply_of(StreamCreateReply, info, did_create=True)`."""
    values: dict[str, Any] = {name: getattr(info, name) for name in type(info).__struct_fields__}
    return kind(**values, **more)


class AccountInfoReply(AccountInfo, frozen=True, tag_field="type", tag=_API + "account_info_response"):
    """`INFO`."""


# Streams


class StreamCreateReply(StreamInfo, frozen=True, tag_field="type", tag=_API + "stream_create_response"):
    """`STREAM.CREATE`."""

    did_create: bool = False
    """Always true; also when the same stream existed."""


class StreamUpdateReply(StreamInfo, frozen=True, tag_field="type", tag=_API + "stream_update_response"):
    """`STREAM.UPDATE`."""


class StreamInfoReply(StreamInfo, frozen=True, tag_field="type", tag=_API + "stream_info_response"):
    """`STREAM.INFO`; the numbers are of the list of subjects, if it was asked for."""

    total: Count = always(0)
    """Number of subjects that match."""
    offset: Count = always(0)
    """How many of them were skipped."""
    limit: Count = always(0)
    """How many a page holds."""


class StreamDeleteReply(Value, frozen=True, tag_field="type", tag=_API + "stream_delete_response"):
    """`STREAM.DELETE`."""

    success: bool = False
    """The stream is gone."""


class StreamPurgeReply(Value, frozen=True, tag_field="type", tag=_API + "stream_purge_response"):
    """`STREAM.PURGE`."""

    success: bool = False
    """The messages are gone."""
    purged: Count = always(0)
    """How many."""


class Page(Value, frozen=True):
    """What all pages of a list tell."""

    total: Count = always(0)
    """Number of items in the whole list."""
    offset: Count = always(0)
    """How many of them were skipped."""
    limit: Count = always(0)
    """How many a page holds."""


class StreamNamesReply(Page, frozen=True, tag_field="type", tag=_API + "stream_names_response"):
    """`STREAM.NAMES`."""

    streams: tuple[str, ...] | None = always(None)
    """Their names, sorted; the wire has null when there are none."""


class StreamListReply(Page, frozen=True, tag_field="type", tag=_API + "stream_list_response"):
    """`STREAM.LIST`."""

    streams: tuple[StreamInfo, ...] = always(())
    """Their infos, sorted by name."""
    missing: tuple[str, ...] = ()
    """Names of streams whose servers did not answer."""
    offline: dict[str, str] = {}
    """Streams that are offline, and why."""


class StoredMessage(Value, frozen=True):
    """A message as the stream holds it."""

    subject: str = always("")
    """Its subject."""
    seq: Sequence = always(0)
    """Its sequence."""
    hdrs: bytes = b""
    """Its header block, base64 on the wire."""
    data: bytes = b""
    """Its payload, base64 on the wire."""
    time: Timestamp = always(ZERO_TIME)
    """When it was stored."""


class MessageGetReply(Value, frozen=True, tag_field="type", tag=_API + "stream_msg_get_response"):
    """`STREAM.MSG.GET`."""

    message: StoredMessage
    """The message."""


class MessageDeleteReply(Value, frozen=True, tag_field="type", tag=_API + "stream_msg_delete_response"):
    """`STREAM.MSG.DELETE`."""

    success: bool = False
    """The message is gone."""


class StreamSnapshotReply(Value, frozen=True, tag_field="type", tag=_API + "stream_snapshot_response"):
    """`STREAM.SNAPSHOT`: what the chunks that follow contain."""

    config: StreamConfig
    """The stream's configuration."""
    state: StreamState = always(StreamState())
    """What it holds."""


class StreamRestoreReply(Value, frozen=True, tag_field="type", tag=_API + "stream_restore_response"):
    """`STREAM.RESTORE`."""

    deliver_subject: str = always("")
    """Where to send the chunks."""


class StreamLeaderStepdownReply(Value, frozen=True, tag_field="type", tag=_API + "stream_leader_stepdown_response"):
    """`STREAM.LEADER.STEPDOWN`; a single server refuses (10010)."""

    success: bool = False
    """The leader stepped down."""


class StreamRemovePeerReply(Value, frozen=True, tag_field="type", tag=_API + "stream_remove_peer_response"):
    """`STREAM.PEER.REMOVE`; a single server refuses (10010)."""

    success: bool = False
    """The peer is removed."""


class StreamEvacuatePeerReply(Value, frozen=True, tag_field="type", tag=_API + "stream_evacuate_peer_response"):
    """`STREAM.PEER.EVACUATE`; a single server refuses (10010)."""

    success: bool = False
    """The peer is evacuated."""


class StreamCancelMoveReply(Value, frozen=True, tag_field="type", tag=_API + "stream_cancel_move_response"):
    """`STREAM.CANCEL_MOVE`; a single server refuses (10010)."""

    success: bool = False
    """The move is cancelled."""


# Consumers


class ConsumerCreateReply(ConsumerInfo, frozen=True, tag_field="type", tag=_API + "consumer_create_response"):
    """`CONSUMER.CREATE` and `CONSUMER.DURABLE.CREATE`."""


class ConsumerInfoReply(ConsumerInfo, frozen=True, tag_field="type", tag=_API + "consumer_info_response"):
    """`CONSUMER.INFO`."""


class ConsumerDeleteReply(Value, frozen=True, tag_field="type", tag=_API + "consumer_delete_response"):
    """`CONSUMER.DELETE`."""

    success: bool = False
    """The consumer is gone."""


class ConsumerNamesReply(Page, frozen=True, tag_field="type", tag=_API + "consumer_names_response"):
    """`CONSUMER.NAMES`."""

    consumers: tuple[str, ...] = always(())
    """Their names, sorted."""


class ConsumerListReply(Page, frozen=True, tag_field="type", tag=_API + "consumer_list_response"):
    """`CONSUMER.LIST`."""

    consumers: tuple[ConsumerInfo, ...] = always(())
    """Their infos, sorted by name."""
    missing: tuple[str, ...] = ()
    """Names of consumers whose servers did not answer."""
    offline: dict[str, str] = {}
    """Consumers that are offline, and why."""


class ConsumerPauseReply(Value, frozen=True, tag_field="type", tag=_API + "consumer_pause_response"):
    """`CONSUMER.PAUSE`."""

    paused: bool = always(False)
    """Whether it is paused now."""
    pause_until: Timestamp = always(ZERO_TIME)
    """Until when; the zero time when it resumed."""
    pause_remaining: Nanoseconds = 0
    """For how much longer, nanoseconds."""


class ConsumerResetReply(ConsumerInfo, frozen=True, tag_field="type", tag=_API + "consumer_reset_response"):
    """`CONSUMER.RESET`."""

    reset_seq: Sequence = always(0)
    """The next sequence to deliver."""


class PendingMessage(Value, frozen=True):
    """A message that was delivered and not acknowledged."""

    sequence: Sequence = always(0)
    """Its sequence in the stream."""
    deliveries: Count = always(0)
    """How often it was delivered."""
    state: str = always("in_flight")
    """`in_flight`: a client has it; `delayed`: it was refused with a delay; `queued`: it waits for redelivery."""
    due: Timestamp = always(ZERO_TIME)
    """When it is delivered again without an acknowledgement."""


class ConsumerPendingReply(Value, frozen=True, tag_field="type", tag=_API + "consumer_pending_response"):
    """`CONSUMER.PENDING`, which only jetlake's own server answers."""

    total: Count = always(0)
    """How many there are."""
    messages: tuple[PendingMessage, ...] = always(())
    """The oldest of them."""


class ConsumerUnpinReply(Value, frozen=True, tag_field="type", tag=_API + "consumer_unpin_response"):
    """`CONSUMER.UNPIN`."""


class ConsumerLeaderStepdownReply(Value, frozen=True, tag_field="type", tag=_API + "consumer_leader_stepdown_response"):
    """`CONSUMER.LEADER.STEPDOWN`; a single server refuses (10010)."""

    success: bool = False
    """The leader stepped down."""


class ConsumerRemovePeerReply(Value, frozen=True, tag_field="type", tag=_API + "consumer_remove_peer_response"):
    """`CONSUMER.PEER.REMOVE`; a single server refuses (10010)."""

    success: bool = False
    """The peer is removed."""


class ConsumerEvacuatePeerReply(Value, frozen=True, tag_field="type", tag=_API + "consumer_evacuate_peer_response"):
    """`CONSUMER.PEER.EVACUATE`; a single server refuses (10010)."""

    success: bool = False
    """The peer is evacuated."""
