"""The end of a snapshot: when a read has all that there was at its beginning, while others go on writing."""

from __future__ import annotations

from enum import Enum, auto

from jetlake.client.messages.message import Message

__all__ = ["Snapshot", "SnapshotProgress"]

_ENDS_MAX = 8


class SnapshotProgress(Enum):
    """What is known after a message of a snapshot."""

    READING = auto()
    """More is to come."""
    UNSURE = auto()
    """This may have been the last message: the stream's last sequence tells, see `Snapshot.set_end`."""
    COMPLETE = auto()
    """This was the last message."""


class Snapshot:
    """The messages that were there when a read began, as they come.

    The pending count of a delivery says when the read has caught up. nats-server counts too little while messages are
    replaced, down to 0 for the first of many; so a count of 0 is believed once as many messages came as there were.
    Otherwise, and where a fast writer keeps the count above 0, the read goes on up to a sequence that was the stream's
    last one. A message that is replaced before it is read comes behind that sequence, so while some are missing the end
    is moved a few times.

    Args:
        count: messages that there were.
        one_per_subject: whether they are the last ones of their subjects, so that a newer one of the same subject
            takes the place of one that is missing.
    """

    __slots__ = ("_count", "_end", "_ends", "_one_per_subject", "_seen")

    def __init__(self, count: int, *, one_per_subject: bool) -> None:
        self._count = count
        self._one_per_subject = one_per_subject
        self._seen: set[bytes | int] = set()
        self._end: int | None = None
        self._ends = 0

    def take(self, message: Message) -> SnapshotProgress:
        """Take note of the next message."""
        metadata = message.metadata
        self._seen.add(message.raw_subject if self._one_per_subject else metadata.stream_seq)
        has_all = len(self._seen) >= self._count
        if has_all and not metadata.pending:
            return SnapshotProgress.COMPLETE
        if self._end is None:
            is_near = has_all or not metadata.pending
            return SnapshotProgress.UNSURE if is_near else SnapshotProgress.READING
        if metadata.stream_seq < self._end:
            return SnapshotProgress.READING
        return SnapshotProgress.COMPLETE if has_all or self._ends >= _ENDS_MAX else SnapshotProgress.UNSURE

    def set_end(self, last_sequence: int, message: Message) -> SnapshotProgress:
        """Read up to what is the stream's last sequence now, after this message."""
        self._end = last_sequence
        self._ends += 1
        is_end = message.metadata.stream_seq >= last_sequence
        return SnapshotProgress.COMPLETE if is_end else SnapshotProgress.READING
