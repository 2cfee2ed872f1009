"""Whether messages went away before they were read: pure rules over what the server says and what was read so far."""

from __future__ import annotations

from jetlake.client.tables.plan.offsets import StreamOffset
from jetlake.errors import DataLossError, StreamRecreatedError
from jetlake.model.encoding.times import ZERO_TIME, parse_time
from jetlake.model.enums import DiscardPolicy
from jetlake.model.stream import StreamInfo

__all__ = [
    "check_same_stream",
    "data_loss_error",
    "lost_at_head",
    "may_have_pushed_out",
    "restored_error",
    "seen_of",
    "supersedes",
]


def check_same_stream(info: StreamInfo, offset: StreamOffset) -> None:
    """Make sure that the offset speaks of this very stream.

    Raises:
        StreamRecreatedError: it was created anew, or its sequences went back.
    """
    name = info.config.name
    if offset.created != info.created:
        raise StreamRecreatedError(
            f"stream {name} was created at {info.created}, but the checkpoint is of the one created at "
            f"{offset.created}: it was deleted and made again, and its sequences mean other messages. Start with a new "
            "checkpoint, or set option failOnDataLoss=false to go on with the new stream from its beginning"
        )
    known = max(offset.next - 1, offset.seen[0] if offset.seen is not None else 0)
    if known > info.state.last_seq:
        raise restored_error(name, f"it ends at sequence {info.state.last_seq}, and the checkpoint knows {known}")


def restored_error(stream: str, evidence: str) -> StreamRecreatedError:
    """Return the error for a stream whose sequences went back."""
    return StreamRecreatedError(
        f"stream {stream} was restored from an older state: {evidence}. Start with a new checkpoint, or set option "
        "failOnDataLoss=false to go on with what was stored after the restore"
    )


def seen_of(info: StreamInfo) -> tuple[int, str] | None:
    """Return the last sequence and when that was so, by the server's clock: what comes later is newer and behind it."""
    return (info.state.last_seq, info.ts) if info.ts != ZERO_TIME else None


def supersedes(info: StreamInfo) -> bool:
    """Return whether newer messages of a subject push out older ones, as in a key-value bucket."""
    return info.config.max_msgs_per_subject > 0


def lost_at_head(info: StreamInfo, offset: StreamOffset, filtered: bool) -> int:
    """Return how many messages at most were removed before they were read, when `offset.next` was to come next.

    What goes from the head of a stream is lost, unless it need not have concerned the reader: messages that others of
    their subject superseded, and messages that a filter does not want. Then it counts only if the stream's limits may
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
        # To push one out takes as many newer ones as there may be.
        if 0 < config.max_msgs <= state.last_seq - sequence:
            return True
        if config.max_bytes > 0 and 2 * state.bytes >= config.max_bytes:
            return True
    if config.max_age <= 0:
        return False
    if seen is None or sequence <= seen[0] or info.ts == ZERO_TIME:
        return True
    return parse_time(info.ts) - parse_time(seen[1]) >= config.max_age


def data_loss_error(stream: str, first: int, end: int) -> DataLossError:
    """Return the error for messages `first` up to but not including `end`."""
    return DataLossError(
        f"messages {first} to {end - 1} of stream {stream} are gone before they were read: they expired, or were "
        "purged, deleted or pushed out by a limit. Give the stream more room (max_age, max_bytes, max_msgs) or let the "
        "query keep up; to go on without them set option failOnDataLoss=false (of a table: fail_on_data_loss=False)"
    )
