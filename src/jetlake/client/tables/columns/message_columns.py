"""Messages of a read buffer as Arrow columns, without an object for any of them.

Every field is found as a pair of positions in the buffer for all messages at once; Arrow's `take` then copies the bytes
of a field together, and Arrow's casts turn digits and times into numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jetlake.client.tables.columns.arrow_values import arrow_of, cut_bytes, numpy_of
from jetlake.client.tables.columns.delivery_lines import DeliveryLines, read_uniform_lines
from jetlake.client.tables.columns.frame_split import Split
from jetlake.errors import ProtocolError
from jetlake.protocol.headers import Headers

__all__ = [
    "NO_COLUMNS",
    "MessageColumns",
    "columns_of_deliveries",
    "columns_of_direct_gets",
    "gather",
    "in_order",
    "joined",
    "statuses_of",
]

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class MessageColumns:
    """Messages of one stream, column by column.

    Attributes:
        sequence: int64.
        time_ns: int64, nanoseconds since 1970.
        subject: binary, as on the wire.
        header: binary, the header block or nothing.
        payload: binary.
        pending: how many messages the server says are left after the last of these; -1 when it does not say.
    """

    sequence: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    subject: pa.Array
    header: pa.Array
    payload: pa.Array
    pending: int = -1

    def __len__(self) -> int:
        return len(self.sequence)

    def slice(self, first: int, end: int) -> MessageColumns:
        """Return the messages from number `first` up to but not including number `end`."""
        length = end - first
        return MessageColumns(
            self.sequence[first:end],
            self.time_ns[first:end],
            self.subject.slice(first, length),
            self.header.slice(first, length),
            self.payload.slice(first, length),
            self.pending,
        )

    def take(self, rows: NDArray[np.int64]) -> MessageColumns:
        """Return the messages of these numbers."""
        chosen = arrow_of(rows)
        return MessageColumns(
            self.sequence[rows],
            self.time_ns[rows],
            self.subject.take(chosen),
            self.header.take(chosen),
            self.payload.take(chosen),
        )


def joined(parts: list[MessageColumns]) -> MessageColumns:
    """Return the messages of all parts, one part behind the other."""
    return MessageColumns(
        np.concatenate([part.sequence for part in parts]),
        np.concatenate([part.time_ns for part in parts]),
        pa.concat_arrays([part.subject for part in parts]),
        pa.concat_arrays([part.header for part in parts]),
        pa.concat_arrays([part.payload for part in parts]),
    )


def in_order(parts: list[MessageColumns]) -> MessageColumns:
    """Return the messages of all parts, each sequence once, in the order of their sequences."""
    whole = joined(parts)
    return whole.take(np.unique(whole.sequence, return_index=True)[1])


def gather(buffer: Any, start: Positions, end: Positions) -> pa.Array:
    """Return the bytes between each start and end as a binary array; the pairs are in order and do not overlap."""
    count = len(start)
    edges = np.empty(2 * count + 1, np.int32)
    edges[0:-1:2] = start
    edges[1:-1:2] = end
    edges[-1] = edges[-2] if count else 0
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(edges), pa.py_buffer(buffer)])
    return pieces.take(arrow_of(np.arange(0, 2 * count, 2, dtype=np.int64)))


def _bytes_of(array: pa.Array) -> tuple[NDArray[np.uint8], Positions]:
    """Return the bytes of a binary array that begins at its buffer's beginning, and the edges of its elements."""
    _, edges, data = array.buffers()
    offsets = np.frombuffer(edges, np.int32, len(array) + 1).astype(np.int64)
    octets = np.frombuffer(data, np.uint8, int(offsets[-1])) if data is not None else np.empty(0, np.uint8)
    return octets, offsets


def _integers(buffer: Any, start: Positions, end: Positions) -> NDArray[np.int64]:
    try:
        numbers = gather(buffer, start, end).cast(pa.string()).cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise ProtocolError(f"the server's answer holds no number where one should be: {error}") from None
    return numpy_of(numbers)


def columns_of_deliveries(buffer: bytearray, split: Split, stream: str, consumer: str) -> tuple[MessageColumns, Split]:
    """Return the columns of what a consumer delivered, and the statuses among it as a split of their own.

    Sequence and time come from the reply subject, `$JS.ACK.….<stream>.<consumer>.<count>.<sequence>.<…>.<time>.<…>`.

    Raises:
        ProtocolError: a reply subject is not of that form.
    """
    uniform = read_uniform_lines(buffer, split, stream, consumer)
    if uniform is not None:
        return _columns_of_lines(buffer, split, uniform), _EMPTY
    lines = gather(buffer, split.subject, split.sizes)
    octets, edges = _bytes_of(lines)
    spaces = np.flatnonzero(octets == 32)
    statuses = _EMPTY
    if len(spaces) != 2 * len(split):
        spaces_of = np.diff(np.searchsorted(spaces, edges))
        statuses = _subset(split, spaces_of == 1)
        split = _subset(split, spaces_of == 2)
        if len(split) + len(statuses) != len(spaces_of):
            raise ProtocolError("the server sent a message line with neither two nor three arguments")
        if not len(split):
            return NO_COLUMNS, statuses
        lines = gather(buffer, split.subject, split.sizes)
        octets, edges = _bytes_of(lines)
        spaces = np.flatnonzero(octets == 32)
    line_bytes = lines.buffers()[2]
    pairs = spaces.reshape(-1, 2)
    after = _tokens_after_time(lines[0].as_py(), stream, consumer)
    dots = np.flatnonzero(octets == 46)
    last_dot = np.searchsorted(dots, edges[1:]) - after
    if (dots[last_dot - 3] < pairs[:, 1]).any():
        raise ProtocolError("the server sent a message whose reply subject is no acknowledgement subject")
    sequence = _integers(line_bytes, dots[last_dot - 3] + 1, dots[last_dot - 2])
    time_ns = _integers(line_bytes, dots[last_dot - 1] + 1, dots[last_dot])
    columns = MessageColumns(
        sequence=sequence,
        time_ns=time_ns,
        subject=gather(line_bytes, edges[:-1], pairs[:, 0]),
        header=_headers(buffer, split),
        payload=gather(buffer, split.payload, split.end),
        pending=int(bytes(octets[dots[last_dot[-1]] + 1 : edges[-1]]).split(b".")[0]),
    )
    return columns, statuses


def _columns_of_lines(buffer: bytearray, split: Split, lines: DeliveryLines) -> MessageColumns:
    return MessageColumns(
        sequence=lines.sequence,
        time_ns=lines.time_ns,
        subject=gather(buffer, split.subject, lines.subject_end),
        header=_headers(buffer, split),
        payload=gather(buffer, split.payload, split.end),
        pending=lines.pending,
    )


def _headers(buffer: bytearray, split: Split) -> pa.Array:
    """Return the header blocks; most streams have none, and then there is nothing to copy."""
    if (split.payload != split.header).any():
        return gather(buffer, split.header, split.payload)
    return cut_bytes(b"", np.zeros(len(split), np.int64))


def statuses_of(buffer: bytearray, split: Split) -> list[Headers]:
    """Return the header blocks of statuses, parsed."""
    return [Headers(bytes(buffer[start:end])) for start, end in zip(split.header, split.payload, strict=True)]


def _tokens_after_time(line: bytes, stream: str, consumer: str) -> int:
    """Return how many dots follow the time in the reply subjects: 1 today, more when a server appends tokens."""
    reply = line.split(b" ")[-1]
    name = f".{stream}.{consumer}.".encode()
    place = reply.find(name)
    after = reply[place + len(name) :].count(b".") - 3
    if not reply.startswith(b"$JS.ACK.") or place < 0 or after < 1:
        raise ProtocolError(
            f"the server sent a message with the reply subject {reply[:120]!r}, no acknowledgement subject"
        )
    return after


def columns_of_direct_gets(buffer: bytearray, split: Split) -> tuple[MessageColumns, Split]:
    """Return the columns of what direct gets answered, and the statuses among it as a split of their own.

    Raises:
        ProtocolError: an answer lacks the headers that say subject, sequence and time.
    """
    octets = np.frombuffer(buffer, np.uint8)
    # A status stands in the version line, behind `NATS/1.0`.
    has_header = split.payload - split.header >= 12
    if not has_header.all():
        raise ProtocolError("the server answered a direct get without headers")
    is_status = octets[split.header + 8] != 13
    statuses = _EMPTY
    if is_status.any():
        statuses = _subset(split, is_status)
        split = _subset(split, ~is_status)
        if not len(split):
            return NO_COLUMNS, statuses
    blocks = gather(buffer, split.header, split.payload)
    block_octets, edges = _bytes_of(blocks)
    block_bytes = blocks.buffers()[2]
    line_feeds = np.flatnonzero(block_octets == 10)
    last = np.searchsorted(line_feeds, edges[1:]) - 1
    first = np.searchsorted(line_feeds, edges[:-1])
    # A batch appends six lines, a single get four: stream, subject, sequence, time [, pending, last sequence].
    extra = _lines_after_time(blocks[0].as_py())
    ends = [line_feeds[np.maximum(last - extra - back, 0)] for back in range(5)]
    if (last - extra - 4 < first).any():
        raise ProtocolError("the server answered a direct get without its headers")
    time_end, sequence_end, subject_end, stream_end, own_end = ends
    subject = _value(block_octets, block_bytes, b"Nats-Subject: ", stream_end, subject_end)
    sequence = _value(block_octets, block_bytes, b"Nats-Sequence: ", subject_end, sequence_end)
    time = _value(block_octets, block_bytes, b"Nats-Time-Stamp: ", sequence_end, time_end)
    try:
        numbers = numpy_of(sequence.cast(pa.string()).cast(pa.int64()))
        times = numpy_of(time.cast(pa.string()).cast(pa.timestamp("ns", tz="UTC")).cast(pa.int64()))
    except pa.ArrowInvalid as error:
        raise ProtocolError(f"the server answered a direct get with a bad sequence or time: {error}") from None
    columns = MessageColumns(
        sequence=numbers,
        time_ns=times,
        subject=subject,
        header=_own_headers(block_bytes, edges, own_end, line_feeds[first] == own_end),
        payload=gather(buffer, split.payload, split.end),
    )
    return columns, statuses


def _lines_after_time(block: bytes) -> int:
    """Return how many lines, the empty one included, follow the one with the time."""
    lines = block.split(b"\r\n")
    for index in range(len(lines) - 1, 0, -1):
        if lines[index].startswith(b"Nats-Time-Stamp: "):
            return len(lines) - 2 - index
    raise ProtocolError("the server answered a direct get without a time")


def _value(octets: NDArray[np.uint8], data: Any, key: bytes, before: Positions, line_feed: Positions) -> pa.Array:
    """Return the values of the lines that begin behind `before` and end with `line_feed`; all have that key."""
    words = np.ndarray((len(octets) - 7,), np.dtype("<u8"), octets, strides=(1,))
    start = before + 1
    if (words[start] != int.from_bytes(key[:8], "little")).any():
        raise ProtocolError(f"the server answered a direct get without {key.decode()[:-2]} in its place")
    return gather(data, start + len(key), line_feed - 1)


def _own_headers(data: Any, edges: Positions, own_end: Positions, has_none: NDArray[np.bool_]) -> pa.Array:
    """Return the messages' own header blocks: without the lines of the direct get, empty where nothing is left."""
    start = edges[:-1]
    end = np.where(has_none, start, own_end + 1)
    own = gather(data, start, end)
    if has_none.all():
        return own
    sizes = np.where(has_none, 0, 2)
    closing, separator = cut_bytes(b"\r\n" * (int(sizes.sum()) // 2), sizes), cut_bytes(b"", np.zeros_like(sizes))
    # Imported where it is used: most processes that Spark starts never compute, and would wait for it.
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(own, closing, separator)


def _subset(split: Split, chosen: NDArray[np.bool_]) -> Split:
    return Split(
        split.subject[chosen],
        split.sizes[chosen],
        split.header[chosen],
        split.payload[chosen],
        split.end[chosen],
        [],
        0,
    )


_NO_POSITIONS = np.empty(0, np.int64)
_EMPTY = Split(_NO_POSITIONS, _NO_POSITIONS, _NO_POSITIONS, _NO_POSITIONS, _NO_POSITIONS, [], 0)
# Not `pa.nulls`, whose first call loads all that Arrow can compute.
_NO_BYTES = cut_bytes(b"", _NO_POSITIONS)
NO_COLUMNS = MessageColumns(_NO_POSITIONS, _NO_POSITIONS, _NO_BYTES, _NO_BYTES, _NO_BYTES)
