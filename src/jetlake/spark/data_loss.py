"""Whether messages went away before they were read: pure rules over what the server says and what was read so far."""

from __future__ import annotations

from jetlake.errors import DataLossError, StreamRecreatedError
from jetlake.model.enums import RetentionPolicy
from jetlake.model.stream import StreamConfig, StreamInfo
from jetlake.spark.offsets import StreamOffset

__all__ = ["check_same_stream", "data_loss_error", "lost_below"]


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
    if offset.next > info.state.last_seq + 1:
        raise StreamRecreatedError(
            f"stream {name} ends at sequence {info.state.last_seq}, but the checkpoint has read up to "
            f"{offset.next - 1}: the stream was restored from an older state. Start with a new checkpoint, or set "
            "option failOnDataLoss=false to go on behind the stream's present end"
        )


def lost_below(config: StreamConfig, first_sequence: int, next_sequence: int, filtered: bool) -> int:
    """How many messages at most were removed before they were read, when `next_sequence` was to come next.

    A gap at the beginning is no loss where only others' messages can have left it: in a work queue or interest stream
    of which the query reads some subjects, and which removes nothing by itself.
    """
    gone = max(first_sequence - next_sequence, 0)
    if gone and filtered and config.retention is not RetentionPolicy.LIMITS and not _removes_by_itself(config):
        return 0
    return gone


def _removes_by_itself(config: StreamConfig) -> bool:
    limits = (config.max_age, config.max_msgs, config.max_bytes, config.max_msgs_per_subject)
    return any(limit > 0 for limit in limits)


def data_loss_error(stream: str, first: int, end: int) -> DataLossError:
    """The error for messages `first` up to but not including `end`."""
    return DataLossError(
        f"messages {first} to {end - 1} of stream {stream} are gone before they were read: they expired, or were "
        "purged, deleted or pushed out by a limit. Give the stream more room (max_age, max_bytes, max_msgs) or let the "
        "query keep up; to go on without them set option failOnDataLoss=false"
    )
