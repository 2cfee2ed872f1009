"""Whether messages went away before they were read, and whether a stream is still the one that was planned with.

The rules are pure over the state that the server reports and the offset so far; `check_not_restored` asks the server as
well. A stream keeps its identity (`created`) in a restore from a backup, but its sequences go back: then a message is
newer than the last look and has no higher sequence. Messages that leave the head of a stream are lost unless they need
not have concerned the reader: a newer message of their subject replaced them, or the reader's filters exclude them.
"""

from __future__ import annotations

from jetlake.client.tables.planning import StreamOffset
from jetlake.client.tables.stream_api import StreamApi
from jetlake.errors import ApiError, DataLossError, StreamRecreatedError
from jetlake.model.encoding.times import ZERO_TIME, parse_time
from jetlake.model.enums import DiscardPolicy
from jetlake.model.replies import StoredMessage
from jetlake.model.stream import StreamInfo

# The largest payload that nats-server can be configured for, and the bytes that a message takes beside its payload.
_MESSAGE_BYTES_MAX = 64 << 20
_OVERHEAD_BYTES = 1 << 10


def check_same_stream(info: StreamInfo, offset: StreamOffset) -> None:
    """Check that the offset belongs to this very stream.

    Raises:
        StreamRecreatedError: the stream was recreated, or its sequences went back.
    """
    name = info.config.name
    if offset.created != info.created:
        raise StreamRecreatedError(
            f"stream {name} was created at {info.created}, but the checkpoint is of the stream created at "
            f"{offset.created}: it was deleted and recreated, and its sequences refer to other messages. Use a new "
            "checkpoint, or set option failOnDataLoss=false to continue with the new stream from its beginning"
        )
    known = max(offset.next - 1, offset.seen[0] if offset.seen is not None else 0)
    if known > info.state.last_seq:
        raise restored_error(name, f"it ends at sequence {info.state.last_seq}, and the checkpoint knows {known}")


def restored_error(stream: str, evidence: str) -> StreamRecreatedError:
    """Return the error for a stream whose sequences went back."""
    return StreamRecreatedError(
        f"stream {stream} was restored from an older state: {evidence}. Start with a new checkpoint, or set option "
        "failOnDataLoss=false to continue with what was stored after the restore"
    )


def seen_of(info: StreamInfo, before: tuple[int, str] | None = None) -> tuple[int, str] | None:
    """Return the last sequence and the time of this look: later messages are newer and have higher sequences.

    A server whose clock was set back has messages newer than its time: the time of a look is never earlier than that of
    the newest message, or of the look before.

    Args:
        before: of the look before.
    """
    if info.ts == ZERO_TIME:
        return None
    times = [info.ts, info.state.last_ts, *([before[1]] if before is not None else [])]
    return info.state.last_seq, max(times, key=parse_time)


def supersedes(info: StreamInfo) -> bool:
    """Return whether newer messages of a subject replace older ones, as in a key-value bucket."""
    return info.config.max_msgs_per_subject > 0


def lost_at_head(info: StreamInfo, offset: StreamOffset, filtered: bool) -> int:
    """Return the most messages that were removed before they were read, when `offset.next` was the next to read.

    Where messages replace each other, or filters exclude some, removed messages count only if the stream's limits may
    have removed messages in their order, or if a wanted message was known to be there.
    """
    gone = max(info.state.first_seq - offset.next, 0)
    if not gone or not (filtered or supersedes(info)):
        return gone
    if supersedes(info):
        # The newest message of a stream is never superseded.
        certain = not filtered and info.state.messages == 0
    else:
        certain = offset.held
    return gone if certain or may_have_pushed_out(info, offset.next, offset.seen) else 0


def may_have_pushed_out(info: StreamInfo, sequence: int, seen: tuple[int, str] | None) -> bool:
    """Return whether the stream's limits can have removed messages from that sequence on, in their order.

    Args:
        seen: a sequence of the stream and a time; messages behind it are not older.
    """
    config, state = info.config, info.state
    if config.discard is not DiscardPolicy.NEW:
        # A message is removed only by as many newer ones as the stream holds.
        if 0 < config.max_msgs <= state.last_seq - sequence:
            return True
        if config.max_bytes > 0 and 2 * state.bytes >= config.max_bytes:
            return True
    if config.max_age <= 0:
        return False
    if seen is None or sequence <= seen[0] or info.ts == ZERO_TIME:
        return True
    return parse_time(info.ts) - parse_time(seen[1]) >= config.max_age


def limits_explain(
    info: StreamInfo, gone: int, seen: tuple[int, str] | None, expiring: tuple[tuple[int, int], ...]
) -> bool:
    """Return whether the stream's limits can have removed everything up to that message, in order.

    A full stream that still receives messages removes its first ones all the time, too fast for any reader. A purge
    leaves a stream that is not full, or removes messages that were too young to expire.

    Args:
        gone: the last message that is gone.
        seen: when the messages were there, as in `StreamOffset`.
        expiring: how far the age limit may get in which time after `seen`, as in `BatchRange`.
    """
    config, state = info.config, info.state
    if config.discard is not DiscardPolicy.NEW:
        if 0 < config.max_msgs <= state.last_seq - gone:
            return True
        # The limit removes as few as possible: what it leaves has no room for one more message.
        room = min(config.max_bytes // 2, config.max_msg_size if config.max_msg_size > 0 else _MESSAGE_BYTES_MAX)
        if config.max_bytes > 0 and state.bytes + room + _OVERHEAD_BYTES >= config.max_bytes:
            return True
    if config.max_age <= 0:
        return False
    if not expiring or seen is None or info.ts == ZERO_TIME:
        return True
    waited_ns = parse_time(info.ts) - parse_time(seen[1])
    kept = [sequence for seconds, sequence in expiring if waited_ns <= seconds * 1_000_000_000]
    return not kept or gone < min(kept)


def data_loss_error(stream: str, first: int, end: int) -> DataLossError:
    """Return the error for messages `first` up to but not including `end`."""
    return DataLossError(
        f"messages {first} to {end - 1} of stream {stream} are gone before they were read: they expired, or were "
        "purged, deleted or pushed out by a limit. Give the stream more room (max_age, max_bytes, max_msgs) or let the "
        "query keep up; to continue without them, set option failOnDataLoss=false (of a table: fail_on_data_loss=False)"
    )


# Leaders of a cluster have clocks of their own: a message may be that much older than the one before.
_CLOCKS_APART_NS = 2_000_000_000


def first_newer(api: StreamApi, stream: str, seen: tuple[int, str] | None) -> int | None:
    """Return the sequence of the first message that was stored after the last look; None when there is none."""
    message = _first_newer(api, stream, seen)
    return message.seq if message is not None else None


def _first_newer(api: StreamApi, stream: str, seen: tuple[int, str] | None) -> StoredMessage | None:
    """Return the first message that was stored after the last look; None when there is none.

    Servers before 2.11 know no request by time: None as well.
    """
    if seen is None:
        return None
    try:
        return api.message_at(stream, parse_time(seen[1]) + _CLOCKS_APART_NS)
    except ApiError:
        return None


def check_not_restored(api: StreamApi, stream: str, offset: StreamOffset) -> StreamInfo:
    """Check that the offset belongs to this very stream, and return the stream's current state.

    Raises:
        StreamRecreatedError: the stream was recreated, or restored from an older state.
    """
    newer = _first_newer(api, stream, offset.seen)
    info = api.stream_info(stream)
    check_same_stream(info, offset)
    if newer is None or offset.seen is None or newer.seq > offset.seen[0]:
        return info
    # A message from the future means that the clock was set back, not that the stream was restored.
    if info.ts == ZERO_TIME or parse_time(newer.time) <= parse_time(info.ts) + _CLOCKS_APART_NS:
        raise restored_error(stream, f"message {newer.seq} is newer than the state in which message {offset.seen[0]}")
    return info
