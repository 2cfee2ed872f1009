"""Spark's offset JSON: the positions of a streaming query's sources in its checkpoint, versioned, by stream.

An offset is either the option where a query starts (a name such as `earliest`, resolved when the first batch is
planned) or an entry for each stream, in two parts:

    {"v": 2, "streams": {"ORDERS": {"created": …, "next": 2001, "seen": …, "batch": {"from": 1001, "bytes": …}}}}
                                    `-- position: lasts ----------------'  `-- range of the batch that ends here --'

A stream without messages in a batch has no range in the batch's end. So a batch can be planned again from its end
alone, and a range that was read once is never part of a later batch. Spark compares offsets by their text: an unchanged
offset must be the same JSON. All old versions are read, and only the newest is written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from jetlake.client.tables.planning import BatchRange, StreamOffset
from jetlake.errors import OffsetError

OFFSET_VERSION = 2


@dataclass(frozen=True)
class Offset:
    """How far all streams of a source are read; `start` alone is the offset of a query without a batch."""

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


def read_offset(value: Any) -> Offset:
    """Return an offset from what Spark read out of its log.

    Raises:
        OffsetError: it is of a newer release, or not an offset of this source.
    """
    if not isinstance(value, dict) or "v" not in value:
        raise OffsetError(f"the checkpoint holds {str(value)[:200]!r}, which is not an offset of the jetstream source")
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
    if batch.expiring:
        value["expiring"] = [list(pair) for pair in batch.expiring]
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
        expiring=tuple((int(seconds), int(sequence)) for seconds, sequence in value.get("expiring", ())),
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
