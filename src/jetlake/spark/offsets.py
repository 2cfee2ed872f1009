"""What a streaming query's checkpoint holds of its sources: sequences by stream, as versioned JSON.

An offset is either where a query is told to start (a name such as `earliest`, resolved when the first batch is
planned) or, for each stream, the sequence that comes next. The end of a batch also says where the batch began, when
that does not follow from the end before it; so a batch can be planned again from its two offsets alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from jetlake.errors import OffsetError

__all__ = ["OFFSET_VERSION", "Offset", "StreamOffset", "initial_offset", "read_offset"]

OFFSET_VERSION = 1


@dataclass(frozen=True)
class StreamOffset:
    """How far one stream is read.

    Attributes:
        created: when the stream was created, as the server wrote it; another time means another stream.
        next: the sequence that comes next (the end of a batch is exclusive).
        first: the first sequence of the batch that ends here, when it is not the `next` of the offset before: in a
            query's first batch, after a loss, and after a stream was created anew.
        bytes: about how many bytes the batch that ends here holds; planning cuts by it.
        lost: messages so far that were removed before they were read (an upper bound under filters).
        owner: who holds the stream's durable consumer, for work queues and interest streams.
        taken: the sequences of the batch that ends here, as runs `(first, last)`; only where a durable consumer hands
            them out.
    """

    created: str
    next: int
    first: int | None = None
    bytes: int = 0
    lost: int = 0
    owner: str = ""
    taken: tuple[tuple[int, int], ...] | None = None

    def start_of(self, before: StreamOffset | None) -> int:
        """The first sequence of the batch that ends here and began at `before`."""
        if self.first is not None:
            return self.first
        return before.next if before is not None else 1


@dataclass(frozen=True)
class Offset:
    """How far all streams of a source are read; `start` alone is the offset of a query that has not begun."""

    streams: tuple[tuple[str, StreamOffset], ...] = ()
    start: str = ""

    def of(self, stream: str) -> StreamOffset | None:
        """The offset of that stream, or None when it is not read yet."""
        return dict(self.streams).get(stream)

    def with_stream(self, name: str, offset: StreamOffset) -> Offset:
        """The same with that stream's offset changed or added."""
        streams = dict(self.streams)
        streams[name] = offset
        return replace(self, streams=tuple(streams.items()), start="")

    def to_json(self) -> dict[str, Any]:
        """What Spark writes into its log."""
        if not self.streams:
            return {"v": OFFSET_VERSION, "start": self.start}
        return {"v": OFFSET_VERSION, "streams": {name: _to_json(offset) for name, offset in self.streams}}


def initial_offset(start: str) -> Offset:
    """The offset of a query that has not begun, with the position it was told."""
    return Offset(start=start)


def read_offset(value: Any) -> Offset:
    """An offset from what Spark read out of its log.

    Raises:
        OffsetError: it is of a newer release, or not an offset of this source.
    """
    if not isinstance(value, dict) or "v" not in value:
        raise OffsetError(f"the checkpoint holds {str(value)[:200]!r}, which is no offset of the jetstream source")
    if value["v"] != OFFSET_VERSION:
        raise OffsetError(
            f"the checkpoint holds an offset of version {value['v']!r}, this release reads version {OFFSET_VERSION}: "
            "run the query with the release that wrote it, or a newer one"
        )
    try:
        if "streams" not in value:
            return Offset(start=str(value["start"]))
        return Offset(tuple((name, _from_json(entry)) for name, entry in value["streams"].items()))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OffsetError(f"the checkpoint holds a broken offset ({error!r}): {str(value)[:200]}") from None


def _to_json(offset: StreamOffset) -> dict[str, Any]:
    value: dict[str, Any] = {"created": offset.created, "next": offset.next}
    if offset.first is not None:
        value["from"] = offset.first
    if offset.bytes:
        value["bytes"] = offset.bytes
    if offset.lost:
        value["lost"] = offset.lost
    if offset.owner:
        value["owner"] = offset.owner
    if offset.taken is not None:
        value["taken"] = [list(run) for run in offset.taken]
    return value


def _from_json(value: dict[str, Any]) -> StreamOffset:
    taken = value.get("taken")
    return StreamOffset(
        created=str(value["created"]),
        next=int(value["next"]),
        first=int(value["from"]) if "from" in value else None,
        bytes=int(value.get("bytes", 0)),
        lost=int(value.get("lost", 0)),
        owner=str(value.get("owner", "")),
        taken=tuple((int(first), int(last)) for first, last in taken) if taken is not None else None,
    )
