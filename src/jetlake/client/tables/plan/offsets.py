"""What a streaming query's checkpoint holds of its sources: sequences by stream, as versioned JSON.

An offset is either where a query is told to start (a name such as `earliest`, resolved when the first batch is
planned) or an entry for each stream, in two parts: the position, which lasts, and the range of the batch that ends
there, which belongs to that batch alone. A stream that has nothing in a batch has no range in the batch's end; so a
batch can be planned again from its end alone, and what was read once is never a part of a later batch.

The reasons are in decision 17 (docs/decisions).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from jetlake.errors import OffsetError

__all__ = ["OFFSET_VERSION", "BatchRange", "Offset", "StreamOffset", "initial_offset", "logged_offset", "read_offset"]

OFFSET_VERSION = 2


@dataclass(frozen=True)
class BatchRange:
    """What the batch that ends at an offset reads of one stream, up to the offset's `next`.

    Attributes:
        first: the first sequence; None only in offsets of version 1, where it is the `next` of the offset before.
        bytes: about how many bytes the range holds; planning cuts by it.
        messages: how many messages matched the filters when the batch was planned; None where nobody counted.
        soft: whether the range begins at the stream's beginning as it is when it is read (`earliest`): what goes away
            before it is read is no loss.
        taken: the sequences of the batch, as runs `(first, last)`; only where a durable consumer hands them out.
        partitions: most tasks that the batch is cut into, where the cluster decided that; so a batch that is repeated
            on another cluster has the same tasks. None where the options decide.
    """

    first: int | None
    bytes: int = 0
    messages: int | None = None
    soft: bool = False
    taken: tuple[tuple[int, int], ...] | None = None
    partitions: int | None = None


@dataclass(frozen=True)
class StreamOffset:
    """How far one stream is read.

    Attributes:
        created: when the stream was created, as the server wrote it; another time means another stream.
        next: the sequence that comes next (the end of a batch is exclusive).
        held: whether `next` was a message that the query wants, and that was there when the batch was planned.
        seen: the stream's last sequence when the batch was planned, and the server's time then; a message that is
            newer and has no higher sequence gives a stream away that was restored from an older state. None in
            offsets of version 1, and where the server does not tell its time.
        lost: messages so far that were removed before they were read (an upper bound under filters).
        owner: who holds the stream's durable consumer, for work queues and interest streams, and under which name
            tasks note what they find lost.
        batch: the range of the batch that ends here; None when it reads nothing of this stream.
        subjects: the filters by which a work queue or interest stream is read, for what they let through before `next`
            is released; none means all. None for other streams, and in offsets of earlier releases.
    """

    created: str
    next: int
    held: bool = False
    seen: tuple[int, str] | None = None
    lost: int = 0
    owner: str = ""
    batch: BatchRange | None = None
    subjects: tuple[str, ...] | None = None

    @property
    def position(self) -> StreamOffset:
        """The lasting part alone."""
        return replace(self, batch=None) if self.batch is not None else self

    @property
    def known_unread(self) -> int:
        """How many messages at most the stream is known to have had behind this offset."""
        return max(self.seen[0] + 1 - self.next, 0) if self.seen is not None else 0

    @property
    def given_up(self) -> StreamOffset:
        """The position behind all that the stream is known to have had, which is lost."""
        return replace(
            self.position, next=self.next + self.known_unread, lost=self.lost + self.known_unread, held=False
        )

    def range_after(self, before: StreamOffset | None) -> tuple[int, int]:
        """Return the first sequence, and the one behind the last, of the batch between `before` and this offset."""
        # Version 1 kept the whole entry of a stream that had nothing in a batch.
        if self.batch is None or self == before:
            return self.next, self.next
        if self.batch.first is not None:
            return self.batch.first, self.next
        return (before.next if before is not None else 1), self.next


@dataclass(frozen=True)
class Offset:
    """How far all streams of a source are read; `start` alone is the offset of a query that has not begun."""

    streams: tuple[tuple[str, StreamOffset], ...] = ()
    start: str = ""

    def of(self, stream: str) -> StreamOffset | None:
        """Return the offset of that stream, or None when it is not read yet."""
        return dict(self.streams).get(stream)

    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes into its log."""
        if not self.streams:
            return {"v": OFFSET_VERSION, "start": self.start}
        return {"v": OFFSET_VERSION, "streams": {name: _to_json(offset) for name, offset in self.streams}}


def initial_offset(start: str) -> Offset:
    """Return the offset of a query that has not begun, with the position it was told."""
    return Offset(start=start)


def read_offset(value: Any) -> Offset:
    """Return an offset from what Spark read out of its log.

    Raises:
        OffsetError: it is of a newer release, or not an offset of this source.
    """
    if not isinstance(value, dict) or "v" not in value:
        raise OffsetError(f"the checkpoint holds {str(value)[:200]!r}, which is no offset of the jetstream source")
    read = _READERS.get(str(value["v"]))
    if read is None:
        raise OffsetError(
            f"the checkpoint holds an offset of version {value['v']!r}, this release reads up to version "
            f"{OFFSET_VERSION}: run the query with the release that wrote it, or a newer one"
        )
    try:
        if "streams" not in value:
            return Offset(start=str(value["start"]))
        return Offset(tuple((name, read(entry)) for name, entry in value["streams"].items()))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OffsetError(f"the checkpoint holds a broken offset ({error!r}): {str(value)[:200]}") from None


def logged_offset(text: str) -> Offset:
    """Return the offset in a file of Spark's offset log, of a query with one source.

    Raises:
        OffsetError: there is none in it, or one that this release does not read.
    """
    try:
        # A version, Spark's own notes, then one line for each source.
        return read_offset(json.loads(text.splitlines()[2]))
    except (IndexError, ValueError) as error:
        raise OffsetError(f"the checkpoint's offset log is broken ({error})") from None


def _to_json(offset: StreamOffset) -> dict[str, Any]:
    value: dict[str, Any] = {"created": offset.created, "next": offset.next}
    if offset.held:
        value["held"] = True
    if offset.seen is not None:
        value["seen"] = list(offset.seen)
    if offset.lost:
        value["lost"] = offset.lost
    if offset.owner:
        value["owner"] = offset.owner
    if offset.subjects is not None:
        value["subjects"] = list(offset.subjects)
    if offset.batch is not None:
        value["batch"] = _batch_to_json(offset.batch)
    return value


def _batch_to_json(batch: BatchRange) -> dict[str, Any]:
    value: dict[str, Any] = {}
    if batch.first is not None:
        value["from"] = batch.first
    if batch.bytes:
        value["bytes"] = batch.bytes
    if batch.messages is not None:
        value["messages"] = batch.messages
    if batch.soft:
        value["soft"] = True
    if batch.taken is not None:
        value["taken"] = [list(run) for run in batch.taken]
    if batch.partitions is not None:
        value["partitions"] = batch.partitions
    return value


def _from_json(value: dict[str, Any]) -> StreamOffset:
    seen, subjects = value.get("seen"), value.get("subjects")
    return StreamOffset(
        created=str(value["created"]),
        next=int(value["next"]),
        held=bool(value.get("held", False)),
        seen=(int(seen[0]), str(seen[1])) if seen is not None else None,
        lost=int(value.get("lost", 0)),
        owner=str(value.get("owner", "")),
        batch=_batch_from_json(value["batch"]) if "batch" in value else None,
        subjects=tuple(map(str, subjects)) if subjects is not None else None,
    )


def _batch_from_json(value: dict[str, Any]) -> BatchRange:
    taken, messages, partitions = value.get("taken"), value.get("messages"), value.get("partitions")
    return BatchRange(
        first=int(value["from"]) if "from" in value else None,
        bytes=int(value.get("bytes", 0)),
        messages=int(messages) if messages is not None else None,
        soft=bool(value.get("soft", False)),
        taken=tuple((int(first), int(last)) for first, last in taken) if taken is not None else None,
        partitions=int(partitions) if partitions is not None else None,
    )


def _from_json_v1(value: dict[str, Any]) -> StreamOffset:
    """Version 1 held position and range in one."""
    return StreamOffset(
        created=str(value["created"]),
        next=int(value["next"]),
        lost=int(value.get("lost", 0)),
        owner=str(value.get("owner", "")),
        batch=_batch_from_json(value),
    )


# What an entry of each version means.
_READERS = {"1": _from_json_v1, str(OFFSET_VERSION): _from_json}
