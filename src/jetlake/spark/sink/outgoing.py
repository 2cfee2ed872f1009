"""Messages on their way to a stream, column by column: no object for any of them until one is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jetlake.client.tables.columns.message_columns import arrow_of, numpy_of

__all__ = ["Frames", "OutgoingBatch", "OutgoingMessage", "join", "texts"]


class OutgoingMessage(NamedTuple):
    """One row, ready to be published; an empty header block means none."""

    subject: bytes
    header: bytes
    payload: bytes
    message_id: bytes


class Frames(NamedTuple):
    """Protocol frames one behind the other.

    Attributes:
        data: the bytes.
        edges: where each frame begins, and where the last one ends.
        sizes: bytes of each message, with its headers.
    """

    data: memoryview
    edges: NDArray[np.int32]
    sizes: NDArray[np.int64]


@dataclass(frozen=True)
class OutgoingBatch:
    """Some rows of one task, ready to be published; four binary arrays of the same length, without nulls.

    Attributes:
        header: whole header blocks, empty where a message has none.
        message_id: what a header says as `Nats-Msg-Id`, empty where it says nothing.
    """

    subject: pa.Array
    header: pa.Array
    payload: pa.Array
    message_id: pa.Array

    @classmethod
    def of(cls, messages: Sequence[OutgoingMessage]) -> OutgoingBatch:
        """Return a batch of single messages."""
        return cls(*(pa.array([message[field] for message in messages], pa.binary()) for field in range(4)))

    def __len__(self) -> int:
        return len(self.subject)

    def __getitem__(self, index: int) -> OutgoingMessage:
        columns = (self.subject, self.header, self.payload, self.message_id)
        return OutgoingMessage(*(column[index].as_py() for column in columns))

    def slice(self, first: int, length: int) -> OutgoingBatch:
        """So many messages, or what is left of them, from number `first`."""
        columns = (self.subject, self.header, self.payload, self.message_id)
        return OutgoingBatch(*(column.slice(first, length) for column in columns))

    def without(self, message_ids: frozenset[bytes]) -> OutgoingBatch:
        """Return the messages whose ids are not among these."""
        kept = pa.array([single not in message_ids for single in self.message_id.to_pylist()], pa.bool_())
        columns = (self.subject, self.header, self.payload, self.message_id)
        return OutgoingBatch(*(column.filter(kept) for column in columns))

    def pieces(self, rows_max: int) -> Iterator[OutgoingBatch]:
        """Yield the same messages in batches of at most that many."""
        for first in range(0, len(self), rows_max):
            yield self.slice(first, rows_max)

    def with_subjects(self, subjects: list[bytes]) -> OutgoingBatch:
        """Return the same messages to other subjects."""
        return replace(self, subject=pa.array(subjects, pa.binary()))

    def content(self) -> memoryview:
        """Return what makes two batches the same, wherever they are cut."""
        return _bytes_of(join(self.subject, b"\0", self.header, b"\0", self.payload))[0]

    def frames(self, inbox: bytes, first_row: int | None = None) -> Frames:
        """Return one frame for each message; the reply subject is the inbox, with the row behind it if there is one."""
        import pyarrow.compute as pc  # here, as in message_columns

        header_size = _length(self.header)
        sizes = numpy_of(header_size) + numpy_of(_length(self.payload))
        total = texts(arrow_of(sizes))
        reply = [b" " + inbox + b" "]
        if first_row is not None:
            reply = [b" " + inbox, texts(arrow_of(np.arange(first_row, first_row + len(self)))), b" "]
        extremes = pc.min_max(header_size).as_py()
        verb: pa.Array | bytes = b"HPUB "
        size: list[pa.Array | bytes] = [texts(header_size), b" ", total]
        if not extremes["max"]:
            verb, size = b"PUB ", [total]
        elif extremes["min"] == extremes["max"]:
            size = [b"%d " % extremes["max"], total]
        elif not extremes["min"]:
            has_header = pc.greater(header_size, 0)
            verb, size = pc.if_else(has_header, b"HPUB ", b"PUB "), [pc.if_else(has_header, join(*size), total)]
        parts = (verb, self.subject, *reply, *size, b"\r\n", self.header, self.payload, b"\r\n")
        return Frames(*_bytes_of(join(*parts)), sizes)


def join(*parts: pa.Array | bytes) -> pa.Array:
    """Return the parts of each row, one behind the other; null where a part is null."""
    import pyarrow.compute as pc  # here, as in message_columns

    return pc.binary_join_element_wise(*parts, b"")


def texts(numbers: pa.Array) -> pa.Array:
    """Numbers as their digits."""
    return numbers.cast(pa.string()).cast(pa.binary())


def _length(column: pa.Array) -> pa.Array:
    import pyarrow.compute as pc  # here, as in message_columns

    return pc.binary_length(column).cast(pa.int64())


def _bytes_of(joined: pa.Array) -> tuple[memoryview, NDArray[np.int32]]:
    """Return the bytes of a fresh binary array, and where its elements begin and the last one ends."""
    _, offsets, data = joined.buffers()
    edges = np.frombuffer(offsets, np.int32, len(joined) + 1)
    return memoryview(data)[: edges[-1]], edges
