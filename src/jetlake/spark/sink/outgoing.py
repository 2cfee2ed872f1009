"""Messages on their way to a stream, column by column: no object for any of them until one is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from jetlake.client.tables.arrow_values import arrow_of, binary_of

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

    def line_sizes(self) -> NDArray[np.int64]:
        """Return how many bytes each control line has behind its verb, without the line break."""
        has_header = np.frombuffer(self.data, np.uint8)[self.edges[:-1]] == ord("H")
        sizes: NDArray[np.int64] = np.diff(self.edges) - self.sizes - len(b"PUB \r\n\r\n") - has_header
        return sizes


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
        return cls(*(binary_of([message[field] for message in messages]) for field in range(4)))

    def __len__(self) -> int:
        return len(self.subject)

    def __getitem__(self, index: int) -> OutgoingMessage:
        columns = (self.subject, self.header, self.payload, self.message_id)
        return OutgoingMessage(*(column[index].as_py() for column in columns))

    def slice(self, first: int, length: int) -> OutgoingBatch:
        """Return at most `length` messages from number `first` on."""
        columns = (self.subject, self.header, self.payload, self.message_id)
        return OutgoingBatch(*(column.slice(first, length) for column in columns))

    def without(self, message_ids: frozenset[bytes]) -> OutgoingBatch:
        """Return the messages whose ids are not among these."""
        kept = pa.array([single not in message_ids for single in self.message_id.to_pylist()], pa.bool_())
        columns = (self.subject, self.header, self.payload, self.message_id)
        return OutgoingBatch(*(column.filter(kept) for column in columns))

    def chunks(self, rows_max: int) -> Iterator[OutgoingBatch]:
        """Yield the same messages in batches of at most that many."""
        for first in range(0, len(self), rows_max):
            yield self.slice(first, rows_max)

    def with_subjects(self, subjects: list[bytes]) -> OutgoingBatch:
        """Return the same messages to other subjects."""
        return replace(self, subject=binary_of(subjects))

    def sum_of_hashes(self, *, in_ids: bool) -> int:
        """Return the sum of a hash of each row's content, which is the same in any order and however rows are cut.

        Args:
            in_ids: whether message ids end with that hash; else they are part of the content.
        """
        if in_ids:
            return sum(int(single[-16:], 16) for single in self.message_id.to_pylist())
        rows = join(self.subject, b"\0", self.header, b"\0", self.payload).to_pylist()
        return sum(map(xxh3_64_intdigest, rows))

    def frames(self, inbox: bytes, first_row: int | None = None) -> Frames:
        """Return one frame for each message; the reply subject is the inbox, with the row behind it if there is one."""
        header_size, payload_size = _lengths(self.header), _lengths(self.payload)
        sizes = header_size + payload_size
        reply: list[pa.Array | bytes] = [b" " + inbox + b" "]
        if first_row is not None:
            reply = [b" " + inbox, texts(arrow_of(np.arange(first_row, first_row + len(self)))), b" "]
        verb: pa.Array | bytes = b"HPUB "
        size: list[pa.Array | bytes] = [_texts_or_text(header_size), b" ", _texts_or_text(sizes)]
        if not header_size.any():
            verb, size = b"PUB ", size[2:]
        elif not header_size.all():
            import pyarrow.compute as pc  # here, as in message_columns

            has_header, total = pa.array((header_size > 0).tolist()), texts(arrow_of(sizes))
            size = [pc.if_else(has_header, join(texts(arrow_of(header_size)), b" ", total), total)]
            verb = pc.if_else(has_header, b"HPUB ", b"PUB ")
        parts = (verb, self.subject, *reply, *size, b"\r\n", self.header, self.payload, b"\r\n")
        return Frames(*_bytes_of(join(*parts)), sizes)


def join(*parts: pa.Array | bytes) -> pa.Array:
    """Return the parts of each row, one behind the other; null where a part is null."""
    import pyarrow.compute as pc  # here, as in message_columns

    fewer: list[pa.Array | pa.Scalar] = []
    for is_same, group in groupby(parts, lambda part: isinstance(part, bytes)):
        run = list(group)
        fewer += [binary_of([b"".join(run)])[0]] if is_same else run
    return pc.binary_join_element_wise(*fewer, _NOTHING)


_NOTHING = binary_of([b""])[0]


def texts(numbers: pa.Array) -> pa.Array:
    """Numbers as their digits."""
    return numbers.cast(pa.string()).cast(pa.binary())


def _texts_or_text(numbers: NDArray[np.int64]) -> pa.Array | bytes:
    """Numbers as their digits; once, if all are the same."""
    return b"%d" % numbers[0] if numbers.min() == numbers.max() else texts(arrow_of(numbers))


def _lengths(column: pa.Array) -> NDArray[np.int64]:
    edges = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    return np.diff(edges).astype(np.int64)


def _bytes_of(joined: pa.Array) -> tuple[memoryview, NDArray[np.int32]]:
    """Return the bytes of a fresh binary array, and where its elements begin and the last one ends."""
    _, offsets, data = joined.buffers()
    edges = np.frombuffer(offsets, np.int32, len(joined) + 1)
    return memoryview(data)[: edges[-1]], edges
